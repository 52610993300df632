"""A clock for deadlines that stands still while this process is frozen: the coordinator then blames no agent. Pure.

A process may be stopped (SIGSTOP, a suspended laptop, a virtual machine that is moved). Afterwards every deadline seems
to be over, while the link was not read yet. So the time of the freeze is not counted, and the clock stands still for
a little longer, until the link was read.
"""

from __future__ import annotations

import math

BEAT_S = 1.0  # the owner of the clock asks it at least this often
FROZEN_S = 5.0  # a longer silence than this is a freeze, and not a busy machine
SETTLE_S = 2.0  # after a freeze the clock stands still for this time


class SteadyClock:
    """Ask it for the time with that of a monotonic clock (s), at least every `BEAT_S`. It never goes back."""

    def __init__(self) -> None:
        self._asked: float | None = None
        self._behind = 0.0  # seconds that are not counted
        self._stands_at = 0.0  # what it shows until `_stands_until`
        self._stands_until = -math.inf  # of the monotonic clock
        self._frozen = 0.0  # seconds of freezes that are not accounted for yet

    def time(self, now: float) -> float:
        """The steady time (s) where the monotonic clock shows `now`; the same number until the first freeze."""
        asked = self._asked
        self._asked = now
        if asked is not None and now - asked > FROZEN_S:
            self._frozen += now - asked
            self._stands_at = self._at(asked)
            self._stands_until = now + SETTLE_S
            self._behind = self._stands_until - self._stands_at
        return self._at(now)

    def when(self, until: float) -> float:
        """The time of the monotonic clock when the steady time is `until`; one that is over if that is over."""
        asked = self._asked or 0.0
        if until <= self._at(asked):
            return asked
        return until + self._behind

    def take_freeze(self) -> float:
        """Seconds that this process was frozen for since this was asked last."""
        frozen = self._frozen
        self._frozen = 0.0
        return frozen

    def _at(self, now: float) -> float:
        if now < self._stands_until:
            return self._stands_at
        return now - self._behind
