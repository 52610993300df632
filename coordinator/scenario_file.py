"""A scenario back to YAML, its schema, the list of methods, and who takes part where a file says so."""

from __future__ import annotations

import pathlib
from typing import Any, Literal, get_args, get_origin

from pydantic import StrictInt, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from coordinator.sampling import Listed
from shared.errors import UserError
from shared.scenario import Scenario, agent_name
from shared.scenario_load import load
from shared.scenario_mistakes import fields, members, name_of
from shared.scenario_yaml import render
from shared.strategies import AnyStrategy
from shared.strategy import Strategy

__all__ = ["dump", "listed_participants", "load", "methods", "schema"]

Rows = TypeAdapter(list[list[StrictInt]])  # of rounds.participants: agents by index


def dump(scenario: Scenario) -> str:
    """Complete YAML: every default spelled out, in the order of the fields; `load` gives an equal scenario."""
    return render(scenario.model_dump(by_alias=True))


def schema() -> dict[str, Any]:
    """The JSON schema of a scenario, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Scenario.model_json_schema(by_alias=True)}


def methods() -> list[dict[str, Any]]:
    """Every training method by name: summary, source, and parameters with type, default and description."""
    return [_method(kind) for kind in sorted(members(AnyStrategy), key=name_of)]


def _method(kind: type[Strategy[Any]]) -> dict[str, Any]:
    parameters = [
        {
            "name": name,
            "type": _type_text(info.annotation),
            "default": to_jsonable_python(None if info.is_required() else info.get_default(call_default_factory=True)),
            "required": info.is_required(),
            "description": info.description or "",
        }
        for name, info in fields(kind).items()
        if name != "name"
    ]
    return {"name": name_of(kind), "summary": kind.summary, "source": kind.source, "parameters": parameters}


def _type_text(annotation: Any) -> str:
    """A type as a reader of YAML would say it."""
    words = []
    for member in members(annotation):
        if get_origin(member) is Literal:
            words += [str(choice) for choice in get_args(member)]
        elif get_origin(member) is not None:
            inner = [_type_text(argument) for argument in get_args(member) if argument is not Ellipsis]
            words.append(f"{get_origin(member).__name__} of {', '.join(dict.fromkeys(inner))}")
        else:
            words.append("null" if member is type(None) else getattr(member, "__name__", str(member)))
    return " | ".join(words)


def listed_participants(scenario: Scenario) -> Listed | None:
    """Who takes part in each round, where a file says so. Raises UserError for a file that does not suit the fleet."""
    path, fleet = scenario.rounds.participants, scenario.fleet
    if path is None:
        return None
    if fleet is None:
        raise UserError("rounds.participants names agents by index and needs a fleet section")
    try:
        rows = Rows.validate_json(pathlib.Path(path).read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = f"{first['msg']}, at {list(first['loc'])}"
        raise UserError(f"{path}: a JSON list of lists of agent indices is wanted ({at})") from None
    strangers = sorted({i for row in rows for i in row if not 0 <= i < fleet.agents - fleet.newcomers})
    if strangers:
        raise UserError(
            f"{path}: agents {strangers} do not exist or are newcomers; 0 to {fleet.agents - fleet.newcomers - 1} may be named"
        )
    twice = [number for number, row in enumerate(rows) if len(set(row)) < len(row)]
    if twice:
        raise UserError(f"{path}: round {twice[0]} names an agent twice")
    listed = tuple(tuple(agent_name(i, fleet.agents) for i in row) for row in rows)
    if len(listed) < scenario.rounds.count or not all(listed):
        raise UserError(f"{path}: {len(listed)} rounds are listed, {scenario.rounds.count} non-empty ones are wanted")
    return listed
