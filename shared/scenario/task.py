"""The task section: the data of one example, the classes and the model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from covey.shared.numerics.measures import (
    MEASURES,
    OF_CLASSIFICATION,
    OF_REGRESSION,
    Kind,
    Measure,
    MeasureName,
    kind_of_task,
    main_measure,
)
from covey.shared.numerics.split import Role
from covey.shared.scenario.adapters import TRAINED, Adapters
from covey.shared.scenario.base import Base
from covey.shared.scenario.columns import (
    MAX_COLUMNS,
    MAX_WIDTH,
    Anomalies,
    Category,
    ColumnName,
    Notation,
    TableColumn,
    TargetScale,
    Window,
    table_columns,
    width_of,
    wrong_names,
    wrong_vocabulary,
)
from covey.shared.scenario.section import Section, TensorPattern, repeated
from covey.shared.storage import json_text
from covey.shared.written import FIRST, OrItsName

DIGEST_BYTES = 8
MIN_CLASSES = 2
MAX_CLASSES = 1_000_000  # a model has an output for each
SPLIT: tuple[Role, ...] = ("share", "keep", "freeze")  # keys that divide the tensors of a model
IMAGE_AXES = 3  # channels, height, width
IMAGE_CHANNELS = (1, 3)  # grey, RGB
AUTOENCODER = "autoencoder"  # the built-in model for anomalies
USUAL_AND_NOT = ("normal", "anomaly")  # classes of a task of anomalies that names none
# Agents get all other keys only if they are set, so that orders without them stay as they were before these keys existed.
ALWAYS_SENT = ("features", "classes", "model", "scale", "standardise")


class Model(Section):
    """A built-in model, or a model of the user's own that is installed on every device."""

    name: str = Field(
        "mlp",
        description="A built-in model (lenet5, mlp, linear, cnn1d, gru, autoencoder, cnn4, mobilenet, resnet9, femnist_cnn, celeba_cnn, "
        "vgg16) or "
        "module:callable, which every device must have installed. The default accepts features of any shape.",
    )
    options: dict[str, Any] = Field(
        {},
        json_schema_extra=FIRST,
        description="Keyword arguments of the model, for example {hidden: 64}. Empty: the model's own defaults.",
    )
    adapters: Adapters | None = Field(
        None,
        description="Low-rank adapters (LoRA) of layers, such as {rank: 4, alpha: 8}. Without share, keep and freeze they alone "
        "train and travel; add the head with share: ['*.lora_b', fc3]. null: none.",
    )


class Standardise(Section):
    """Fixed means and standard deviations, one per channel (the first axis of the features)."""

    mean: tuple[float, ...] = Field(description="Mean of each channel, after scaling.")
    std: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        description="Standard deviation of each channel, after scaling."
    )


