"""Odd devices in few words, for tests of the rules of `coordinator doctor`."""

from __future__ import annotations

from collections.abc import Iterable

from covey.coordinator.odd import Odd, ranked

NOW = 1_900_000_000.0
HOUR, DAY = 3600.0, 86_400.0


def named(found: Iterable[Odd]) -> list[tuple[str, str]]:
    """Who and why, in the order of the list."""
    return [(odd.who, odd.kind) for odd in ranked(found)]


def kinds(found: Iterable[Odd]) -> list[str]:
    return [kind for _, kind in named(found)]
