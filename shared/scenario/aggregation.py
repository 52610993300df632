"""The aggregation section: limits on the influence of single reports, for every method.

The wire section: how vectors travel.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from covey.shared.numerics.averages import Average, Rule
from covey.shared.scenario.section import Section


class Wire(Section):
    """How vectors travel."""

    codec: Literal["float32", "float16", "bfloat16", "int8", "topk"] = Field(
        "float32",
        description="Encoding of the vectors in reports. The default loses nothing; topk needs delta.",
    )
    delta: bool = Field(
        default=False,
        description="Reports carry the difference to the model that the order named, instead of the model itself.",
    )
    down: Literal["float32", "float16", "bfloat16", "int8"] = Field(
        "float32", description="Encoding of the models that the coordinator sends."
    )
    keep: float = Field(
        0.01,
        gt=0,
        le=1,
        description="topk: share of the values that a report carries, the largest ones.",
    )
    part_bytes: int = Field(
        512 * 1024,
        ge=1024,
        le=8 << 20,
        description="Largest part of a model or report in one message, in bytes. Lower it for brokers with a small message "
        "limit.",
    )
    delivery: Literal["participants", "all"] = Field(
        "participants",
        description="Which agents subscribe to models: only those that an order invites, which moves the fewest bytes, or "
        "all agents of the group. Where every round invites every agent, they stay subscribed either way.",
    )

    @model_validator(mode="after")
    def _topk_is_for_deltas(self) -> Self:
        if self.codec == "topk" and not self.delta:
            raise ValueError(
                "codec topk sends the largest values of a difference; set wire.delta to true"
            )
        return self


class MaxSamples(Section):
    """The largest number of examples that a report may count with. It limits the weight, not the training."""

    times_median: float | None = Field(
        100.0,
        ge=1,
        description="A multiple of the median number of examples in the reports that are averaged together. null: no such "
        "limit. The default affects only claims far beyond all others.",
    )
    share: float | None = Field(
        0.2,
        gt=0,
        lt=1,
        description="The largest share of one report in a mean: of a group's model, of statistics of the data, and of micro "
        "averages of test figures. With fewer than ten reports it is twice an equal share. null: no such limit.",
    )


class Clip(Section):
    """The longest step that a report may take from the model that its order named. Longer steps are shortened."""

    times_median: float | None = Field(
        None,
        gt=0,
        description="A multiple of the median norm of the reports on the same model. null: no limit.",
    )


class Aggregation(Section):
    """Limits on the influence of single agents. They apply to every method, in every group, before averaging."""

    rule: Rule = Field(
        "mean",
        description="How reports become one model. mean weighs them by examples, as the methods' papers do; trimmed_mean, "
        "median, krum, multi_krum and geometric_median weigh all reports of a group equally and resist some false ones.",
    )
    max_samples: MaxSamples = Field(
        MaxSamples(), description="The largest number of examples that a report may count with."
    )
    clip: Clip = Field(Clip(), description="The longest step that a report may take.")
    trim: float = Field(
        0.2,
        ge=0,
        lt=0.5,
        description="trimmed_mean: share of reports that is dropped on each side of a value, rounded up.",
    )
    liars: float = Field(
        0.2,
        ge=0,
        lt=0.5,
        description="krum, multi_krum: share of a cluster's reports that may be false, rounded up.",
    )
    refuse_beyond: float | None = Field(
        100.0,
        gt=1,
        description="Refuse a report whose step is this many times longer than both the median step of its group and the "
        "model itself. null: never. The default refuses only steps that no honest training takes.",
    )
    quarantine_after: int | None = Field(
        3,
        ge=1,
        description="Stop inviting an agent after its reports were refused in this many steps. null: never.",
    )

    @property
    def clips(self) -> bool:
        """Whether any step is shortened."""
        return self.clip.times_median is not None

    @property
    def remark(self) -> str:
        """What the section does not do although it looks as if it did; empty if there is nothing of the kind."""
        cap = self.max_samples
        if not self.clips or self.average.single or cap.share is not None or cap.times_median == 1:
            return ""
        return (
            "aggregation.clip shortens steps, but one report may have nearly all of the weight, so it bounds no mean: set "
            "aggregation.max_samples.share, for example to 0.2"
        )

    @property
    def average(self) -> Average:
        """The average that folds use in place of the weighted mean."""
        return Average(self.rule, self.trim, self.liars, self.max_samples.share)
