"""YAML to plain data and the place of every key; plain data to readable YAML. Knows nothing of scenarios.

Safe loader only. A key that occurs twice in a mapping is refused: YAML would silently take the second. Length, depth
and the number of keys are bounded: with aliases a file of a few lines can mean more than any memory holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.reader import ReaderError

Path = tuple[str | int, ...]
MAX_BYTES = 256 * 1024
MAX_DEPTH = 64
MAX_SCALAR = 20_000  # characters
MAX_KEYS = 100_000  # with every alias counted as often as it is used


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
    """Raises YamlError, and nothing else, whatever the text."""
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise YamlError(f"longer than {MAX_BYTES} bytes")
    try:
        return _parsed(_Loader(text))
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise YamlError(f"{error.problem or error.context}{line}") from None
    except ReaderError as error:
        number = text[: error.position].count("\n") + 1
        raise YamlError(
            f"the character {chr(error.character)!r} has no place in YAML, line {number}"
        ) from None
    except RecursionError:
        raise YamlError("nested too deeply") from None
    except (ValueError, OverflowError):  # of the scanner, for "\UFFFFFFFF" and its like
        raise YamlError("an escape in quotes is no character") from None


class _Loader(yaml.SafeLoader):
    """A SafeLoader whose every failure has a line: a month of 13, say, is a bare ValueError in PyYAML."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, AttributeError, LookupError, OverflowError):
            kind = node.tag.rpartition(":")[2]
            raise YamlError(
                f"a value cannot be read as {kind[:20]}, line {node.start_mark.line + 1}"
            ) from None


def _parsed(loader: _Loader) -> Source:
    """The places first: walking them finds what is too deep, too long or has too many aliases before it is built."""
    node = loader.get_single_node()
    if node is None:
        return Source(None, {})
    places: dict[Path, str] = {}
    for count, (path, mark) in enumerate(_walk(loader, node, ()), start=1):
        places[path] = f"line {mark.line + 1}"
        if count > MAX_KEYS:
            raise YamlError(
                f"more than {MAX_KEYS} keys, aliases counted as often as they are used, line {mark.line + 1}"
            )
    return Source(loader.construct_document(node), places)


def _walk(loader: _Loader, node: yaml.Node, path: Path) -> Iterator[tuple[Path, yaml.Mark]]:
    """Every key and item with its mark."""
    line = node.start_mark.line + 1
    if len(path) > MAX_DEPTH:
        raise YamlError(f"nested deeper than {MAX_DEPTH} levels, line {line}")
    match node:
        case yaml.ScalarNode():
            _check_scalar(node.value, line)
        case yaml.MappingNode():
            first: dict[Any, yaml.Mark] = {}
            for key_node, value in node.value:
                key, mark = _key(loader, key_node), key_node.start_mark
                if key in first and key != "<<":
                    name = ".".join(map(str, (*path, key)))
                    raise YamlError(
                        f"{name}: given twice, line {first[key].line + 1} and line {mark.line + 1}"
                    )
                first[key] = mark
                yield (*path, key), mark
                yield from _walk(loader, value, (*path, key))
        case yaml.SequenceNode():
            for index, item in enumerate(node.value):
                yield (*path, index), item.start_mark
                yield from _walk(loader, item, (*path, index))


def _check_scalar(text: str, line: int) -> None:
    if len(text) > MAX_SCALAR:  # a number of such length takes minutes to read
        raise YamlError(
            f"a value of {len(text)} characters, at most {MAX_SCALAR} are read, line {line}"
        )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise YamlError(f"half of a character (a lone surrogate), line {line}") from None


def _key(loader: _Loader, node: yaml.Node) -> Any:
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.ScalarNode):
        raise YamlError(f"a key must be a plain word, line {line}")
    _check_scalar(node.value, line)
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
    return yaml.dump(
        data,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=100,
        default_flow_style=False,
    )
