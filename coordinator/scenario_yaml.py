"""YAML to plain data and the place of every key; plain data to readable YAML. Knows nothing of scenarios.

Safe loader only. A key that stands twice in a mapping is refused: YAML would silently take the second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.reader import ReaderError

Path = tuple[str | int, ...]
MOST_KEYS = 100_000  # aliases can make a small file grow without end


class YamlError(Exception):
    """The text is no YAML, or no YAML that we take; the message names the line."""


@dataclass(frozen=True)
class Source:
    """Plain data, and for the path of every key and item where it came from, such as "line 12"."""

    data: Any
    places: Mapping[Path, str]

    def place(self, path: Path) -> str:
        """Where this path, or the nearest thing around it, came from; empty for an empty file."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, "")


def parse(text: str) -> Source:
    """Raises YamlError."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        places: dict[Path, str] = {}
        for path, mark in _walk(loader, node, ()) if node is not None else ():
            places[path] = f"line {mark.line + 1}"
            if len(places) > MOST_KEYS:
                raise YamlError(f"more than {MOST_KEYS} keys, line {mark.line + 1}")
        return Source(loader.construct_document(node) if node is not None else None, places)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise YamlError(f"{error.problem or error.context}{line}") from None
    except ReaderError as error:
        number = text[: error.position].count("\n") + 1
        raise YamlError(f"the character {chr(error.character)!r} has no place in YAML, line {number}") from None
    except RecursionError:
        raise YamlError("nested too deeply") from None


def _walk(loader: yaml.SafeLoader, node: yaml.Node, path: Path) -> Iterator[tuple[Path, yaml.Mark]]:
    """Every key and item with its mark."""
    match node:
        case yaml.MappingNode():
            first: dict[Any, yaml.Mark] = {}
            for key_node, value in node.value:
                key, mark = _key(loader, key_node), key_node.start_mark
                if key in first and key != "<<":
                    name = ".".join(map(str, (*path, key)))
                    raise YamlError(f"{name}: given twice, line {first[key].line + 1} and line {mark.line + 1}")
                first[key] = mark
                yield (*path, key), mark
                yield from _walk(loader, value, (*path, key))
        case yaml.SequenceNode():
            for index, item in enumerate(node.value):
                yield (*path, index), item.start_mark
                yield from _walk(loader, item, (*path, index))


def _key(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    if not isinstance(node, yaml.ScalarNode):
        raise YamlError(f"a key must be a plain word, line {node.start_mark.line + 1}")
    return "<<" if node.tag == "tag:yaml.org,2002:merge" else loader.construct_object(node)


def render(data: Mapping[str, Any]) -> str:
    """YAML in the order of `data`; lists of plain values on one line, a blank line around every section."""
    text, after_section = "", False
    for key, value in data.items():
        piece = _dumped({key: value})
        section = piece.count("\n") > 1
        text += "\n" + piece if text and (section or after_section) else piece
        after_section = section
    return text


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _sequence(dumper: yaml.SafeDumper, items: Any) -> yaml.Node:
    plain = not any(isinstance(item, dict) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=plain)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Unusual line breaks (U+0085 and the like) survive in double quotes alone."""
    odd = not text.isascii() and any(not character.isprintable() for character in text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if odd else None)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(list, _sequence)
_Dumper.add_representer(tuple, _sequence)


def _dumped(data: Any) -> str:
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100, default_flow_style=False)
