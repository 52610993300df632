"""The evaluation section: which figures are measured, and when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from covey.shared.scenario.section import Section
from covey.shared.strategies.base import Batch, Decay, Momentum, Rate


class Tune(Section):
    """How mode E-tuned trains where it differs from the `training` section. null: as there."""

    batch: Batch | None = Field(None, description="in place of training.batch")
    lr: Rate | None = Field(None, description="in place of training.lr")
    momentum: Momentum | None = Field(None, description="in place of training.momentum")
    weight_decay: Decay | None = Field(None, description="in place of training.weight_decay")

    @model_validator(mode="before")
    @classmethod
    def _what_fine_tuning_has_not(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "epochs" in data:
            raise ValueError("epochs of fine-tuning are evaluation.tune_epochs: set them there")
        if isinstance(data, Mapping) and "lr_steps" in data:
            raise ValueError(
                "lr_steps counts rounds, and fine-tuning has none: give the rate itself, lr"
            )
        return data

    @model_serializer(mode="wrap")
    def _given(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What differs, and nothing else: an empty section where nothing does."""
        return {key: value for key, value in serialize(self).items() if value is not None}


class Evaluation(Section):
    """What is measured, and when."""

    every: int = Field(
        0, ge=0, description="evaluate all agents after every so many rounds; 0: only at the end"
    )
    tune_epochs: int = Field(1, ge=0, description="E_ft of mode E-tuned; 0: leave the mode out")
    tune: Tune = Field(
        Tune(),
        description="laid over the training section for E-tuned, e.g. {momentum: 0.5}; the schedule training.lr_steps and a "
        "compared method's own training have no part in it",
    )
    track: bool = Field(
        False,
        description="measure every participant's test accuracy right after training, every round (E-best needs it)",
    )
    weight: Literal["test", "total"] = Field(
        "test", description="micro averages weigh agents by test samples or by all"
    )
