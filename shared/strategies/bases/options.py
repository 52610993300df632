"""Options that several methods have. Each method gives the default."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Quorum = Annotated[
    float, Field(ge=0, le=1, description="The share of agents that must report before clustering.")
]

# of methods that cluster the models of a warm-up with K-means

Restarts = Annotated[
    int,
    Field(
        ge=1,
        description="The number of K-means runs after the warm-up. The one with the smallest "
        "distances is used.",
    ),
]

WarmupEpochs = Annotated[
    int | None, Field(ge=1, description="The epochs of the warm-up; null: as many as in a round.")
]
