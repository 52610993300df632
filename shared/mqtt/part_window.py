"""Which parts of a model or task to be subscribed to, where a broker allows a connection few subscriptions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from covey.shared.mqtt.profiles import UNLIMITED, Profile

ChangeT = TypeVar("ChangeT")  # how a machine writes that it subscribes, or ends that
Topics = tuple[str, ...]


class PartWindow(Generic[ChangeT]):
    """The topics of parts that a program is subscribed to: all that it needs, or as many as its broker allows.

    If they are too many, a window slides over those that have not come: whenever half of it has, or as many as one packet
    names, the next ones follow.

    Args:
        subscribe: makes the change that subscribes to topics.
        unsubscribe: makes the one that ends subscriptions.
    """

    def __init__(
        self, subscribe: Callable[[Topics], ChangeT], unsubscribe: Callable[[Topics], ChangeT]
    ) -> None:
        self._subscribe = subscribe
        self._unsubscribe = unsubscribe
        self.most = UNLIMITED  # topics at a time
        self.step = UNLIMITED  # topics that follow together
        self.subscribed: Topics = ()
        self.needed: Topics = ()
        self._come: set[str] = set()  # of the needed ones

    def __repr__(self) -> str:
        return f"<PartWindow: {len(self.subscribed)} of {len(self.needed)}>"

    def fit(self, profile: Profile, room: int) -> None:
        """Stay within a broker's limits from now on, with at most this many subscriptions at a time."""
        self.most, self.step = max(room, 1), profile.filters

    def need(self, topics: Topics) -> list[ChangeT]:
        """These parts are needed, and no others."""
        self.needed = topics
        self._come &= set(topics)
        return self._changes(*self._slide())

    def came(self, topic: str) -> None:
        """The part at this topic is on the disk. The next `need` may move the window."""
        if topic in self.needed:
            self._come.add(topic)

    def again(self, topics: Sequence[str]) -> list[ChangeT]:
        """Subscribe again to those of these parts that are in the window: the broker then sends what it retains."""
        if len(self._come) == len(self.needed):  # and yet something is missing
            self._come.clear()
        old, _ = self._slide()
        return self._changes(old, tuple(topic for topic in self.subscribed if topic in topics))

    def _changes(self, old: Topics, new: Topics) -> list[ChangeT]:
        changes = [self._unsubscribe(old)] if old else []
        return [*changes, self._subscribe(new)] if new else changes

    def _slide(self) -> tuple[Topics, Topics]:
        """Move the window. Returns the topics that left it, and those that are new in it."""
        before, self.subscribed = self.subscribed, self._next()
        old = tuple(topic for topic in before if topic not in self.subscribed)
        new = tuple(topic for topic in self.subscribed if topic not in before)
        return old, new

    def _next(self) -> Topics:
        if len(self.needed) <= self.most:
            return self.needed
        missing = [topic for topic in self.needed if topic not in self._come]
        still = [topic for topic in self.subscribed if topic in missing]
        is_last = len(still) == len(missing)
        step = max(min(self.most // 2, self.step), 1)
        is_early = is_last or len(still) > self.most - step
        if still and len(self.subscribed) <= self.most and is_early:
            return self.subscribed
        return tuple(missing[: self.most])
