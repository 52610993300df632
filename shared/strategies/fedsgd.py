"""FedSGD: one gradient per client and round; the server takes the step.

McMahan et al. 2017, the baseline of section 2. The full local gradient by default, as it is defined there;
one public implementation uses the first two samples of each client, we do not.
The step size is the training section's `lr` and follows its `lr_steps`; its epochs, batch and momentum have no part in
this method.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.vectors import Vector, combine
from covey.shared.strategies.base import (
    ClientState,
    Job,
    Local,
    Phase,
    Report,
    Reports,
    Schedule,
    Setup,
    View,
    factor_in,
)
from covey.shared.strategies.bases.single import Single, SingleModel


@dataclass(frozen=True)
class SgdState(Single):
    """The model, the server's learning rate, its schedule, and rounds folded."""

    lr: float
    schedule: Schedule = ()
    round: int = 0


class FedSgd(SingleModel[SgdState]):
    """The most rounds, the least local work."""

    summary: ClassVar[str] = "clients send one gradient, the server takes the step"
    source: ClassVar[str] = "McMahan et al. 2017"

    name: Literal["fedsgd"] = "fedsgd"
    batch: Literal["full"] | Annotated[int, Field(ge=1)] = Field(
        "full", description="samples in a client's gradient: full, or so many drawn anew each round"
    )

    def init(self, setup: Setup) -> SgdState:
        return SgdState(setup.starts[0], setup.training.lr, setup.training.schedule(setup.rounds))

    def plan(self, state: SgdState, view: View) -> Phase:
        return Phase(sizes={"gradient": state.model.size})

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        model = job.models[0]
        gradient = local.gradient(model, batch=None if self.batch == "full" else self.batch)
        gradient = decayed(gradient, model, job)
        return Report(
            {"gradient": gradient}, local.examples, {}, 1, local.loss(model)
        ), client_state

    def fold(
        self, state: SgdState, phase: Phase, reports: Reports, average: Average = MEAN
    ) -> SgdState:
        total = sum(report.examples for _, report in reports)
        folded = replace(state, round=state.round + 1)
        if total == 0:
            return folded
        lr = state.lr * factor_in(state.schedule, state.round)
        steps = [
            (report.vectors["gradient"], -lr * report.examples / total) for _, report in reports
        ]
        return replace(folded, model=average.combine([(state.model, 1.0)], steps))


def decayed(gradient: Vector, model: Vector, job: Job) -> Vector:
    """Weight decay belongs to the gradient, as in LocalTrain; buffers do not decay."""
    if job.training.weight_decay == 0:
        return gradient
    decay = np.zeros_like(model)
    decay[: job.layout.parameters] = model[: job.layout.parameters]
    return combine([(gradient, 1.0), (decay, job.training.weight_decay)])
