"""Is a value from the network the number, or the list of numbers, that was expected? Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from covey.shared.strategies.base import Expected

# of a vector: its square is still a float32, so training on it need not end in infinity
LARGEST_VALUE = 1e18

Numbers = Mapping[str, Any]  # a report's, by name


def wrong_number(name: str, numbers: Numbers, expected: Expected, examples: float) -> str:
    """The mistake in one number or list of numbers; empty if there is none.

    `examples` bounds what the phase gives no bound of its own.
    """
    if name not in numbers and not expected.required:
        return ""
    value = numbers.get(name)
    length = expected.length
    least = expected.least
    most = expected.most
    if most is None:
        most = examples
    if length is None:
        what = "a number"
        right = is_number(value, least, most, whole=expected.whole)
    else:
        what = _length_in_words(length)
        right = is_list(value, length, least, most, whole=expected.whole)
    if right:
        return ""
    bounds = f"from {least:g} to {most:g}"
    return f"{name} is {value!r:.60}; expected {what} {bounds}"


def _length_in_words(length: int) -> str:
    """A negative length is the most that a list may have."""
    if length >= 0:
        return f"{length} numbers"
    return f"1 to {-length} numbers"


def is_list(value: Any, length: int, least: float, most: float, *, whole: bool) -> bool:
    """Whether it is a list of numbers. A negative length is the most that it may have."""
    if not isinstance(value, list):
        return False
    longest = abs(length)
    shortest = length
    if length < 0:
        shortest = 1  # a negative length is the most that a list may have
    if not shortest <= len(value) <= longest:
        return False
    return all(is_number(one, least, most, whole=whole) for one in value)


def is_number(value: Any, least: float, most: float, *, whole: bool = False) -> bool:
    """Messages hold no other numbers than finite ones; a bool is no number."""
    kinds = int if whole else int | float
    if isinstance(value, bool):
        return False
    if not isinstance(value, kinds):
        return False
    return least <= value <= most
