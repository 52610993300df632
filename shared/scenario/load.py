"""Read a scenario from its file, as every program does: YAML in, a validated `Scenario` out.

Relative paths in a scenario (task.init, fleet.partition, rounds.participants) start at the scenario's own folder.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from pydantic import ValidationError

from covey.shared.errors import UserError
from covey.shared.scenario.partition import RULES
from covey.shared.scenario.scenario import Scenario, named_files
from covey.shared.scenario.yaml_source import MAX_BYTES, YamlError, YamlSource, parse

EXPECTED = "expected the YAML file of a scenario"
EXPECTED_KEYS = f"{EXPECTED} with keys such as name, task and strategy"

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
        from covey.shared.scenario.overrides import with_overrides

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
        raise UserError(f"{file}: cannot be read as text ({error}); {EXPECTED}") from None
    except YamlError as error:
        raise _user_error(file, [str(error)]) from None
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
