"""How many rounds a run keeps while one of its agents floods it: `python -m tests.attacks.pace KIND PER_S [--apart] [--seconds S]`.

A fleet of four agents with a coordinator of its own over a stock Mosquitto: as long without the flood as with it, from its
first second on, and the time until a run folds five rounds after its end. The coordinator leaves a flooder for a minute, so a
minute has all that a flood costs, once. With `--apart` each agent is a program of its own, as on
devices; otherwise one program has all four, and reads what one of them is sent in the place of the others' work.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import psutil
from sklearn.datasets import load_digits

from covey.coordinator.serve.hearing import AWAY_S
from tests.attacks.flood import KINDS
from tests.attacks.test_resources import QUICK, attack
from tests.e2e.conftest import coordinator, fleet
from tests.processes import Program, free_port, mosquitto, rows, until, words

AGENTS = 4


def busy_s(this: Program) -> float:
    """Processor time of a program and its workers."""
    process = psutil.Process(this.process.pid)
    return sum(sum(one.cpu_times()[:2]) for one in (process, *process.children(recursive=True)))


def pace(run: Path, programs: Mapping[str, Program], seconds: float) -> str:
    """Rounds a second over this time, and what part of a core each program takes."""
    folded, began = len(rows(run)), time.monotonic()
    busy = {name: busy_s(this) for name, this in programs.items()}
    time.sleep(seconds)
    took_s = time.monotonic() - began
    shares = [
        f"{name} {(busy_s(this) - busy[name]) / took_s:.0%}" for name, this in programs.items()
    ]
    done = rows(run)[folded:]
    longest_s = max((row["seconds"] for row in done), default=took_s)
    rounds = f"{len(done) / took_s:.2f} rounds/s, the longest {longest_s:.1f} s"
    return f"{rounds} ({', '.join(shares)} of a core)"


@contextmanager
def together(folder: Path, port: int) -> Iterator[dict[str, Program]]:
    """One program that is all agents."""
    with fleet(folder, port, **QUICK) as agents:
        yield {"agents": agents}


@contextmanager
def apart(folder: Path, port: int) -> Iterator[dict[str, Program]]:
    """A program for each agent."""
    x, y = load_digits(return_X_y=True)
    with ExitStack() as stack:
        programs: dict[str, Program] = {}
        for number in range(AGENTS):
            name = f"agent-{number}"
            own = slice(number, None, AGENTS)
            np.savez(folder / f"{name}.npz", x=x[own].reshape(-1, 1, 8, 8), y=y[own])
            start = words(
                "agent start --learner numpy --id", name, "--data", folder / f"{name}.npz"
            )
            where = ["--broker", f"mqtt://127.0.0.1:{port}", "--state", str(folder / name)]
            programs[name] = Program([*start, *where], folder / f"{name}.log")
            stack.callback(programs[name].stop)
        yield programs


def main(folder: Path, kind: str, per_s: float, seconds: float, *, is_apart: bool) -> None:
    """Print the pace before and in the flood, and how long five rounds take after it."""
    port, run = free_port(), folder / "run"
    agents = apart if is_apart else together
    with mosquitto(folder, port) as broker, agents(folder, port) as fleet_programs:
        this = coordinator(folder, port, "--set", "strategy.name=fedavg", fresh=True, **QUICK)
        programs = {"coordinator": this, "broker": broker, **fleet_programs}
        try:
            until(lambda: len(rows(run)) >= 5, of=this)
            without = pace(run, programs, seconds)
            rogue = attack(folder, port, kind, 10**9, per_s)
            until(
                lambda: kind == "aside" or "refuse" in (run / "audit.jsonl").read_text(), of=rogue
            )
            during = pace(run, programs, seconds)
            rogue.stop()
            folded, ended = len(rows(run)), time.monotonic()
            until(lambda: len(rows(run)) >= folded + 5, of=this)
            after_s = time.monotonic() - ended
        finally:
            this.stop()
    print(f"{kind}: {without} become {during}; five more took {after_s:.1f} s afterwards")


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    options = argparse.ArgumentParser(prog="python -m tests.attacks.pace", description=__doc__)
    options.add_argument("kind", choices=KINDS)
    options.add_argument("per_s", type=float, help="messages a second, at most")
    options.add_argument("--seconds", type=float, default=AWAY_S, help="of each measurement")
    options.add_argument("--apart", action="store_true", help="a program for each agent")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as made:
        main(Path(made), asked.kind, asked.per_s, asked.seconds, is_apart=asked.apart)
