"""The compare section: methods, partitions and seeds of one comparison."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from covey.shared.scenario.partition import Partition
from covey.shared.scenario.section import Section, Share
from covey.shared.strategies.registry import AnyStrategy
from covey.shared.wire.messages import Name

Metric = Literal["last", "server", "tuned", "global", "newcomers"]


class Method(Section):
    """A column of a comparison, written flat: {name: fedclust, n_clusters: 4, training: {momentum: 0.5}}."""

    label: Name = Field(
        description="what the tables and the folder are called; the method's name where none is given"
    )
    strategy: AnyStrategy = Field(description="name and hyper-parameters")
    training: dict[str, Any] = Field({}, description="laid over the scenario's training section")
    model_options: dict[str, Any] = Field(
        {}, description="laid over task.model.options, e.g. {head: null}"
    )
    metric: Metric | None = Field(
        None, description="in place of compare.metric, e.g. global for a single model"
    )

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, data: Any) -> Any:
        return _nested(cls, "strategy", data)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return _flat_or_nested("strategy", core, handler)


class Split(Section):
    """A partition of a comparison, written flat: {label: skew20, name: label_skew, share: 0.2, target: 0.75}."""

    label: Name = Field(
        description="what the tables and the folder are called; the rule's name where none is given"
    )
    partition: Partition | str = Field(description="in place of fleet.partition")
    published: dict[str, float] = Field({}, description="as compare.published")
    target: Share | None = Field(None, description="as compare.target")

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, data: Any) -> Any:
        return _nested(cls, "partition", data)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return _flat_or_nested("partition", core, handler)


def _nested(section: type[Section], inner: str, data: Any) -> Any:
    """What was written flat: keys that are none of the section's own are those of the section in it."""
    if not isinstance(data, dict) or inner in data:
        return data
    own = {key: value for key, value in data.items() if key in section.model_fields}
    rest = {key: value for key, value in data.items() if key not in own}
    return {"label": rest.get("name"), **own, inner: rest}


def _flat_or_nested(inner: str, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
    """The JSON schema of what `_nested` takes: one form for each member of the inner union, and the nested form."""
    nested = handler.resolve_ref_schema(handler(core))
    own = {key: value for key, value in nested["properties"].items() if key != inner}
    union = nested["properties"][inner]
    members = [
        handler.resolve_ref_schema(ref)
        for kind in union.get("anyOf", [union])
        for ref in kind.get("oneOf", [])
    ]
    flat = [
        {
            **member,
            "properties": {**member["properties"], **own},
            "required": ["name", *member.get("required", [])],
        }
        for member in members
    ]
    return {"description": nested["description"], "anyOf": [*flat, nested]}


class Compare(Section):
    """Every method on every partition and seed. The cells of one seed and partition share the partition, the initial
    weights and the draws."""

    methods: tuple[Method, ...]
    partitions: tuple[Split, ...] = Field(
        (), description="in place of fleet.partition, one after another; empty: it alone"
    )
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = (1, 2, 3)
    published: dict[str, float] = Field(
        {}, description="by label: the figure that is printed beside ours, in percent"
    )
    metric: Metric = Field(
        "last",
        description="what the published figure is: a mode's macro average; global: E-server's micro one, over all agents' "
        "test samples together (one that several agents hold counts for each); newcomers: E-tuned of the newcomers",
    )
    layout: Literal["modes", "averages"] = Field(
        "modes",
        description="columns of the tables: a mode of evaluation each, or micro and macro accuracy and F1 in `metric`'s mode",
    )
    target: float | None = Field(
        None, gt=0, le=1, description="count the rounds until the accuracy gets there"
    )

    @model_validator(mode="after")
    def _labels_are_names_of_methods(self) -> Self:
        labels = [method.label for method in self.methods]
        if not labels or not self.seeds:
            raise ValueError("at least one method and one seed are wanted")
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(f"methods {twice} stand there twice: give each a label of its own")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds {list(self.seeds)}: each is wanted once")
        splits = [split.label for split in self.partitions]
        if len(set(splits)) < len(splits) or set(splits) & set(labels):
            raise ValueError(
                f"partitions {splits}: give each a label of its own, other than the methods'"
            )
        if self.partitions and (self.published or self.target is not None):
            raise ValueError(
                "published and target are said for each of the partitions, not for all"
            )
        strangers = sorted({name for published in self.figures for name in published} - set(labels))
        if strangers:
            raise ValueError(f"published names {strangers}; the methods are {labels}")
        return self

    @property
    def figures(self) -> list[dict[str, float]]:
        """All published figures, by label."""
        return [self.published, *(split.published for split in self.partitions)]
