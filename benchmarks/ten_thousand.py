"""A coordinator with thousands of agents, killed in the middle of a run.

    python -m benchmarks.ten_thousand [--agents 1000 3000 10000] [--rounds 20] [--known 100000] [--repeat 5] [--short]

For each size: a Mosquitto, a coordinator and a few processes of light agents (`benchmarks.light_fleet`). The coordinator is
killed (kill -9) in the middle of the round in the middle and resumed. The run must end with the bytes of an undisturbed
one, which is computed without a broker. Then one process takes a roster of 100 000 agents.

Every repetition of a size is written as soon as it is finished, and a finished one is not run again: an interrupted
measurement continues. Sizes take turns, so that a slow hour of the machine falls on all of them. The result is
ten_thousand.json below --out, or the file --file.

Repetitions share one undisturbed run: its bytes follow from the scenario, the agents and the initial model alone. The digest
of its files is stored under the digest of these and of the installed code, and computed again if one of them has changed.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.light_reference import undisturbed_models
from benchmarks.measuring import BUSY, OUT, WIDTH, cpu_s_of
from covey.coordinator.disk.report_file import ReportFile
from covey.coordinator.disk.versions import START
from covey.shared.mqtt.link import Received, Up
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.storage.files import atomic_replace
from covey.shared.wire.topics import Topics
from tests.kit import spooled
from tests.processes import Program, free_port, model_bytes, mosquitto, rows, until

AGENTS_PER_PROCESS = 2500  # their connections and outboxes are open files
SHORT_ROUNDS = 12  # some are over before the measurement of the first half begins
SHARE = 0.05  # of the agents in each round
WITHIN_S = 3600.0  # for anything that a busy machine takes its time for
MB = 1e6
KB = 1e3
# Mosquitto's own defaults drop messages for a coordinator that thousands of agents write to at once
BROKER = "max_queued_messages 200000\nmax_inflight_messages 1000\n"

Figures = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """The parts of one run."""

    agents: int
    rounds: int

    @property
    def reports(self) -> int:
        """Of one round."""
        return int(SHARE * self.agents)

    @property
    def processes(self) -> list[tuple[int, int]]:
        """First agent and number of agents of each process."""
        found: list[tuple[int, int]] = []
        for first in range(0, self.agents, AGENTS_PER_PROCESS):
            found.append((first, min(AGENTS_PER_PROCESS, self.agents - first)))
        return found

    def scenario(self) -> dict[str, Any]:
        return {
            "name": "ten-thousand",
            "task": {"features": [20], "classes": 10, "model": {"name": "linear"}},
            "strategy": {"name": "fedavg"},
            "rounds": {
                "count": self.rounds,
                "participation": SHARE,
                "start_agents": self.agents,
                "deadline_s": WITHIN_S,
                "timing": {"rollcall_s": 120},
            },
            "evaluation": {"every": self.rounds},
        }


@dataclass
class RollCall:
    """Counts the answers to the newest roll call, in a thread of its own."""

    url: str
    topics: Topics = field(default_factory=lambda: Topics("default"))
    epoch: bytes = b""  # of the newest roll call
    calls: int = 0  # of the present coordinator; more than one if it has missed answers
    called_at: float = 0.0  # the newest, on the monotonic clock
    answered_at: float = 0.0  # when the newest agent answered for the first time
    answered: set[str] = field(default_factory=set)

    def start(self) -> None:
        threading.Thread(target=lambda: asyncio.run(self._count()), daemon=True).start()

    async def _count(self) -> None:
        async with MqttLink(self.url, client_id="ten-thousand-watcher") as link:
            async for incoming in link.incoming():
                match incoming:
                    case Up():
                        await link.subscribe([self.topics.coordinator_status])
                        await link.subscribe([self.topics.every_status])
                    case Received(topic, payload) if topic == self.topics.coordinator_status:
                        self._called(payload)
                    case Received(topic, payload):
                        self._answered(topic, payload)

    def forget(self) -> None:
        """The coordinator was killed: only the roll call of the next one counts."""
        self.epoch = b""
        self.calls = 0
        self.answered.clear()

    def _called(self, payload: bytes) -> None:
        status = json.loads(payload)
        epoch = status["epoch"].encode()
        if status["online"] and epoch != self.epoch:
            self.epoch = epoch
            self.calls += 1
            self.called_at = time.monotonic()
            self.answered.clear()

    def _answered(self, topic: str, payload: bytes) -> None:
        answers = b'"epoch":"%s"' % self.epoch
        if self.epoch and answers in payload and topic not in self.answered:
            self.answered.add(topic)
            self.answered_at = time.monotonic()


@dataclass
class Stage:
    """A broker, a coordinator and the processes of the agents."""

    plan: Plan
    folder: Path
    url: str
    broker: Program
    coordinator: Program
    fleets: list[Program]
    roll_call: RollCall

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def rounds_over(self) -> int:
        return sum(1 for row in rows(self.run) if row.get("ends_round"))

    def wait_for_rounds(self, rounds: int) -> None:
        """Wait until this many rounds were folded. The record is read rarely: it costs time as well."""
        end = time.monotonic() + WITHIN_S
        while self.rounds_over < rounds:
            if self.coordinator.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"round {rounds} did not end: {self.coordinator.output[-2000:]}")
            time.sleep(0.2)

    def start_coordinator(self, *options: str) -> None:
        out = ["--out", str(self.run), "--broker", self.url, "--json"]
        command = ["covey.coordinator.cli", "run", str(self.folder / "scenario.yaml")]
        self.coordinator = Program([*command, *out, *options], self.folder / "log")

    @property
    def coordinator_s(self) -> float:
        """Processor time of the present coordinator, in seconds."""
        return cpu_s_of([self.coordinator.process.pid])

    @property
    def own_s(self) -> float:
        """Processor time of everything that belongs to the measurement, in seconds."""
        pids = [self.broker.process.pid, self.coordinator.process.pid, os.getpid()]
        pids += [fleet.process.pid for fleet in self.fleets]
        return cpu_s_of(pids)


@contextmanager
def stage(plan: Plan) -> Iterator[Stage]:
    """Start a broker and a coordinator; the agents follow. All of them end with the block."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "scenario.yaml").write_text(yaml.safe_dump(plan.scenario()))
        port = free_port()
        url = f"mqtt://127.0.0.1:{port}"
        with mosquitto(folder, port, BROKER) as broker:
            this = Stage(plan, folder, url, broker, broker, [], RollCall(url))
            this.start_coordinator()
            try:
                until(lambda: '"event": "link"' in this.coordinator.output, 120, this.coordinator)
                this.roll_call.start()
                yield this
            finally:
                this.coordinator.stop()
                for fleet in this.fleets:
                    fleet.process.kill()
                    fleet.process.wait()


