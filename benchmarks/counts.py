"""System calls, turns of the event loop, files and calls on the way of an order and of its report. Nothing is timed.

    python -m benchmarks.counts [--orders 40] [--write]

`agents` traces a coordinator and one real agent with its worker over a stock Mosquitto (`strace -f`), `fleet` a coordinator
with a simulated fleet of ten. Only calls between two reports of the same agent count, so starts do not, and their number is
divided by the orders in between. `way` counts Python calls, and the files they enter, for one report in one small fleet in
one event loop. The counts are those of this program on any machine, but for the turns that chance joins.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import yaml

from benchmarks.rounds import KINDS, SAMPLES, scenario, write_data
from covey.agent.device.performing import Done
from covey.agent.device.service import Agent
from covey.coordinator.run.happenings import ReportCame
from covey.coordinator.run.run import Run
from tests.kit import small_fleet
from tests.kit.small_run import scenario as small_scenario
from tests.processes import ROOT, Program, free_port, mosquitto, rows, until

RECORD = Path(__file__).parent / "results" / "counts.json"
AIR = 1.1  # of a recorded number, that a later one may have
FIRST = 4  # reports before those that are counted: processes start, caches fill
TURNS = ("epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "select", "pselect6")
KINDS_OF_CALLS = {
    "turns of the loop": TURNS,
    "reads": ("read", "recvfrom", "recvmsg"),
    "writes": ("write", "sendto", "sendmsg", "pwrite64"),
    "files opened": ("open", "openat"),
    "stats": ("stat", "fstat", "lstat", "newfstatat", "statx"),
    "scans": ("getdents64",),
    "fsyncs": ("fsync", "fdatasync"),
    "renames": ("rename", "renameat", "renameat2"),
    "unlinks": ("unlink", "unlinkat"),
    "getpids": ("getpid",),
}
ALL = "system calls"
LINE = re.compile(r"(\d+) +(\d+\.\d+) (?:(\w+)\(|<\.\.\. (\w+) resumed)(.*)")
BORN = re.compile(r" = (\d+)$")
PROGRAM = re.compile(r'"covey\.([\w.]+)"')
REPORT = re.compile(r'/report-[^"]*"')  # the worker writes one, once for each order

Counts = dict[str, dict[str, float]]  # by role, then by kind of call


@dataclass(frozen=True)
class Call:
    """A line of strace: a system call that began."""

    process: int
    at: float  # s
    name: str
    rest: str  # of the line


def calls_of(log: Path) -> tuple[list[Call], dict[int, str]]:
    """The calls of a log, and of each thread the program that it belongs to: that of its parent, until it executes another.

    `strace` numbers threads; one that is born belongs to its parent's program until then.
    """
    found: list[Call] = []
    programs: dict[int, str] = {}
    for line in log.read_text(errors="replace").splitlines():
        match = LINE.match(line)
        if match is None:
            continue
        process, at, began, resumed, rest = match.groups()
        number = int(process)
        name = began or resumed
        if name in ("clone", "clone3", "fork", "vfork") and (born := BORN.search(rest)):
            programs.setdefault(int(born[1]), programs.get(number, ""))
        if name == "execve" and (program := PROGRAM.search(rest)):
            programs[number] = program[1]
        if began:
            found.append(Call(number, float(at), name, rest))
    return found, programs


def counted(logs: list[Path], orders: int, agents: int) -> Counts:
    """Calls for one order by role, between the reports FIRST and FIRST + `orders` of each of `agents`."""
    calls: list[tuple[Call, str]] = []
    for log in logs:
        found, programs = calls_of(log)
        calls += [(call, programs.get(call.process, "")) for call in found]
    reports = sorted(
        call.at
        for call, _ in calls
        if call.name.startswith("open") and "O_CREAT" in call.rest and REPORT.search(call.rest)
    )
    begin, end = reports[FIRST * agents], reports[(FIRST + orders) * agents]
    totals: dict[str, Counter[str]] = {}
    for call, program in calls:
        if begin <= call.at < end:
            totals.setdefault(program, Counter())[call.name] += 1
    return {
        program.replace(".cli", ""): _by_kind(names, orders * agents)
        for program, names in sorted(totals.items())
        if program
    }


def _by_kind(names: Counter[str], orders: int) -> dict[str, float]:
    by_kind = {ALL: names.total()}
    for kind, of_kind in KINDS_OF_CALLS.items():
        by_kind[kind] = sum(names[name] for name in of_kind)
    return {kind: round(count / orders, 1) for kind, count in by_kind.items()}


def traced(command: list[str], folder: Path, name: str) -> tuple[Program, Path]:
    """A program under strace, and what strace writes."""
    log = folder / f"{name}.strace"
    strace = ["strace", "-f", "-ttt", "-s", "200", "-o", str(log), sys.executable, "-m", *command]
    return Program(strace, folder / f"{name}.log", module=False, cwd=ROOT), log


def end(this: Program) -> None:
    """End a traced program: strace would let it live."""
    if this.process.poll() is None:
        for child in psutil.Process(this.process.pid).children():
            child.terminate()
    this.process.wait(60)


def system_calls(name: str, orders: int) -> Counts:
    """What one order of this kind of fleet takes. Raises IndexError if the run had too few."""
    kind = KINDS[name]
    agents = 1 if kind.devices else 10
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        port = free_port()
        url = f"mqtt://127.0.0.1:{port}"
        stack.enter_context(mosquitto(folder, port))
        count = FIRST + orders + 2
        content = scenario(replace(kind, name="counts"), count)
        write_data(kind, folder / "data.npz", agents * SAMPLES)
        logs = []
        if kind.devices:
            content["rounds"]["start_agents"] = agents
            words = ["start", "--data", str(folder / "data.npz"), "--id", "a", "--broker", url]
            state = ["--state", str(folder / "a")]
            agent, log = traced(["covey.agent.cli", *words, *state], folder, "agent")
            stack.callback(end, agent)
            logs.append(log)
        file = folder / "scenario.yaml"
        file.write_text(yaml.safe_dump(content))
        run = ["run", str(file), "--data-root", str(folder), "--out", str(folder / "run")]
        command = ["covey.coordinator.cli", *run, "--broker", url, "--json"]
        this, log = traced(command, folder, "coordinator")
        stack.callback(end, this)
        logs.append(log)
        until(lambda: _rounds(folder / "run") >= count, 600, this)
        this.process.wait(60)
        return counted(logs, orders, agents)


def _rounds(run: Path) -> int:
    return sum(row.get("ends_round", False) for row in rows(run))


# -- Python calls ------------------------------------------------------------------------------------------------------

PARTS = ("agent", "coordinator", "shared", "broker", "extras")


@dataclass(frozen=True)
class Walk:
    """What one call has entered."""

    files: int
    calls: int


Walks = dict[str, list[Walk]]
AnyCall = Callable[..., Any]


def way(method: str = "fedavg") -> dict[str, Walk]:
    """Medians over three rounds of a small fleet: what a report enters that waits, or that closes its step, with the commit; and
    what a worker's answer does on the agent."""
    found: dict[str, list[Walk]] = {}
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        for owner, name, wrapped in (
            (Run, "handle_all", partial(_reports_watched, found)),
            (Agent, "handle", partial(_answers_watched, found)),
        ):
            stack.enter_context(patch.object(owner, name, wrapped(getattr(owner, name))))
        scene = small_scenario(method, rounds={"count": 3, "participation": 1.0})
        small_fleet.over_the_wire(Path(place), scene)
    medians = {}
    for name, walks in sorted(found.items()):
        files = statistics.median(walk.files for walk in walks)
        medians[name] = Walk(int(files), int(statistics.median(walk.calls for walk in walks)))
    return medians


