"""Per-FedAvg: learn a model that is good after one gradient step on a client's own data.

Fallah, Mokhtari, Ozdaglar 2020, Personalized Federated Learning with Theoretical Guarantees, algorithm 1, with the
first-order approximation (FO) and the Hessian-free one (HF) of section 5. Plain SGD in both half-steps: a public suite
runs them through one optimiser with momentum, which leaks inner gradients into outer steps, and tests without the
adaptation step. We weigh by samples as that suite does; `weights: uniform` is the paper.

Gradients are those of `Local.gradient`, in evaluation mode: no dropout, and batch-norm buffers stay as they are.
Of the training section `epochs` and `batch` have a part in this method's rounds, and the factors of `lr_steps`, which are
factors on the outer rate. The inner rate stays what it is: a test adapts with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.vectors import Vector, combine
from covey.shared.strategies.base import (
    ClientId,
    ClientState,
    Job,
    Local,
    Mixture,
    Order,
    Phase,
    Report,
    Reports,
    SampleIndices,
    Schedule,
    Setup,
    factor_in,
)
from covey.shared.strategies.bases.single import Single, SingleModel, averaged


@dataclass(frozen=True)
class PerFedAvgState(Single):
    """The model (d,), the schedule of the outer rate, and rounds folded."""

    schedule: Schedule = ()
    round: int = 0


class PerFedAvg(SingleModel[PerFedAvgState]):
    """The model is an initialisation: what counts is how it does after adaptation, and `personal` adapts it."""

    summary: ClassVar[str] = "learns a start that one local gradient step makes good"
    source: ClassVar[str] = "Fallah et al. 2020"

    name: Literal["perfedavg"] = "perfedavg"
    variant: Literal["fo", "hf"] = Field(
        "fo", description="fo: no second derivatives; hf: a difference of gradients"
    )
    alpha: float = Field(
        0.01, ge=0, description="rate of the inner step, and of the adaptation before a test"
    )
    beta: float = Field(0.001, gt=0, description="rate of the outer step")
    delta: float = Field(
        0.001,
        gt=0,
        description="hf: how far apart the gradients of the difference are, in outer steps",
    )
    adapt_epochs: int | None = Field(
        None,
        ge=0,
        description="epochs of adaptation before a test; null: one step on one batch; 0: none",
    )
    weights: Literal["samples", "uniform"] = Field(
        "samples", description="how clients count in the mean"
    )

    def init(self, setup: Setup) -> PerFedAvgState:
        return PerFedAvgState(setup.starts[0], setup.training.schedule(setup.rounds))

    def order(self, state: PerFedAvgState, phase: Phase, client: ClientId) -> Order:
        factor = factor_in(state.schedule, state.round)
        return Order(models=("0",), numbers={} if factor == 1 else {"beta": self.beta * factor})

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        model, steps = job.models[0], 0
        beta = float(job.numbers.get("beta", self.beta))
        for batches in local.batches():
            for group in groups(batches, 3 if self.variant == "hf" else 2):
                model, steps = self._step(local, model, group, beta), steps + 1
        return Report(
            {"model": model}, local.examples, {}, steps, local.loss(model), {"model": 0}
        ), client_state

    def fold(
        self, state: PerFedAvgState, phase: Phase, reports: Reports, average: Average = MEAN
    ) -> PerFedAvgState:
        uniform = self.weights == "uniform"
        model = averaged(reports, otherwise=state.model, uniform=uniform, average=average)
        return replace(state, model=model, round=state.round + 1)

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        model = job.models[0]
        if self.adapt_epochs is None:
            return (
                (
                    1.0,
                    _moved(
                        model, local.gradient(model, rows=next(local.batches(1))[0]), -self.alpha
                    ),
                ),
            )
        for batches in local.batches(self.adapt_epochs) if self.adapt_epochs else ():
            for rows in batches:
                model = _moved(model, local.gradient(model, rows=rows), -self.alpha)
        return ((1.0, model),)

    def _step(
        self, local: Local, model: Vector, group: Sequence[SampleIndices], beta: float
    ) -> Vector:
        """One outer step of rate `beta`. It starts from `model`, not from where the inner step led."""
        inner = _moved(model, local.gradient(model, rows=group[0]), -self.alpha)
        slope = local.gradient(inner, rows=group[1])
        if self.variant == "fo":
            return _moved(model, slope, -beta)
        ahead, behind = (
            local.gradient(_moved(model, slope, sign * self.delta), rows=group[2])
            for sign in (1.0, -1.0)
        )
        bend = self.alpha / (2 * self.delta)
        outer = combine([(slope, 1.0), (ahead, -bend), (behind, bend)])
        return _moved(model, outer, -beta)


def groups(batches: Sequence[SampleIndices], size: int) -> list[list[SampleIndices]]:
    """An epoch's batches in groups of independent ones, what is left over dropped; at least one group.

    Too few batches are put together and split evenly; who has fewer samples than that uses them all each time.
    """
    if len(batches) < size:
        rows = np.concatenate(batches)
        batches = [part if part.size else rows for part in np.array_split(rows, size)]
    return [list(batches[at : at + size]) for at in range(0, len(batches) - size + 1, size)]


def _moved(model: Vector, direction: Vector, rate: float) -> Vector:
    return combine([(model, 1.0), (direction, rate)])
