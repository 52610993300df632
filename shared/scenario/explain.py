"""What pydantic says about a scenario, in the words of the person who wrote the file.

Pydantic names the members of a union in its paths and complains once per member; a person wrote keys and wants
to hear about each once, with the line and a guess at what was meant.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from covey.shared.scenario.yaml_source import Path, Source

MAX_SEEN_LENGTH = 60


def explain(error: ValidationError, source: Source, root: type[BaseModel]) -> list[str]:
    """One line per mistake: key path, what was seen, where, what is wanted."""
    found: dict[Path, list[tuple[str, str]]] = {}
    other_members: set[Path] = set()  # where members of a union complain that they were not meant
    for item in error.errors(include_url=False):
        path, in_member = _path(item["loc"], source.data, item["type"] == "missing")
        if item["type"].startswith("union_tag"):
            path = (*path, "name")
        if in_member and item["type"].endswith(("_type", "literal_error", "_parsing")):
            other_members.add(path)
        found.setdefault(path, []).append(_said(item, path, source, root))
    spurious = {
        path
        for path in other_members
        if any(other[: len(path)] == path != other for other in found)
    }
    return [_line(path, said, source) for path, said in found.items() if path not in spurious]


def unknown(word: str, known: Iterable[str]) -> str:
    """A guess at what was meant, or all that there is."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, 1, 0.5) or [
        name for name in names if word and word in name
    ]
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}"


def models_at(path: Path, data: Any, root: type[BaseModel]) -> list[type[BaseModel]]:
    """The sections that may stand at this path; where a `name` in the data chooses one, that one."""
    choices = [root]
    for key in path:
        if isinstance(data, Mapping):
            choices = _chosen(choices, data)
        annotations = [
            info.annotation
            for choice in choices
            for name, info in fields(choice).items()
            if name == key
        ]
        if not isinstance(key, int):
            choices = [model for annotation in annotations for model in _models(annotation)]
        data = _inside(data, key)
    return _chosen(choices, data) if isinstance(data, Mapping) else choices


def fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Fields of a section by the name that a file uses."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def members(annotation: Any) -> list[Any]:
    """The types that a (possibly annotated) union offers; of anything else, itself."""
    if get_origin(annotation) is Annotated:
        return members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [member for argument in get_args(annotation) for member in members(argument)]
    return [annotation]


def name_of(kind: type[BaseModel]) -> str:
    """The `name` that chooses this member of a union."""
    return str(kind.model_fields["name"].default)


def _models(annotation: Any) -> list[type[BaseModel]]:
    found = []
    for member in members(annotation):
        if isinstance(member, type) and issubclass(member, BaseModel):
            found.append(member)
        elif get_origin(member) is tuple:
            found += _models(get_args(member)[0])
    return found


def _chosen(choices: Sequence[type[BaseModel]], data: Mapping[Any, Any]) -> list[type[BaseModel]]:
    named = [
        one
        for one in choices
        if "name" in one.model_fields and one.model_fields["name"].default == data.get("name")
    ]
    return named if named and len(choices) > 1 else list(choices)


def _inside(data: Any, key: str | int) -> Any:
    try:
        return data[key]
    except (KeyError, IndexError, TypeError):
        return None


def _path(location: tuple[str | int, ...], data: Any, missing: bool) -> tuple[Path, bool]:
    """The keys among the words of a location; what is no key there names a member of a union."""
    path: list[str | int] = []
    skipped = False
    for word in location:
        there = isinstance(data, Mapping) and word in data
        there = there or (isinstance(data, list) and isinstance(word, int) and word < len(data))
        if there:
            path.append(word)
            data = data[word]
        else:
            skipped = True
    if missing:
        path.append(location[-1])
    return tuple(path), skipped and not missing


def _said(item: Any, path: Path, source: Source, root: type[BaseModel]) -> tuple[str, str]:
    """What was seen, and what is wanted."""
    around = models_at(path[:-1], source.data, root) if path else [root]
    match item["type"]:
        case "extra_forbidden":
            known = [*around, *_written_flat(item["loc"], path, around, source.data)]
            return "unknown key", unknown(
                str(path[-1]), {name for model in known for name in fields(model)}
            )
        case "missing":
            infos = [fields(model).get(str(path[-1])) for model in around]
            described = [info.description for info in infos if info and info.description]
            return "missing", f"wanted: {described[0]}" if described else "it has no default"
        case "union_tag_invalid":
            tags = [tag.strip(" '\"") for tag in item["ctx"]["expected_tags"].split(",")]
            return _short(item["ctx"]["tag"]), unknown(str(item["ctx"]["tag"]), tags)
        case "union_tag_not_found":
            named = [model for model in around if "name" in model.model_fields]
            return "missing", "known: " + ", ".join(sorted(map(name_of, named)))
        case "value_error":
            return "", str(item["ctx"]["error"])
    bare_word = isinstance(item["input"], bool) and item["type"] == "string_type"
    hint = (
        ": YAML takes a bare yes, no, on, off for true or false, put it in quotes"
        if bare_word
        else ""
    )
    return _short(item["input"]), item["msg"].removeprefix("Input ") + hint


def _written_flat(
    location: Sequence[str | int], path: Path, around: Sequence[type[BaseModel]], data: Any
) -> list[type[BaseModel]]:
    """The section whose keys a person may write into the one around it, as those of a compared method's strategy."""
    for key in path[:-1]:
        data = _inside(data, key)
    skipped = [
        info
        for model in around
        for name, info in fields(model).items()
        if name in location and name not in path
    ]
    return _chosen([model for info in skipped for model in _models(info.annotation)], data or {})


def _short(seen: Any) -> str:
    text = repr(seen)
    return text if len(text) <= MAX_SEEN_LENGTH else text[:MAX_SEEN_LENGTH] + "..."


def _line(path: Path, said: Sequence[tuple[str, str]], source: Source) -> str:
    name = ".".join(map(str, path)) or "the file"
    seen = ", ".join(filter(None, (said[0][0], source.place(path))))
    wanted = ", or ".join(dict.fromkeys(text for _, text in said))
    return f"{name}: {seen}; {wanted}" if seen else f"{name}: {wanted}"
