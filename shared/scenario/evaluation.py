"""The evaluation section: which figures are measured, and when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from covey.shared import extras
from covey.shared.scenario.section import Section
from covey.shared.strategies.training import Batch, Decay, Momentum, Rate
from covey.shared.written import FIRST


class Tune(Section):
    """Settings of fine-tuning (mode `tuned`) that differ from the training section. null: no difference."""

    batch: Batch | None = Field(
        None, description="Mini-batch size of fine-tuning. null: training.batch."
    )
    lr: Rate | None = Field(None, description="Learning rate of fine-tuning. null: training.lr.")
    momentum: Momentum | None = Field(
        None, description="Momentum of fine-tuning. null: training.momentum."
    )
    weight_decay: Decay | None = Field(
        None, description="Weight decay of fine-tuning. null: training.weight_decay."
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_keys_of_training(cls, data: Any) -> Any:
        """Give a reason for two keys that a reader of the training section would expect here."""
        if not isinstance(data, Mapping):
            return data
        if "epochs" in data:
            raise ValueError("epochs is no key of this section; set evaluation.tune_epochs instead")
        if "lr_steps" in data:
            raise ValueError(
                "lr_steps counts rounds, and fine-tuning has no rounds; set the learning rate lr instead"
            )
        return data

    @model_serializer(mode="wrap")
    def _only_differences(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out every null, so that a section without differences is empty."""
        return {key: value for key, value in serialize(self).items() if value is not None}


class Deliver(Section):
    """What a device answers with after the run: a mixture of what it can have, weighed on its own training samples."""

    single: bool = Field(
        default=False,
        description="One of its candidates alone, the best one, instead of a mixture.",
    )
    budget_s: float = Field(
        60.0,
        ge=0,
        description="Seconds that a real device may judge: training at home, folds and trees. Candidates for which there is no "
        "time are left out. A simulated agent takes the time that it needs, so that its run can be repeated.",
    )
    companion: str | None = Field(
        None,
        pattern=r"^[a-z_]+$",
        description="A second model of the whole fleet, which an extra teaches it before the last round, as a further candidate: linear, or trees on what a line leaves. null: none.",
    )

    @model_serializer(mode="wrap")
    def _without_none(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without a companion orders have no key for it."""
        return {key: value for key, value in serialize(self).items() if value is not None}


class Evaluation(Section):
    """Which figures are measured, and when."""

    every: int = Field(
        0,
        ge=0,
        json_schema_extra=FIRST,
        description="Evaluate all agents each time this many rounds are complete. 0: only after the last round, which costs "
        "the least.",
    )
    tune_epochs: int = Field(
        1,
        ge=0,
        json_schema_extra=FIRST,
        description="E_ft, epochs of fine-tuning in mode `tuned`. 0: leave the mode out, as privacy.local does "
        "by default.",
    )
    tune: Tune = Field(
        Tune(),
        description="Settings of fine-tuning that differ from the training section, for example {momentum: 0.5}. "
        "training.lr_steps and the training settings of a compared method do not apply to fine-tuning.",
    )
    deliver: Deliver | Literal["served"] = Field(
        Deliver(),
        description="What a device uses after the run, mode `delivered`: a mixture of the answers of a constant, the served "
        "model, the same after 1, 5 and 20 epochs at home, the nearest training samples, the mean of these models, and trees "
        "for tables, weighed out of fold on its training samples. served: what mode `server` measures.",
    )
    track: bool = Field(
        default=False,
        description="Measure the test accuracy of each participant right after its training, in every round. The mode `best` needs "
        "it. The default saves the time on the devices.",
    )
    weight: Literal["test", "total"] = Field(
        "test",
        description="Weights of agents in micro averages: their test samples, or all their samples.",
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_deliver_was(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("deliver") == "best":
            raise ValueError(
                "deliver: best chose between two models, and a device now weighs all that it can have; leave it out"
            )
        return data

    @model_validator(mode="before")
    @classmethod
    def _served_without_a_judge(cls, data: Any) -> Any:
        """Without the extra devices use what they are served; a mixture that is asked for is refused."""
        if extras.has("judge") or not isinstance(data, Mapping):
            return data
        if data.get("deliver", "served") != "served":
            raise extras.missing("judge", "evaluation.deliver")
        return {**data, "deliver": "served"}

    @property
    def remark(self) -> str:
        """The limit that a missing extra sets to what devices use; empty: it is installed."""
        why = extras.missing("judge", "evaluation.deliver other than served")
        return "" if extras.has("judge") else f"devices use what they are served; {why}"

    @property
    def judges(self) -> bool:
        """Whether devices decide themselves what they answer with."""
        return self.deliver != "served"

    @property
    def companion(self) -> str:
        """The extra whose companion travels along with the method; empty: none does."""
        return "" if self.deliver == "served" else self.deliver.companion or ""

    def for_agents(self) -> dict[str, Any]:
        """The section in an order: what agents read of it."""
        unused = {"every", "tune"}
        if self.weight == "test":  # devices weigh their figures themselves where these are summed
            unused.add("weight")
        if self.deliver == "served":
            unused.add("deliver")
        return self.model_dump(mode="json", exclude=unused)
