"""Whether the work of a task fits into the memory that the owner of a device allows, and what would."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from covey.agent.policy import OF_THE_OWNER, TAKES_MORE

Call = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


async def too_large(call: Call, job: dict[str, Any]) -> str:
    """Why a job exceeds a limit of the owner, and for memory a smaller batch that fits; empty if the job is within the limits,
    whatever else is wrong: the work itself reports that.

    Args:
        call: gives a job to a worker.
        job: trains with its `batch`.
    """
    why = str((await call(job)).get("failure", ""))
    if TAKES_MORE in why:
        return f"{why}; {await what_fits(call, job)}"
    return why if why.startswith(OF_THE_OWNER) else ""


async def what_fits(call: Call, job: dict[str, Any]) -> str:
    """What to change where the work of a batch takes too much memory: each half of the batch is tried."""
    advice = "freeze more of the model (task.freeze, task.share), or choose a smaller one"
    batch: int = job["batch"]
    while batch > 1:
        batch //= 2
        if "failure" not in await call({**job, "batch": batch}):
            return f"a batch of {batch} fits (training.batch); or {advice}"
    return f"no batch fits; {advice}"
