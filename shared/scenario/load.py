"""Read a scenario from its file, as every program does: YAML in, a validated `Scenario` out.

Relative paths in a scenario (task.init, fleet.partition, rounds.participants) start at the scenario's own folder.

Settings of the command line, such as "rounds.count=5", that replace those of a scenario's file.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml
from pydantic import ValidationError

from covey.shared.errors import UserError
from covey.shared.scenario.introspection import ANY_METHOD, is_chosen_by_name, models_at
from covey.shared.scenario.partition import RULES
from covey.shared.scenario.scenario import Scenario, named_files
from covey.shared.scenario.yaml_source import MAX_BYTES, Path, YamlError, YamlSource, parse
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


EXPECTED = "expected the YAML file of a scenario; `coordinator init` writes one for your data"
EXPECTED_KEYS = "expected the YAML file of a scenario with keys such as name, task and strategy"

File = pathlib.Path


def load(path: str | File, overrides: Sequence[str] = ()) -> Scenario:
    """Read and validate a scenario.

    Args:
        path: the YAML file.
        overrides: settings such as "rounds.count=5", which replace those of the file.

    Raises:
        UserError: with the name of the file and one line per error: key path, value, line, and expectation.
    """
    file = File(path)
    source = _read(file)
    if overrides:
        source = with_overrides(source, overrides)
    return _validated(file, source, _resolve_files(source, file))


def load_without_files(path: str | File) -> Scenario:
    """As `load`, on a machine that need not have the files which the scenario names."""
    file = File(path)
    source = _read(file)
    _resolve_files(source, file)
    return _validated(file, source, [])


def from_mapping(content: Mapping[str, Any]) -> Scenario:
    """The scenario with this content, as YAML would give it. Relative paths start at the working directory.

    Raises:
        UserError: with one line per error: key path, value, and expectation.
    """
    file = File("scenario")
    try:
        text = yaml.safe_dump(dict(content), sort_keys=False)
    except yaml.YAMLError as error:
        expected = "expected plain values such as numbers, text and lists"
        raise UserError(f"{file}: {expected}: {error}") from None
    source = YamlSource(parse(text).data, {})  # a mapping has no lines
    return _validated(file, source, _resolve_files(source, file))


def _validated(file: File, source: YamlSource, missing_files: list[str]) -> Scenario:
    """The scenario; UserError with its errors, followed by the missing files."""
    try:
        scenario = Scenario.model_validate(source.data)
    except ValidationError as error:
        from covey.shared.scenario.explain import explain

        errors = explain(error, source, Scenario)
        raise _user_error(file, errors + missing_files) from None
    if missing_files:
        raise _user_error(file, missing_files)
    return scenario


def _read(file: File) -> YamlSource:
    try:
        source = parse(_content(file).decode("utf-8"))
    except FileNotFoundError:
        raise UserError(f"{file}: this file does not exist; {EXPECTED}") from None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{file}: cannot be read as text ({why}); {EXPECTED}") from None
    except YamlError as error:
        raise _user_error(file, [f"not YAML: {error}"]) from None
    if source.data is None:
        raise UserError(f"{file}: the file is empty; {EXPECTED_KEYS}")
    if not isinstance(source.data, dict):
        kind = "a single value"
        if isinstance(source.data, list):
            kind = "a list"
        raise UserError(f"{file}: holds {kind}; {EXPECTED_KEYS}")
    return source


def _content(file: File) -> bytes:
    with file.open("rb") as opened:
        content = opened.read(MAX_BYTES + 1)  # a device may have no end, so the read is bounded
    if len(content) > MAX_BYTES:
        raise UserError(f"{file}: longer than {MAX_BYTES} bytes; {EXPECTED}")
    return content


def _user_error(file: File, errors: Sequence[str]) -> UserError:
    count = len(errors)
    if count == 1:
        only = errors[0]
        return UserError(f"{file}: {only}")
    return UserError("\n  ".join([f"{file}: {count} errors", *errors]))


# -- files -------------------------------------------------------------------------------------------------------------


def _resolve_files(source: YamlSource, scenario: File) -> list[str]:
    """Make the paths in the data absolute, in place. Returns a line for each file that does not exist."""
    missing = []
    for keys, file in named_files(source.data, scenario.parent).items():
        *sections, key = keys
        settings = source.data
        for section in sections:
            settings = settings[section]
        text = settings[key]
        if not file.is_file():
            place = source.place(keys)
            hint = _rule_hint(key, text)
            seen = f"{'.'.join(keys)}: {text!r}"
            if place:
                seen += f", {place}"
            missing.append(f"{seen}; there is no file {file}{hint}")
        settings[key] = str(file)
    return missing


def _rule_hint(key: str, text: str) -> str:
    """A partition is a file or the name of a rule; a text without a dot is more likely to be a name."""
    if key != "partition":
        return ""
    if "." in text:
        return ""
    from covey.shared.scenario.explain import unknown

    hint = unknown(text, RULES)
    return f", and no such rule; {hint}"
