"""Points in time with names, and when to show that a run waits. Pure: time is an argument, in seconds."""

from __future__ import annotations

import math
from collections.abc import Hashable

WAITING_S = 5.0  # of agents that others start
OWN_AGENTS_S = 60.0  # of simulated ones, which the run itself has just started
AGAIN_S = (60.0, 600.0)  # first and longest time until the same reason is shown again; it doubles


def earliest(*times: float | None) -> float | None:
    """The first of these times; None for one that is not set, and if none is."""
    return min([at for at in times if at is not None], default=None)


class Timers:
    """Timers by name, each of them set or not."""

    def __init__(self) -> None:
        self._at: dict[Hashable, float] = {}

    def __repr__(self) -> str:
        return f"<Timers: {self._at}>"

    @property
    def next(self) -> float | None:
        """When the first timer runs out; None: none is set."""
        return min(self._at.values(), default=None)

    def is_set(self, name: Hashable) -> bool:
        return name in self._at

    def set(self, name: Hashable, at: float) -> None:
        self._at[name] = at

    def begin(self, name: Hashable, at: float) -> None:
        """Set a timer unless it is set already."""
        self._at.setdefault(name, at)

    def stop(self, name: Hashable) -> None:
        self._at.pop(name, None)

    def take(self, name: Hashable, now: float) -> bool:
        """Whether this timer has run out; then it is set no longer."""
        at = self._at.get(name)
        if at is None or now < at:
            return False
        del self._at[name]
        return True


class Waiting:
    """The reason why no phase opens, as it was shown last.

    It is shown once it has lasted for a while, again when it changes, and again from time to time: a line that was printed
    an hour ago does not show whether the run still waits. Anyone who waits may also give up after a time.

    Args:
        limit_s: how long to wait without a break, whatever the reasons are.
        after_s: a reason that is over sooner is not shown.
    """

    def __init__(self, limit_s: float = math.inf, after_s: float = WAITING_S) -> None:
        self._limit_s = limit_s
        self._after_s = after_s
        self.due: float | None = None  # when to call `reason` again; None: nothing is waited for
        self.why = ""  # the newest reason
        self._shown = ""  # the reason that was shown last
        self._since = 0.0  # when this waiting began
        self._again_s = AGAIN_S[0]

    def __repr__(self) -> str:
        return f"<Waiting: {self.why or 'for nothing'}>"

    @property
    def shown(self) -> str:
        """The reason that people know: it has lasted for a while."""
        return self._shown

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
                self.due = now + self._after_s
                self._shown = ""
        if self.due is None or now < self.due:
            return None
        self._shown = why
        self.due = now + self._again_s
        self._again_s = min(2 * self._again_s, AGAIN_S[1])
        waited_s = now - self._since
        return why, waited_s