def connect(this: Stage) -> None:
    """Start all agents, and wait until the first round was folded."""
    for first, count in this.plan.processes:
        folder = str(this.folder / "agents")
        command = ["benchmarks.light_fleet", this.url, folder, str(first), str(count)]
        this.fleets.append(Program(command, this.folder / f"fleet-{first}.log"))
    this.wait_for_rounds(1)


def memory_of(program: Program) -> float:
    """Memory of a process alone, in bytes."""
    return float(psutil.Process(program.process.pid).memory_full_info().uss)


def measure(agents: int, rounds: int, references: dict[str, str]) -> Figures:
    """The figures of one size.

    Args:
        agents: how many are online.
        rounds: of the run.
        references: digests of undisturbed runs, by `_reference_key`. A new one is added.

    Raises:
        RuntimeError: the killed run ended with other bytes than an undisturbed one.
    """
    plan = Plan(agents, rounds)
    with stage(plan) as this:
        figures = {"agents": agents, "rounds": rounds, **until_connected(this)}
        figures |= undisturbed_half(this)
        figures |= kill_and_resume(this)
        began = time.monotonic()
        this.wait_for_rounds(rounds)
        figures["coordinator_mb_after_the_rounds"] = round(memory_of(this.coordinator) / MB, 1)
        _finish(this)
        figures["finished_s"] = round(time.monotonic() - began, 1)
        models = model_bytes(this.run)
        key = _reference_key(this.run, agents)
        if key not in references:
            undisturbed = undisturbed_models(this.run, agents, this.folder / "reference")
            references[key] = digest_of(undisturbed)
        if digest_of(models) != references[key] or not models:
            raise RuntimeError(f"{agents} agents: after a kill the run ended with other bytes")
        figures["same_bytes"] = True
        return figures


