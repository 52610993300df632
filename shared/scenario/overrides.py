"""Settings of the command line, such as "rounds.count=5", that replace those of a scenario's file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from covey.shared.errors import UserError
from covey.shared.scenario.introspection import ANY_METHOD, is_chosen_by_name, models_at
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.yaml_source import Path, YamlError, YamlSource, parse
from covey.shared.written import as_section

EXAMPLES = "rounds.count=5 or strategy.name=fedavg"

Key = str | int


@dataclass(frozen=True)
class _Override:
    """One setting."""

    text: str  # as it was typed
    path: Path
    value: Any

    @property
    def sets_name(self) -> bool:
        """Whether it may choose another member of a union, such as another method."""
        return self.path[-1] == "name"


def with_overrides(source: YamlSource, overrides: Sequence[str]) -> YamlSource:
    """Apply settings to the data of a scenario, which is changed in place.

    Names are set first: choosing another method must not drop a parameter that is given with it.

    Returns:
        The data, and its places: an override is the place of what it has set.

    Raises:
        UserError: quotes an override that cannot be read or applied.
    """
    names: list[_Override] = []
    others: list[_Override] = []
    for text in overrides:
        override = _parsed(text)
        if override.sets_name:
            names.append(override)
        else:
            others.append(override)
    places = dict(source.places)
    for override in names + others:
        path = override.path
        depth = len(path)
        _put(source.data, path, override.value)
        for place in list(places):
            beginning = place[:depth]
            if beginning == path:  # the override replaces what the file had there
                del places[place]
        places[path] = f"override {override.text}"
    return replace(source, places=places)


def _parsed(text: str) -> _Override:
    name, equals, value_text = text.partition("=")
    words = name.strip().split(".")
    if not equals or not all(words):
        raise UserError(f"override {text!r}: expected key=value, such as {EXAMPLES}")
    try:
        value = parse(value_text).data
    except YamlError as error:
        raise UserError(f"override {text!r}: the value is not valid YAML: {error}") from None
    path: list[Key] = []
    for word in words:
        if word.isdecimal():
            path.append(int(word))
        else:
            path.append(word)
    return _Override(text, tuple(path), value)


def _put(data: Any, path: Path, value: Any) -> None:
    """Set one key, and create the sections around it. Another `name` in a union removes the old member's keys."""
    *sections, last = path
    inside = data
    for depth, key in enumerate(sections, start=1):
        present = _value_at(inside, key)
        if isinstance(present, str) and _has_name(path[:depth]):  # a section written as its name
            _set(inside, key, as_section(present), path[:depth])
            present = inside[key]
        if not isinstance(present, dict | list):
            _set(inside, key, {}, path[:depth])
        inside = inside[key]
    if last == "name" and isinstance(inside, dict):
        is_union = is_chosen_by_name(models_at(path[:-1], None, Scenario))
        if is_union and inside.get(last) != value:
            inside.clear()
    _set(inside, last, value, path)


def _has_name(section: Path) -> bool:
    """Whether this section may be written as its name alone."""
    for member in models_at(section, None, Scenario):
        is_written_flat = hasattr(member, "inner_field")
        if is_written_flat or member is ANY_METHOD or "name" in member.model_fields:
            return True
    return False


def _value_at(inside: Any, key: Key) -> Any:
    if isinstance(inside, dict):
        return inside.get(key)
    if _is_index(inside, key):
        return inside[key]
    return None


def _set(inside: Any, key: Key, value: Any, path: Path) -> None:
    if isinstance(inside, list) and not _is_index(inside, key):
        name = ".".join(map(str, path))
        raise UserError(
            f"override {name}: the list has {len(inside)} items; give an index, counted from 0"
        )
    inside[key] = value


def _is_index(items: list[Any], key: Key) -> bool:
    if isinstance(key, int):
        return key < len(items)
    return False
