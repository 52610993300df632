"""The link: the small part of MQTT that Covey uses, so that tests can replace the real broker.

A link reconnects by itself as long as it is open. After every (re)connection its owner receives `Up` and publishes its
state again; a lost connection needs no other handling.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from covey.shared.mqtt.profiles import MOSQUITTO, Profile


@dataclass(frozen=True)
class Received:
    """A message that arrived."""

    topic: str
    payload: bytes
    retained: bool = False  # the broker had stored it before we subscribed
    shard: int = 0  # the broker that it came from, if a link leads to several


@dataclass(frozen=True)
class Up:
    """The link is connected (again). The broker has forgotten all our subscriptions."""

    broker: str = field(default="", compare=False)  # its address for people; empty if unknown
    shard: int = 0  # as in `Received`
    profile: Profile = field(default=MOSQUITTO, compare=False)  # what the broker allows


@dataclass(frozen=True)
class Down:
    """The link is lost, and tries to reconnect. It is repeated if the reason changes."""

    reason: str  # for people
    shard: int = 0  # as in `Received`
    broker: str = field(default="", compare=False)  # as in `Up`

    @property
    def why(self) -> str:
        """The reason, after the address of the broker if it is known."""
        return f"{self.broker}: {self.reason}" if self.broker else self.reason


@dataclass(frozen=True)
class Echo:
    """The broker drops what it acknowledges, or delivers it again. It is reported once each."""

    why: str  # for people
    works: bool = False
    shard: int = 0  # as in `Received`


Incoming = Received | Up | Down | Echo


@dataclass(frozen=True)
class Will:
    """The message that the broker publishes, retained and at QoS 1, if the link dies without a goodbye."""

    topic: str
    payload: bytes


@dataclass(frozen=True)
class Subscribed:
    """How a broker answered a packet with subscriptions. It is true if the broker granted all of them."""

    answered: bool = True  # False: the link was down, broke, or the broker did not answer in time
    refused: tuple[str, ...] = ()  # the topics that the broker refuses; empty without an answer

    def __bool__(self) -> bool:
        return self.answered and not self.refused


UNANSWERED = Subscribed(answered=False)


class Link(Protocol):
    """An open connection to a broker. All messages travel at QoS 1 in a clean session."""

    async def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """Send one message and wait until the broker acknowledges it.

        An empty retained payload clears the topic.

        Returns:
            False if the link is down or breaks: the owner publishes its state again after the next `Up`.
        """

    async def subscribe(self, topics: Sequence[str]) -> Subscribed:
        """Subscribe to all topics with one packet. The broker sends retained messages again,
        also for topics that were subscribed before.

        Returns:
            The broker's answer: `UNANSWERED` if the link is down or breaks. That is no refusal.
        """

    async def unsubscribe(self, topics: Sequence[str]) -> bool:
        """End subscriptions with one packet. False if the link is down."""

    def incoming(self) -> AsyncIterator[Incoming]:
        """Everything that happens on the link, in order, until it is closed."""

    async def abort(self) -> None:
        """Cut the connection without a goodbye, so that the broker publishes the last will. For fault drills."""

    def __len__(self) -> int:
        """The number of messages that arrived and were not taken from `incoming` yet."""
