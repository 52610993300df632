"""Parts of sentences for messages and tables: numbers with their nouns, and the first of many names."""

from __future__ import annotations

from collections.abc import Sequence

MAX_NAMES = 4


def counted(number: int, noun: str) -> str:
    """A number with its noun, which takes an s in the plural."""
    if number != 1:
        noun += "s"
    return f"{number} {noun}"


def some(names: Sequence[str], at_most: int = MAX_NAMES) -> str:
    """The first of several names, and how many more there are."""
    shown = ", ".join(names[:at_most])
    rest = len(names) - at_most
    return f"{shown} and {rest} more" if rest > 0 else shown
