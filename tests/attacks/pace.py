"""How many rounds a run keeps while one of its agents floods it: `python -m tests.attacks.pace KIND PER_S`.

A fleet of four agents with a coordinator of its own over a stock Mosquitto: 8 s without the flood, 8 s of it from its first
second on, and the time until a run folds five rounds after its end.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from tests.attacks.test_resources import QUICK, attack
from tests.e2e.conftest import coordinator, fleet
from tests.processes import Program, free_port, mosquitto, rows, until

SECONDS = 8.0


def busy_s(this: Program) -> float:
    """Processor time of a program and its workers."""
    process = psutil.Process(this.process.pid)
    return sum(sum(one.cpu_times()[:2]) for one in (process, *process.children(recursive=True)))


def pace(run: Path, programs: Mapping[str, Program]) -> str:
    """Rounds a second, and what part of a core each program takes."""
    folded, began = len(rows(run)), time.monotonic()
    busy = {name: busy_s(this) for name, this in programs.items()}
    time.sleep(SECONDS)
    took_s = time.monotonic() - began
    shares = [
        f"{name} {(busy_s(this) - busy[name]) / took_s:.0%}" for name, this in programs.items()
    ]
    return f"{(len(rows(run)) - folded) / took_s:.1f} rounds/s ({', '.join(shares)} of a core)"


def main(folder: Path, kind: str, per_s: float) -> None:
    """Print the pace before and in the flood, and how long five rounds take after it."""
    port, run = free_port(), folder / "run"
    with mosquitto(folder, port) as broker, fleet(folder, port, **QUICK) as agents:
        this = coordinator(folder, port, "--set", "strategy.name=fedavg", fresh=True, **QUICK)
        programs = {"coordinator": this, "broker": broker, "agents": agents}
        try:
            until(lambda: len(rows(run)) >= 5, of=this)
            without = pace(run, programs)
            rogue = attack(folder, port, kind, 10**9, per_s)
            until(
                lambda: kind == "aside" or "refuse" in (run / "audit.jsonl").read_text(), of=rogue
            )
            during = pace(run, programs)
            rogue.stop()
            folded, ended = len(rows(run)), time.monotonic()
            until(lambda: len(rows(run)) >= folded + 5, of=this)
            after_s = time.monotonic() - ended
        finally:
            this.stop()
    print(f"{kind}: {without} become {during}; five more took {after_s:.1f} s afterwards")


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as made:
        main(Path(made), sys.argv[1], float(sys.argv[2]))
