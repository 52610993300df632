"""Metrics of a run for Prometheus: `coordinator run --metrics [HOST:]PORT`, at /metrics.

Read from the service at every scrape, by the server's thread: copies of small dictionaries and numbers, nothing is locked.
"""

from __future__ import annotations

import re
import shutil
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from covey.coordinator.serve.service import Service
from covey.coordinator.view.lines import averages, macro, phase_line
from covey.shared.errors import UserError
from covey.shared.numerics.measures import SHOWN_OF_REGRESSION
from covey.shared.programs.bounded_http import Bounded

Kind = type[GaugeMetricFamily] | type[CounterMetricFamily]
GAUGE: Kind = GaugeMetricFamily
COUNTER: Kind = CounterMetricFamily


class PrometheusCollector(Collector):
    """A service's state as metrics; names begin with `covey_`. Each has the labels `federation` and `run`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        service, run = self._service, self._service.run
        about = {
            "name": service.scenario.name,
            "method": service.scenario.strategy.name,
            "state": service.state,
        }
        yield self._metric("covey_run", "1; what runs and what it is doing", [(about, 1)])
        yield self._one("covey_rounds_done", "rounds folded", run.engine.round)
        yield self._one("covey_rounds", "rounds of the run", service.scenario.rounds.count)
        yield self._one(
            "covey_void_attempts", "attempts in a row at the present phase", run.engine.attempt
        )
        step = run.engine.step
        of_step = {}
        if step is not None:
            of_step = {
                "invited": len(step.cohort),
                "reported": len(step.reported),
                "failed": len(step.failed),
            }
        yield self._by("covey_step_agents", "agents of the open step", "what", of_step)
        entries = list(service.roster.entries.values())
        agents = {
            "online": sum(entry.status.online for entry in entries),
            "takes_part": sum(entry.here for entry in entries),
            "stays_out": sum(entry.status.problem is not None for entry in entries),
            "in_quarantine": len(run.members.barred),
            "known": len(run.engine.known),
        }
        yield self._by("covey_agents", "agents", "what", agents)
        phase = service.last_phase
        newest = phase_line(phase.to_json()) if phase is not None else None
        sizes = newest.sizes if newest is not None else {}
        yield self._by("covey_cluster_agents", "agents by group", "cluster", sizes)
        if newest is not None and newest.loss is not None:
            yield self._one(
                "covey_train_loss", "mean training loss of the newest round", newest.loss
            )
        evaluation = averages(service.last_evaluation)
        for measure in ("accuracy", *SHOWN_OF_REGRESSION):
            if figures := macro(evaluation, measure):
                text = "mean over agents, at the newest evaluation"
                yield self._by(f"covey_{measure}", text, "mode", figures)
        if service.shards_up:
            up = {shard: float(up) for shard, up in service.shards_up.items()}
            yield self._by("covey_shard_up", "1 if one of several brokers is up", "shard", up)
        if service.certificates:
            text = "when the certificate of a broker expires, as Unix time"
            yield self._by("covey_certificate_expires_seconds", text, "shard", service.certificates)
        with suppress(OSError):  # the folder was moved away, or its disk is gone
            free = shutil.disk_usage(run.folder).free
            yield self._one("covey_disk_free_bytes", "free on the disk of the run's folder", free)
        odd = [
            ({"device": one.who, "kind": one.kind, "urgent": str(one.facts.is_urgent).lower()}, 1)
            for one in service.odd
        ]
        yield self._metric("covey_odd", "1 for each thing that `coordinator doctor` lists", odd)
        refused = dict(service.roster.refusals)
        yield self._by(
            "covey_refused_messages", "messages that were dropped", "reason", refused, COUNTER
        )
        wire = {way: run.traffic[f"wire_{way}"] for way in ("down", "up")}
        yield self._by("covey_wire_bytes", "MQTT packets of this run", "direction", wire, COUNTER)

    def _one(self, name: str, text: str, value: float) -> Metric:
        return self._metric(name, text, [({}, value)])

    def _by(
        self, name: str, text: str, label: str, values: Mapping[Any, float], kind: Kind = GAUGE
    ) -> Metric:
        """A metric with a sample for each value of a label."""
        return self._metric(
            name, text, [({label: str(key)}, one) for key, one in values.items()], kind
        )

    def _metric(
        self,
        name: str,
        text: str,
        samples: Sequence[tuple[Mapping[str, str], float]],
        kind: Kind = GAUGE,
    ) -> Metric:
        of_run = {"federation": self._service.scenario.federation, "run": self._service.run.id}
        labels = [*of_run, *(samples[0][0] if samples else ())]
        metric = kind(name, text, labels=labels)
        for own, value in samples:
            metric.add_metric([*of_run.values(), *own.values()], value)
        return metric


def address(text: str) -> tuple[str, int]:
    """Host and port of `[HOST:]PORT`; this machine alone where no host is named."""
    match = re.fullmatch(r"(?:\[?([^\[\]]+)\]?:)?(\d+)", text)
    if match is None or not 0 < int(match[2]) < 65536:
        raise UserError(f"--metrics {text}: expected [HOST:]PORT, for example 9464 or 0.0.0.0:9464")
    return match[1] or "127.0.0.1", int(match[2])


class _Server(Bounded, WSGIServer):
    """Anyone who reaches the port may connect, so it takes 8 descriptors of the coordinator at most."""

    max_connections = 8
    request_s = 5.0

    def __init__(self, where: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        infos = socket.getaddrinfo(*where, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = infos[0][0]
        super().__init__(where, handler)


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged: the terminal belongs to the operator."""


@contextmanager
def serving(where: tuple[str, int], service: Service) -> Iterator[None]:
    """Answer scrapes for as long as the block lasts. UserError where the port is taken."""
    registry, (host, port) = CollectorRegistry(), where
    registry.register(PrometheusCollector(service))
    try:
        server = _Server((host, port), _Handler)
    except OSError as error:
        raise UserError(
            f"--metrics {host}:{port}: {error.strerror or error}; choose another port"
        ) from None
    server.set_app(make_wsgi_app(registry))
    thread = threading.Thread(target=server.serve_forever, name="metrics server", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
