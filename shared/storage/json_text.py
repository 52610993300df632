"""JSON as every program of Covey writes and reads it: only what the standard allows, and no key twice.

Python's own reader accepts NaN, Infinity, repeated keys and any depth, and its writer produces NaN and Infinity, which
other programs cannot read. Here they are refused on both sides. This module needs only the standard library.
"""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any

MAX_DEPTH = 64


class JsonError(ValueError):
    """The text is not acceptable JSON. The message gives the reason and quotes no value."""


def dumps(value: Any, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """JSON text. Raises ValueError for NaN, infinity and values that JSON cannot express."""
    return json.dumps(value, indent=indent, sort_keys=sort_keys, allow_nan=False)


def loads(text: str | bytes, *, depth: int = MAX_DEPTH) -> Any:
    """The value of a JSON text. Raises JsonError and nothing else."""
    try:
        value = json.loads(text, parse_constant=_no_constant, object_pairs_hook=unique)
    except JsonError:
        raise
    except RecursionError:
        raise JsonError("nested too deeply") from None
    except json.JSONDecodeError as error:
        raise JsonError(f"not JSON, line {error.lineno} column {error.colno}") from None
    except ValueError:  # a UnicodeDecodeError, or a whole number of thousands of digits
        raise JsonError("not JSON") from None
    _check(value, depth)
    return value


def unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """An object from its pairs. Raises JsonError for a repeated key: programs differ in which value they take."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise JsonError("a key occurs twice")
    return found


def _no_constant(name: str) -> Any:
    raise JsonError(f"{name} is not a number in JSON")


def _check(value: Any, depth: int) -> None:
    """Bounded nesting, finite numbers (1e999 is read as infinity), and text that can be written again."""
    level = [value]
    for _ in range(depth + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += item.keys()
                below += item.values()
            elif isinstance(item, list):
                below += item
            else:
                _check_leaf(item)
        if not below:
            return
        level = below
    raise JsonError(f"nested deeper than {depth} levels")


def _check_leaf(item: Any) -> None:
    if isinstance(item, float) and item - item != 0:
        raise JsonError("a number is not finite")
    if isinstance(item, str) and not item.isascii():
        try:
            item.encode()
        except UnicodeEncodeError:
            raise JsonError("a text holds half of a character (a lone surrogate)") from None


def holds_rows(path: Path) -> bool:
    """Whether a file holds data in JSON, and no description of data, as far as its beginning shows."""
    with path.open("rb") as file:
        begin = file.read(1 << 10).removeprefix(codecs.BOM_UTF8).strip()
    return begin.startswith((b"[", b"{")) and b'"covey data description ' not in begin
