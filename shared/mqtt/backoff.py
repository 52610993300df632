"""How long to wait before the next attempt to connect or to subscribe. Pure: nothing here sleeps."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

Uniform = Callable[[float, float], float]  # a random number between two bounds


@dataclass
class Backoff:
    """Waiting times between attempts to connect: they double, and vary by a random factor from 0.5 to 1.5.

    After connections they start again at `first_s` only if one lasted `calm_s`. That is longer than the longest wait, so two
    clients that compete for one client id slow each other down permanently instead of in waves. While no broker answers, a
    shorter bound has the whole fleet back within seconds of the broker's return.
    """

    first_s: float = 0.1
    max_s: float = 30.0
    away_s: float = 5.0  # the bound while no broker answers
    calm_s: float = 60.0
    uniform: Uniform = random.uniform
    _next_s: float = field(default=0.0, init=False)  # before the random factor; 0: not started
    _next_away_s: float = field(default=0.0, init=False)  # the same, while no broker answers

    def delay(self, lasted_s: float = 0.0, *, refused: bool = False) -> float:
        """Seconds to wait.

        Args:
            lasted_s: how long the connection lasted that has ended; 0 for an attempt that failed.
            refused: a broker answered the attempt, and refused it.
        """
        factor = self.uniform(0.5, 1.5)
        if not lasted_s and not refused:
            wait_s = self._next_away_s or self.first_s
            self._next_away_s = min(self.away_s, self.max_s, 2 * wait_s)
            return wait_s * factor
        self._next_away_s = 0.0
        was_calm = lasted_s >= self.calm_s
        if was_calm or not self._next_s:
            self._next_s = self.first_s
        delay_s = self._next_s * factor
        self._next_s = min(self.max_s, 2 * self._next_s)
        return delay_s


@dataclass
class Pauses:
    """Waiting times between attempts to subscribe: they double from `first_s` to `max_s`."""

    first_s: float = 1.0
    max_s: float = 60.0
    _next_s: float = field(default=0.0, init=False)  # 0: not started

    def next(self) -> float:
        """Seconds to wait before the next attempt."""
        pause_s = self._next_s or self.first_s
        self._next_s = min(2 * pause_s, self.max_s)
        return pause_s

    def reset(self) -> None:
        """Start again at `first_s`."""
        self._next_s = 0.0
