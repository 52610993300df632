"""The link: the little of MQTT that Covey uses, so that a pretend broker can stand in for a real one.

A link reconnects by itself for as long as it is open. Whoever uses it hears `Up` after every
(re)connection and then publishes its state again; nothing else about a lost connection needs handling.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Message:
    """A message that arrived. `retained` says that the broker had kept it."""

    topic: str
    payload: bytes
    retained: bool = False


@dataclass(frozen=True)
class Up:
    """The link (re)connected; the broker knows no subscription of ours any more."""


@dataclass(frozen=True)
class Down:
    """The link was lost; it will come back by itself. Said again where another reason keeps it from that."""

    why: str


Incoming = Message | Up | Down


@dataclass(frozen=True)
class Will:
    """What the broker publishes, retained and at QoS 1, when the link dies without a goodbye."""

    topic: str
    payload: bytes


class Link(Protocol):
    """An open connection to a broker. All messages travel at QoS 1 over a clean session."""

    async def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """Hand one message to the broker and wait for its acknowledgement.

        False where the link is down or broke on the way: the caller's state is published
        again after the next `Up`. An empty retained payload clears the topic.
        """

    async def subscribe(self, topics: Sequence[str]) -> bool:
        """Subscribe to all topics with one packet. The broker sends retained messages again,
        also for topics that were subscribed before. False where the link is down."""

    async def unsubscribe(self, topics: Sequence[str]) -> bool:
        """End subscriptions with one packet. False where the link is down."""

    def incoming(self) -> AsyncIterator[Incoming]:
        """Everything that happens on the link, in order, until it is closed."""

    async def abort(self) -> None:
        """Cut the connection without a goodbye: the broker publishes the last will. For fault drills."""

    def __len__(self) -> int:
        """Messages that arrived and were not yet taken from `incoming`."""
