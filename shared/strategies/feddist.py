"""FedDist: the model goes part of the way to the uniform mean of the clients' models.

Papers. Long et al. 2023 (FeSEM), whose federated Reptile this is; Nichol et al. 2018 for Reptile. A
round is a gradient step of size epsilon on 1/2 mean_i ||w - w_i||^2. The model is a place to start
from, so mode E-tuned is the one that measures its purpose.

Our deviations. None from FeSEM. Local training is SGD and epsilon stays, as in FeSEM; Reptile has Adam
without its first moment, and an epsilon that falls to 0.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from covey.shared.numerics.vectors import combine
from covey.shared.strategies.base import (
    ClientId,
    Facts,
    Phase,
    PrivacyFacet,
    Report,
    Reports,
    Sealed,
    Sums,
    Terms,
    Trainings,
)
from covey.shared.strategies.bases.single import KEY, PlainSingle, Single, sample_term


class PartOfTheWay(PlainSingle):
    """w + epsilon * (target - w). The target is the mean of the reports; `terms` weighs them, here by samples."""

    facts: ClassVar[Facts] = Facts(sealed=Sealed(), server=False)

    epsilon: float = Field(
        0.6,
        gt=0,
        le=1,
        description="The share of the way from the model to the mean of the reports that a round "
        "goes.",
    )

    def fold(self, state: Single, phase: Phase, sums: Sums, reports: Reports) -> Single:
        target = sums.mean(KEY, otherwise=state.model)
        return Single(combine([(state.model, 1.0 - self.epsilon), (target, self.epsilon)]))

    @property
    def privacy(self) -> PrivacyFacet:
        return PrivacyFacet(Trainings(), "assigned")


class FedDist(PartOfTheWay):
    """All reporters count alike. With epsilon = 1 and equal samples it is FedAvg."""

    summary: ClassVar[str] = "part of the way to the uniform mean: learns a start for fine-tuning"
    source: ClassVar[str] = "Long et al. 2023; Nichol et al. 2018 (Reptile)"

    name: Literal["feddist"] = "feddist"

    def terms(self, state: Single, phase: Phase, client: ClientId, report: Report) -> Terms:
        return sample_term(report, uniform=True)
