"""FedDist: the model goes part of the way to the uniform mean of the clients' models.

Papers. Long et al. 2023 (FeSEM), whose federated Reptile this is; Nichol et al. 2018 for Reptile. A
round is a gradient step of size epsilon on 1/2 mean_i ||w - w_i||^2. The model is a place to start
from, so mode `tuned` is the one that measures its purpose.

Our deviations. None from FeSEM. Local training is SGD, as in FeSEM; Reptile has Adam without its
first moment.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from pydantic import Field

from covey.shared.numerics.vectors import combine
from covey.shared.strategies.base import (
    ClientId,
    Facts,
    Phase,
    PrivacyFacet,
    Reports,
    Sealed,
    Setup,
    Sums,
    Terms,
    Trainings,
)
from covey.shared.strategies.bases.single import KEY, Single, SingleModel, sample_term
from covey.shared.strategies.client_half import Report


@dataclass(frozen=True)
class DistState(Single):
    """The model and the progress of the run."""

    round: int  # rounds that are complete
    rounds: int  # R, rounds in all


class PartOfTheWay(SingleModel[DistState]):
    """w + epsilon * (target - w). The target is the mean of the reports; `terms` weighs them, here by samples."""

    facts: ClassVar[Facts] = Facts(sealed=Sealed(), server=False)

    epsilon: float = Field(
        0.6,
        gt=0,
        le=1,
        description="The share of the way from the model to the mean of the reports that a round "
        "goes.",
    )
    anneal: Literal["none", "linear"] = Field(
        "none",
        description="linear: epsilon falls by the same amount in each round, to 0 after the last, "
        "as in Reptile. none: it stays.",
    )

    def init(self, setup: Setup) -> DistState:
        return DistState(setup.starts[0], 0, setup.rounds)

    def fold(self, state: DistState, phase: Phase, sums: Sums, reports: Reports) -> DistState:
        step = self.epsilon
        if self.anneal == "linear":
            step *= 1.0 - state.round / state.rounds
        target = sums.mean(KEY, otherwise=state.model)
        model = combine([(state.model, 1.0 - step), (target, step)])
        return replace(state, model=model, round=state.round + 1)

    @property
    def privacy(self) -> PrivacyFacet:
        return PrivacyFacet(Trainings(), "assigned")


class FedDist(PartOfTheWay):
    """All reporters count alike. With epsilon = 1 and equal samples it is FedAvg."""

    summary: ClassVar[str] = "part of the way to the uniform mean: learns a start for fine-tuning"
    source: ClassVar[str] = "Long et al. 2023; Nichol et al. 2018 (Reptile)"

    name: Literal["feddist"] = "feddist"

    def terms(self, state: DistState, phase: Phase, client: ClientId, report: Report) -> Terms:
        return sample_term(report, uniform=True)
