"""The compare section: methods, partitions and seeds of one comparison."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from covey.shared.numerics.measures import MEASURES, OF_CLASSIFICATION, OF_REGRESSION, Measure
from covey.shared.numerics.split import Role
from covey.shared.scenario.partition import PartitionOrFile
from covey.shared.scenario.section import Section, TensorPattern, repeated
from covey.shared.strategies.registry import AnyStrategy
from covey.shared.wire.framing import Name
from covey.shared.written import FIRST, as_section

Metric = Literal["last", "server", "delivered", "tuned", "global", "newcomers"]
Measured = Literal["accuracy", "f1", "recall", "auc", "rmse", "mae", "r2", "mse"]
JsonSchema = dict[str, Any]


class _WrittenFlat(Section):
    """A section around another one, whose keys people write side by side.

    In {label: four, name: fedclust, n_clusters: 4} the key `label` belongs to the outer section, and all keys
    that the outer section does not have belong to the inner one. The nested form is accepted too.
    """

    inner_field: ClassVar[str]  # the field that holds the inner section, a union of named sections

    @model_validator(mode="before")
    @classmethod
    def _nest(cls, data: Any) -> Any:
        """Turn the flat form into the nested one; the name of the inner section is the usual label."""
        data = as_section(data)
        if not isinstance(data, dict) or cls.inner_field in data:
            return data
        outer = {key: value for key, value in data.items() if key in cls.model_fields}
        inner = {key: value for key, value in data.items() if key not in outer}
        return {"label": inner.get("name"), **outer, cls.inner_field: inner}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchema:
        """One flat form for each member of the inner union, and the nested form."""
        nested = handler.resolve_ref_schema(handler(core))
        properties = nested["properties"]
        outer = {key: value for key, value in properties.items() if key != cls.inner_field}
        forms = []
        for reference in _union_members(properties[cls.inner_field]):
            member = handler.resolve_ref_schema(reference)
            flat = {
                **member,
                "properties": {**member["properties"], **outer},
                "required": ["name", *member.get("required", [])],
            }
            forms.append(flat)
        return {"description": nested["description"], "anyOf": [*forms, {"type": "string"}, nested]}


def _union_members(union: JsonSchema) -> list[JsonSchema]:
    """References to the named sections of a union. Other alternatives, such as a file's path, are left out."""
    members: list[JsonSchema] = []
    for alternative in union.get("anyOf", [union]):
        members += alternative.get("oneOf", [])
    return members


class Method(_WrittenFlat):
    """A column of a comparison, written flat: {name: fedclust, n_clusters: 4, training: {momentum: 0.5}}, or the name alone."""

    inner_field: ClassVar[str] = "strategy"

    label: Name = Field(
        json_schema_extra=FIRST,
        description="Name of the column and of its folder. By default the name of the method.",
    )
    strategy: AnyStrategy = Field(description="The method and its hyper-parameters.")
    training: dict[str, Any] = Field(
        {},
        json_schema_extra=FIRST,
        description="Settings that replace those of the training section for this method.",
    )
    model_options: dict[str, Any] = Field(
        {},
        description="Options that replace those of task.model.options for this method, for example {head: null}.",
    )
    split: dict[Role, tuple[TensorPattern, ...]] = Field(
        {},
        description="task.share, keep and freeze for this method, in place of those of the task, for example {keep: [fc3]}.",
    )
    metric: Metric | None = Field(
        None,
        description="Figure of this method that is compared, for example global for a single model. null: compare.metric.",
    )


class ComparedPartition(_WrittenFlat):
    """A partition of a comparison, written flat: {label: skew20, name: label_skew, share: 0.2, target: 0.75}."""

    inner_field: ClassVar[str] = "partition"

    label: Name = Field(
        json_schema_extra=FIRST,
        description="Name of the table and of its folder. By default the name of the rule.",
    )
    partition: PartitionOrFile = Field(
        description="The rule or file that replaces fleet.partition."
    )
    published: dict[str, float] = Field(
        {}, description="Published figures for this partition, as compare.published."
    )
    target: float | None = Field(
        None, description="Figure to reach on this partition, as compare.target."
    )


