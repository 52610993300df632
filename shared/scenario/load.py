"""A scenario from its file, as every program reads it: YAML in, a checked `Scenario` out.

Relative paths in a scenario (task.init, fleet.partition, rounds.participants) start at the scenario's own folder.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from covey.shared.errors import UserError
from covey.shared.scenario.explain import explain, members, models_at, name_of
from covey.shared.scenario.partition import Partition
from covey.shared.scenario.scenario import Scenario, named_files
from covey.shared.scenario.yaml_source import MAX_BYTES, Path, Source, YamlError, parse


def load(path: str | pathlib.Path, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario in a file, with overrides such as "rounds.count=5" laid over it.

    Raises UserError that names the file and, one per line, every mistake with its key path and line.
    """
    path = pathlib.Path(path)
    source, lost = _with_files(_laid_over(_read(path), overrides), path)
    return _checked(path, source, lost)


def load_without_files(path: str | pathlib.Path) -> Scenario:
    """As `load`, on a machine where the files that the scenario names need not be."""
    path = pathlib.Path(path)
    source, _ = _with_files(_read(path), path)
    return _checked(path, source, [])


def _checked(path: pathlib.Path, source: Source, lost: list[str]) -> Scenario:
    """The scenario; UserError with its mistakes and the files that are `lost`."""
    try:
        scenario = Scenario.model_validate(source.data)
    except ValidationError as error:
        raise _user_error(path, explain(error, source, Scenario) + lost) from None
    if lost:
        raise _user_error(path, lost)
    return scenario


def _read(path: pathlib.Path) -> Source:
    try:
        with path.open("rb") as file:
            content = file.read(
                MAX_BYTES + 1
            )  # of a file without end, such as a device, no more is read
        if len(content) > MAX_BYTES:
            raise UserError(f"{path}: longer than {MAX_BYTES} bytes; a scenario (YAML) is expected")
        source = parse(content.decode("utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; a scenario (YAML) is wanted") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: cannot be read as text ({error}); a scenario (YAML) is wanted"
        ) from None
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
    for override, path, value in sorted(
        map(_split, overrides), key=lambda item: item[1][-1] != "name"
    ):
        _put(source.data, path, value)
        places = {key: place for key, place in places.items() if key[: len(path)] != path}
        places[path] = f"override {override}"
    return replace(source, places=places)


def _split(override: str) -> tuple[str, Path, Any]:
    key, equals, text = override.partition("=")
    words = key.strip().split(".")
    if not equals or not all(words):
        raise UserError(
            f"override {override!r}: key=value is wanted, such as rounds.count=5 or strategy.name=fedavg"
        )
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
        raise UserError(
            f"override {'.'.join(map(str, path))}: the list has {len(inside)} items, counted from 0"
        )
    inside[key] = value


# -- files -------------------------------------------------------------------------------------------------------------


def _with_files(source: Source, scenario: pathlib.Path) -> tuple[Source, list[str]]:
    """Paths made absolute in place, and a line for each file that is not there."""
    lost = []
    for (section, key), file in named_files(source.data, scenario.parent).items():
        inside = source.data[section]
        if not file.is_file():
            place = source.place((section, key))
            lost.append(
                f"{section}.{key}: {inside[key]!r}, {place}; there is no file {file}{_rule_hint(inside[key])}"
            )
        inside[key] = str(file)
    return source, lost


def _rule_hint(text: str) -> str:
    rules = [name_of(member) for member in members(Partition)]
    return f"; for the rule write {{name: {text}}}" if text in rules else ""
