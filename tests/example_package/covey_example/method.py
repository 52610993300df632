"""FedAvg whose server goes only a part of the way to the mean of the clients' models."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from covey.methods import KEY, AveragedOnly, Phase, Reports, Single, Sums


class HalfStep(AveragedOnly):
    """The new model is old + step * (mean of the clients' models - old)."""

    summary: ClassVar[str] = "FedAvg with a server that takes a part of the step"
    source: ClassVar[str] = "an example"

    name: Literal["half_step"] = "half_step"
    step: float = Field(0.5, gt=0, le=1, description="the part of the way that the server goes")

    def fold(self, state: Single, phase: Phase, sums: Sums, reports: Reports) -> Single:
        return Single(sums.moved(KEY, state.model, self.step))
