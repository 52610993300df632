"""Runs over clusters of brokers of which a node dies: how long each stands, and whether its models have the bytes of the calm run.

    python -m benchmarks.broker_clusters [--clusters nats "rabbitmq, one node"] [--modules FOLDER] [--table]

Twenty light agents (benchmarks.light_fleet), each of which works for a second, and a coordinator train over nodes that are
processes of this machine. Each agent prefers a node and goes to the next one when it cannot be reached; the coordinator
prefers the first. In the fourth round a node is killed, the coordinator's or another one, for 20 s or for good. The stand
is the longest time between two folds from then on, less the median round of the calm run.

--modules is a folder in which `npm install aedes aedes-persistence-redis mqemitter-redis` has run. A cluster whose programs
are not installed is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.light_fleet import LightPool, agent_name, live
from benchmarks.measuring import Found, record_options, resumed
from covey.agent.device.notices import DeviceNotice, Problem
from covey.shared.mqtt.shards import shard_of
from covey.shared.wire.jobs import Perform
from tests import broker_nodes
from tests.broker_nodes import Node
from tests.chaos.check import model_digests
from tests.processes import program, rows

AGENTS = 20
KILL_AFTER = 3  # folded rounds
WORK_S = 1.0  # of an agent for an order
AWAY_S = 20.0  # of a node that comes back, before it is started
READY_S = 3.0  # for nodes to find each other, and for agents to connect
STANDS_S = 150.0  # without a fold: the run stands for good
OUT = Path("benchmarks/results/broker_clusters.json")
MAX_SAID = 8  # notices that are kept of a run

AN_AGENTS, COORDINATORS = "an agents'", "the coordinator's"  # node

Nodes = AbstractContextManager[list[Node]]


@dataclass(frozen=True)
class Cluster:
    """Some nodes, and how a federation uses them.

    Args:
        name: in the table.
        nodes: starts them below a folder.
        shards: they are independent, and each agent has a shard.
        alone: agents and coordinator know the first node alone.
        query: of every address.
        delivery: the scenario's `wire.delivery`.
        faults: whose node is killed, and whether it comes back.
        rounds: enough that a run which does not stand still trains when the node is back.
    """

    name: str
    nodes: Callable[[Path], Nodes]
    shards: bool = False
    alone: bool = False
    query: str = ""
    delivery: str = "participants"
    faults: tuple[tuple[str, bool], ...] = (
        (AN_AGENTS, True),
        (AN_AGENTS, False),
        (COORDINATORS, True),
        (COORDINATORS, False),
    )
    rounds: int = 26

    def homes(self, count: int) -> list[int]:
        """The node that each agent prefers."""
        if self.shards:
            return [shard_of(agent_name(number), count) for number in range(AGENTS)]
        return [number % count for number in range(AGENTS)]


@dataclass(frozen=True)
class Cell:
    """One run: over which nodes, and what happens to one of them."""

    cluster: Cluster
    whose: str = ""  # node is killed: an agents' or the coordinator's
    returns: bool = False

    @property
    def fault(self) -> str:
        """In the table."""
        if not self.whose:
            return "none"
        return f"{self.whose} node, {f'for {AWAY_S:g} s' if self.returns else 'for good'}"

    @property
    def key(self) -> str:
        return f"{self.cluster.name}: {self.fault}"


def clusters(modules: Path) -> list[Cluster]:
    """All clusters; `modules` has the packages of aedes."""

    def nats(folder: Path) -> Nodes:
        return broker_nodes.nats(folder, 3)

    def rabbitmq(folder: Path) -> Nodes:
        return broker_nodes.rabbitmq(folder, 3)

    return [
        Cluster("nats", nats, query="?profile=nats", rounds=8),
        Cluster("nats, delivery all", nats, query="?profile=nats", delivery="all"),
        Cluster("aedes", lambda folder: broker_nodes.aedes(folder, 2, modules)),
        Cluster("bridged", lambda folder: broker_nodes.mosquitto(folder, 2, bridged=True)),
        Cluster("shards", lambda folder: broker_nodes.mosquitto(folder, 2), shards=True),
        Cluster(
            "rabbitmq, one node", rabbitmq, alone=True, faults=((COORDINATORS, True),), rounds=8
        ),
        Cluster("rabbitmq", rabbitmq, faults=()),
    ]


def cells_of(cluster: Cluster) -> list[Cell]:
    """The calm run, and one for each fault."""
    return [Cell(cluster), *[Cell(cluster, whose, returns) for whose, returns in cluster.faults]]


# -- the agents --------------------------------------------------------------------------------------------------------


class WorkingPool(LightPool):
    """Its work takes a while."""

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        if isinstance(job, Perform):
            await asyncio.sleep(WORK_S)
        return await super().call(job, weight=weight)


def show(notice: DeviceNotice) -> None:
    if isinstance(notice, Problem):
        print(json.dumps(notice.to_json()), flush=True)


async def host(urls: Sequence[str], homes: Sequence[int], folder: Path) -> None:
    """Let the agents live until this process is ended."""
    async with asyncio.TaskGroup() as group:
        for number, home in enumerate(homes):
            own = [*urls[home:], *urls[:home]]
            group.create_task(live(number, own, folder, WorkingPool(), show))


# -- a run -------------------------------------------------------------------------------------------------------------


def scenario(cluster: Cluster) -> dict[str, Any]:
    """Every agent reports in every round, so that the bytes do not depend on who was away."""
    return {
        "name": "clusters",
        "task": {"features": [64], "classes": 10, "model": {"name": "linear"}},
        "strategy": {"name": "fedavg"},
        "rounds": {
            "count": cluster.rounds,
            "quorum": AGENTS,
            "start_agents": AGENTS,
            "deadline_s": 3600,
            "timing": {"void_limit": 1000},
        },
        "evaluation": {"every": cluster.rounds},
        "wire": {"delivery": cluster.delivery},
    }


class Stands(Exception):  # noqa: N818 - what a run does, not an error of this program
    """Nothing was folded for too long."""


class Watch:
    """The folds of a run, seen from outside: at which time (s) each of them was written down."""

    def __init__(self, run: Path, is_alive: Callable[[], bool]) -> None:
        self._run = run
        self._is_alive = is_alive
        self._began = time.monotonic()
        self.folds: list[float] = []

    @property
    def is_over(self) -> bool:
        return (self._run / "result.json").exists() or not self._is_alive()

    def until(self, holds: Callable[[], bool]) -> None:
        """Watch until something holds, or the run is over. Raises Stands."""
        while not holds() and not self.is_over:
            found = sum(bool(row.get("ends_round")) for row in rows(self._run))
            now = time.monotonic()
            self.folds += [now] * (found - len(self.folds))
            if now - max([self._began, *self.folds]) > STANDS_S:
                raise Stands
            time.sleep(0.05)


def measured(cell: Cell) -> dict[str, Any]:
    """Run a cell. Returns what is kept of it."""
    cluster = cell.cluster
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        nodes = stack.enter_context(cluster.nodes(folder))
        time.sleep(READY_S)
        urls = [node.url + cluster.query for node in nodes[: 1 if cluster.alone else None]]
        homes = json.dumps(cluster.homes(len(urls)))
        play = ["benchmarks.broker_clusters", "--play", homes, str(folder / "agents"), *urls]
        agents = stack.enter_context(program(*play, log=folder / "agents.log"))
        time.sleep(READY_S)
        file, run = folder / "scenario.yaml", folder / "run"
        file.write_text(yaml.safe_dump(scenario(cluster)))
        command = ["covey.coordinator.cli", "run", str(file), "--out", str(run), "--json"]
        command += [word for url in urls for word in ("--broker", url)]
        command += [] if cluster.shards or cluster.alone else ["--cluster"]
        coordinator = stack.enter_context(program(*command, log=folder / "log"))
        watch = Watch(run, lambda: coordinator.process.poll() is None)
        found = _through(cell, nodes, watch)
        if (run / "result.json").exists():
            found["models"] = model_digests(run)
        said = _said(coordinator.output) + _said(agents.output)
        for number, url in enumerate(urls):
            said = [text.replace(url, f"node {number}") for text in said]
        found["said"] = list(dict.fromkeys(said))[:MAX_SAID]
    return found


def _through(cell: Cell, nodes: Sequence[Node], watch: Watch) -> dict[str, Any]:
    """Let the run go through its fault, to its end."""
    victim = nodes[0 if cell.whose == COORDINATORS else -1]
    killed = returned = 0.0
    stands = False
    try:
        if cell.whose:
            watch.until(lambda: len(watch.folds) >= KILL_AFTER)
            time.sleep(WORK_S / 2)
            victim.kill()
            killed = time.monotonic()
            if cell.returns:
                watch.until(lambda: time.monotonic() > killed + AWAY_S)
                victim.start()
                victim.ready()
                returned = time.monotonic()
        watch.until(lambda: False)
    except Stands:
        stands = True
    return figures(watch.folds, killed, returned, stands=stands)


def figures(
    folds: Sequence[float], killed: float, returned: float, *, stands: bool
) -> dict[str, Any]:
    """The record of a run's times.

    Args:
        folds: when (s) each round was folded.
        killed: when the node was killed; 0: never.
        returned: when it was back; 0: never.
        stands: whether nothing was folded after the last one.
    """
    gaps = [later - earlier for earlier, later in itertools.pairwise(folds)]
    since = [gap for gap, later in zip(gaps, folds[1:], strict=True) if later > killed]
    next_fold = [fold - returned for fold in folds if fold > returned > killed]
    return {
        "rounds": len(folds),
        "stands": stands,
        "round_s": round(statistics.median(gaps), 2) if gaps else None,
        "longest_s": round(max(since), 2) if since else None,
        "returned_s": round(returned - killed, 2) if returned else None,
        "fold_after_return_s": round(next_fold[0], 2) if next_fold else None,
    }


def _said(output: str) -> list[str]:
    """What people read in a program's output, besides the usual: reasons, and messages of an end; without the names of agents."""
    found: list[str] = []
    for line in output.splitlines():
        if line.startswith("{"):
            why = json.loads(line).get("why", "")
        else:
            why = line.partition("error: ")[2]
        if why:
            found.append(re.sub(r"light-\d+", "AGENT", why))
    return found


