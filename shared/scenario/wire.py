"""The wire section: how vectors travel."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from covey.shared.scenario.section import Section


class Wire(Section):
    """How vectors travel."""

    codec: Literal["float32", "float16", "bfloat16", "int8", "topk"] = Field(
        "float32", description="of reports"
    )
    delta: bool = Field(
        False, description="reports carry the difference to the model that the order named"
    )
    down: Literal["float32", "float16", "bfloat16", "int8"] = Field(
        "float32", description="codec of models sent out"
    )
    block: int = Field(256, ge=8, le=1 << 20, description="int8: values per scale")
    keep: float = Field(0.01, gt=0, le=1, description="topk: share of the values that is sent")
    part_bytes: int = Field(
        512 * 1024, ge=1024, le=8 << 20, description="contents are cut into parts of this size"
    )
    delivery: Literal["participants", "all"] = Field(
        "participants",
        description="who holds the model subscription: those invited, or every agent of the cluster",
    )

    @model_validator(mode="after")
    def _topk_is_for_deltas(self) -> Self:
        if self.codec == "topk" and not self.delta:
            raise ValueError(
                "codec topk sends the largest values of a difference: set wire.delta to true"
            )
        return self
