"""The settings of local SGD, and how its learning rate changes during a run."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from covey.shared.wire.messages import DeviceWish
from covey.shared.written import FIRST

Batch = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
Decay = Annotated[float, Field(ge=0)]
Augment = Literal["none", "shift", "shift_flip"]
RateStep = tuple[
    Annotated[float, Field(ge=0, le=1)],  # share of the rounds
    Annotated[float, Field(gt=0)],  # factor on the rate from there on
]
# (round, factor), rounds ascending: from that round on the rate has this factor
Schedule = tuple[tuple[int, float], ...]


class Training(BaseModel):
    """The settings of local SGD. Every order starts with a new optimiser."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    epochs: int = Field(
        1,
        ge=1,
        json_schema_extra=FIRST,
        description="E: the number of passes over the local training set in a round.",
    )
    batch: Batch = Field(
        10,
        json_schema_extra=FIRST,
        description="B: the size of a mini-batch. A shorter last batch of an epoch is used too.",
    )
    lr: Rate = Field(0.01, json_schema_extra=FIRST, description="The learning rate of local SGD.")
    momentum: Momentum = Field(
        0.0,
        json_schema_extra=FIRST,
        description="The momentum of local SGD: v = momentum * v + g, no dampening, no Nesterov.",
    )
    weight_decay: Decay = Field(
        0.0, description="The weight decay: weight_decay * model is added to the gradient."
    )
    lr_steps: tuple[RateStep, ...] = Field(
        (),
        description="Pairs [share, factor]. Once that share of the rounds is complete, the "
        "learning rate is multiplied by the factor, on agents and on the server.",
    )
    device: DeviceWish = Field(
        "cpu",
        json_schema_extra=FIRST,
        description="The device on which torch computes; auto uses a GPU where an agent has one. "
        "Results repeat bit for bit only on one kind of device. The owner of an agent can choose "
        "another kind with `agent start --device`.",
    )
    augment: Augment = Field(
        "none",
        description="Random changes of the images at each step of local SGD. shift: by whole pixels, up "
        "to an eighth of the size, with 0 where nothing is left. shift_flip: also mirror half of "
        "the images left to right, which suits photographs but no writing. Gradients, losses, "
        "evaluation and fine-tuning use the images unchanged.",
    )

    weights: Literal["none", "balanced"] = Field(
        "none",
        description="What the loss of a sample weighs while a model trains. balanced: each class that an agent "
        "holds weighs the same in sum there, so that rare classes count.",
    )

    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32",
        description="The arithmetic of local SGD. bf16: layers compute in bfloat16 where torch finds it safe, on GPUs and "
        "processors. fp16: the same in float16, on GPUs, with a scaled loss. The model, its gradient and every step stay float32. Evaluation and what travels are float32 in any case.",
    )

    @model_validator(mode="after")
    def _float16_is_for_gpus(self) -> Self:
        if self.precision == "fp16" and self.device == "cpu":
            raise ValueError(
                "precision fp16 needs a GPU, and device is cpu; set device to auto, or precision to bf16"
            )
        return self

    def in_round(self, round_: int, rounds: int) -> Training:
        """The settings that agents use once `round_` of all `rounds` are complete.

        The factors of all `lr_steps` that are reached multiply.
        """
        return self.model_copy(update={"lr": self.lr * self._factor(round_, rounds)})

    def schedule(self, rounds: int) -> Schedule:
        """`lr_steps` in rounds, for methods whose server has a rate; empty without any steps."""
        firsts = {math.ceil(share * rounds) for share, _ in self.lr_steps}
        return tuple((first, self._factor(first, rounds)) for first in sorted(firsts))

    def _factor(self, round_: int, rounds: int) -> float:
        return math.prod([factor for share, factor in self.lr_steps if round_ >= share * rounds])


def factor_in(schedule: Schedule, round_: int) -> float:
    """The factor on the learning rate once `round_` rounds are complete; 1.0 before any step."""
    reached = [factor for first, factor in schedule if round_ >= first]
    return reached[-1] if reached else 1.0


def unfit_for_dp_sgd(training: Training, *, finds_anomalies: bool) -> str:
    """What of a training DP-SGD cannot do, with advice; empty if it can do all.

    Args:
        training: the settings.
        finds_anomalies: the model has a threshold that agents set.
    """
    if training.augment != "none":
        return "DP-SGD trains on images unchanged; set training.augment to none, or remove privacy.local"
    if training.weights != "none":
        return (
            "DP-SGD bounds what each example adds to a gradient, whatever it weighs; set training.weights to none, "
            "or remove privacy.local"
        )
    if training.precision != "fp32":
        return "DP-SGD clips gradients in float32; set training.precision to fp32, or remove privacy.local"
    if finds_anomalies:
        return (
            "DP-SGD does not cover the threshold of task.anomalies, which is a quantile of errors; use privacy.client, "
            "or remove it"
        )
    return ""
