"""One hostile client and the coordinator's memory and pace, with the real programs over a stock Mosquitto."""

from __future__ import annotations

import json
import resource
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.conftest import coordinator, fleet
from tests.processes import Program, free_port, mosquitto, needs_mosquitto, rows, until

pytestmark = [pytest.mark.processes, pytest.mark.broker, needs_mosquitto]

QUICK: dict[str, Any] = {
    "fleet": {"agents": 4, "faults": {}},
    "rounds": {"count": 5000, "participation": 1.0, "start_agents": 4},
    "evaluation": {"every": 0},
    "training": {"epochs": 1},
}


def megabytes(this: Program) -> float:
    return float(psutil.Process(this.process.pid).memory_info().rss) / 1e6


def roster(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "roster.json").read_text())
    return found


def attack(folder: Path, port: int, kind: str, count: int, per_s: float) -> Program:
    command = ["tests.attacks.flood", str(port), kind, str(count), str(per_s)]
    return Program(command, folder / f"{kind}.log")


def is_left(run: Path) -> bool:
    """Whether statuses of the attacker were too many, so that it is not heard any more."""
    rogue = roster(run)["agents"].get("rogue", {})
    return int(rogue.get("refusals", {}).get("rate", 0)) > 100 and not rogue["online"]


@pytest.mark.whole
def test_a_flood_of_statuses_neither_fills_the_coordinators_memory_nor_stops_its_rounds(
    tmp_path: Path,
) -> None:
    """Growth after 4 s of 4 MB statuses, eight times as many as here: 217 MB before, 0.1 MB after; of made-up agents with 16 KB each: 16 KB each before."""
    port, run = free_port(), tmp_path / "run"
    # each job waits, so that the attack has the processor
    calm = {**QUICK, "fleet": {"agents": 4, "faults": {"slow": 1.0, "slow_s": 0.2}}}
    with mosquitto(tmp_path, port), fleet(tmp_path, port, **calm):
        this = coordinator(tmp_path, port, "--set", "strategy.name=fedavg", fresh=True, **calm)
        try:
            until(lambda: len(rows(run)) >= 3, of=this)
            memory = megabytes(this)
            grown: dict[str, float] = {}
            sent: dict[str, int] = {}
            floods = (("big", 20, 40.0), ("small", 10**9, 4000.0), ("stranger", 2000, 2000.0))
            for kind, count, per_s in floods:
                rogue = attack(tmp_path, port, kind, count, per_s)
                if kind == "small":  # it sends until the roster has it, which may take its time
                    until(lambda: is_left(run), within_s=300.0, of=rogue)
                    rogue.stop()
                else:
                    until(lambda: rogue.process.poll() is not None, of=rogue)  # noqa: B023 - called at once
                    sent[kind] = int(rogue.output)
                grown[kind] = megabytes(this) - memory
            print(f"{memory:.0f} MB; growth in MB {grown}; sent {sent}")
            folded = len(rows(run))
            until(lambda: len(rows(run)) >= folded + 2, of=this)  # the run continues
        finally:
            this.stop()
    refusals = roster(run)["refusals"]
    assert refusals["too long"] > 0
    assert all(sent.values()), "every kind of flood was sent"
    assert max(grown.values()) < 50, grown
    assert len(roster(run)["agents"]) < 1100
    assert (run / "audit.jsonl").stat().st_size < 2_000_000


SHORT = 10


@pytest.mark.whole
def test_sockets_at_the_metrics_neither_end_a_run_nor_hold_it_up(tmp_path: Path) -> None:
    """191 unfinished requests ended a coordinator with 200 descriptors before."""
    port, scrape, run = free_port(), free_port(), tmp_path / "run"
    # each job waits, so that the attack comes before the end on a busy machine too
    faults = {"slow": 1.0, "slow_s": 0.4}
    short = {
        **QUICK,
        "fleet": {"agents": 4, "faults": faults},
        "rounds": {**QUICK["rounds"], "count": SHORT},
    }
    with mosquitto(tmp_path, port), fleet(tmp_path, port, **short), ExitStack() as stack:
        this = coordinator(
            tmp_path,
            port,
            "--set",
            "strategy.name=fedavg",
            "--metrics",
            str(scrape),
            fresh=True,
            **short,
        )
        resource.prlimit(this.process.pid, resource.RLIMIT_NOFILE, (128, 128))
        try:
            until(lambda: len(rows(run)) >= 1, of=this)
            with suppress(ConnectionError):  # it is refused once the coordinator has ended
                for _ in range(300):
                    client = stack.enter_context(socket.create_connection(("127.0.0.1", scrape)))
                    with suppress(ConnectionError):  # one too many
                        client.sendall(b"GET /metr")
            assert len(rows(run)) < SHORT, "the attack came before the end"
            open_files = psutil.Process(this.process.pid).num_fds()
            until(lambda: this.process.poll() is not None, within_s=300.0)
        finally:
            this.stop()
    assert this.process.returncode == 0, this.output[-3000:]
    assert open_files < 100
    assert "descriptor" not in this.output
