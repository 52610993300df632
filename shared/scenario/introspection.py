"""What sections of a scenario may hold: their keys, and the members of their unions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from covey.shared.scenario.yaml_source import Path
from covey.shared.strategies.base import Strategy
from covey.shared.strategies.registry import BUILT_IN

SectionType = type[BaseModel]
# stands for all built-in methods, which are imported only if a question needs them
ANY_METHOD = Strategy[Any]


def models_at(path: Path, data: Any, root: SectionType) -> list[SectionType]:
    """The sections that are possible at a path; if a `name` in the data chooses one of a union, only that one."""
    choices = [root]
    for key in path:
        if isinstance(data, Mapping):
            choices = chosen(choices, data)
        if not isinstance(key, int):  # an index leads to an item of the same type
            choices = _sections_below(choices, key)
        data = value_inside(data, key)
    if isinstance(data, Mapping):
        choices = chosen(choices, data)
    return choices


def fields(model: SectionType) -> dict[str, FieldInfo]:
    """The fields of a section by the name that a file uses."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def members(annotation: Any) -> list[Any]:
    """The types that a (possibly annotated) union offers; for any other type, only itself."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        return members(arguments[0])
    if origin not in (Union, UnionType):
        return [annotation]
    found = []
    for argument in arguments:
        found += members(argument)
    return found


def name_of(kind: SectionType) -> str:
    """The `name` that chooses this member of a union."""
    return str(kind.model_fields["name"].default)


def _sections_below(choices: Sequence[SectionType], key: str) -> list[SectionType]:
    """The sections that a key of any of these sections may hold."""
    found = []
    is_of_all = all(key in fields(choice) for choice in choices)
    for choice in choices if is_of_all else _opened(choices):
        info = fields(choice).get(key)
        if info is not None:
            found += sections_in(info.annotation)
    return found


def sections_in(annotation: Any) -> list[SectionType]:
    """The sections among the members of a type, also as items of a tuple."""
    found = []
    for member in members(annotation):
        if isinstance(member, type) and issubclass(member, BaseModel):
            found.append(member)
        elif get_origin(member) is tuple:
            item_type = get_args(member)[0]
            found += sections_in(item_type)
    return found


def sections_around(path: Path, data: Any, root: SectionType) -> list[SectionType]:
    """The sections that may hold the last key of a path."""
    if not path:
        return [root]
    return models_at(path[:-1], data, root)


def is_chosen_by_name(choices: Sequence[SectionType]) -> bool:
    """Whether these sections are the members of a union."""
    return len(choices) > 1 or ANY_METHOD in choices


def chosen(choices: Sequence[SectionType], data: Mapping[Any, Any]) -> list[SectionType]:
    """The members of a union that the `name` in the data chooses; all of them if it chooses none."""
    name = data.get("name")
    choices = _opened(choices, name)
    if len(choices) < 2:
        return choices
    named = [
        choice for choice in choices if "name" in choice.model_fields and name_of(choice) == name
    ]
    return named or list(choices)


def _opened(choices: Sequence[SectionType], name: Any = None) -> list[SectionType]:
    """The sections with the built-in methods in place of `ANY_METHOD`: that of a name, or else all."""
    found: list[SectionType] = []
    for choice in choices:
        if choice is not ANY_METHOD:
            found.append(choice)
        elif name in list(BUILT_IN):
            found.append(BUILT_IN[name])
        else:
            found += BUILT_IN.values()
    return found


def value_inside(data: Any, key: str | int) -> Any:
    """The value at a key or index of plain data; None if there is none."""
    try:
        return data[key]
    except (KeyError, IndexError, TypeError):
        return None
