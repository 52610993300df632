"""A scenario written back to YAML, its JSON schema, and the list of methods with their parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import indent
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from covey.shared.own_code import plugins
from covey.shared.own_code.consent import consent
from covey.shared.scenario.introspection import fields, members, name_of
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.yaml_source import dumped, spaced
from covey.shared.strategies.base import Strategy
from covey.shared.strategies.registry import BUILT_IN, installed_method
from covey.shared.written import is_first

MAX_SHOWN = 40  # characters of a value in a message
SELDOM = "# seldom set\n"
INDENT = "  "


def dump(scenario: Scenario, *, whole: bool = True) -> str:
    """Complete YAML with all defaults: in each section the keys that most scenarios set, then the others under a mark.

    `load` reads an equal scenario from it, also without the others that have their defaults (`whole=False`).
    """
    return spaced(_written(scenario, scenario.model_dump(by_alias=True), whole=whole))


def _written(
    section: BaseModel, data: Mapping[str, Any], *, whole: bool, divides: bool = True
) -> list[str]:
    """The YAML of each key of a section, and the mark.

    Args:
        section: with its values.
        data: the same as plain values.
        divides: keys that few set stand below the mark. Inside of a section that stands there itself they need none.
    """
    known = {info.alias or name: (name, info) for name, info in type(section).model_fields.items()}
    first: list[str] = []
    others: list[str] = []
    for key, value in data.items():
        name, info = known[key]
        above = not divides or is_first(key, info)
        inner = getattr(section, name)
        if not (whole or is_first(key, info)) and inner == info.get_default(
            call_default_factory=True
        ):
            continue
        if isinstance(inner, BaseModel) and isinstance(value, dict) and value:
            within = _written(inner, value, whole=whole, divides=divides and above)
            text = f"{key}:\n{indent(''.join(within), INDENT)}"
        else:
            text = dumped({key: value})
        (first if above else others).append(text)
    return [*first, SELDOM, *others] if others else first


def differences(there: Scenario, here: Scenario) -> list[str]:
    """The keys with other values, by dots, with both values: "rounds.count: 20 there, 30 here"."""
    return list(_differences("", there.model_dump(by_alias=True), here.model_dump(by_alias=True)))


def _differences(where: str, there: Any, here: Any) -> Iterator[str]:
    if isinstance(there, dict) and isinstance(here, dict):
        for key in [*there, *(key for key in here if key not in there)]:
            inner = f"{where}.{key}" if where else str(key)
            yield from _differences(inner, there.get(key), here.get(key))
    elif there != here:
        yield f"{where}: {_short(there)} there, {_short(here)} here"


def _short(value: Any) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def schema() -> dict[str, Any]:
    """The JSON schema of a scenario file, for editors and for the reference of its keys."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Scenario.model_json_schema(by_alias=True),
    }


def methods() -> list[dict[str, Any]]:
    """Every training method, sorted by name, as JSON: the built-in ones, and those of installed packages that the owner
    of this machine has allowed.

    Returns:
        One object per method: name, summary, source (paper), and parameters with type, default and description.
    """
    kinds = list(BUILT_IN.values())
    allowed, _ = _installed_methods()
    for name in allowed:
        kind = installed_method(name)
        kinds.append(kind)
    by_name = sorted(kinds, key=name_of)
    return [_method(kind) for kind in by_name]


def methods_to_allow() -> list[str]:
    """The names of methods that installed packages add and the owner of this machine has not allowed."""
    _, to_allow = _installed_methods()
    return to_allow


def _installed_methods() -> tuple[list[str], list[str]]:
    """The names of methods of installed packages: those that the owner of this machine has allowed, and the others."""
    consented = consent()
    allowed: list[str] = []
    to_allow: list[str] = []
    for name in plugins.installed(plugins.STRATEGIES):
        if consented.allows(name):
            allowed.append(name)
        else:
            to_allow.append(name)
    return allowed, to_allow


def _method(kind: type[Strategy[Any]]) -> dict[str, Any]:
    parameters = []
    for name, info in fields(kind).items():
        # the first chooses the method, and is no parameter of it
        if name not in ("name", "server"):
            parameters.append(_parameter(name, info))
    if "server" in kind.model_fields:
        parameters.append(_parameter("server", kind.model_fields["server"]))
    return {
        "name": name_of(kind),
        "summary": kind.summary,
        "source": kind.source,
        "parameters": parameters,
    }


def _parameter(name: str, info: FieldInfo) -> dict[str, Any]:
    default = None
    if not info.is_required():
        default = info.get_default(call_default_factory=True)
    return {
        "name": name,
        "type": _type_text(info.annotation),
        "default": to_jsonable_python(default),
        "required": info.is_required(),
        "description": info.description or "",
    }


def _type_text(annotation: Any) -> str:
    """A type in the words of a reader of YAML, such as "float | null"."""
    words: list[str] = []
    for member in members(annotation):
        words += _member_texts(member)
    return " | ".join(words)


def _member_texts(member: Any) -> list[str]:
    if member is type(None):
        return ["null"]
    origin = get_origin(member)
    arguments = get_args(member)
    if origin is Literal:
        return [str(choice) for choice in arguments]
    if origin is None:
        return [getattr(member, "__name__", str(member))]
    inner = [_type_text(argument) for argument in arguments if argument is not Ellipsis]
    distinct = dict.fromkeys(inner)
    return [f"{origin.__name__} of {', '.join(distinct)}"]
