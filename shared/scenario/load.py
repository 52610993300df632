"""Read a scenario from its file, as every program does: YAML in, a validated `Scenario` out.

Relative paths in a scenario (task.init, fleet.partition, rounds.participants) start at the scenario's own folder.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml
from pydantic import ValidationError

from covey.shared.errors import UserError
from covey.shared.scenario.explain import explain
from covey.shared.scenario.introspection import members, models_at, name_of
from covey.shared.scenario.partition import Partition
from covey.shared.scenario.scenario import Scenario, named_files
from covey.shared.scenario.yaml_source import MAX_BYTES, Path, Source, YamlError, parse

EXPECTED = "expected the YAML file of a scenario"


@dataclass(frozen=True)
class _Override:
    """A setting of the command line, such as "rounds.count=5"."""

    text: str  # as it was typed
    path: Path
    value: Any

    @property
    def chooses_member(self) -> bool:
        """Whether it may choose another member of a union, such as another method."""
        return self.path[-1] == "name"


def load(path: str | pathlib.Path, overrides: Sequence[str] = ()) -> Scenario:
    """Read and validate a scenario.

    Args:
        path: the YAML file.
        overrides: settings such as "rounds.count=5", which replace those of the file.

    Raises:
        UserError: with the name of the file and one line per error: key path, value, line, and expectation.
    """
    file = pathlib.Path(path)
    source = _with_overrides(_read(file), overrides)
    missing_files = _resolve_files(source, file)
    return _validated(file, source, missing_files)


def load_without_files(path: str | pathlib.Path) -> Scenario:
    """As `load`, on a machine that need not have the files which the scenario names."""
    file = pathlib.Path(path)
    source = _read(file)
    _resolve_files(source, file)
    return _validated(file, source, [])


def from_mapping(content: Mapping[str, Any]) -> Scenario:
    """The scenario with this content, as YAML would give it. Relative paths start at the working directory.

    Raises:
        UserError: with one line per error: key path, value, and expectation.
    """
    file = pathlib.Path("scenario")
    try:
        text = yaml.safe_dump(dict(content), sort_keys=False)
    except yaml.YAMLError as error:
        expected = "expected plain values such as numbers, text and lists"
        raise UserError(f"{file}: {expected}: {error}") from None
    source = parse(text)
    missing_files = _resolve_files(source, file)
    return _validated(file, source, missing_files)


def _validated(file: pathlib.Path, source: Source, missing_files: list[str]) -> Scenario:
    """The scenario; UserError with its errors, followed by the missing files."""
    try:
        scenario = Scenario.model_validate(source.data)
    except ValidationError as error:
        errors = explain(error, source, Scenario)
        raise _user_error(file, errors + missing_files) from None
    if missing_files:
        raise _user_error(file, missing_files)
    return scenario


def _read(file: pathlib.Path) -> Source:
    try:
        text = _content(file).decode("utf-8")
        source = parse(text)
    except FileNotFoundError:
        raise UserError(f"{file}: this file does not exist; {EXPECTED}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read as text ({error}); {EXPECTED}") from None
    except YamlError as error:
        raise _user_error(file, [str(error)]) from None
    if source.data is None:
        raise UserError(f"{file}: the file is empty; {EXPECTED} with name, task and strategy")
    if not isinstance(source.data, dict):
        kind = type(source.data).__name__
        raise UserError(
            f"{file}: holds a {kind}; {EXPECTED} with keys such as name, task and strategy"
        )
    return source


def _content(file: pathlib.Path) -> bytes:
    with file.open("rb") as opened:
        content = opened.read(MAX_BYTES + 1)  # a device may have no end, so the read is bounded
    if len(content) > MAX_BYTES:
        raise UserError(f"{file}: longer than {MAX_BYTES} bytes; {EXPECTED}")
    return content


def _user_error(file: pathlib.Path, errors: Sequence[str]) -> UserError:
    if len(errors) == 1:
        return UserError(f"{file}: {errors[0]}")
    heading = f"{file}: {len(errors)} errors"
    return UserError("\n  ".join([heading, *errors]))


# -- overrides ---------------------------------------------------------------------------------------------------------


def _with_overrides(source: Source, overrides: Sequence[str]) -> Source:
    """The data changed in place, and the places of what was set.

    The names of union members are set first: another method must not drop a parameter that is given with it.
    """
    parsed = [_parse_override(text) for text in overrides]
    names = [override for override in parsed if override.chooses_member]
    others = [override for override in parsed if not override.chooses_member]
    places = dict(source.places)
    for override in [*names, *others]:
        _put(source.data, override.path, override.value)
        depth = len(override.path)
        for place in list(places):
            if place[:depth] == override.path:  # what was written there is replaced
                del places[place]
        places[override.path] = f"override {override.text}"
    return replace(source, places=places)


def _parse_override(text: str) -> _Override:
    key, equals, value_text = text.partition("=")
    words = key.strip().split(".")
    if not equals or not all(words):
        raise UserError(
            f"override {text!r}: expected key=value, such as rounds.count=5 or strategy.name=fedavg"
        )
    try:
        value = parse(value_text).data
    except YamlError as error:
        raise UserError(f"override {text!r}: the value is not valid YAML: {error}") from None
    path = tuple(int(word) if word.isdecimal() else word for word in words)
    return _Override(text, path, value)


def _put(data: Any, path: Path, value: Any) -> None:
    """Set one key, and create the sections around it. Another `name` in a union removes the old member's keys."""
    *sections, last = path
    inside = data
    for depth, key in enumerate(sections, start=1):
        if not isinstance(_value_at(inside, key), dict | list):
            _set(inside, key, {}, path[:depth])
        inside = inside[key]
    is_union = last == "name" and len(models_at(path[:-1], None, Scenario)) > 1
    if is_union and isinstance(inside, dict) and inside.get("name") != value:
        inside.clear()
    _set(inside, last, value, path)


def _value_at(inside: Any, key: str | int) -> Any:
    if isinstance(inside, dict):
        return inside.get(key)
    if isinstance(key, int) and key < len(inside):
        return inside[key]
    return None


def _set(inside: Any, key: str | int, value: Any, path: Path) -> None:
    if isinstance(inside, list):
        is_index = isinstance(key, int) and key < len(inside)
        if not is_index:
            name = ".".join(map(str, path))
            raise UserError(
                f"override {name}: the list has {len(inside)} items; give an index, counted from 0"
            )
    inside[key] = value


# -- files -------------------------------------------------------------------------------------------------------------


def _resolve_files(source: Source, scenario: pathlib.Path) -> list[str]:
    """Make the paths in the data absolute, in place. Returns a line for each file that does not exist."""
    missing = []
    files = named_files(source.data, scenario.parent)
    for (section, key), file in files.items():
        settings = source.data[section]
        text = settings[key]
        if not file.is_file():
            place = source.place((section, key))
            hint = _rule_hint(text)
            missing.append(f"{section}.{key}: {text!r}, {place}; there is no file {file}{hint}")
        settings[key] = str(file)
    return missing


def _rule_hint(text: str) -> str:
    """A partition rule is a section, and people write its name alone."""
    rules = [name_of(member) for member in members(Partition)]
    if text in rules:
        return f"; to use the rule, write {{name: {text}}}"
    return ""
