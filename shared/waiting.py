"""When to show that a run waits, and for what. Pure: time is an argument.

A reason is shown once it has lasted for a while, again when it changes, and again from time to time: a line that was
printed an hour ago does not show whether the run still waits.
"""

from __future__ import annotations

WAITING_S = 5.0  # a reason that is over sooner is not shown
AGAIN_S = (60.0, 600.0)  # first and longest time until the same reason is shown again; it doubles


class Waiting:
    """The reason why no phase opens, as it was shown last."""

    def __init__(self) -> None:
        self.due: float | None = None  # when to call `reason` again; None: nothing is waited for
        self._why = ""  # the newest reason
        self._shown = ""  # the reason that was shown last
        self._since = 0.0  # when this waiting began
        self._again_s = AGAIN_S[0]

    def __repr__(self) -> str:
        return f"<Waiting: {self._why or 'for nothing'}>"

    def reason(self, why: str, now: float) -> tuple[str, float] | None:
        """Note the present reason, empty for none.

        Returns:
            The reason and how long the run has waited (s), if it is to be shown now.
        """
        if not why:
            self.due = None
            self._why = ""
            self._shown = ""
            return None
        if not self._why:
            self._since = now
        if why != self._why:
            self._why = why
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
