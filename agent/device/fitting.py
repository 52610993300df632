"""Whether the work of a task fits into the memory that the owner of a device allows, and what would."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from covey.agent.policy import OF_THE_OWNER, TAKES_MORE
from covey.shared.wire.jobs import Failure, MeasureWork, TryStep

Trial = TypeVar("Trial", TryStep, MeasureWork)
Call = Callable[[Trial], Awaitable[object]]


async def too_large(call: Call[TryStep], job: TryStep) -> str:
    """Why a job exceeds a limit of the owner, and for memory a smaller batch that fits; empty if the job is within the limits,
    whatever else is wrong: the work itself reports that.

    Args:
        call: gives a job to a worker.
        job: trains with its `batch`.
    """
    answer = await call(job)
    if not isinstance(answer, Failure) or not answer.why.startswith(OF_THE_OWNER):
        return ""
    return f"{answer.why}; {await what_fits(call, job)}" if TAKES_MORE in answer.why else answer.why


async def what_fits(call: Call[Trial], job: Trial) -> str:
    """What to change where the work of a batch takes too much memory: each half of the batch is tried."""
    advice = "freeze more of the model (task.freeze, task.share), or choose a smaller one"
    batch = job.batch
    while batch > 1:
        batch //= 2
        if not isinstance(await call(replace(job, batch=batch)), Failure):
            return f"a batch of {batch} fits (training.batch); or {advice}"
    return f"no batch fits; {advice}"
