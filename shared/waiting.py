"""When to show that a run waits, and for what. Pure: time is an argument.

A reason is shown once it has lasted for a while, again when it changes, and again from time to time: a line that was
printed an hour ago does not show whether the run still waits. Anyone who waits may also give up after a time.
"""

from __future__ import annotations

import math

WAITING_S = 5.0  # a reason that is over sooner is not shown
AGAIN_S = (60.0, 600.0)  # first and longest time until the same reason is shown again; it doubles


class Waiting:
    """The reason why no phase opens, as it was shown last.

    Args:
        limit_s: how long to wait without a break, whatever the reasons are.
    """

    def __init__(self, limit_s: float = math.inf) -> None:
        self._limit_s = limit_s
        self.due: float | None = None  # when to call `reason` again; None: nothing is waited for
        self.why = ""  # the newest reason
        self._shown = ""  # the reason that was shown last
        self._since = 0.0  # when this waiting began
        self._again_s = AGAIN_S[0]

    def __repr__(self) -> str:
        return f"<Waiting: {self.why or 'for nothing'}>"

    @property
    def gives_up_at(self) -> float | None:
        """When this waiting has lasted too long; None: never, or nothing is waited for."""
        return self._since + self._limit_s if self.why and math.isfinite(self._limit_s) else None

    def reason(self, why: str, now: float) -> tuple[str, float] | None:
        """Note the present reason, empty for none.

        Returns:
            The reason and how long the run has waited (s), if it is to be shown now.
        """
        if not why:
            self.due = None
            self.why = ""
            self._shown = ""
            return None
        if not self.why:
            self._since = now
        if why != self.why:
            self.why = why
            self._again_s = AGAIN_S[0]
            if self.due is None or self._shown:
                self.due = now + WAITING_S
                self._shown = ""
        if self.due is None or now < self.due:
            return None
        self._shown = why
        self.due = now + self._again_s
        self._again_s = min(2 * self._again_s, AGAIN_S[1])
        waited_s = now - self._since
        return why, waited_s
