"""A section of a scenario that is written as its name alone: `strategy: fedclust` for `strategy: {name: fedclust}`."""

from __future__ import annotations

from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema


def as_section(value: Any) -> Any:
    """A text becomes the section that it names; everything else stays as it is."""
    if isinstance(value, str):
        return {"name": value}
    return value


class OrItsName:
    """Marks the type of a section with a key `name`: a text stands for the section with this name and defaults."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(as_section, handler(source))

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [handler(core), {"type": "string"}]}
