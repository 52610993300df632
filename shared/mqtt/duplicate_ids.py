"""Two programs with one id, for example after the image of a device was copied with its host name: the older one stays.

Both programs listen to the status topic of their id, under different MQTT client ids. Each start of a program has a
session id that begins with the time of the start, so two sessions can be compared. A program that hears a younger one
announces itself. A program that hears an older one waits for `PATIENCE_S`, and yields the id if it hears the older one
again: that one is alive, and its first message was not the last one of an earlier start.
Retained messages and last wills prove nothing; the caller leaves them out.
"""

from __future__ import annotations

import math
import re
from enum import Enum

SESSION = re.compile("([0-9a-f]{12})[0-9a-f]+")
CLOCKS_DIFFER_S = 86_400.0
PATIENCE_S = 5.0  # time in which an earlier start of this program may still be sending
EVERY_S = 1.0  # between two answers to younger programs: one that floods would have as many


MOMENT_DIGITS = 12  # of a session id


def session_id(started: float, chance: str) -> str:
    """The id of one start of a program; of two, the older sorts first.

    Args:
        started: seconds since 1970. Milliseconds count, because two programs often start in the same second.
        chance: random hexadecimal digits, which make the id unique.
    """
    milliseconds = int(1000 * started)
    return f"{milliseconds:0{MOMENT_DIGITS}x}{chance}"


def started_at(session: str) -> float | None:
    """When the program of a session id started, in seconds since 1970; None for another id."""
    try:
        return int(session[:MOMENT_DIGITS], 16) / 1000 if len(session) > MOMENT_DIGITS else None
    except ValueError:
        return None


def began(session: str, wall: float) -> float:
    """When a program started, by its session id, in seconds since 1970.

    -1, older than any, for an id that is not of `session_id`, or that names a time which has not come: it would win
    over every true one. The clocks of two machines may differ by a day.
    """
    match = SESSION.fullmatch(session)
    started = int(match[1], 16) / 1000 if match else -1.0
    return started if started <= wall + CLOCKS_DIFFER_S else -1.0


class Reaction(Enum):
    """The reaction to a message of another session."""

    ANNOUNCE = "publish our own status"
    WAIT = "listen again; announce at `announce_at`"
    YIELD_ID = "stop, with an error for the user"


class DuplicateIds:
    """Decides between this session and others with the same id.

    Feed it every live message of another session with its time. At `announce_at`, publish the own status, and set
    `announce_at` to None.
    """

    def __init__(self, session: str) -> None:
        self.session = session  # our own, from `session_id`
        self.announce_at: float | None = None  # when the older session is to be provoked to answer
        self._older_heard_at: float | None = None  # when an older session was heard first
        self._next_at = -math.inf  # when a younger session may be answered again

    def __repr__(self) -> str:
        return f"DuplicateIds({self.session}, older heard at {self._older_heard_at})"

    def observe(self, other: str, now: float) -> Reaction:
        """React to a live message of the session `other`, received at the time `now` in seconds."""
        if other > self.session:
            if now < self._next_at:
                self.announce_at = self.announce_at or self._next_at
                return Reaction.WAIT
            self._next_at = now + EVERY_S
            return Reaction.ANNOUNCE
        if self._older_heard_at is None:
            self._older_heard_at = now
            self.announce_at = now + PATIENCE_S
        if now >= self._older_heard_at + PATIENCE_S:
            return Reaction.YIELD_ID
        return Reaction.WAIT
