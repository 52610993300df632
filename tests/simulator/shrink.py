"""The simplest plan that still fails in the same way."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulator.plan import Plan

Fails = Callable[[Plan], bool]


def shrunk(plan: Plan, fails: Fails, plays: int = 60) -> Plan:
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
