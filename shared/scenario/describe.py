"""A scenario back to YAML, its JSON schema, and the list of methods with their parameters."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

from pydantic_core import to_jsonable_python

from covey.shared.scenario.explain import fields, members, name_of
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.yaml_source import render
from covey.shared.strategies.base import Strategy
from covey.shared.strategies.registry import AnyStrategy


def dump(scenario: Scenario) -> str:
    """Complete YAML: every default spelled out, in the order of the fields; `load` gives an equal scenario."""
    return render(scenario.model_dump(by_alias=True))


def schema() -> dict[str, Any]:
    """The JSON schema of a scenario, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Scenario.model_json_schema(by_alias=True),
    }


def methods() -> list[dict[str, Any]]:
    """Every training method by name: summary, source, and parameters with type, default and description."""
    return [_method(kind) for kind in sorted(members(AnyStrategy), key=name_of)]


def _method(kind: type[Strategy[Any]]) -> dict[str, Any]:
    parameters = [
        {
            "name": name,
            "type": _type_text(info.annotation),
            "default": to_jsonable_python(
                None if info.is_required() else info.get_default(call_default_factory=True)
            ),
            "required": info.is_required(),
            "description": info.description or "",
        }
        for name, info in fields(kind).items()
        if name != "name"
    ]
    return {
        "name": name_of(kind),
        "summary": kind.summary,
        "source": kind.source,
        "parameters": parameters,
    }


def _type_text(annotation: Any) -> str:
    """A type as a reader of YAML would say it."""
    words = []
    for member in members(annotation):
        if get_origin(member) is Literal:
            words += [str(choice) for choice in get_args(member)]
        elif get_origin(member) is not None:
            inner = [
                _type_text(argument) for argument in get_args(member) if argument is not Ellipsis
            ]
            words.append(f"{get_origin(member).__name__} of {', '.join(dict.fromkeys(inner))}")
        else:
            words.append(
                "null" if member is type(None) else getattr(member, "__name__", str(member))
            )
    return " | ".join(words)
