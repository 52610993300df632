"""A step is tried on a device before its first order, within the owner's limits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from covey.agent.device.performing import too_large
from covey.agent.policy import DEFAULT_RULES, TAKES_MORE, OwnersRules, Policy
from covey.agent.worker import worker
from covey.shared.scenario.task import Model, Task
from covey.shared.wire.jobs import DeviceData, Failure, Nothing, TryStep

TASK = Task(features=(1, 28, 28), classes=10, model=Model(name="linear"))


def job(folder: Path, batch: int) -> TryStep:
    file = folder / "images.npz"
    rng = np.random.default_rng(0)
    np.savez(file, x=rng.integers(0, 255, (60, 28, 28), dtype=np.uint8), y=np.arange(60) % 10)
    return TryStep(
        source=DeviceData(data=str(file)),
        task=TASK.model_dump(mode="json"),
        batch=batch,
        rules=DEFAULT_RULES.for_job(),
    )


def test_a_worker_tries_a_step_within_the_owners_limits(tmp_path: Path) -> None:
    this = job(tmp_path, 16)
    assert worker.answer(this) == Nothing()
    limited = OwnersRules(Policy(memory_limit_mb=1)).for_job()
    assert worker.answer(replace(this, rules=limited)).why.startswith(
        "policy of this device: memory_limit_mb: torch alone takes"
    )


@pytest.mark.parametrize(
    ("most", "advice"),
    [(64, ""), (16, "a batch of 16 fits (training.batch)"), (0, "no batch fits; freeze more")],
)
def test_work_that_takes_too_much_memory_names_a_batch_that_fits(
    most: int, advice: str, tmp_path: Path
) -> None:
    why = f"policy of this device: memory_limit_mb: {TAKES_MORE} 200 MB"

    async def call(one: TryStep) -> Nothing | Failure:
        return Nothing() if one.batch <= most else Failure(why=why)

    answer = asyncio.run(too_large(call, job(tmp_path, 64)))
    assert answer.startswith(f"{why}; {advice}" if advice else "")
    assert bool(answer) == bool(advice)
