"""Valid samples changed into almost valid ones, on a seed: bytes flipped, cut and spliced, and trees with one wrong leaf."""

from __future__ import annotations

import copy
import json
import math
import re
import struct
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import msgpack

WORDS = (
    b"NaN", b"Infinity", b"-1", b"1e999", b"9" * 400, b"null", b"\x00", b"\xff\xfe", b"\x1b[31m", b"../", b"{", b"[",
    b"]", b'"', b"\n", b"%s", b"\\ud800", b"\xed\xa0\x80", b"<<: *a", b"&a [*a]", b"!!int x", b"2001-13-01", b"\\UFFFFFFFF",
)  # fmt: skip
NUMBERS = (
    0,
    1,
    2,
    127,
    128,
    255,
    256,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**53,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
LEAVES: tuple[Any, ...] = (
    None, True, False, "", "x", "x" * 5000, "../../etc/passwd", "\x1b[2J", "a\nb", "+/#", "é\u0000", "-1", b"", b"\x00" * 9,
    math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, -0.0, 0.5, -1, *NUMBERS, -(2**63), [], {}, [[]], {"": None},
)  # fmt: skip
MAX_CHANGES = 6
MAX_BYTES = 1 << 16


def mutated(rng: Random, samples: Sequence[bytes]) -> bytes:
    """One of the samples, with one to six changes at random places."""
    data = bytearray(rng.choice(samples))
    for _ in range(rng.randint(1, MAX_CHANGES)):
        rng.choice(CHANGES)(rng, data, samples)
    return bytes(data[:MAX_BYTES])


def _place(rng: Random, data: bytearray) -> int:
    return rng.randrange(len(data) + 1)


def _flip(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _delete(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    start = _place(rng, data)
    del data[start : start + rng.randint(1, 1 + len(data) // 4)]


def _cut(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    del data[_place(rng, data) :]


def _repeat(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    start = _place(rng, data)
    piece = data[start : start + rng.randint(1, 64)]
    data[start:start] = piece * rng.choice((1, 2, 50))


def _insert(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    start = _place(rng, data)
    data[start:start] = rng.choice((rng.choice(WORDS), rng.randbytes(rng.randint(1, 16))))


def _splice(rng: Random, data: bytearray, samples: Sequence[bytes]) -> None:
    other = rng.choice(samples)
    data[_place(rng, data) :] = other[rng.randrange(len(other) + 1) :]


def _number(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    """A length or an offset of a binary format, at one of its extremes."""
    form = rng.choice((">H", "<H", ">I", "<I", ">Q", "<Q"))
    size = struct.calcsize(form)
    if len(data) >= size:
        start = rng.randrange(len(data) - size + 1)
        data[start : start + size] = struct.pack(form, rng.choice(NUMBERS) % (1 << 8 * size))


def _digits(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    """A number of a text format, at one of its extremes."""
    found = list(re.finditer(rb"\d+", data))
    if found:
        start, end = rng.choice(found).span()
        data[start:end] = rng.choice(
            (str(rng.choice(NUMBERS)).encode(), b"-1", b"1e999", b"0.5", b"NaN", b"", b"9" * 400)
        )


CHANGES = (
    _flip,
    _flip,
    _set,
    _set,
    _delete,
    _cut,
    _repeat,
    _insert,
    _insert,
    _splice,
    _number,
    _number,
    _digits,
    _digits,
)


def mutated_tree(rng: Random, tree: Any) -> Any:
    """A copy of nested lists and dicts with one to three of its nodes changed."""
    changed = copy.deepcopy(tree)
    for _ in range(rng.randint(1, 3)):
        changed = _changed(rng, changed)
    return changed


def with_wild_number(rng: Random, tree: Any) -> Any:
    """A copy of nested lists and dicts in which one of its floats, if it has any, is not finite."""
    changed = copy.deepcopy(tree)
    if places := list(_floats(changed)):
        place, key = rng.choice(places)
        place[key] = rng.choice((math.nan, math.inf, -math.inf))
    return changed


def _floats(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Where floats are: the list or dict, and the key in it."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        if isinstance(value, float):
            yield tree, key
        elif isinstance(value, dict | list):
            yield from _floats(value)


def _changed(rng: Random, tree: Any) -> Any:
    """Walk down at random; change what is there."""
    inside = isinstance(tree, dict | list) and len(tree) > 0
    if not inside or rng.random() < 0.15:
        return _another(rng, tree)
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    key = rng.choice(keys)
    match rng.randrange(12):
        case 0:
            del tree[key]
        case 1 if isinstance(tree, dict):
            tree[rng.choice(("sudo", "", "x" * 300, "__class__", "a.b"))] = _leaf(rng)
        case 1:
            tree.insert(key, copy.deepcopy(tree[key]))
        case _:
            tree[key] = _changed(rng, tree[key])
    return tree


def _another(rng: Random, value: Any) -> Any:
    """Something else in the place of a value, often of its own type."""
    match rng.randrange(6):
        case 0:
            return nested(rng, value)
        case 1:
            return [value] * rng.choice((2, 17, 300))
        case 2 if isinstance(value, bytes):
            return mutated(rng, [value])
        case 2 if isinstance(value, str):
            return mutated(rng, [value.encode()]).decode(errors="replace")
        case 2 | 3 if isinstance(value, int | float) and not isinstance(value, bool):
            return rng.choice((value + 1, -value, value * 2, 0, 1, -1, 2**31, 2**62, float(value)))
    return _leaf(rng)


def _leaf(rng: Random) -> Any:
    return copy.deepcopy(rng.choice(LEAVES))


def nested(rng: Random, value: Any) -> Any:
    """The value below some levels of lists or maps."""
    for _ in range(rng.choice((1, 5, 17, 40, 200))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def packed(tree: Any) -> bytes:
    """A tree as msgpack; what msgpack cannot hold is cut off."""
    try:
        content: bytes = msgpack.packb(tree, use_bin_type=True)
    except (ValueError, OverflowError, TypeError):
        content = msgpack.packb(str(tree)[:100])
    return content


def as_json(tree: Any) -> bytes:
    """A tree as JSON as Python writes it, NaN and Infinity included."""
    return json.dumps(tree, default=repr).encode(errors="surrogatepass")
