"""Which of several brokers to connect to next. Pure: nothing here connects or waits."""

from __future__ import annotations

from collections.abc import Sequence

from covey.shared.mqtt.broker_url import BrokerUrl

BRIEF_S = 5.0  # a connection that ends sooner counts as a failed attempt


class Failover:
    """The brokers of one link, in the order of preference at the start.

    A link stays with a broker that works. After a failed attempt it turns to the next broker, and after the last one
    to the first again. When a working connection is lost, the same broker gets the first attempt: mostly it was the
    network, or the broker restarts, and a fleet that scatters over several brokers finds no coordinator there.

    Args:
        brokers: at least one.

    Raises:
        ValueError: there is no broker.
    """

    def __init__(self, brokers: Sequence[BrokerUrl]) -> None:
        if not brokers:
            raise ValueError("expected at least one broker")
        self.brokers = tuple(brokers)
        self._position = 0  # of the current broker

    def __repr__(self) -> str:
        return f"Failover({self}, at {self.current})"

    def __str__(self) -> str:
        return ", ".join(map(str, self.brokers))

    @property
    def current(self) -> BrokerUrl:
        """The broker of the connection, or of the next attempt."""
        return self.brokers[self._position]

    def ended(self, lasted_s: float) -> float:
        """Take note that a connection ended.

        A node of a cluster that has lost others may accept connections and end them at once (RabbitMQ). Such a connection to
        one of several brokers is a failed attempt, so that the wait before the next one stays short.

        Args:
            lasted_s: how long it lasted, in seconds; 0 for a failed attempt.

        Returns:
            How long it counts for the wait before the next attempt, in seconds.
        """
        if lasted_s >= BRIEF_S:
            return lasted_s
        self._position = (self._position + 1) % len(self.brokers)
        return lasted_s if len(self.brokers) == 1 else 0.0
