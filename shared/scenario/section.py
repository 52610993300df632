"""The base of all sections of a scenario."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

MAX_PATTERN = 200  # characters of a pattern of tensor names

Share = Annotated[float, Field(ge=0, le=1)]
TensorPattern = Annotated[str, Field(min_length=1, max_length=MAX_PATTERN)]


class Section(BaseModel):
    """A part of a scenario. It is frozen, refuses unknown keys and accepts finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # Keys that came later. The text of a section leaves them out where they are not set, and keeps the digest that its
    # runs have stored.
    newer: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _newer_keys_only_where_they_are_set(
        self, serialize: SerializerFunctionWrapHandler
    ) -> dict[str, Any]:
        settings: dict[str, Any] = serialize(self)
        return {key: value for key, value in settings.items() if value or key not in self.newer}


def repeated(items: Iterable[str]) -> list[str]:
    """The items that occur more than once, sorted, each of them once."""
    seen = set()
    twice = set()
    for item in items:
        if item in seen:
            twice.add(item)
        seen.add(item)
    return sorted(twice)
