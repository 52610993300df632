"""kill -9 of the coordinator, of the broker, of agents: what needs `audit`."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from covey.extras.audit.check import check
from tests.e2e.conftest import coordinator, finish, fleet
from tests.e2e.conftest import undisturbed as undisturbed
from tests.processes import (
    Program,
    free_port,
    model_bytes,
    mosquitto,
    needs_mosquitto,
    result,
    rows,
    until,
)

pytestmark = [
    pytest.mark.processes,
    pytest.mark.broker,
    pytest.mark.usefixtures("numpy_learner"),
    needs_mosquitto,
]

KILLS = 3


def test_a_coordinator_killed_at_any_time_ends_with_the_same_bytes(
    tmp_path: Path, undisturbed: Path
) -> None:
    port, dice = free_port(), random.Random(1)  # noqa: S311 - bad luck, no secrets
    with mosquitto(tmp_path, port), fleet(tmp_path, port):
        this, kills = coordinator(tmp_path, port), 0
        while kills < KILLS and at_work(this):
            time.sleep(dice.uniform(0.0, 0.9))  # the instant is random, that is the point
            this.kill()
            kills += 1
            this = coordinator(tmp_path, port, "--resume")
        finish(this)
    assert kills >= KILLS - 2, f"only {kills} kills hit the run"
    assert model_bytes(tmp_path / "run") == model_bytes(undisturbed)
    assert result(tmp_path / "run")["assignment"] == result(undisturbed)["assignment"]
    assert [row["reported"] for row in rows(tmp_path / "run")] == [
        row["reported"] for row in rows(undisturbed)
    ]
    audited = check(tmp_path / "run").verdict
    assert audited.whole, audited.broken
    assert (
        audited.events["resume"] >= kills - 1
    )  # a kill may come before the run's first line of that life


def at_work(this: Program) -> bool:
    """Wait until a coordinator is connected, and so has a checkpoint; False where its run was over before."""
    until(lambda: '"event": "link"' in this.output or this.process.poll() is not None, of=this)
    return this.process.poll() is None
