"""Per-FedAvg: learn a model that is good after one gradient step on a client's own data.

Paper. Fallah, Mokhtari, Ozdaglar 2020, Personalized Federated Learning with Theoretical Guarantees,
algorithm 1, with the first-order approximation (FO) and the Hessian-free one (HF) of section 5.

Our deviations.
- Means are weighted by samples; the paper's are uniform.
- Both half-steps are plain SGD, as in the paper. A public suite runs them through one optimiser
  with momentum, so that inner gradients leak into outer steps, and tests without adaptation.
- Gradients are taken in evaluation mode: no dropout, and batch-norm buffers do not change.

Of the training section the method uses `epochs` and `batch`, and `lr_steps` as factors on the outer
rate beta. The inner rate alpha does not change, because a test adapts with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from covey.shared.numerics.vectors import Vector, combine
from covey.shared.strategies.base import (
    GRADIENTS,
    MODEL,
    TRAIN,
    ClientId,
    Facts,
    Order,
    Phase,
    Reports,
    Sealed,
    Serves,
    Settings,
    Setup,
    Sums,
    needs_training,
)
from covey.shared.strategies.bases.single import KEY, Single, SingleModel
from covey.shared.strategies.client_half import (
    ClientState,
    Job,
    Local,
    Mixture,
    Report,
    SampleIndices,
)
from covey.shared.strategies.expected import STRENGTH
from covey.shared.strategies.training import Schedule, factor_in


@dataclass(frozen=True)
class PerFedAvgState(Single):
    """The model and the outer rate."""

    schedule: Schedule = ()  # of the outer rate
    round: int = 0  # rounds that are complete


class PerFedAvg(SingleModel[PerFedAvgState]):
    """The model is an initialisation: a client adapts it before use, in `personal`."""

    facts: ClassVar[Facts] = Facts(numbers={TRAIN: {"beta": STRENGTH}}, sealed=Sealed())
    summary: ClassVar[str] = "learns a start that one local gradient step makes good"
    source: ClassVar[str] = "Fallah et al. 2020"

    name: Literal["perfedavg"] = "perfedavg"
    variant: Literal["fo", "hf"] = Field(
        "fo",
        description="How second derivatives are computed. fo: not at all. hf: by a difference of "
        "gradients.",
    )
    alpha: float = Field(
        0.01, ge=0, description="The rate of the inner step and of the adaptation before a test."
    )
    beta: float = Field(0.001, gt=0, description="The rate of the outer step.")
    delta: float = Field(
        0.001,
        gt=0,
        description="The distance of the two points of the difference, in outer gradients "
        "(variant: hf).",
    )

    def refuses(self, settings: Settings) -> str:
        if needs_training(settings):
            return GRADIENTS
        return super().refuses(settings)

    def init(self, setup: Setup) -> PerFedAvgState:
        return PerFedAvgState(setup.starts[0], setup.training.schedule(setup.rounds))

    def order(self, state: PerFedAvgState, phase: Phase, client: ClientId) -> Order:
        factor = factor_in(state.schedule, state.round)
        if factor == 1:
            return Order(models=(KEY,))
        return Order(models=(KEY,), numbers={"beta": self.beta * factor})

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        model = job.models[0]
        steps = 0
        beta = float(job.numbers.get("beta", self.beta))
        batches_per_step = 3 if self.variant == "hf" else 2
        for batches in local.batches():
            for group in groups(batches, batches_per_step):
                model = self._step(local, model, group, beta)
                steps += 1
        report = Report(
            vectors={MODEL: model},
            examples=local.examples,
            steps=steps,
            loss=local.loss(model),
            bases={MODEL: 0},
        )
        return report, client_state

    def fold(
        self, state: PerFedAvgState, phase: Phase, sums: Sums, reports: Reports
    ) -> PerFedAvgState:
        return replace(state, model=sums.mean(KEY, otherwise=state.model), round=state.round + 1)

    serves: ClassVar[Serves] = "own"

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        model = job.models[0]
        first_batch = next(local.batches(1))[0]
        return ((1.0, self._adapted(local, model, first_batch)),)

    def _adapted(self, local: Local, model: Vector, rows: SampleIndices) -> Vector:
        """w - alpha * grad F_i(w) on a batch: the inner step."""
        return _moved(model, local.gradient(model, rows=rows), -self.alpha)

    def _step(
        self, local: Local, model: Vector, group: Sequence[SampleIndices], beta: float
    ) -> Vector:
        """One outer step of rate `beta`, on independent batches.

        It starts from `model`, not from the end of the inner step.
        """
        slope = local.gradient(self._adapted(local, model, group[0]), rows=group[1])
        if self.variant == "fo":
            return _moved(model, slope, -beta)
        # (I - alpha * Hessian) * slope, with the Hessian as a difference of gradients
        point_ahead = _moved(model, slope, self.delta)
        point_behind = _moved(model, slope, -self.delta)
        ahead = local.gradient(point_ahead, rows=group[2])
        behind = local.gradient(point_behind, rows=group[2])
        bend = self.alpha / (2 * self.delta)
        outer = combine([(slope, 1.0), (ahead, -bend), (behind, bend)])
        return _moved(model, outer, -beta)


def groups(batches: Sequence[SampleIndices], size: int) -> list[list[SampleIndices]]:
    """The batches of an epoch in groups of independent ones; at least one group.

    Batches that are left over are dropped. If there are too few, all samples are divided evenly; a
    client with fewer samples than that uses all of them each time.

    Args:
        batches: the samples of each batch.
        size: batches in a group.
    """
    if len(batches) < size:
        rows = np.concatenate(batches)
        return [[part if part.size else rows for part in np.array_split(rows, size)]]
    return [
        list(batches[start : start + size]) for start in range(0, len(batches) - size + 1, size)
    ]


def _moved(model: Vector, direction: Vector, rate: float) -> Vector:
    """model + rate * direction (d,)."""
    return combine([(model, 1.0), (direction, rate)])
