"""FedDist: the model goes part of the way to the uniform mean of what the clients made of it.

The FeSEM authors' federated Reptile (Long et al. 2023; Nichol et al. 2018 for Reptile): a gradient step on
1/2 mean_i ||w - w_i||^2. Local training is SGD here and there, where Reptile has Adam without its first moment.
It learns a place to start from, so the figures of mode E-tuned are the ones to look at.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from pydantic import Field

from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.vectors import Vector, combine
from covey.shared.strategies.base import Phase, Reports, Routes, Setup
from covey.shared.strategies.bases.single import Single, SingleModel, averaged


@dataclass(frozen=True)
class DistState(Single):
    """The model (d,), rounds folded, and rounds in all."""

    round: int
    rounds: int


class PartOfTheWay(SingleModel[DistState]):
    """w + epsilon * (target - w); a method says which mean of the reports is the target."""

    epsilon: float = Field(
        0.6, gt=0, le=1, description="share of the way from the model to the mean of the reports"
    )
    anneal: Literal["none", "linear"] = Field(
        "none",
        description="linear: epsilon shrinks by the same amount each round, to 0 after the last (Reptile)",
    )

    @abstractmethod
    def target(self, state: DistState, reports: Reports, average: Average = MEAN) -> Vector:
        """The mean of the reported models (d,), or the state's own model where nobody counts."""

    def init(self, setup: Setup) -> DistState:
        return DistState(setup.starts[0], 0, setup.rounds)

    def fold(
        self, state: DistState, phase: Phase, reports: Reports, average: Average = MEAN
    ) -> DistState:
        left = 1.0 - state.round / state.rounds if self.anneal == "linear" else 1.0
        step = self.epsilon * left
        model = combine([(state.model, 1.0 - step), (self.target(state, reports, average), step)])
        return replace(state, model=model, round=state.round + 1)

    def private_routes(self) -> Routes:
        return "assigned"

    def check_local_privacy(self) -> None:
        """A report holds the trained model and nothing else."""


class FedDist(PartOfTheWay):
    """Every reporter counts the same; epsilon = 1 with equal samples is FedAvg."""

    summary: ClassVar[str] = "part of the way to the uniform mean: learns a start for fine-tuning"
    source: ClassVar[str] = "Long et al. 2023; Nichol et al. 2018 (Reptile)"

    name: Literal["feddist"] = "feddist"

    def target(self, state: DistState, reports: Reports, average: Average = MEAN) -> Vector:
        return averaged(reports, otherwise=state.model, uniform=True, average=average)
