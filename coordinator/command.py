"""What `coordinator run` does: prepare the folder, start what is needed, serve, leave the results."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator import launch, mixtures, records
from coordinator.alone import make_sure_of_being_alone
from coordinator.checkpoint import Checkpoint
from coordinator.inprocess import IN_PROCESS
from coordinator.rounds import Rules
from coordinator.run import Effect, Run
from coordinator.scenario_file import dump, listed_participants, load
from coordinator.service import Service, last_will
from coordinator.signals import StopSignals
from coordinator.truth import mixtures_of, partition_digest, truth_of
from shared.audit import read_key
from shared.broker_url import SYSTEM_TLS, BrokerUrl, Tls
from shared.consent import NO_CODE, AllowedCode
from shared.errors import UserError
from shared.files import held, private_folder, write_atomically
from shared.mqtt_link import MqttLink
from shared.scenario import Scenario, SuperclassMixture, newcomers, starting_agents
from shared.topics import Topics

DEFAULT_BROKER = "mqtt://127.0.0.1:1883"
Watch = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Options:
    """What the command line says besides the scenario."""

    folder: Path
    resume: bool = False
    broker: str | None = None
    embedded: bool = False
    data_root: Path | None = None
    tls: Tls = SYSTEM_TLS
    metrics: tuple[str, int] | None = None  # host and port for Prometheus
    audit_key: Path | None = None  # file with the key of the audit log
    allowed: AllowedCode = NO_CODE  # never kept in the run's folder: --resume asks the command line again


def rules_of(scenario: Scenario) -> Rules:
    """The engine's rules, with agents' names in place of indices."""
    rounds, fleet = scenario.rounds, scenario.fleet
    start = rounds.start_agents or (len(starting_agents(scenario)) if fleet is not None else 1)
    return Rules(
        seed=scenario.seed,
        rounds=rounds.count,
        participation=rounds.participation,
        agents=rounds.agents,
        over_select=rounds.over_select,
        refill=rounds.refill,
        quorum=rounds.quorum,
        deadline_s=rounds.deadline_s,
        grace_s=rounds.grace_s,
        patience_s=rounds.deadline_s / 2 if rounds.grace_s is None else None,
        start_agents=max(start, 1),
        start_wait_s=None if fleet is None else rounds.start_wait_s,
        rollcall_s=rounds.rollcall_s,
        absence_s=rounds.absence_s,
        void_limit=rounds.void_limit,
        participants=listed_participants(scenario),
        newcomers=newcomers(scenario),
        quarantine_after=scenario.aggregation.quarantine_after,
    )


@contextmanager
def prepared(scenario: Scenario, options: Options, *, in_process: bool = False) -> Iterator[bool]:
    """`prepare`, with the folder held for as long as the block lasts."""
    with ExitStack() as stack:
        if not options.resume or options.folder.is_dir():
            stack.enter_context(alone_in(options.folder))
        yield prepare(scenario, options, in_process=in_process)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder, made where it is not there, against other coordinators: UserError where one is at work in it."""
    private_folder(folder)
    with held(
        folder, f"{folder}: another coordinator is at work in it; wait for it or stop it, or choose another --out"
    ):
        yield


def prepare(scenario: Scenario, options: Options, *, in_process: bool = False) -> bool:
    """Make the run's folder, or check that it can be resumed: True where it has a checkpoint to go on from.

    A run that was stopped before its first checkpoint begins anew. No run is ever overwritten.
    """
    folder, text = options.folder, dump(scenario).encode()
    checkpoint, begun = Checkpoint(folder / "checkpoint"), folder / "scenario.yaml"
    if options.resume and (checkpoint.exists() or not begun.exists()):
        saved = checkpoint.facts()
        _must_be(saved["scenario"], scenario, folder)
        if (saved["run"]["run"] == IN_PROCESS) != in_process:  # agents remember elsewhere, and in another form
            began, way = ("over a broker", "without") if in_process else ("without a broker", "with")
            raise UserError(f"{folder}: this run began {began}; go on {way} --in-process, or choose another --out")
        return True
    if options.resume:
        _must_be(records.scenario_digest(load(begun)), scenario, folder)
    elif folder.exists() and any(folder.iterdir()) and not _never_began(folder):
        is_run = checkpoint.exists() or (folder / "result.json").exists()
        what = "a run folder is already there" if is_run else "there are files in it that are no run's"
        can = "go on with --resume" if checkpoint.exists() else "remove it yourself" if is_run else ""
        raise UserError(f"{folder}: {what}; choose another with --out{can and f', or {can}'}")
    private_folder(folder)
    (folder / launch.START).unlink(missing_ok=True)  # perhaps only a part of it was written
    write_atomically(begun, text)
    return False


def _never_began(folder: Path) -> bool:
    """Is what is there an attempt that ended before its first checkpoint? Its scenario is as we write it, not a user's."""
    file = folder / "scenario.yaml"
    if Checkpoint(folder / "checkpoint").exists() or (folder / "result.json").exists() or not file.is_file():
        return False
    try:
        return dump(load(file)) == file.read_text()
    except (UserError, ValueError):
        return False