def digest_of(files: Mapping[str, bytes]) -> str:
    """A digest of the names and contents of files."""
    whole = hashlib.sha256()
    for name in sorted(files):
        content = hashlib.sha256(files[name]).hexdigest()
        whole.update(f"{name} {content}\n".encode())
    return whole.hexdigest()


def _reference_key(run: Path, agents: int) -> str:
    """A digest of all that an undisturbed run depends on: its scenario, its initial model, the agents and the code."""
    files = {"agents": str(agents).encode()}
    for path in (run / "scenario.yaml", run / START):
        files[path.name] = path.read_bytes()
    source = Path(__file__).parents[1]
    for room in ("agent", "benchmarks", "coordinator", "shared"):
        for path in sorted((source / room).rglob("*.py")):
            files[str(path.relative_to(source))] = path.read_bytes()
    return digest_of(files)


def until_connected(this: Stage) -> Figures:
    """Start all agents. The first round opens when all of them are there."""
    agents = this.plan.agents
    empty = memory_of(this.coordinator)
    empty_broker = memory_of(this.broker)
    began = time.monotonic()
    before_s = this.coordinator_s
    connect(this)
    connected_s = time.monotonic() - began
    fleet = sum(memory_of(one) for one in this.fleets)
    online = memory_of(this.coordinator)
    online_broker = memory_of(this.broker)
    per_agent = (online - empty) / agents
    per_agent_of_broker = (online_broker - empty_broker) / agents
    return {
        "connected_s": round(connected_s, 1),
        "coordinator_ms_per_join": round(1e3 * (this.coordinator_s - before_s) / agents, 2),
        "coordinator_mb": round(online / MB, 1),
        "coordinator_kb_per_online_agent": round(per_agent / KB, 2),
        "broker_mb": round(online_broker / MB, 1),
        "broker_kb_per_online_agent": round(per_agent_of_broker / KB, 2),
        "agent_kb": round(fleet / agents / KB, 1),
    }


def undisturbed_half(this: Stage) -> Figures:
    """The rounds before the kill, but for the first, which waits for the agents."""
    plan = this.plan
    half = plan.rounds // 2
    first = this.rounds_over
    coordinator_s = this.coordinator_s
    broker_s = cpu_s_of([this.broker.process.pid])
    began = time.monotonic()
    others_s = _busy_s() - this.own_s
    this.wait_for_rounds(half)
    took_s = time.monotonic() - began
    others_s = _busy_s() - this.own_s - others_s
    reports = (half - first) * plan.reports
    coordinator_s = this.coordinator_s - coordinator_s
    broker_s = cpu_s_of([this.broker.process.pid]) - broker_s
    if reports <= 0:
        raise RuntimeError(
            f"round {half} of {plan.rounds} was over before the measurement began; ask for more --rounds"
        )
    seconds = [row["seconds"] for row in rows(this.run) if row.get("ends_round")]
    cores = os.cpu_count() or 1
    return {
        "round_s": round(statistics.median(seconds[1:half]), 2),
        "coordinator_ms_per_report": round(1e3 * coordinator_s / reports, 2),
        "broker_ms_per_report": round(1e3 * broker_s / reports, 2),
        "foreign": round(others_s / took_s / cores, 2),
    }