class Compare(Section):
    """Every method on every partition with every seed. Cells with the same seed and partition share the initial
    weights and the draws."""

    methods: tuple[Method, ...] = Field(description="The methods to compare, at least one.")
    partitions: tuple[ComparedPartition, ...] = Field(
        (),
        json_schema_extra=FIRST,
        description="Partitions that replace fleet.partition, one after another. Empty: only fleet.partition.",
    )
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (1, 2, 3),
        json_schema_extra=FIRST,
        description="Seeds of the runs. The default gives a mean and a deviation at three times the cost of one run.",
    )
    published: dict[str, float] = Field(
        {},
        description="Published figure of each method by label, shown next to ours: accuracies in percent, errors in the "
        "units of the target.",
    )
    metric: Metric = Field(
        "delivered",
        json_schema_extra=FIRST,
        description="The compared figure. delivered, what devices use, and for papers last, server and tuned: macro average of that evaluation mode; global: "
        "micro average of the served models over all agents' test samples (a sample that several agents hold counts for each); "
        "newcomers: fine-tuned models of the newcomers.",
    )
    layout: Literal["modes", "averages"] = Field(
        "modes",
        description="Columns of the tables: one per evaluation mode, or micro and macro accuracy and F1 in the mode of "
        "metric.",
    )
    measure: Measured | None = Field(
        None,
        description="Kind of figure that is compared and that target and published are of: accuracy, f1, recall or auc "
        "of classes; rmse, mae, r2 or mse of a regression. null: task.measure.",
    )
    target: float | None = Field(
        None,
        description="Count the rounds until the figure is this good: an accuracy as a share, such as 0.75, or an error in "
        "the units of the target, which must fall to this value. null: do not count.",
    )

    @model_validator(mode="after")
    def _methods_and_seeds_are_distinct(self) -> Self:
        labels = self._method_labels
        if not labels:
            raise ValueError("methods is empty; list at least one method")
        if not self.seeds:
            raise ValueError("seeds is empty; list at least one seed")
        if twice := repeated(labels):
            raise ValueError(f"methods {twice} occur more than once; give each a label of its own")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds {list(self.seeds)} repeat a seed; list each seed once")
        return self

    @model_validator(mode="after")
    def _partitions_are_distinct(self) -> Self:
        labels = [split.label for split in self.partitions]
        if repeated([*self._method_labels, *labels]):
            raise ValueError(
                f"partitions {labels} need labels of their own; no two may be equal, or equal to that of a method"
            )
        if self.partitions and (self.published or self.target is not None):
            raise ValueError(
                "published and target apply to one partition; set them in each entry of partitions instead"
            )
        return self

    @model_validator(mode="after")
    def _published_figures_have_a_method(self) -> Self:
        published = {label for figures in self.figures for label in figures}
        unknown = sorted(published - set(self._method_labels))
        if unknown:
            raise ValueError(
                f"published names {unknown}; expected labels of the methods {self._method_labels}"
            )
        return self

    def check_measure(self, usual: Measure, *, regression: bool) -> None:
        """Raise ValueError if the measure is not one of the task, whose usual one is given, or a target cannot be its figure."""
        measure = usual if self.measure is None else MEASURES[self.measure]
        possible = OF_REGRESSION if regression else OF_CLASSIFICATION
        if measure.name not in possible:
            task = "a regression" if regression else "a classification"
            expected = [name for name in possible if name != "loss"]
            raise ValueError(
                f"compare.measure {measure.name} is not for {task}; expected one of {expected}"
            )
        for target in [self.target, *(split.target for split in self.partitions)]:
            if target is None:
                continue
            if not measure.can_be_target(target):
                raise ValueError(
                    f"target {target:g} can never be reached or is always reached; expected {measure.label} "
                    f"{measure.range_text}"
                )

    @property
    def _method_labels(self) -> list[str]:
        return [method.label for method in self.methods]

    @property
    def figures(self) -> list[dict[str, float]]:
        """All published figures by label: those of the comparison, then those of each partition."""
        return [self.published, *(split.published for split in self.partitions)]
