"""What a target is: how to make one input, what to do with it, and which refusals are allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any


@dataclass(frozen=True)
class Target:
    """One reader of bytes that others wrote.

    `make` gives one input from a randomness. `ready` gets an empty folder and gives the function that takes an input;
    that function returns the name of the outcome ("" for accepted) or raises one of `allowed`. `share` is its number
    of inputs, as a multiple of the number that a property test has.
    """

    name: str
    make: Callable[[Random], Any]
    ready: Callable[[Path], Callable[[Any], str]]
    allowed: tuple[type[Exception], ...]
    share: float = 1.0
