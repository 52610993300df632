"""A federation on four Mosquittos next to one on one Mosquitto: reports in a second, and the death of a broker.

    python -m benchmarks.shards [--agents 200] [--rounds 4] [--times 3] [--brokers 4]

Light agents (benchmarks.light_fleet) answer every order with a made-up report of 44 426 parameters. One broker is the
floor, several are the product, and both are measured in turns. Then one of several brokers is killed while a round is
open: its agents have not reported. The models are compared with those of a run over one broker whose same agents are
killed in the same round. Prints tables, writes shards.json below --out.

    python -m benchmarks.shards --aggregators [--brokers 2]

measures the reports of a run whose aggregators (`coordinator lab aggregate`, one for each broker) add them up, next to the same
run without; writes aggregators.json, and compares the models.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks.light_fleet import STARTS_AT_ONCE, LightPool, agent_name, live
from benchmarks.measuring import OUT, Cost, Row, cpu_s_of, foreign_load, median, show
from covey.shared.mqtt.shards import shard_of
from covey.shared.wire.jobs import Perform
from covey.shared.wire.messages import OrderMessage
from tests.processes import Program, free_port, model_bytes, mosquitto, rows, until

DEAD = 1  # the shard whose broker is killed
KILL_ROUND = 2  # counted from 1: it is open when the broker dies
NEVER = 1_000_000  # a round that no run has
READY_S = 600.0


# -- the agents --------------------------------------------------------------------------------------------------------


class HoldingPool(LightPool):
    """Keeps every report back from a round on: agents that are at work when something happens to them."""

    def __init__(self, hold_from: int) -> None:
        self.hold_from = hold_from

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        if isinstance(job, Perform):
            order = OrderMessage.from_bytes(job.order)
            assert order.work is not None
            if order.work.round >= self.hold_from:
                await asyncio.Event().wait()
        return await super().call(job, weight=weight)


@dataclass(frozen=True)
class Crowd:
    """Agents in one process: those of some shards."""

    agents: int  # of the whole fleet
    shards: int  # how many groups the rule of enrolment makes
    kept: tuple[int, ...]  # the shards whose agents this process hosts
    hold_from: int = NEVER


async def host(crowd: Crowd, urls: Sequence[str], folder: Path) -> None:
    """Let the agents live until this process is ended; over several brokers each lives on its shard."""
    pool = HoldingPool(crowd.hold_from)
    async with asyncio.TaskGroup() as group:
        for number in range(crowd.agents):
            name = agent_name(number)
            if shard_of(name, crowd.shards) not in crowd.kept:
                continue
            url = urls[shard_of(name, len(urls))]
            group.create_task(live(number, url, folder, pool))
            if number % STARTS_AT_ONCE == 0:
                await asyncio.sleep(0.1)


# -- the run -----------------------------------------------------------------------------------------------------------


def scenario(agents: int, rounds: int) -> dict[str, Any]:
    """FedAvg with LeNet-5: 178 kB a report. Every agent that is there reports in every round."""
    return {
        "name": "shards",
        "task": {"features": [1, 28, 28], "classes": 10, "model": {"name": "lenet5"}},
        "strategy": {"name": "fedavg"},
        "rounds": {
            "count": rounds,
            "participation": 1.0,
            "start_agents": agents,
            "deadline_s": 3600,
        },
        "evaluation": {"every": rounds},
    }


@dataclass
class Federation:
    """A run that has begun, and its programs."""

    coordinator: Program
    brokers: list[Program]
    fleets: list[Program]
    folder: Path  # of the run
    aggregators: list[Program]

    @property
    def rounds(self) -> int:
        """Training rounds that were folded."""
        return sum(bool(row["ends_round"]) for row in rows(self.folder))

    def wait_for(self, rounds: int) -> None:
        """Wait until this many rounds are folded."""
        until(lambda: self.rounds >= rounds, READY_S, self.coordinator)

    def finish(self) -> None:
        """Wait for the end of the run."""
        until(lambda: (self.folder / "result.json").exists(), READY_S, self.coordinator)


@contextmanager
def federation(
    brokers: int, crowds: Sequence[Crowd], rounds: int, *, aggregated: bool = False
) -> Iterator[Federation]:
    """Start everything, and end it with the block. If `aggregated`, each broker has an aggregator."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        started: list[Program] = []
        urls: list[str] = []
        for number in range(brokers):
            own = folder / f"broker-{number}"
            own.mkdir()
            port = free_port()
            started.append(stack.enter_context(mosquitto(own, port)))
            urls.append(f"mqtt://127.0.0.1:{port}")
        file = folder / "scenario.yaml"
        file.write_text(yaml.safe_dump(scenario(crowds[0].agents, rounds)))
        command = [
            "covey.coordinator.cli",
            "run",
            str(file),
            "--out",
            str(folder / "run"),
            "--json",
        ]
        for url in urls:
            command += ["--broker", url]
        aggregators: list[Program] = []
        if aggregated:
            command.append("--aggregators")
            for number, url in enumerate(urls):
                log = folder / f"aggregator-{number}.log"
                program = Program(
                    ["covey.coordinator.cli", "lab", "aggregate", "--broker", url], log
                )
                stack.callback(program.stop)
                aggregators.append(program)
        this = Program(command, folder / "log")
        stack.callback(this.stop)
        fleets: list[Program] = []
        for number, crowd in enumerate(crowds):
            text = json.dumps(asdict(crowd))
            play = ["benchmarks.shards", "--play", text, str(folder / "agents"), *urls]
            program = Program(play, folder / f"fleet-{number}.log")
            stack.callback(program.stop)
            fleets.append(program)
        yield Federation(this, started, fleets, folder / "run", aggregators)


