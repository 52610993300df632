"""The base of all sections of a scenario."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A part of a scenario. It is frozen, refuses unknown keys and accepts finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def repeated(items: list[str]) -> list[str]:
    """The items that occur more than once, sorted, each of them once."""
    return sorted({item for item in items if items.count(item) > 1})
