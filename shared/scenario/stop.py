"""The section rounds.stop: end the rounds early, at a target or on a plateau."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from covey.shared.numerics.measures import (
    MEASURES,
    OF_CLASSIFICATION,
    OF_REGRESSION,
    Measure,
    MeasureName,
)
from covey.shared.scenario.section import Section


class Stop(Section):
    """When to end the rounds before rounds.count is reached. Needs evaluation.every."""

    metric: MeasureName | None = Field(
        None,
        description="The figure of mode E-server to watch, as its median over the agents: accuracy, f1, recall, auc or loss; for a "
        "regression rmse, mae, mse, r2 or loss. null: task.measure.",
    )
    target: float | None = Field(
        None,
        description="End the rounds once the figure is as good as this. Accuracy, f1 and r2 are shares: 0.9 is 90 %. null: no "
        "target.",
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="End the rounds after this many evaluations in a row without an improvement by more than min_delta. null: "
        "never.",
    )
    min_delta: float = Field(
        0.0,
        ge=0,
        description="The smallest improvement that counts, in units of the figure. The default counts any improvement.",
    )

    @model_validator(mode="after")
    def _has_a_condition(self) -> Self:
        if self.target is None and self.patience is None:
            raise ValueError("rounds.stop has no condition; set target, patience or both")
        return self

    def measure(self, usual: Measure, *, regression: bool) -> Measure:
        """The figure to watch; `usual` is that of the task.

        Raises:
            ValueError: it is no figure of the task, or no model reaches the target.
        """
        measure = usual if self.metric is None else MEASURES[self.metric]
        possible = OF_REGRESSION if regression else OF_CLASSIFICATION
        if measure.name not in possible:
            names = ", ".join(possible)
            raise ValueError(
                f"rounds.stop.metric is {measure.name}, and the task has {names}; choose one of them"
            )
        if self.target is not None and not measure.can_be_target(self.target):
            raise ValueError(
                f"rounds.stop.target is {self.target:g}; expected {measure.label} {measure.range_text}"
            )
        return measure
