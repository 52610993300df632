"""The device that all others wait for, from the times that the roster has of each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from covey.coordinator.odd import Odd

TIMES = 10.0  # the median of the others
LEAST_S = 1.0  # more than their median: less is nothing to look for
LEAST_ROUNDS = 3
MOST = 0.5  # of its rounds, in which it was the last one


def slow(agents: Mapping[str, Mapping[str, Any]], *, of_run: bool) -> Iterator[Odd]:
    """Devices that take ten times as long as the others, and were the last one of most rounds.

    Args:
        agents: rows of the roster.
        of_run: it is the roster of a run that is over.
    """
    takes = {agent: float(row["takes"]) for agent, row in agents.items() if row.get("takes")}
    for agent, seconds in takes.items():
        row = agents[agent]
        rounds, last = int(row.get("rounds", 0)), int(row.get("last", 0))
        others = [one for other, one in takes.items() if other != agent]
        usual = median(others) if len(others) > 1 else seconds
        is_slow = seconds > TIMES * usual and seconds - usual > LEAST_S
        if is_slow and rounds >= LEAST_ROUNDS and last > MOST * rounds:
            what = (
                f"all wait for it: {seconds:.3g} s a round, the others {usual:.2g} s, and the last report of {last} of its newest "
                f"{rounds} rounds{' (last run)' * of_run}"
            )
            command = "look at its load (top) and its network; after rounds.deadline_s a round continues without it"
            yield Odd((agent,), "slow", what, command, row.get("seen"), weight=seconds / usual)
