"""The base of all sections of a scenario."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MAX_PATTERN = 200  # characters of a pattern of tensor names

Share = Annotated[float, Field(ge=0, le=1)]
TensorPattern = Annotated[str, Field(min_length=1, max_length=MAX_PATTERN)]


class Section(BaseModel):
    """A part of a scenario. It is frozen, refuses unknown keys and accepts finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def repeated(items: Iterable[str]) -> list[str]:
    """The items that occur more than once, sorted, each of them once."""
    seen = set()
    twice = set()
    for item in items:
        if item in seen:
            twice.add(item)
        seen.add(item)
    return sorted(twice)
