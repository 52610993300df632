"""Which reasons why a link is down are reported, and when. Pure: time is an argument.

The first end of a connection is seldom the cause: a broker that restarts with a certificate that has expired begins with a lost
connection. So a better reason that is known later is reported too.

- The first reason since the latest connection is reported at once.
- One that the broker itself gave, by its answer or by its certificate, is reported at once when it is new.
- Any other change is reported once the last report is a minute old, if it lasts so long: a broker that restarts refuses connections for
  a second.
"""

from __future__ import annotations

from dataclasses import dataclass, field

EVERY_S = 60.0  # between two reports, unless the broker gave a reason that is new


@dataclass
class Reasons:
    """The reasons that were reported of one broker since the latest connection."""

    _latest: str = ""  # empty: none yet
    _at: float = 0.0  # when it was reported
    _given: set[str] = field(default_factory=set)  # those of the broker itself

    def reports(self, why: str, now: float, *, given: bool = False) -> bool:
        """Whether to report the reason of an attempt that has just failed.

        Args:
            why: for people.
            now: the time (s).
            given: the broker itself gave it.
        """
        is_new = not self._latest or (given and why not in self._given)
        is_due = why != self._latest and now >= self._at + EVERY_S
        if not (is_new or is_due):
            return False
        self._latest, self._at = why, now
        if given:
            self._given.add(why)
        return True
