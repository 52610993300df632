"""The partition rules: how the samples of a data set are assigned to simulated agents."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from covey.shared.scenario.section import Section

TestRule = Annotated[
    Literal["view", "proportional"],
    Field(
        description="view: an agent tests on all test samples of its labels; proportional: on as large a share of each "
        "label's as it has of its training samples. Figures of the two cannot be compared"
    ),
]


class Iid(Section):
    name: Literal["iid"] = "iid"


class LabelSkew(Section):
    """q = share * classes labels per agent; agent i owns label i mod classes and q - 1 more."""

    name: Literal["label_skew"] = "label_skew"
    share: float = Field(0.2, gt=0, le=1)
    test: TestRule = "view"


class Dirichlet(Section):
    """Each class is shared out by proportions from Dir(alpha); an agent with n / N samples gets no more."""

    name: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(
        0.1, gt=0, description="the smaller, the fewer classes hold most of an agent's samples"
    )
    min_samples: int = Field(
        10, ge=1, description="proportions are drawn again until no agent has fewer"
    )
    version: Literal[1, 2] = Field(
        2,
        description="how proportions become whole samples. 2: every agent expects its exact share; 1: rounded down as in "
        "the public FedClust/PACFL suite, which leaves the last agent one sample of nearly every class",
    )
    test: TestRule = "view"


class GroupedLabels(Section):
    """Groups of agents with disjoint label sets; the truth is the group."""

    name: Literal["grouped_labels"] = "grouped_labels"
    groups: int = Field(2, ge=1)
    test: TestRule = "view"


class Rotation(Section):
    """Group g sees its images turned by g * 360 / groups degrees; the truth is the group."""

    name: Literal["rotation"] = "rotation"
    groups: Literal[2, 4] = 2


class SuperclassMixture(Section):
    """Half of the agents draw `major` of their samples from super-class 0, the others from super-class 1."""

    name: Literal["superclass_mixture"] = "superclass_mixture"
    major: float = Field(0.7, gt=0.5, le=1)
    first: tuple[int, ...] = Field((0, 1, 8, 9), description="labels of super-class 0")
    second: tuple[int, ...] = Field((), description="labels of super-class 1; empty: all others")


class ByGroup(Section):
    """One agent per natural client of the data set: a writer, a person."""

    name: Literal["by_group"] = "by_group"
    min_samples: int = Field(
        0, ge=0, description="of training and test together; clients with fewer are left out"
    )
    test_share: float = Field(0.2, gt=0, lt=1)
    split: Literal["random", "time"] = "random"
    populations: dict[str, int] = Field(
        {},
        description="agents taken from each known population, e.g. {hsf0: 100, hsf4: 100}; empty: all",
    )


class Quantity(Section):
    name: Literal["quantity"] = "quantity"
    alpha: float = Field(0.5, gt=0)
    min_samples: int = Field(10, ge=1)


Partition = Annotated[
    Iid | LabelSkew | Dirichlet | GroupedLabels | Rotation | SuperclassMixture | ByGroup | Quantity,
    Field(discriminator="name"),
]
