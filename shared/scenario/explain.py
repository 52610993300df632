"""Validation errors in the words of the person who wrote the file.

Pydantic names the members of unions in its locations, and reports an error once per member. A person wrote keys, and
needs each error once, with the line of the key and a guess at the intended name.
"""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from covey.shared.scenario.introspection import (
    SectionType,
    chosen,
    fields,
    name_of,
    sections_around,
    sections_in,
    value_inside,
)
from covey.shared.scenario.yaml_source import Path, YamlSource
from covey.shared.sentences import expectation

MAX_SEEN_LENGTH = 60  # characters of a value that a message quotes
SIMILARITY = 0.6  # of names, 0 to 1: below it, a guess is rarely right
# errors about the type of a value: another member of its union may accept it
OTHER_TYPE = ("_type", "literal_error", "_parsing")

Sections = Sequence[SectionType]


@dataclass(frozen=True)
class _Complaint:
    """One error at one key: the value that was seen ("" if it does not matter), and the expectation."""

    seen: str
    expected: str


def explain(error: ValidationError, source: YamlSource, root: SectionType) -> list[str]:
    """One line per error: key path, value, line of the file, and the expectation.

    Args:
        error: what pydantic raised for `source.data`.
        source: the data and the places of its keys.
        root: the section that was validated.
    """
    complaints: dict[Path, list[_Complaint]] = {}
    of_other_members: set[Path] = set()
    for item in error.errors(include_url=False):
        path, inside_union = _key_path(item, source.data)
        kind = item["type"]
        if inside_union and kind.endswith(OTHER_TYPE):
            of_other_members.add(path)
        complaint = _complaint(item, path, sections_around(path, source.data, root), source.data)
        found = complaints.setdefault(path, [])
        found.append(complaint)
    lines = []
    for path, found in complaints.items():
        # a union of a text and a section: if something inside the section is wrong, a section was meant
        spurious = path in of_other_members and _any_below(path, complaints)
        if spurious:
            continue
        lines.append(_line(path, found, source))
    return lines


def unknown(word: str, known: Iterable[str]) -> str:
    """The hint for an unknown name: a similar known one, or the list of all."""
    names = sorted(known)
    similar = difflib.get_close_matches(word, names, 1, SIMILARITY)
    if word and not similar:
        similar = [name for name in names if word in name]
    if similar:
        closest = similar[0]
        return f"did you mean {closest}?"
    listed = ", ".join(names)
    return f"known: {listed}"


# -- locations ---------------------------------------------------------------------------------------------------------


def _has(data: Any, key: str | int) -> bool:
    if isinstance(data, Mapping):
        return key in data
    if isinstance(data, list) and isinstance(key, int):
        return key < len(data)
    return False


def _key_path(item: ErrorDetails, data: Any) -> tuple[Path, bool]:
    """The keys of a location, and whether the error is inside a member of a union.

    A location also names members of unions. These words are no keys of the data, so they are left out.
    """
    location = item["loc"]
    kind = item["type"]
    is_missing = kind == "missing"
    path: list[str | int] = []
    for key in location:
        if _has(data, key):
            path.append(key)
            data = data[key]
    inside_union = len(path) < len(location) and not is_missing
    if is_missing:
        missing_key = location[-1]
        path.append(missing_key)
    if kind.startswith("union_tag"):
        path.append("name")
    return tuple(path), inside_union


def _any_below(path: Path, others: Iterable[Path]) -> bool:
    depth = len(path)
    return any(other[:depth] == path != other for other in others)


# -- words -------------------------------------------------------------------------------------------------------------


def _complaint(item: ErrorDetails, path: Path, around: Sections, data: Any) -> _Complaint:
    """The value that was seen at a path, and the expectation. `around`: the sections that may hold its last key."""
    context = item.get("ctx", {})
    match item["type"]:
        case "extra_forbidden":
            key = str(path[-1])
            known = _known_keys(item["loc"], path, around, data)
            hint = unknown(key, known)
            return _Complaint("unknown key", hint)
        case "missing":
            key = str(path[-1])
            return _Complaint("missing", _required(key, around))
        case "union_tag_invalid":
            tag = context["tag"]
            seen = _shortened(tag)
            known = _names_in(context["expected_tags"])
            hint = unknown(str(tag), known)
            if path == ("strategy", "name") and hint.startswith("known"):
                hint = f"no installed method has this name; {hint}"
            return _Complaint(seen, hint)
        case "union_tag_not_found":
            listed = ", ".join(_names_of_members(around))
            return _Complaint("missing", f"known: {listed}")
        case "value_error":
            return _Complaint("", str(context["error"]))
        case _:
            return _refused_value(item)


def _refused_value(item: ErrorDetails) -> _Complaint:
    """The complaint about a value that has the wrong type or lies out of range."""
    value = item["input"]
    seen = _shortened(value)
    expected = expectation(item)
    is_bare_word = item["type"] == "string_type" and isinstance(value, bool)
    if isinstance(value, datetime.date):
        seen = str(value)
        expected += "; YAML reads this as a date: put it in quotes"
    if is_bare_word:
        expected += "; YAML reads unquoted yes, no, on, off as true or false: put it in quotes"
    return _Complaint(seen, expected)


def _names_in(quoted: str) -> set[str]:
    """The names in pydantic's list of the members of a union, such as "'fedavg', 'ifca'"."""
    return {word.strip(" '\"") for word in quoted.split(",")}


def _names_of_members(sections: Sections) -> list[str]:
    """The names by which these members of a union are chosen, sorted."""
    return sorted([name_of(section) for section in sections if "name" in section.model_fields])


def _required(key: str, around: Sections) -> str:
    """The purpose of a missing key, from its description."""
    for section in around:
        info = fields(section).get(key)
        if info is not None and info.description:
            return f"this key is required: {info.description}"
    return "this key is required"


def _known_keys(location: Path, path: Path, around: Sections, data: Any) -> set[str]:
    """The keys that are possible where an unknown key was found.

    A compared method is written flat: the keys of its strategy lie next to its own. The location of an error names
    the field of such an inner section, and the path of keys does not.
    """
    for key in path[:-1]:
        data = value_inside(data, key)
    inner = []
    for section in around:
        for name, info in fields(section).items():
            is_written_flat = name in location and name not in path
            if is_written_flat:
                inner += sections_in(info.annotation)
    chosen_inner = chosen(inner, data or {})
    known: set[str] = set()
    for section in [*around, *chosen_inner]:
        known.update(fields(section))
    return known


def _shortened(seen: Any) -> str:
    text = "no value" if seen is None else repr(seen)
    if len(text) > MAX_SEEN_LENGTH:
        text = text[:MAX_SEEN_LENGTH] + "..."
    return text


def _line(path: Path, complaints: Sequence[_Complaint], source: YamlSource) -> str:
    """The line `key: seen, line 3; expectation`. Expectations of several members of a union are joined by "or"."""
    key = ".".join(map(str, path))
    seen = complaints[0].seen
    place = source.place(path)
    expectations: list[str] = []
    for complaint in complaints:
        if complaint.expected not in expectations:
            expectations.append(complaint.expected)
    expected = ", or ".join(expectations)
    text = expected
    if seen and place:
        text = f"{seen}, {place}; {expected}"
    elif seen or place:
        text = f"{seen or place}; {expected}"
    # a rule of several sections names their keys itself
    return f"{key}: {text}" if key else text
