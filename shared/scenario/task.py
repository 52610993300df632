"""The task section: the data of one example, the classes and the model."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from covey.shared import json_text
from covey.shared.scenario.section import Section


class Model(Section):
    """A built-in model, or the user's own as "module:callable" (installed on every device)."""

    name: str = Field(
        "mlp",
        description="lenet5, mlp, linear, cnn1d, resnet9, femnist_cnn, celeba_cnn, vgg16, or module:callable",
    )
    options: dict[str, Any] = Field(
        {}, description="keyword arguments of the model, e.g. {hidden: 64}"
    )


class Standardise(Section):
    """Fixed means and standard deviations, one per channel (the first axis of the features)."""

    mean: tuple[float, ...]
    std: tuple[Annotated[float, Field(gt=0)], ...]


class Task(Section):
    """What is learned. An agent whose data does not fit stays out and says what differs."""

    features: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        min_length=1,
        description="shape of one example, channels first: [1, 28, 28], [9, 128], [12]",
    )
    classes: int | tuple[str, ...] | None = Field(
        None,
        description="number of classes, or their names as the data spells them; null: regression",
    )
    model: Model = Model(name="mlp", options={})
    scale: float = Field(
        1.0, gt=0, description="features are multiplied by this first, e.g. 0.00392157 for bytes"
    )
    standardise: Literal["none", "federated"] | Standardise = Field(
        "none",
        description="federated: the fleet's own means and deviations per channel, from sums, before round 0",
    )
    init: str | None = Field(
        None,
        description=".npz with theta0, flat float32: the first initial model, or a row for each that the method starts from; or what `agent model` wrote, which spares the coordinator torch",
    )

    @field_validator("classes")
    @classmethod
    def _classes_differ(cls, classes: int | tuple[str, ...] | None) -> int | tuple[str, ...] | None:
        if classes is None:
            return None
        names = classes if isinstance(classes, tuple) else ()
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{twice} stand there twice; each class is wanted once")
        count = classes if isinstance(classes, int) else len(names)
        if count < 2:
            raise ValueError(f"{count} of them; at least 2 are wanted, or null for regression")
        return classes

    @field_validator("standardise")
    @classmethod
    def _one_mean_and_deviation_per_channel(
        cls, value: str | Standardise, info: ValidationInfo
    ) -> str | Standardise:
        features = info.data.get("features")
        if (
            features
            and isinstance(value, Standardise)
            and not len(value.mean) == len(value.std) == features[0]
        ):
            raise ValueError(
                f"{len(value.mean)} means and {len(value.std)} standard deviations; the features "
                f"{list(features)} want one of each per channel, {features[0]}"
            )
        return value

    @property
    def outputs(self) -> int:
        """Width of the model's last layer."""
        match self.classes:
            case None:
                return 1
            case int(count):
                return count
            case names:
                return len(names)

    def for_agents(self) -> dict[str, Any]:
        """What agents are told of it: all but a file at the coordinator."""
        return self.model_dump(mode="json", exclude={"init"})

    @property
    def digest(self) -> str:
        """Names what an agent checked its data against."""
        text = json_text.dumps(self.for_agents(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
