"""Whether a scenario can have buffered rounds, in which no two agents need to work at the same time.

A scenario that needs one cohort in step is refused while it is read, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from covey.shared.privacy.settings import Privacy
from covey.shared.scenario.rounds import Rounds
from covey.shared.scenario.wire import Wire
from covey.shared.strategies.registry import AnyStrategy

BUFFERED = "rounds.mode buffered"


def check_buffered(
    rounds: Rounds, wire: Wire, privacy: Privacy | None, strategies: Sequence[AnyStrategy]
) -> None:
    """ValueError for settings and methods that buffered rounds cannot honour.

    Args:
        rounds: the section, with its mode.
        wire: the section.
        privacy: the section, or None.
        strategies: the scenario's method, then those of its comparison.
    """
    if rounds.mode != "buffered":
        return
    _check_rounds(rounds)
    if wire.delivery == "all":
        raise ValueError(
            f"{BUFFERED}: wire.delivery all sends the next model ahead of its order, but here each order names a version of "
            "its own; set wire.delivery to participants"
        )
    if privacy is not None and privacy.client is not None:
        raise ValueError(
            f"{BUFFERED}: privacy.client counts what a drawn cohort reveals in each round, and a buffer is no such draw; set "
            "rounds.mode to synchronous"
        )
    if privacy is not None and privacy.local is not None:
        raise ValueError(
            f"{BUFFERED}: privacy.local plans its noise for the number of rounds, and here an agent can have more orders; set "
            "rounds.mode to synchronous"
        )
    for strategy in strategies:
        if why := strategy.refuses_buffer():
            raise ValueError(f"{BUFFERED} is not for {strategy.name}: {why}")


def _check_rounds(rounds: Rounds) -> None:
    """ValueError for keys of the rounds section that say how one cohort is invited and awaited."""
    remedies = {
        "participants": rounds.participants is not None,
        "over_select": rounds.over_select != 1,
        "quorum": rounds.quorum != 1,
        "deadline": rounds.deadline is not None,
        "grace_s": rounds.grace_s is not None,
    }
    for key, is_set in remedies.items():
        if is_set:
            raise ValueError(
                f"{BUFFERED}: rounds.{key} is about agents that are invited together; remove it "
                "(rounds.buffer is the number of reports of a fold)"
            )
