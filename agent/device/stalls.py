"""Parts of models: which of them to subscribe to, and when to do so again. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Sequence

from covey.agent.device.events import Actions, Subscribe, Unsubscribe
from covey.shared.mqtt.profiles import UNLIMITED
from covey.shared.wire.messages import ModelRef
from covey.shared.wire.topics import Topics

STALL_S = 3.0  # first wait for the next part of a model; doubles
STALL_LIMIT_S = 60.0
# of models that reach an agent at least while it shares a machine and a broker with others
FETCHED_BYTES_PER_S = 4_000_000
MAX_DOUBLINGS = 16
STALLS_TO_SHOW = 3  # waits for a part, each twice as long, before a person learns of it


class StallTimer:
    """Waits for the next part; each wait without one is twice as long."""

    def __init__(self) -> None:
        self.at: float | None = None  # when to subscribe again; None: nothing is awaited
        self.stalls = 0  # waits since the latest part arrived, at most MAX_DOUBLINGS

    def __repr__(self) -> str:
        return f"<StallTimer: {self.stalls} stalls, due at {self.at}>"

    def reset(self) -> None:
        """A part arrived, or other parts are awaited: the next wait is short."""
        self.stalls = 0

    def watch(self, now: float, size: int = 0) -> None:
        """Wait for the next part from now on.

        Args:
            now: the time.
            size: bytes of the models that are not complete. The parts of large ones may come late, because those for other
                agents come first; to subscribe again would bring all of them a second time.
        """
        doubled = (STALL_S + size // FETCHED_BYTES_PER_S) * 2**self.stalls
        self.at = now + min(doubled, STALL_LIMIT_S)

    def stop(self) -> None:
        """Nothing is awaited any more."""
        self.at = None

    def is_due(self, now: float) -> bool:
        """Whether the wait has been too long. The next one is then longer."""
        if self.at is None or now < self.at:
            return False
        self.stalls = min(self.stalls + 1, MAX_DOUBLINGS)
        return True


def part_topics(topics: Topics, refs: Sequence[ModelRef]) -> tuple[str, ...]:
    """The topics of all parts of some models."""
    found: dict[str, None] = {}  # as an ordered set: two refs may name the same model
    for ref in refs:
        model = topics.model(ref.key)
        for part in range(ref.parts):
            found[f"{model}/{part}"] = None
    return tuple(found)


class PartWindow:
    """The topics of parts that an agent is subscribed to: all that it needs, or as many as its broker allows.

    If they are too many, a window slides over those that have not come: whenever half of it has, or as many as one packet
    names, the next ones follow.
    """

    def __init__(self) -> None:
        self.most = UNLIMITED  # topics at a time
        self.step = UNLIMITED  # topics that follow together
        self.subscribed: tuple[str, ...] = ()
        self.needed: tuple[str, ...] = ()
        self._come: set[str] = set()  # of the needed ones

    def __repr__(self) -> str:
        return f"<PartWindow: {len(self.subscribed)} of {len(self.needed)}>"

    def need(self, topics: tuple[str, ...]) -> Actions:
        """These parts are needed, and no others."""
        self.needed = topics
        self._come &= set(topics)
        return self._slide()

    def came(self, topic: str) -> None:
        """The part at this topic is on the disk. The next `need` may move the window."""
        if topic in self.needed:
            self._come.add(topic)

    def again(self, topics: Sequence[str]) -> Actions:
        """Subscribe again to those of these parts that are in the window: the broker then sends what it retains."""
        if len(self._come) == len(self.needed):  # and yet something is missing
            self._come.clear()
        actions: Actions = [one for one in self._slide() if isinstance(one, Unsubscribe)]
        missing = tuple(topic for topic in self.subscribed if topic in topics)
        return [*actions, Subscribe(missing)] if missing else actions

    def _slide(self) -> Actions:
        before, self.subscribed = self.subscribed, self._next()
        old = tuple(topic for topic in before if topic not in self.subscribed)
        new = tuple(topic for topic in self.subscribed if topic not in before)
        actions: Actions = []
        if old:
            actions.append(Unsubscribe(old))
        if new:
            actions.append(Subscribe(new))
        return actions

    def _next(self) -> tuple[str, ...]:
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