def _must_be(digest: str, scenario: Scenario, folder: Path) -> None:
    if digest != records.scenario_digest(scenario):
        raise UserError(
            f"{folder}: what is there belongs to another scenario (compare {folder / 'scenario.yaml'} with yours); "
            "nothing was changed. Resume with the same file and --set options, or choose another --out"
        )


async def run(scenario: Scenario, options: Options, watch: Watch) -> dict[str, Any] | None:
    """Run to the end and return the result; None where the operator stopped it. UserError where it was given up."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - this is a coroutine
    with StopSignals(task.cancel) as signals:
        try:
            return await _run(scenario, options, watch, signals)
        except asyncio.CancelledError:
            return None


async def _run(scenario: Scenario, options: Options, watch: Watch, signals: StopSignals) -> dict[str, Any] | None:
    options.allowed.check_scenario(scenario)
    folder, url = options.folder, address(scenario, options)
    key = read_key(options.audit_key) if options.audit_key is not None else None
    if url is not None:
        await make_sure_of_being_alone(url, scenario.federation)
    async with AsyncExitStack() as stack:
        resume = stack.enter_context(prepared(scenario, options))
        if url is None:
            started = await stack.enter_async_context(launch.broker(folder, scenario, embedded=options.embedded))
            watch({"event": "broker", "broker": started.name, "url": str(started.url), "note": started.note})
            url, fleet_url = started.url, started.fleet_url
        else:
            fleet_url = url
            watch({"event": "broker", "broker": "yours", "url": str(url), "note": ""})
        fleet = None
        if scenario.fleet is not None:  # it gets ready while the model is built
            start = launch.fleet(folder, fleet_url, options.data_root, options.allowed)
            fleet = await stack.enter_async_context(start)
        watch({"event": "model", "model": scenario.task.model.name})
        setup, rules = await launch.initial(folder, scenario, options.allowed), rules_of(scenario)
        now, first = asyncio.get_running_loop().time(), list[Effect]()
        if resume:
            this, first = await asyncio.to_thread(Run.resume, folder, scenario, setup, rules, now, key)
        else:
            name = uuid.uuid4().hex[:12]
            this = await asyncio.to_thread(Run.start, folder, scenario, setup, rules, name, now, key)
        topics = Topics(scenario.federation)
        link = await stack.enter_async_context(
            MqttLink(
                url, client_id=f"covey-{scenario.federation}-coordinator-{uuid.uuid4().hex[:8]}", will=last_will(topics)
            )
        )
        service = Service(this, link, watch=watch)
        if options.metrics is not None:
            from coordinator.scrape import serving

            stack.enter_context(serving(options.metrics, service))
        cancel, signals.stop = signals.stop, service.stop
        over = await _serve(service, first, fleet, folder)
        signals.stop = cancel
    if over is None:
        return None
    if over:
        raise UserError(f"the run was given up after round {this.engine.round}: {over}")
    return await finish(this, options.data_root, options.allowed)


def address(scenario: Scenario, options: Options) -> BrokerUrl | None:
    """The broker that the user names; None where the run is to have one of its own. UserError before anything starts."""
    text = options.broker or scenario.broker or (None if scenario.fleet is not None else DEFAULT_BROKER)
    if options.embedded or text is None:
        return None
    url = BrokerUrl.parse(text, options.tls)
    url.tls_context()
    return url


async def _serve(
    service: Service, first: list[Effect], fleet: asyncio.subprocess.Process | None, folder: Path
) -> str | None:
    """Serve, for as long as the simulated fleet lives where there is one."""
    if fleet is None:
        return await service.serve(first)
    serving = asyncio.ensure_future(service.serve(first))
    died = asyncio.ensure_future(fleet.wait())
    await asyncio.wait({serving, died}, return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        service.stop()
        await serving
        raise UserError(f"the simulated fleet ended by itself:\n{launch.tail(folder / 'fleet.log')}")
    died.cancel()
    return serving.result()


async def finish(this: Run, data_root: Path | None, allowed: AllowedCode = NO_CODE) -> dict[str, Any]:
    """Leave models, records and the result of a run that is over in its folder; returns the result. UserError."""
    scenario, folder = this.scenario, this.folder
    records.write_models(this)
    tested: list[list[float]] = []
    if _has_superclasses(scenario) and this.strategy.clusters(this.state):
        tested = await launch.superclass_accuracies(folder, data_root, this.facts.scaling, allowed)
    memberships = this.strategy.memberships(this.state)
    mixed = mixtures.figures(memberships, mixtures_of(scenario, folder), tested)
    return records.write_all(this, truth_of(scenario, folder), {**mixed, "partition": partition_digest(folder)})


def _has_superclasses(scenario: Scenario) -> bool:
    return scenario.fleet is not None and isinstance(scenario.fleet.partition, SuperclassMixture)