def kill_and_resume(this: Stage) -> Figures:
    """Kill the coordinator when a third of a round's reports are there, and start it again."""
    plan = this.plan
    half = plan.rounds // 2
    until(lambda: reports_in_the_spool(this.run) >= plan.reports // 3, WITHIN_S)
    this.coordinator.kill()
    this.roll_call.forget()
    reports = reports_in_the_spool(this.run)
    folded = max(this.rounds_over, half)
    began = time.monotonic()
    this.start_coordinator("--resume")
    # the fold may come before the last answer, or after it
    until(lambda: this.rounds_over > folded, WITHIN_S, this.coordinator)
    recovered_s = time.monotonic() - began
    until(lambda: len(this.roll_call.answered) >= plan.agents, WITHIN_S, this.coordinator)
    answers_s = this.roll_call.answered_at - this.roll_call.called_at
    return {
        "reports_at_the_kill": reports,
        "roll_calls": this.roll_call.calls,
        "roll_call_s": round(answers_s, 1),
        "next_fold_s": round(recovered_s, 1),
    }


def reports_in_the_spool(run: Path) -> int:
    """Reports of the open step that lie on disk."""
    total = 0
    for path in spooled.files(run):
        total += len(list(ReportFile(path).clients))
    return total


def _finish(this: Stage) -> None:
    """Wait for the end of the run, with the evaluation of all agents."""
    this.coordinator.process.wait(WITHIN_S)
    if this.coordinator.process.returncode != 0:
        raise RuntimeError(this.coordinator.output[-2000:])


def _busy_s() -> float:
    """Processor time of the whole machine so far."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def measure_roster(known: int) -> Figures:
    """The figures of a roster with this many known agents, from a process of its own."""
    command = [sys.executable, "-m", "benchmarks.many_known", str(known)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    figures: Figures = json.loads(output)
    return figures


def show(found: Mapping[str, Any]) -> None:
    """Print medians, with the least and the most: a line for each figure, a column for each size."""
    for title in ("agents", "known"):
        columns: Mapping[str, Sequence[Figures]] = found[title]
        if not columns:
            continue
        table = Table(title="agents online" if title == "agents" else "agents known")
        table.add_column("")
        for size in columns:
            table.add_column(size, justify="right")
        for name in next(iter(columns.values()))[0]:
            cells = [summary([run[name] for run in runs]) for runs in columns.values()]
            table.add_row(name, *cells)
        times = [str(len(runs)) for runs in columns.values()]
        table.add_row("repetitions", *times)
        Console(width=WIDTH).print(table)
    for size, runs in found["agents"].items():
        loads = [run["foreign"] for run in runs]
        texts = [f"{load:.0%}" for load in loads]
        mark = " (the machine was busy)" if max(loads) > BUSY else ""
        print(f"{size} agents: others used {', '.join(texts)} of the machine{mark}")


def summary(values: Sequence[Any]) -> str:
    """The median of numbers, with the least and the most if they differ; anything else as it is, if all agree."""
    least = min(values)
    most = max(values)
    if least == most:
        return str(least)
    middle = round(statistics.median(values), 2)
    return f"{middle:g} ({least:g} to {most:g})"


def load_figures(file: Path) -> dict[str, Any]:
    """The finished repetitions by size, from a file that may not be there. A file of an earlier version has one each."""
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for title in ("agents", "known"):
        columns = found.setdefault(title, {})
        for size, runs in columns.items():
            if isinstance(runs, dict):
                columns[size] = [runs]
    found.setdefault("references", {})
    return found


def missing(
    columns: Mapping[str, Sequence[Figures]], sizes: Sequence[int], repeat: int
) -> Iterator[int]:
    """The sizes that still have to be measured, in turns: each of them once, then each of them again."""
    for repetition in range(repeat):
        for size in sizes:
            if len(columns.get(str(size), ())) <= repetition:
                yield size


def _open_as_many_files_as_allowed() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--agents", type=int, nargs="*", default=[1000, 3000, 10_000])
    parser.add_argument("--known", type=int, nargs="*", default=[1000, 100_000])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=1, help="times that each size is measured")
    parser.add_argument("--file", type=Path, help="the results (default: below --out)")
    parser.add_argument("--short", action="store_true", help="200 agents, 12 rounds")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    _open_as_many_files_as_allowed()
    if options.short:
        options.agents, options.known, options.rounds = [200], [1000, 10_000], SHORT_ROUNDS
    name = "ten_thousand_short.json" if options.short else "ten_thousand.json"
    file = options.file or options.out / name
    file.parent.mkdir(parents=True, exist_ok=True)
    if options.short:
        file.unlink(missing_ok=True)
    found = load_figures(file)
    others = {run["rounds"] for runs in found["agents"].values() for run in runs} - {options.rounds}
    if others:
        parser.error(
            f"{file} has measurements of {min(others)} rounds, not of {options.rounds}; name another --file"
        )

    def keep(title: str, size: int, figures: Figures) -> None:
        found[title].setdefault(str(size), []).append(figures)
        with atomic_replace(file) as new:
            new.write_text(json.dumps(found, indent=1) + "\n")

    for known in missing(found["known"], options.known, options.repeat):
        keep("known", known, measure_roster(known))
    for agents in missing(found["agents"], options.agents, options.repeat):
        keep("agents", agents, measure(agents, options.rounds, found["references"]))
    show(found)


if __name__ == "__main__":
    main()