# -- reports in a second -----------------------------------------------------------------------------------------------


def per_report(brokers: int, agents: int, rounds: int) -> tuple[Cost, dict[str, float]]:
    """Seconds for each report after the first round: of the clock and of the coordinator's processor time.

    Returns:
        The cost, and the processor time (ms) for each report of all brokers and of the busiest one.
    """
    half = tuple(range(0, 8, 2)), tuple(range(1, 8, 2))
    crowds = [Crowd(agents, 8, kept) for kept in half]
    with federation(brokers, crowds, rounds) as this:
        pids = [program.process.pid for program in this.brokers]
        own = [this.coordinator.process.pid]
        this.wait_for(1)
        wall = time.monotonic()
        cpu = cpu_s_of(own)
        before = [cpu_s_of([pid]) for pid in pids]
        this.wait_for(rounds)
        reports = agents * (rounds - 1)
        wall_s = time.monotonic() - wall
        cpu_s = cpu_s_of(own) - cpu
        used = [cpu_s_of([pid]) - first for pid, first in zip(pids, before, strict=True)]
    detail = {"all brokers": 1e3 * sum(used) / reports, "busiest broker": 1e3 * max(used) / reports}
    return Cost(wall_s / reports, cpu_s / reports), detail


def summed(brokers: int, agents: int, rounds: int, times: int) -> tuple[list[Row], bool]:
    """The same brokers without aggregators and with them, in turns; whether all models were the same."""
    found: dict[bool, list[Cost]] = {False: [], True: []}
    aggregators_ms: list[float] = []
    models: list[dict[str, bytes]] = []
    crowds = [Crowd(agents, brokers, tuple(range(brokers)))]
    reports = agents * (rounds - 1)
    for _ in range(times):
        for aggregated, costs in found.items():
            with federation(brokers, crowds, rounds, aggregated=aggregated) as this:
                own = [this.coordinator.process.pid]
                others = [program.process.pid for program in this.aggregators]
                this.wait_for(1)
                wall = time.monotonic()
                cpu = cpu_s_of(own)
                cpu_of_others = cpu_s_of(others)
                this.wait_for(rounds)
                wall_s = time.monotonic() - wall
                cpu_s = cpu_s_of(own) - cpu
                if aggregated:
                    used = cpu_s_of(others) - cpu_of_others
                    aggregators_ms.append(1e3 * used / reports)
                this.finish()
                costs.append(Cost(wall_s / reports, cpu_s / reports))
                models.append(model_bytes(this.folder))
    floor = median(found[False])
    product = median(found[True])
    name = f"a report, {brokers} aggregators next to none"
    detail = {"all aggregators": sorted(aggregators_ms)[len(aggregators_ms) // 2]}
    row = replace(Row(name, floor, product, times), detail=detail)
    return [row], all(one == models[0] for one in models)


def throughput(brokers: int, agents: int, rounds: int, times: int) -> list[Row]:
    """One broker and several, in turns."""
    found: dict[int, list[tuple[Cost, dict[str, float]]]] = {1: [], brokers: []}
    for _ in range(times):
        for count, measured in found.items():
            measured.append(per_report(count, agents, rounds))
    floor = median([cost for cost, _ in found[1]])
    product = median([cost for cost, _ in found[brokers]])
    one = found[1][0][1]
    several = found[brokers][0][1]
    detail = {f"{key}, of 1": value for key, value in one.items()}
    detail |= {f"{key}, of {brokers}": value for key, value in several.items()}
    name = f"a report, {brokers} brokers next to 1"
    return [replace(Row(name, floor, product, times), detail=detail)]


# -- the death of a broker ---------------------------------------------------------------------------------------------


def death(brokers: int, agents: int, rounds: int) -> dict[str, Any]:
    """Kill one of several brokers in a round; and, for reference, its agents on a single broker."""
    living = tuple(shard for shard in range(brokers) if shard != DEAD)
    crowds = [Crowd(agents, brokers, living), Crowd(agents, brokers, (DEAD,), KILL_ROUND - 1)]
    outcomes: list[tuple[dict[str, bytes], list[int], float]] = []
    for count in (brokers, 1):
        with federation(count, crowds, rounds) as this:
            this.wait_for(KILL_ROUND - 1)
            time.sleep(1.0)  # the next round is open, and the others have reported
            begin = time.monotonic()
            (this.brokers[DEAD] if count > 1 else this.fleets[1]).kill()
            this.wait_for(KILL_ROUND)
            closed_s = time.monotonic() - begin
            this.finish()
            sizes = [len(row["reported"]) for row in rows(this.folder) if row["ends_round"]]
            outcomes.append((model_bytes(this.folder), sizes, closed_s))
    (sharded, sizes, closed_s), (single, single_sizes, single_closed_s) = outcomes
    return {
        "brokers": brokers,
        "agents": agents,
        "reports_by_round": sizes,
        "reference_reports_by_round": single_sizes,
        "same_bytes": sharded == single,
        "round_closed_after_s": round(closed_s, 1),
        "reference_round_closed_after_s": round(single_closed_s, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--brokers", type=int, default=4)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--aggregators", action="store_true", help="with them next to without")
    parser.add_argument("--play", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play is not None:
        text, folder, *urls = options.play
        asyncio.run(host(Crowd(**json.loads(text)), urls, Path(folder)))
        return
    if options.aggregators:
        with foreign_load() as load:
            compared, same = summed(options.brokers, options.agents, options.rounds, options.times)
        show("aggregators", "a report of 44 426 parameters", compared, load, options.out)
        print(json.dumps({"same_bytes": same}))
        return
    with foreign_load() as load:
        compared = throughput(options.brokers, options.agents, options.rounds, options.times)
        killed = death(options.brokers, options.agents, options.rounds)
    show("shards", "a report of 44 426 parameters", compared, load, options.out)
    print(json.dumps(killed))
    file = options.out / "shards.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "death": killed}, indent=1) + "\n")


if __name__ == "__main__":
    main()
