"""Two programs under one name, as when the image of a device is copied with its host name: the older one goes on.

Both keep the status topic of that name in sight, under client ids of their own, and each life of a program has a session
id that tells when it began. Whoever hears a younger one says again that it lives. Whoever hears an older one, and
`PATIENCE_S` later hears it again, gives way: it lives on, and was not a last word of a life that had just ended.
Retained messages and last wills prove nothing and are not heard.
"""

from __future__ import annotations

from enum import Enum

PATIENCE_S = 5.0  # an earlier life of our own that is being ended may speak for so long


def session_id(began: float, chance: str) -> str:
    """A name for one life of a program that began at this time (s since 1970); of two, the older sorts first."""
    return f"{int(1000 * began):012x}{chance}"  # to the millisecond: two are often started in the same second


class Reaction(Enum):
    """What to do about a word of another session."""

    ANNOUNCE = "say that we live"
    WAIT = "wait for `announce_at`, and hear whether it is still there"
    YIELD_ID = "end, with an error for people"


class DuplicateIds:
    """Feed it every live word of another session with its time. Speak at `announce_at`, and then set it to None."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.announce_at: float | None = None
        self._first: float | None = None  # when an older one was first heard

    def observe(self, other: str, now: float) -> Reaction:
        if other > self.session:
            return Reaction.ANNOUNCE
        if self._first is None:
            self._first, self.announce_at = now, now + PATIENCE_S
        return Reaction.YIELD_ID if now >= self._first + PATIENCE_S else Reaction.WAIT
