"""FedSGD: clients send one gradient per round, and the server takes the step.

Paper. McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized
Data, the baseline of section 2.

Our deviations. None: by default a client's gradient is over all its samples. One public
implementation uses the first two samples of each client.

The step size is `training.lr`, which follows `training.lr_steps`. The method does not use the
epochs, batch and momentum of the training section.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from covey.shared.numerics.vectors import Vector, combine
from covey.shared.strategies.base import (
    GRADIENT,
    GRADIENTS,
    ClientId,
    Facts,
    Phase,
    Reports,
    Sealed,
    Settings,
    Setup,
    Sums,
    Terms,
    View,
    needs_training,
)
from covey.shared.strategies.bases.single import KEY, Single, SingleModel, sample_term
from covey.shared.strategies.client_half import ClientState, Job, Local, Report
from covey.shared.strategies.training import Schedule, factor_in


@dataclass(frozen=True)
class SgdState(Single):
    """The model and the server's learning rate."""

    lr: float
    schedule: Schedule = ()  # of the rate
    round: int = 0  # rounds that are complete


class FedSgd(SingleModel[SgdState]):
    """The most rounds, the least local work."""

    facts: ClassVar[Facts] = Facts(sealed=Sealed(), server=False)

    summary: ClassVar[str] = "clients send one gradient, the server takes the step"
    source: ClassVar[str] = "McMahan et al. 2017"

    name: Literal["fedsgd"] = "fedsgd"
    batch: Literal["full"] | Annotated[int, Field(ge=1)] = Field(
        "full",
        description="The samples in a client's gradient: all of them, or this many, drawn again in "
        "each round.",
    )

    def refuses(self, settings: Settings) -> str:
        if needs_training(settings):
            return GRADIENTS
        return super().refuses(settings)

    def init(self, setup: Setup) -> SgdState:
        return SgdState(setup.starts[0], setup.training.lr, setup.training.schedule(setup.rounds))

    def plan(self, state: SgdState, view: View) -> Phase:
        return Phase(sizes={GRADIENT: state.model.size})

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        model = job.models[0]
        batch = None if self.batch == "full" else self.batch
        gradient = local.gradient(model, batch=batch)
        gradient = decayed(gradient, model, job)
        loss = local.loss(model)
        return Report({GRADIENT: gradient}, local.examples, steps=1, loss=loss), client_state

    def terms(self, state: SgdState, phase: Phase, client: ClientId, report: Report) -> Terms:
        return sample_term(report, of=GRADIENT)

    def fold(self, state: SgdState, phase: Phase, sums: Sums, reports: Reports) -> SgdState:
        folded = replace(state, round=state.round + 1)
        if not sums.weight(KEY):
            return folded
        lr = state.lr * factor_in(state.schedule, state.round)
        gradient = sums.mean(KEY, otherwise=np.zeros_like(state.model))  # sum_i n_i / n * g_i
        return replace(folded, model=combine([(state.model, 1.0), (gradient, -lr)]))


def decayed(gradient: Vector, model: Vector, job: Job) -> Vector:
    """The gradient (d,) with weight decay, as local SGD has it; buffers do not decay."""
    rate = job.training.weight_decay
    if rate == 0:
        return gradient
    p = job.layout.parameters
    decay = np.zeros_like(model)
    decay[:p] = model[:p]
    return combine([(gradient, 1.0), (decay, rate)])
