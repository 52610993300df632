"""The wire section: how vectors travel."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

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
        "all agents of the cluster.",
    )

    @model_validator(mode="after")
    def _topk_is_for_deltas(self) -> Self:
        if self.codec == "topk" and not self.delta:
            raise ValueError(
                "codec topk sends the largest values of a difference; set wire.delta to true"
            )
        return self