class Task(Section):
    """The learning task. Agents whose data does not fit it report the difference and do not take part."""

    features: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        min_length=1,
        description="Shape of one example, channels first: [1, 28, 28] for a grey image, [9, 128] for a window of "
        "nine sensors, [12] for a row of a table.",
    )
    classes: int | tuple[str, ...] | None = Field(
        None,
        json_schema_extra=FIRST,
        description="Number of classes, or their names as the data spells them. null: a regression task. Of anomalies the first "
        "name is that of usual samples.",
    )
    columns: tuple[ColumnName, ...] = Field(
        (),
        max_length=MAX_COLUMNS,
        json_schema_extra=FIRST,
        description="Names of a table's feature columns, in the order of the model's inputs. Each device finds them by name, "
        "whatever their order in its file. Empty: all columns except the label, in the order of the file. If features has the "
        "shape of an image, such as [1, 8, 8], the columns are its pixels, row by row and channel by channel; devices with "
        "folders of images then take part too.",
    )
    target: ColumnName | Annotated[tuple[ColumnName, ...], Field(min_length=2)] | None = Field(
        None,
        json_schema_extra=FIRST,
        description="Name of a table's label column; `agent start --label` replaces it on a device. null: the column called "
        "label, class, target or y, else the last one. A list: several labels, each of which a sample has (1, true) or not "
        "(0, false).",
    )
    anomalies: Anomalies | None = Field(
        None,
        json_schema_extra=FIRST,
        description="Finds unusual samples, without labels or with them: {quantile: 0.99}. Agents train the model autoencoder "
        "on usual samples; a larger error than its threshold is an alarm. null: the task is another one.",
    )
    read: Notation = Field(
        Notation(),
        description='How files spell numbers, times and missing cells: {decimal: ",", dates: ["%d.%m.%Y"], missing: ["?"]}.',
    )
    ignore: tuple[ColumnName, ...] = Field(
        (),
        max_length=MAX_COLUMNS,
        description='Columns of a table that are not used. ["*"] with task.columns: all columns that the task does not '
        "name. The default refuses a table with unknown columns if task.columns is set.",
    )
    impute: Literal["none", "mean", "median", "drop"] | dict[ColumnName, float] = Field(
        "none",
        json_schema_extra=FIRST,
        description="What replaces missing cells of task.columns. none: they are refused. mean, median: the value of the "
        "whole fleet, which agents find out before round 0 from sums or quantiles. drop: rows with missing cells are left "
        "out. Fixed values: {age: 40}; other columns must be complete. A missing category counts as another value.",
    )
    optional: tuple[ColumnName, ...] = Field(
        (),
        max_length=MAX_COLUMNS,
        description="Columns among task.columns that a device may lack, such as those of a sensor that not every device has: all "
        "their cells then count as missing, and impute replaces them. Any other column that is not there keeps a device out.",
    )
    flags: tuple[ColumnName, ...] = Field(
        (),
        max_length=MAX_COLUMNS,
        description="Columns of numbers among task.columns with a second input, right after their own, that is 1 where the cell "
        "is missing and 0 elsewhere: a device without a sensor then differs from one that measures the mean.",
    )
    categories: dict[ColumnName, Category] = Field(
        {},
        max_length=MAX_COLUMNS,
        json_schema_extra=FIRST,
        description="Columns of words: {colour: [red, green]} gives one input per word and one for all other words; a number "
        "{colour: 8} lets the fleet find up to 8 words before round 0, those that most agents hold. The default expects "
        "numbers in all columns.",
    )
    drop_unlabelled: bool = Field(
        default=False,
        description="true: rows without a target are left out. The default refuses a table with such rows.",
    )
    times: tuple[ColumnName, ...] = Field(
        (),
        max_length=MAX_COLUMNS,
        json_schema_extra=FIRST,
        description="Columns of points in time, as ISO 8601 (2026-01-31 13:45, the clock as written) or as numbers since 1970 "
        "(seconds, milliseconds, microseconds or nanoseconds by their size, in UTC). Each gives four inputs: sine and cosine "
        "of the position in the day, and in the week from Monday. A missing time gives four zeros.",
    )
    seasons: tuple[ColumnName, ...] = Field(
        (),
        max_length=MAX_COLUMNS,
        description="Those of times that give two inputs more, for data of many months: sine and cosine of the position in the "
        "year, by the nearest week.",
    )
    elapsed: tuple[ColumnName, ...] = Field(
        (),
        max_length=MAX_COLUMNS,
        description="Those of times that give one input more, behind those of all columns: a number of days, for what rises or "
        "falls over the time of the data. Set standardise too.",
    )
    window: Window | None = Field(
        None,
        json_schema_extra=FIRST,
        description="Makes one sample of consecutive rows, for sensors and other series. null: every row is a sample.",
    )
    test: Literal["latest", "random"] | None = Field(
        None,
        description="Which fifth of a device's rows tests, if its data has no test part: latest: the last rows in the order of "
        "the first column of times, or of the file if there is none; random: rows drawn on a seed. null: latest with times, "
        "random without. The latest windows of each series test in any case.",
    )
    target_scale: Literal["none", "federated"] | TargetScale = Field(
        "none",
        description="How a regression target is standardised while a model trains: none; fixed values ({mean: 20, std: 5}); "
        "or federated, from sums that agents send before round 0. Figures and predictions are in the units of the data.",
    )
    resize: Literal["none", "nearest", "bilinear", "bicubic"] = Field(
        "none",
        description="Brings the images of a folder to the size and colours of features, whatever their own: none refuses "
        "images of other sizes; the others name the filter of Pillow's resize, which averages when it makes images smaller "
        "(nearest does not). Images are stretched to the size without regard to their proportions.",
    )
    model: Annotated[Model, OrItsName()] = Field(
        Model(name="mlp", options={}),
        json_schema_extra=FIRST,
        description="The model that every agent trains.",
    )
    scale: float = Field(
        1.0,
        gt=0,
        json_schema_extra=FIRST,
        description="Factor that is applied to every feature first, for example 0.00392157 for bytes. The default leaves "
        "features unchanged.",
    )
    standardise: Literal["none", "federated"] | Standardise = Field(
        "none",
        json_schema_extra=FIRST,
        description="How features are standardised per channel: none; fixed values ({mean: [...], std: [...]}); or "
        "federated, where agents send sums before round 0 and use the means and deviations of the whole fleet. The "
        "default sends nothing.",
    )
    measure: MeasureName | None = Field(
        None,
        json_schema_extra=FIRST,
        description="The measure by which models are chosen: the best version, rounds.stop, what a device delivers, and a device's check "
        "before it uses another model. Classes: accuracy, f1, recall (macro), auc or loss; values: rmse, mae, mse, r2 or loss. "
        "null: accuracy, or rmse.",
    )
    label_prior: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Whether each agent adds the logarithm of its own shares of the classes to the outputs of a model, in "
        "training, evaluation and use; the shares are never sent. on: with every method. auto: the method decides: kin does if "
        "labels differ, others do not. off: never.",
    )
    min_cell: int | None = Field(
        None,
        ge=1,
        description="The fewest samples of a class whose sums are in an agent's card, which kin and the option gate of other "
        "methods ask for. 1 finds more where agents have few samples of a class, and shows single samples. null: 5; 1 for "
        "kin in a simulated fleet.",
    )
    init: str | None = Field(
        None,
        description="An .npz file with the array theta0 (float32): the first initial model, or one row for each initial "
        "model of the method. A file from `agent lab model` works too, and then the coordinator needs no torch. A trained model "
        "is accepted as well (models/cluster-0.safetensors of a run), or a folder of them for a method with several initial "
        "models. Weights of your own (.safetensors, with the model's names of tensors) may lack tensors that share or keep "
        "names: these begin at random. null: the seed determines the initial models.",
    )

    base: Base | None = Field(
        None,
        description="A file of weights (.safetensors) that agents keep on their disk: {file, digest}, as `coordinator lab base` "
        "prints it. It is the first initial model, as with init; what of it does not travel with reports, agents take from "
        "their own copy, and fetch it once if they have none. null: agents get these values with their first order.",
    )
    share: tuple[TensorPattern, ...] = Field(
        (),
        max_length=MAX_COLUMNS,
        description="Tensors of the model that train and travel: names of tensors or modules, with * and ? as wildcards. The "
        "first pattern that matches a tensor decides, and ! in front of it takes the tensor out. Everything that is not shared "
        "or kept is frozen then. The default shares all that keep and freeze do not name.",
    )
    keep: tuple[TensorPattern, ...] = Field(
        (),
        max_length=MAX_COLUMNS,
        description="Tensors that train on each agent and stay there, as patterns like those of share, for example [fc3] for "
        "an own last layer, or [fc3.bias] for own levels. keep is stronger than share.",
    )
    freeze: tuple[TensorPattern, ...] = Field(
        (),
        max_length=MAX_COLUMNS,
        description="Tensors that neither train nor travel, as patterns like those of share. They have the values of init, or "
        "those that the seed gives them.",
    )

    @field_validator("classes")
    @classmethod
    def _check_classes(cls, classes: int | tuple[str, ...] | None) -> int | tuple[str, ...] | None:
        match classes:
            case None:
                return None
            case int(count):
                pass
            case names:
                count = len(names)
                if twice := repeated(names):
                    raise ValueError(f"{twice} occur more than once; list each class once")
        if count < MIN_CLASSES:
            raise ValueError(
                f"{count} classes; expected at least {MIN_CLASSES}, or null for regression"
            )
        if count > MAX_CLASSES:
            raise ValueError(f"{count} classes; expected at most {MAX_CLASSES}")
        return classes

    @field_validator("standardise")
    @classmethod
    def _check_channels(cls, value: str | Standardise, info: ValidationInfo) -> str | Standardise:
        features = info.data.get("features")
        if not features or not isinstance(value, Standardise):
            return value
        channels = features[0]
        if len(value.mean) != channels or len(value.std) != channels:
            raise ValueError(
                f"{len(value.mean)} means and {len(value.std)} standard deviations; expected one of each per channel, "
                f"{channels} for features {list(features)}"
            )
        return value

    @field_validator("label_prior", mode="before")
    @classmethod
    def _as_a_word(cls, value: Any) -> Any:
        """YAML reads an unquoted on or off as true or false."""
        if isinstance(value, bool):
            return "on" if value else "off"
        return value

    @model_validator(mode="before")
    @classmethod
    def _share_adapters(cls, data: Any) -> Any:
        """Adapters alone travel, if the task does not divide its model in another way."""
        model = data.get("model") if isinstance(data, Mapping) else None
        adapters = model.get("adapters") if isinstance(model, Mapping) else None
        if not isinstance(adapters, Mapping) or any(data.get(key) for key in SPLIT):
            return data
        return {**data, "share": TRAINED}

    @model_validator(mode="before")
    @classmethod
    def _complete_kinds(cls, data: Any) -> Any:
        """Classes and measure of a task of labels or anomalies that names none."""
        if not isinstance(data, Mapping):
            return data
        target = data.get("target")
        match kind_of_task(data):
            case "labels":
                return {
                    **data,
                    "classes": data.get("classes") or target,
                    "measure": data.get("measure") or "f1",
                }
            case "anomalies":
                is_labelled = target is not None or not data.get("columns")
                return {
                    **data,
                    "classes": data.get("classes") or USUAL_AND_NOT,
                    "measure": data.get("measure") or ("auc" if is_labelled else "loss"),
                }
        return data

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        is_of_anomalies = self.anomalies is not None
        if is_of_anomalies != (self.model.name == AUTOENCODER) and ":" not in self.model.name:
            raise ValueError(
                f"anomalies need model: {AUTOENCODER} or one of your own, and {AUTOENCODER} needs anomalies: "
                f"model is {self.model.name}"
            )
        if is_of_anomalies and not isinstance(self.classes, tuple):
            raise ValueError(
                "anomalies: name the classes, usual samples first, as in [ok, worn]; or leave classes out"
            )
        if self.kind == "labels" and self.classes != self.target:
            raise ValueError("a list of targets has no classes; leave classes out")
        if self.kind == "labels" and (self.window is not None and self.window.label == "majority"):
            raise ValueError("window.label: majority is for classes; use last")
        if self.label_prior == "on" and self.kind != "classes":
            raise ValueError("label_prior is for classes; remove it")
        return self

    @model_validator(mode="after")
    def _check_base(self) -> Self:
        if self.base is not None and self.init is not None:
            raise ValueError("base and init both give the initial model; remove one of them")
        return self

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        roles: dict[str, tuple[str, ...]] = {
            "ignore": self.ignore,
            "categories": tuple(self.categories),
            "times": self.times,
            "seasons": self.seasons,
            "elapsed": self.elapsed,
            "optional": self.optional,
            "flags": self.flags,
            "impute": tuple(self.impute) if isinstance(self.impute, dict) else (),
        }
        forecasts = self.window is not None and self.window.horizon is not None
        if not forecasts:
            roles["target"] = self.targets
        if self.window is not None and self.window.group is not None:
            roles["window.group"] = (self.window.group,)
        for wrong in wrong_names(self.columns, roles):
            raise ValueError(wrong)
        both = {*self.times} & {*self.categories, *({*roles["impute"]} - {*self.elapsed})}
        if both:
            raise ValueError(f"times: {sorted(both)} have another role too; remove one of them")
        for key in ("seasons", "elapsed"):
            if others := {*getattr(self, key)} - {*self.times}:
                raise ValueError(
                    f"{key} names {sorted(others)}, expected columns of task.times; add them there"
                )
        if words := {*self.flags} & {*self.times, *self.categories}:
            raise ValueError(
                f"flags: {sorted(words)} are not numbers; a missing word or time has inputs of its own: remove them"
            )
        is_image = len(self.features) == IMAGE_AXES and self.features[0] in IMAGE_CHANNELS
        if self.resize != "none" and not is_image:
            raise ValueError(
                f"resize is for images; features is {list(self.features)}: expected [1, height, width] or "
                "[3, height, width]"
            )
        for column in self.table_columns:
            if column.name in self.optional and (
                self.impute == "drop" or not self.may_miss(column)
            ):
                raise ValueError(
                    f"optional: nothing replaces {column.name!r} where it is not there; set impute to mean, median or a value"
                )
        if self.test == "random" and self.window is not None:
            raise ValueError(
                "test: random would train on rows that test, since windows share rows; remove test"
            )
        for name, category in self.categories.items():
            if wrong := wrong_vocabulary(name, category):
                raise ValueError(wrong)
        of_task = OF_REGRESSION if self.classes is None else OF_CLASSIFICATION
        if self.measure is not None and self.measure not in of_task:
            raise ValueError(
                f"measure is {self.measure}, and the task has {', '.join(of_task)}; choose one of them"
            )
        if self.target_scale != "none" and self.classes is not None:
            raise ValueError("target_scale is for a regression; remove it, or remove classes")
        if not self.columns:
            for key in ("impute", "optional", "flags", "window", "test"):
                if getattr(self, key) != Task.model_fields[key].default:
                    raise ValueError(f"{key} works on named columns; list the features in columns")
            return self
        if self.has_pixel_columns:
            return self._with_valid_pixels()
        if self.scale != 1:
            raise ValueError(
                "scale is one factor for all columns; leave it out and set standardise: federated"
            )
        width = width_of(self.table_columns)
        if width > MAX_WIDTH:
            raise ValueError(f"the columns give {width} inputs, at most {MAX_WIDTH} are possible")
        expected: tuple[int, ...] = (width,)
        if self.window is not None:
            expected = (width, self.window.rows)
            if forecasts and (self.classes is not None or self.target is None):
                raise ValueError(
                    "window.horizon forecasts values of task.target: name it, and leave out classes"
                )
            if self.window.label == "majority" and self.classes is None:
                raise ValueError("window.label: majority is for classes; use last")
        if self.features != expected:
            raise ValueError(
                f"features is {list(self.features)}, but the columns give {width} inputs; set features to "
                f"{list(expected)}"
            )
        return self

    def _with_valid_pixels(self) -> Self:
        """The task itself, whose columns are pixels. ValueError for keys that pixels cannot have, and for another number of them."""
        shape = list(self.features)
        for key in ("impute", "optional", "flags", "categories", "times", "window"):
            if getattr(self, key) != Task.model_fields[key].default:
                raise ValueError(
                    f"{key} is for columns of different meaning, and features {shape} make the columns pixels of one "
                    f"image; remove {key}"
                )
        pixels = math.prod(self.features)
        if len(self.columns) != pixels:
            raise ValueError(
                f"features {shape} have {pixels} pixels, columns lists {len(self.columns)}; list one column per pixel"
            )
        return self

    @property
    def has_pixel_columns(self) -> bool:
        """Whether the columns are the pixels of an image. A folder of images then fits the task as well as a table."""
        return bool(self.columns) and len(self.features) == IMAGE_AXES

    @property
    def has_own_columns(self) -> bool:
        """Whether each column has a meaning and a treatment of its own, as in a table of measurements."""
        return bool(self.columns) and not self.has_pixel_columns

    @property
    def table_columns(self) -> tuple[TableColumn, ...]:
        """The feature columns of a table, in the order of the model's inputs; empty if the task names none."""
        return table_columns(
            self.columns,
            self.categories,
            self.times,
            flags=self.flags,
            seasons=self.seasons,
            elapsed=self.elapsed,
        )

    @property
    def number_columns(self) -> int:
        """How many feature columns hold numbers: statistics of columns are lists over these, in their order."""
        return len([column for column in self.table_columns if column.kind == "number"])

    @property
    def open_categories(self) -> dict[str, int]:
        """The columns whose words the fleet finds before round 0, each with its room."""
        rooms: dict[str, int] = {}
        for name, category in self.categories.items():
            if isinstance(category, int):
                rooms[name] = category
        return rooms

    @property
    def kind(self) -> Kind:
        """What the task asks for."""
        return kind_of_task(
            {"anomalies": self.anomalies, "target": self.target, "classes": self.classes}
        )

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns of targets that the task names: one, several labels, or none."""
        match self.target:
            case None:
                return ()
            case str(name):
                return (name,)
            case names:
                return names

    @property
    def tests_latest(self) -> bool:
        """Whether the latest rows of a device test, and not random ones."""
        return self.test == "latest" or (self.test is None and bool(self.times))

    def may_miss(self, column: TableColumn) -> bool:
        """Whether cells of this feature column may be missing."""
        if isinstance(self.impute, dict) and column.kind == "number":
            return column.name in self.impute
        return self.impute != "none"

    @property
    def asks_fleet_for(self) -> tuple[str, ...]:
        """The keys whose values the fleet finds before round 0."""
        keys: list[str] = []
        if self.standardise == "federated":
            keys.append("standardise")
        if self.impute in ("mean", "median"):
            keys.append("impute")
        if self.open_categories:
            keys.append("categories")
        if self.target_scale == "federated":
            keys.append("target_scale")
        return tuple(keys)

    @property
    def main_measure(self) -> Measure:
        """The measure by which models are chosen."""
        if self.measure is not None:
            return MEASURES[self.measure]
        return main_measure(regression=self.classes is None)

    @property
    def outputs(self) -> int:
        """Width of the model's last layer: one output per class or label, one for a regression, one for each step of a
        forecast, or the threshold and the error of an anomaly."""
        if self.anomalies is not None:
            return 2
        match self.classes:
            case None:
                return 1 if self.window is None else self.window.targets
            case int(count):
                return count
            case names:
                return len(names)

    def for_agents(self) -> dict[str, Any]:
        """The task as JSON for agents: without `init`, a file of the coordinator, without `min_cell`, which the orders of cards
        name, and without most keys that are not set.
        """
        task = self.model_dump(mode="json", exclude={"init", "min_cell"})
        for key in task.keys() - set(ALWAYS_SENT):
            if getattr(self, key) == Task.model_fields[key].default:
                del task[key]
        if self.base is not None:
            task["base"]["file"] = PurePath(
                self.base.file
            ).name  # the folder is the coordinator's own matter
        return task

    @property
    def digest(self) -> str:
        """Identifies the task that an agent has checked its data against, 16 hexadecimal digits."""
        text = json_text.dumps(self.for_agents(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()
