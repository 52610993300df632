"""How long to wait before another attempt, to connect or to subscribe. Pure: nothing here sleeps."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Backoff:
    """How long to wait before the next attempt: doubling from `first_s` to `max_s`, times 0.5 to 1.5 by chance.

    It starts afresh only after a connection that lasted `calm_s`. That is longer than the longest wait, so
    two clients that fight for one client id slow each other down for good instead of in waves.
    """

    first_s: float = 0.1
    max_s: float = 30.0
    calm_s: float = 60.0
    uniform: Callable[[float, float], float] = random.uniform
    _next_s: float = field(default=0.0, init=False)

    def delay(self, lasted_s: float = 0.0) -> float:
        """Seconds to wait after a connection that lasted `lasted_s` (0: it never came about)."""
        if lasted_s >= self.calm_s or not self._next_s:
            self._next_s = self.first_s
        delay_s = self._next_s * self.uniform(0.5, 1.5)
        self._next_s = min(self.max_s, 2 * self._next_s)
        return delay_s


@dataclass
class Pauses:
    """How long to wait before each attempt, in seconds: doubling from `first_s` to `max_s`. Pure."""

    first_s: float = 1.0
    max_s: float = 60.0
    _next_s: float = field(default=0.0, init=False)

    def next(self) -> float:
        """The pause before the next attempt."""
        pause_s = self._next_s or self.first_s
        self._next_s = min(2 * pause_s, self.max_s)
        return pause_s

    def reset(self) -> None:
        """The next pause is the first one again."""
        self._next_s = 0.0
