"""The scenario on disk: YAML in, a checked `Scenario` out, and back; its schema; the list of methods.

Relative paths in a scenario (task.init, fleet.partition, rounds.participants) start at the scenario's own folder.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, StrictInt, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from coordinator.sampling import Listed
from coordinator.scenario_mistakes import explain, fields, members, models_at
from coordinator.scenario_yaml import Path, Source, YamlError, parse, render
from shared.errors import UserError
from shared.scenario import Partition, Scenario, agent_name, named_files
from shared.strategies import AnyStrategy
from shared.strategy import Strategy

Rows = TypeAdapter(list[list[StrictInt]])  # of rounds.participants: agents by index


def load(path: str | pathlib.Path, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario in a file, with overrides such as "rounds.count=5" laid over it.

    Raises UserError that names the file and, one per line, every mistake with its key path and line.
    """
    path = pathlib.Path(path)
    source = _laid_over(_read(path), overrides)
    source, lost = _with_files(source, path)
    try:
        scenario = Scenario.model_validate(source.data)
    except ValidationError as error:
        raise _user_error(path, explain(error, source, Scenario) + lost) from None
    if lost:
        raise _user_error(path, lost)
    return scenario


def dump(scenario: Scenario) -> str:
    """Complete YAML: every default spelled out, in the order of the fields; `load` gives an equal scenario."""
    return render(scenario.model_dump(by_alias=True))


def schema() -> dict[str, Any]:
    """The JSON schema of a scenario, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Scenario.model_json_schema(by_alias=True)}


def methods() -> list[dict[str, Any]]:
    """Every training method by name: summary, source, and parameters with type, default and description."""
    return [_method(kind) for kind in sorted(members(AnyStrategy), key=_name_of)]


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
    return {"name": _name_of(kind), "summary": kind.summary, "source": kind.source, "parameters": parameters}


def _name_of(kind: type[BaseModel]) -> str:
    return str(kind.model_fields["name"].default)


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


def _read(path: pathlib.Path) -> Source:
    try:
        source = parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; a scenario (YAML) is wanted") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as text ({error}); a scenario (YAML) is wanted") from None
    except YamlError as error:
        raise _user_error(path, [str(error)]) from None
    if not isinstance(source.data, dict):
        seen = "nothing" if source.data is None else f"a {type(source.data).__name__}"
        raise UserError(f"{path}: holds {seen}; keys such as name, task and strategy are wanted")
    return source


def _user_error(path: pathlib.Path, mistakes: Sequence[str]) -> UserError:
    if len(mistakes) == 1:
        return UserError(f"{path}: {mistakes[0]}")
    return UserError("\n  ".join([f"{path}: {len(mistakes)} mistakes", *mistakes]))


# -- overrides ---------------------------------------------------------------------------------------------------------


def _laid_over(source: Source, overrides: Sequence[str]) -> Source:
    """The names of unions first: choosing another method must not drop a parameter given beside it."""
    places = dict(source.places)
    for override, path, value in sorted(map(_split, overrides), key=lambda item: item[1][-1] != "name"):
        _put(source.data, path, value)
        places = {key: place for key, place in places.items() if key[: len(path)] != path}
        places[path] = f"override {override}"
    return replace(source, places=places)


def _split(override: str) -> tuple[str, Path, Any]:
    key, equals, text = override.partition("=")
    words = key.strip().split(".")
    if not equals or not all(words):
        raise UserError(f"override {override!r}: key=value is wanted, such as rounds.count=5 or strategy.name=fedavg")
    try:
        value = parse(text).data
    except YamlError as error:
        raise UserError(f"override {override!r}: the value is no YAML: {error}") from None
    return override, tuple(int(word) if word.isdecimal() else word for word in words), value


def _put(data: Any, path: Path, value: Any) -> None:
    """Set one key, making sections on the way. Another `name` in a union leaves none of the old one's fields."""
    inside = data
    for depth, key in enumerate(path[:-1], 1):
        if not isinstance(_at(inside, key), dict | list):
            _set(inside, key, {}, path[:depth])
        inside = inside[key]
    is_union = path[-1] == "name" and len(models_at(path[:-1], None, Scenario)) > 1
    if is_union and isinstance(inside, dict) and inside.get("name") != value:
        inside.clear()
    _set(inside, path[-1], value, path)


def _at(inside: Any, key: str | int) -> Any:
    if isinstance(inside, dict):
        return inside.get(key)
    return inside[key] if isinstance(key, int) and key < len(inside) else None


def _set(inside: Any, key: str | int, value: Any, path: Path) -> None:
    if isinstance(inside, list) and not (isinstance(key, int) and key < len(inside)):
        raise UserError(f"override {'.'.join(map(str, path))}: the list has {len(inside)} items, counted from 0")
    inside[key] = value


# -- files -------------------------------------------------------------------------------------------------------------


def _with_files(source: Source, scenario: pathlib.Path) -> tuple[Source, list[str]]:
    """Paths made absolute in place, and a line for each file that is not there."""
    lost = []
    for (section, key), file in named_files(source.data, scenario.parent).items():
        inside = source.data[section]
        if not file.is_file():
            place = source.place((section, key))
            lost.append(f"{section}.{key}: {inside[key]!r}, {place}; there is no file {file}{_rule_hint(inside[key])}")
        inside[key] = str(file)
    return source, lost


def _rule_hint(text: str) -> str:
    rules = [_name_of(member) for member in members(Partition)]
    return f"; for the rule write {{name: {text}}}" if text in rules else ""


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
