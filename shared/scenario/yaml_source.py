"""YAML to plain data with the place of every key, and plain data to readable YAML.

Only PyYAML's safe loader is used. YAML would silently take the second of two equal keys, so a repeated key is refused.
Length, depth and the number of keys are bounded: with aliases, a few lines can stand for more than any memory holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.reader import ReaderError

Path = tuple[str | int, ...]
Place = tuple[Path, yaml.Mark]
MAX_BYTES = 256 * 1024
MAX_DEPTH = 64
MAX_SCALAR = 20_000  # characters: Python takes minutes to read a longer number
MERGE_KEY = "<<"
MERGE_TAG = "tag:yaml.org,2002:merge"
MAX_KEYS = 100_000  # every alias counts as often as it is used


class YamlError(Exception):
    """The text is not YAML, or exceeds a limit; the message names the line."""


@dataclass(frozen=True)
class YamlSource:
    """Plain data, and for the path of every key and item its place, such as "line 12"."""

    data: Any
    places: Mapping[Path, str]

    def place(self, path: Path) -> str:
        """The place of a path, or of the nearest key around it; empty for an empty file."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, "")


def parse(text: str) -> YamlSource:
    """Parse a text of at most MAX_BYTES. Raises YamlError, and nothing else, for any text."""
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise YamlError(f"longer than {MAX_BYTES} bytes")
    try:
        return _parsed(_Loader(text))
    except yaml.MarkedYAMLError as error:
        problem = error.problem or error.context
        if error.problem_mark:
            problem = f"{problem}, {_line_of(error.problem_mark)}"
        raise YamlError(str(problem)) from None
    except ReaderError as error:
        number = text[: error.position].count("\n") + 1
        character = chr(error.character)
        raise YamlError(
            f"the character {character!r} is not allowed in YAML, line {number}"
        ) from None
    except RecursionError:
        raise YamlError("nested too deeply") from None
    except (ValueError, OverflowError):  # the scanner raises them for "\UFFFFFFFF" and the like
        raise YamlError("an escape in quotes does not name a character") from None


def _line_of(mark: yaml.Mark) -> str:
    """The line of a mark, counted from 1."""
    return f"line {mark.line + 1}"


class _Loader(yaml.SafeLoader):
    """A SafeLoader whose failures all name a line. PyYAML raises a bare ValueError for a month of 13.

    It is the one in Python: that in C takes a sixth of the time, milliseconds of a usual scenario, has worse words, and a
    text that is nested too deeply overflows its stack and ends the process.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, AttributeError, LookupError, OverflowError):
            kind = node.tag.rpartition(":")[2][:20]
            line = _line_of(node.start_mark)
            raise YamlError(f"a value cannot be read as {kind}, {line}") from None


def _parsed(loader: _Loader) -> YamlSource:
    """The places first: the walk refuses what is too deep, too long or too large before the data is built."""
    node = loader.get_single_node()
    if node is None:
        return YamlSource(None, {})
    places: dict[Path, str] = {}
    for count, (path, mark) in enumerate(_walk(loader, node, ()), start=1):
        line = _line_of(mark)
        if count > MAX_KEYS:
            raise YamlError(
                f"more than {MAX_KEYS} keys, where aliases count as often as they are used, {line}"
            )
        places[path] = line
    return YamlSource(loader.construct_document(node), places)


def _walk(loader: _Loader, node: yaml.Node, path: Path) -> Iterator[Place]:
    """Every key and item below a node, with its mark."""
    line = _line_of(node.start_mark)
    if len(path) > MAX_DEPTH:
        raise YamlError(f"nested deeper than {MAX_DEPTH} levels, {line}")
    match node:
        case yaml.ScalarNode():
            _check_scalar(node.value, line)
        case yaml.MappingNode():
            yield from _walk_mapping(loader, node, path)
        case yaml.SequenceNode():
            for index, item in enumerate(node.value):
                item_path = (*path, index)
                yield item_path, item.start_mark
                yield from _walk(loader, item, item_path)


def _walk_mapping(loader: _Loader, node: yaml.MappingNode, path: Path) -> Iterator[Place]:
    seen: dict[Any, yaml.Mark] = {}  # the keys of this mapping, where they first occurred
    for key_node, value in node.value:
        key = _key(loader, key_node)
        mark = key_node.start_mark
        key_path = (*path, key)
        if key in seen and key != MERGE_KEY:
            name = ".".join(map(str, key_path))
            raise YamlError(f"{name}: given twice, {_line_of(seen[key])} and {_line_of(mark)}")
        seen[key] = mark
        yield key_path, mark
        yield from _walk(loader, value, key_path)


def _check_scalar(text: str, line: str) -> None:
    if len(text) > MAX_SCALAR:
        raise YamlError(
            f"a value has {len(text)} characters; at most {MAX_SCALAR} are accepted, {line}"
        )
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise YamlError(f"half of a character (a lone surrogate), {line}") from None


def _key(loader: _Loader, node: yaml.Node) -> Any:
    line = _line_of(node.start_mark)
    if not isinstance(node, yaml.ScalarNode):
        raise YamlError(f"a key must be a plain word, {line}")
    _check_scalar(node.value, line)
    if node.tag == MERGE_TAG:
        return MERGE_KEY
    return loader.construct_object(node)


def spaced(pieces: Iterable[str]) -> str:
    """Pieces of YAML one below the other, with an empty line around every one of several lines."""
    text = ""
    after_section = False
    for piece in pieces:
        is_section = piece.count("\n") > 1
        if text and (is_section or after_section):
            text += "\n"
        text += piece
        after_section = is_section
    return text


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)


def _sequence(dumper: yaml.SafeDumper, items: Any) -> yaml.Node:
    has_sections = any(isinstance(item, dict) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=not has_sections)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Unusual line breaks (U+0085 and the like) survive only in double quotes."""
    style = None
    if not text.isascii() and not text.isprintable():
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(list, _sequence)
_Dumper.add_representer(tuple, _sequence)


def dumped(data: Any) -> str:
    """YAML in the order of the data, lists of plain values on one line."""
    return yaml.dump(
        data,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=100,
        default_flow_style=False,
    )
