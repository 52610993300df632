"""The aggregation section: limits on the influence of single reports, for every method."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from covey.shared.numerics.averages import Average, Rule
from covey.shared.scenario.section import Section


class MaxSamples(Section):
    """How many examples a report may count with. The cap binds claims, not what an agent trains on."""

    absolute: int | None = Field(None, ge=1, description="a fixed number; null: none")
    times_median: float | None = Field(
        100.0,
        ge=1,
        description="a multiple of the median claim of the reports that are folded together; null: none",
    )


class Clip(Section):
    """How far a report may move away from the model that its order named. Longer steps are shortened."""

    norm: float | None = Field(None, gt=0, description="a fixed Euclidean norm; null: none")
    times_median: float | None = Field(
        None,
        gt=0,
        description="a multiple of the median norm of the reports on the same model; null: none",
    )

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if self.norm is not None and self.times_median is not None:
            raise ValueError("norm and times_median limit the same step: give one of them")
        return self


class Aggregation(Section):
    """What keeps a few agents from owning the model. Applies to every method, in every cluster, before each fold."""

    rule: Rule = Field(
        "mean",
        description="mean weighs by samples; trimmed_mean, median, krum, multi_krum and geometric_median count all "
        "reports of a cluster alike and resist some that lie",
    )
    max_samples: MaxSamples = MaxSamples()
    clip: Clip = Clip()
    trim: float = Field(
        0.2,
        ge=0,
        lt=0.5,
        description="trimmed_mean: share of reports dropped on each side of a value, rounded up",
    )
    liars: float = Field(
        0.2,
        ge=0,
        lt=0.5,
        description="krum, multi_krum: share of a cluster's reports that may lie, rounded up",
    )
    keep: int | None = Field(
        None,
        ge=1,
        description="multi_krum: reports that are averaged; null: all but those that may lie",
    )
    iterations: int = Field(
        50, ge=1, le=1000, description="geometric_median: most iterations of Weiszfeld"
    )
    eps: float = Field(
        1e-4,
        gt=0,
        description="geometric_median: stop when the centre moves by less than this share of a distance",
    )
    refuse_beyond: float | None = Field(
        100.0,
        gt=1,
        description="refuse a report whose step is this many times as long as the median step of its cluster and as the "
        "model itself; null: never",
    )
    quarantine_after: int | None = Field(
        3,
        ge=1,
        description="an agent whose reports were refused in so many steps is invited no more; null: never",
    )

    @property
    def clips(self) -> bool:
        """Are steps shortened at all?"""
        return self.clip.norm is not None or self.clip.times_median is not None

    @property
    def average(self) -> Average:
        """What folds call in place of the weighted mean."""
        return Average(self.rule, self.trim, self.liars, self.keep, self.iterations, self.eps)
