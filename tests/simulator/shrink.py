"""The simplest plan that still fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, Self, TypeVar


class Shrinkable(Protocol):
    """A plan that knows simpler ones."""

    def simpler(self) -> Iterable[Self]: ...
    def to_json(self) -> str: ...


P = TypeVar("P", bound=Shrinkable)


def shrunk(plan: P, fails: Callable[[P], bool], plays: int = 60) -> P:
    """Take away and simplify, one step after another, as long as the plan fails.

    Args:
        plan: fails.
        fails: plays a plan.
        plays: the most plans to play.
    """
    simplest, refused = plan, set[str]()
    while True:
        for simpler in simplest.simpler():
            if simpler.to_json() in refused:
                continue
            if plays == 0:
                return simplest
            plays -= 1
            if fails(simpler):
                simplest = simpler
                break
            refused.add(simpler.to_json())
        else:
            return simplest