def _reports_watched(found: Walks, real: AnyCall) -> AnyCall:
    def watched(run: Run, items: Iterable[Any], now: float) -> list[Any]:
        effects = []
        for item in items:  # those that came together too: each by itself
            step = run.engine.step
            closes = step is None or len(step.reported) + 1 >= len(step.cohort)
            name = "report that closes" if closes else "report that waits"
            walks = found.setdefault(name, []) if isinstance(item, ReportCame) else []
            effects += _walked(walks, partial(real, run, [item], now))
        return effects

    return watched


def _answers_watched(found: Walks, real: AnyCall) -> AnyCall:
    def watched(agent: Agent, items: Sequence[Any], now: float) -> Any:
        is_answer = any(isinstance(item, Done) for item in items)
        walks = found.setdefault("answer of the worker", []) if is_answer else []
        return _walked(walks, partial(real, agent, items, now))

    return watched


def _walked(walks: list[Walk], call: Callable[[], Any]) -> Any:
    """The result of a call, whose walk is added."""
    entered: Counter[str] = Counter()

    def enters(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            entered[frame.f_code.co_filename] += 1

    before = sys.getprofile()
    sys.setprofile(enters)
    try:
        return call()
    finally:
        sys.setprofile(before)
        own = {one: count for one, count in entered.items() if _is_ours(one)}
        walks.append(Walk(len(own), sum(own.values())))


def _is_ours(name: str) -> bool:
    path = Path(name).resolve()
    return path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in PARTS


def measured(orders: int) -> dict[str, Any]:
    """All counts, as the record has them."""
    found: dict[str, Any] = {kind: system_calls(kind, orders) for kind in ("agents", "fleet")}
    return {**found, "way": {name: vars(walk) for name, walk in way().items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--orders", type=int, default=40, help="of each agent, that are counted")
    parser.add_argument("--write", action="store_true", help=f"replace {RECORD.name}")
    options = parser.parse_args()
    found = measured(options.orders)
    print(json.dumps(found, indent=1))
    if options.write:
        RECORD.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
