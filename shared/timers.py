"""Points in time with names, and the earliest of them. Pure: time is an argument, in seconds."""

from __future__ import annotations

from collections.abc import Hashable


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
