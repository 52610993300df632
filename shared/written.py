"""How people write sections: one as its name alone, `strategy: fedclust`; and the keys that they set before all others."""

from __future__ import annotations

from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

# In `Field(json_schema_extra=FIRST)`: one of the few keys that most scenarios set. Listings have it before the others.
FIRST: dict[str, Any] = {"first": True}


def is_first(key: str, info: FieldInfo) -> bool:
    """Whether a key is one of those that most scenarios set: it has the mark, must be set, or chooses the other keys."""
    return key == "name" or info.is_required() or info.json_schema_extra == FIRST


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
