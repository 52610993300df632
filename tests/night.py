"""The suite tries by day some of the cases that `make stories` and `make methods` try at night, both part of `make night`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar
from zlib import crc32

C = TypeVar("C")


def is_night() -> bool:
    """Whether everything is tried, as COVEY_NIGHT=1 asks."""
    return os.environ.get("COVEY_NIGHT") == "1"


def by_day(rule: str, cases: Iterable[C], count: int = 1) -> list[C]:
    """Some of the cases, others for each rule and always the same ones; all of them at night.

    Args:
        rule: a word about the test, from which the choice follows.
        cases: with names of their own, by which they are chosen; keys of a mapping.
        count: how many by day.
    """
    found = [*cases]
    chosen = sorted(found, key=lambda one: crc32(f"{rule} {one}".encode()))[:count]
    return [one for one in found if is_night() or one in chosen]


def examples(by_day: int) -> int:
    """The number of examples that Hypothesis tries: by day this one, at night ten times as many."""
    return by_day * (10 if is_night() else 1)
