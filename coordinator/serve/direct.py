"""The direct way of reports: the coordinator reads all of them itself.

`Aggregators` is the other way. It is imported only by a run that has aggregators.
"""

from __future__ import annotations

from dataclasses import dataclass

from covey.coordinator.run.effects import Effect
from covey.coordinator.serve.desk import Desk
from covey.shared.mqtt.link import Received
from covey.shared.wire.topics import PlainTopic


@dataclass(frozen=True)
class AggregatorItem:
    """Something that came from an aggregator, or that concerns it."""

    shard: int  # of the broker that it is near


class Direct:
    """No aggregators: each method has a name of `Aggregators`, and does nothing.

    Args:
        desk: of the service.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._run = desk.run
        self._topics = desk.topics

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._topics.federation}>"

    def read(self, topic: PlainTopic, message: Received, now: float) -> AggregatorItem | None:
        """The item of a message on an aggregator's topics. Raises DecodeError for one that must be refused."""
        return None

    def take(self, item: AggregatorItem, now: float) -> list[Effect]:
        """What follows from an item."""
        return []

    def connected(self, shard: int, now: float) -> list[str]:
        """The subscriptions on a broker that comes up; it may have forgotten what it retained."""
        return [self._topics.every_report]

    def retained_is_unknown(self, shard: int) -> None:
        """Another coordinator may have overwritten what this broker retains."""

    def lost(self, shard: int) -> None:
        """A broker is gone."""

    @property
    def wake_at(self) -> float | None:
        """When `prepare` has something to do at the latest; None: nothing."""
        return None

    def prepare(self, now: float) -> list[Effect]:
        """Publish what must come before the orders of the open step."""
        return []

    def forget(self) -> None:
        """An agent was forgotten."""

    def close(self) -> None:
        """The run is over."""
