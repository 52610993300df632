"""The partition rules: how the samples of a data set are assigned to simulated agents."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from covey.shared.scenario.section import Section
from covey.shared.written import FIRST, as_section

TestRule = Annotated[
    Literal["view", "proportional"],
    Field(
        description="Test samples of an agent. view: all test samples of the labels that it trains on; proportional: of each "
        "label the same share as of the training samples. Figures of the two rules are not comparable."
    ),
]


class Iid(Section):
    """Every agent gets an equally large random part of the samples."""

    name: Literal["iid"] = "iid"


class LabelSkew(Section):
    """Every agent has q = share * classes labels: agent i has label i mod classes and q - 1 random others."""

    name: Literal["label_skew"] = "label_skew"
    share: float = Field(
        0.2,
        gt=0,
        le=1,
        json_schema_extra=FIRST,
        description="Share of all labels that one agent has.",
    )
    test: TestRule = "view"


class Dirichlet(Section):
    """Each class is divided by proportions from Dir(alpha); an agent with an equal share of all samples gets no more."""

    name: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(
        0.1,
        gt=0,
        json_schema_extra=FIRST,
        description="Concentration of the proportions. The smaller it is, the fewer classes make up most of an agent's "
        "samples.",
    )
    min_samples: int = Field(
        10,
        ge=1,
        description="Draw the proportions again until every agent has at least this many samples.",
    )
    version: Literal[1, 2] = Field(
        2,
        description="How proportions become whole samples. 2: every agent's expected count is its exact share. 1: counts "
        "are rounded down as in the public FedClust/PACFL suite, which gives the last agent one sample of nearly every "
        "class; use it only to repeat published figures.",
    )
    test: TestRule = "view"


class GroupedLabels(Section):
    """Groups of agents have disjoint sets of labels. The group is what a method should find."""

    name: Literal["grouped_labels"] = "grouped_labels"
    groups: int = Field(
        2, ge=1, json_schema_extra=FIRST, description="Number of groups, of nearly equal size."
    )
    test: TestRule = "view"


class Rotation(Section):
    """Agents of group g see their images rotated by g * 360 / groups degrees. The group is what a method should find."""

    name: Literal["rotation"] = "rotation"
    groups: Literal[2, 4] = Field(
        2,
        json_schema_extra=FIRST,
        description="Number of groups: angles 0 and 180 degrees, or multiples of 90.",
    )


class ByGroup(Section):
    """One agent per natural client of the data set, such as a writer or a person."""

    name: Literal["by_group"] = "by_group"
    min_samples: int = Field(
        0,
        ge=0,
        description="Leave out clients with fewer samples than this, training and test together.",
    )
    split: Literal["random", "time"] = Field(
        "random",
        json_schema_extra=FIRST,
        description="Which samples are held out: a random choice, or the last ones in time. Windows that overlap need time.",
    )
    populations: dict[str, int] = Field(
        {},
        description="Number of agents from each population of the data set, for example {hsf0: 100, hsf4: 100}. Empty: "
        "agents are chosen from all.",
    )


class Quantity(Section):
    """Agents have the same mix of classes and different amounts of data: sizes are proportions from Dir(alpha)."""

    name: Literal["quantity"] = "quantity"
    alpha: float = Field(
        0.5,
        gt=0,
        json_schema_extra=FIRST,
        description="Concentration of the sizes. The smaller it is, the more unequal they are.",
    )
    min_samples: int = Field(10, ge=1, description="Every agent has at least this many samples.")


Partition = Annotated[
    Iid | LabelSkew | Dirichlet | GroupedLabels | Rotation | ByGroup | Quantity,
    Field(discriminator="name"),
]
RULES = frozenset(rule.model_fields["name"].default for rule in get_args(get_args(Partition)[0]))


def _rule_or_file(value: Any) -> Any:
    """The name of a rule is the rule with its defaults; another text is the path of a file."""
    is_rule = isinstance(value, str) and value in RULES
    return as_section(value) if is_rule else value


PartitionOrFile = Annotated[Partition | str, BeforeValidator(_rule_or_file)]
