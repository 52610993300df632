"""An estimate of the time that the rest of a run takes, from the duration of its newest rounds. Pure."""

from __future__ import annotations

from collections import deque

NEWEST = 10  # rounds that count
MINUTE_S = 60
HOUR_S = 3600


class TimeLeft:
    """Feed it each phase, in order. Evaluations and other phases before a round count as part of it."""

    def __init__(self) -> None:
        self._rounds: deque[float] = deque(maxlen=NEWEST)  # durations of complete rounds (s)
        self._open_s = 0.0  # of the phases since the newest complete round

    def __repr__(self) -> str:
        return f"<TimeLeft: {len(self._rounds)} rounds>"

    def add(self, seconds: float, *, ends_round: bool) -> None:
        """A phase is over."""
        self._open_s += seconds
        if ends_round:
            self._rounds.append(self._open_s)
            self._open_s = 0.0

    def left_s(self, rounds: int) -> float | None:
        """Seconds that this many rounds take; None before the first round is over."""
        if not self._rounds:
            return None
        return (sum(self._rounds) / len(self._rounds)) * max(rounds, 0)


def duration_text(seconds: float) -> str:
    """About how long, in one unit: "40 s", "12 min", "3.5 h"."""
    if seconds < 1.5 * MINUTE_S:
        whole = max(round(seconds), 1)
        return f"{whole} s"
    if seconds < 1.5 * HOUR_S:
        minutes = round(seconds / MINUTE_S)
        return f"{minutes} min"
    return f"{seconds / HOUR_S:.1f} h"