# -- the table ---------------------------------------------------------------------------------------------------------


def table(found: Found) -> str:
    """The record in Markdown."""
    lines = [
        "| cluster | node that is killed | bytes of the calm run | stand, s | from its return to the next round, s "
        "| round (calm), s |",
        "|---|---|---|---:|---:|---:|",
    ]
    for key, cell in found.items():
        name, fault = key.split(": ")
        calm = found[f"{name}: none"]
        if fault == "none":
            if not cell["rounds"]:
                lines.append(f"| {name} | none | refused at the start | | | |")
            continue
        same = "yes" if cell.get("models") == calm["models"] else "no"
        stand = "for good" if cell["stands"] else f"{cell['longest_s'] - calm['round_s']:.0f}"
        after = cell["fold_after_return_s"]
        rounds = f"{cell['round_s']:.1f} ({calm['round_s']:.1f})"
        shown = [name, fault, same, stand, "" if after is None else f"{after:.0f}", rounds]
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines)


def main() -> None:
    names = [cluster.name for cluster in clusters(Path())]
    parser = record_options(__doc__, OUT, [1])
    parser.add_argument("--clusters", nargs="+", default=names, choices=names)
    parser.add_argument("--modules", type=Path, default=Path())
    parser.add_argument("--play", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play is not None:
        homes, folder, *urls = options.play
        asyncio.run(host(urls, json.loads(homes), Path(folder)))
        return
    settings = {"agents": AGENTS, "work_s": WORK_S, "away_s": AWAY_S}
    found: Found = {}
    for cluster in clusters(options.modules):
        if cluster.name in options.clusters:
            try:
                found = resumed(
                    options,
                    {cell.key: partial(measured, cell) for cell in cells_of(cluster)},
                    settings,
                )
            except pytest.skip.Exception as missing:
                print(f"{cluster.name}: {missing}")
    print(table(found))


if __name__ == "__main__":
    main()
