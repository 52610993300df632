"""Two aggregators near one broker: the one that started first works, the other stands by. Pure: messages in, reactions out.

Both would add the same reports up, and the coordinator would refuse the second sum. Sessions begin with the time of their
start, so the older one sorts first (`shared.mqtt.duplicate_ids`). Only live messages count: a retained status can be that
of a process which is gone.
"""

from __future__ import annotations

from enum import Enum

from covey.shared.wire.aggregates import AggregatorStatus


class Reaction(Enum):
    """What follows from the status of another aggregator."""

    NOTHING = "continue"
    ANNOUNCE = "publish our own status"
    STAND_BY = "leave the work to the older aggregator"
    TAKE_OVER = "the older aggregator is gone: publish our own status and do its work"


class Precedence:
    """Whether this aggregator works or stands by.

    Args:
        session: of this process.
    """

    def __init__(self, session: str) -> None:
        self._session = session
        self._older = ""  # the session that works while this one stands by; "" while this one works

    def __repr__(self) -> str:
        return f"<Precedence of {self._session}, stands by for {self._older or 'none'}>"

    @property
    def stands_by(self) -> bool:
        return self._older != ""

    def connected(self) -> None:
        """After a connection nothing is known of others. One that works answers our status with its own."""
        self._older = ""

    def observe(self, status: AggregatorStatus) -> Reaction:
        """React to a live status on the topic that all aggregators of a broker share."""
        other = status.session
        if other == self._session:
            return Reaction.NOTHING
        if other < self._session and status.online:
            was_standing_by = self.stands_by
            self._older = other
            return Reaction.NOTHING if was_standing_by else Reaction.STAND_BY
        if other == self._older:
            self._older = ""
            return Reaction.TAKE_OVER
        if self.stands_by:
            return Reaction.NOTHING
        return Reaction.ANNOUNCE  # the other's status has taken the place of ours
