"""Secure sums over Mosquitto: agents drop out, programs are killed, and the bytes are those of plain integer sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import AGENTS, coordinator, finish, fleet, whole_in_process
from tests.processes import free_port, model_bytes, mosquitto, needs_mosquitto, rows, until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.broker,
    pytest.mark.usefixtures("numpy_learner"),
    needs_mosquitto,
]

SECTIONS: dict[str, Any] = {
    "strategy": {"name": "fedavg"},
    "rounds": {"count": 2, "participation": 1.0},
    "privacy": {"secure": {"clip": 5.0}},
}


def ends(folder: Path) -> list[list[str]]:
    """How the sums of each round ended."""
    found = [row for row in rows(folder) if row.get("phase") == "secure-unmask"]
    return [[one["end"] for one in row["notes"]["secure"]] for row in found]


@pytest.mark.whole
def test_a_run_survives_kills_of_the_coordinator_with_the_same_bytes(tmp_path: Path) -> None:
    port, undisturbed = free_port(), whole_in_process(tmp_path / "undisturbed", **SECTIONS)
    with mosquitto(tmp_path, port), fleet(tmp_path, port, **SECTIONS):
        for kill in range(1, 3):
            more = ["--resume"] if kill > 1 else []
            this = coordinator(tmp_path, port, *more, **SECTIONS)
            until(lambda this=this: this.output.count('"event": "phase"') >= 2, of=this)  # type: ignore[misc]
            this.kill()
        finish(coordinator(tmp_path, port, "--resume", **SECTIONS))
    two_groups = ["sum", "sum"]
    assert ends(undisturbed) == [two_groups] * 3  # two rounds and the evaluation
    assert ends(tmp_path / "run") == [two_groups] * 3
    assert model_bytes(tmp_path / "run") == model_bytes(undisturbed)


@pytest.mark.whole
def test_agents_that_drop_out_leave_the_sum_of_the_others(tmp_path: Path) -> None:
    """In each phase an agent loses its connection with a probability of 10 %, for 4 s."""
    port = free_port()
    faults = {"die": 0.1, "back_after_s": 4.0, "slow": 1.0, "slow_s": 0.2}
    simulated = {
        "agents": AGENTS,
        "data": "digits",
        "partition": {"name": "grouped_labels", "groups": 2},
        "workers": 1,
        "faults": faults,
    }
    sections = {
        **SECTIONS,
        "rounds": {"count": 2, "participation": 1.0, "timing": {"absence_s": 1.0}},
    }
    with mosquitto(tmp_path, port), fleet(tmp_path, port, **sections, fleet=simulated):
        finish(coordinator(tmp_path, port, **sections), within_s=300.0)
    found = ends(tmp_path / "run")
    assert len(found) >= 3  # two rounds and the evaluation, which begins again where it is void
    sums = [one for groups in found for one in groups]
    assert "sum" in sums
    assert all(one == "sum" or one.startswith(("void", "passed over")) for one in sums)
    missing = [row["missing"] for row in rows(tmp_path / "run") if row.get("event") == "phase"]
    assert any(missing), "no agent dropped out"
