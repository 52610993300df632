"""Parts of models: where they are, and when to subscribe to them again. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Sequence

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
