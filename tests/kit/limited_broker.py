"""A broker in memory that enforces what a managed one allows, as its vendor does, and counts the most that was used.

It stands for the vendors' brokers as their public pages describe them: what exceeds a limit ends the connection; AWS leaves
a message above the rate without an acknowledgement, EMQX and NATS refuse a subscription too many, and EMQX reads a client
that is too fast more slowly.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence

from covey.shared.mqtt.link import Will
from covey.shared.mqtt.profiles import HEAD_BYTES, Profile
from tests.kit.memory_broker import MemoryBroker, MemoryLink

TRAVEL_S = 0.02  # of a message to the broker
UNACKNOWLEDGED_S = 120.0  # after which a link gives up a message without an acknowledgement
PATIENT = (
    "aws",
    "emqx-serverless",
)  # brokers that keep the connection of a client that is too fast
REFUSING = (
    "emqx-serverless",
    "nats",
)  # brokers that keep that of a client that subscribes to too much


class LimitedBroker(MemoryBroker):
    """The broker.

    Args:
        profile: enforced.
        obeyed: by the links; None: the same.

    Attributes:
        most: of each thing that has a limit, the most that one connection used.
        offences: how often a limit was exceeded, by the thing.
    """

    def __init__(self, profile: Profile, obeyed: Profile | None = None) -> None:
        super().__init__()
        self.profile = profile
        self.obeyed = obeyed or profile
        self.most: Counter[str] = Counter()
        self.offences: Counter[str] = Counter()
        self.ended = 0.0  # virtual time at the end of a trial
        # by connection: in the last second, and now
        self._sent: dict[tuple[int, float], deque[tuple[float, int]]] = {}
        self._asked: dict[tuple[int, float], deque[float]] = {}
        self._under_way: dict[tuple[int, float], list[int]] = {}

    def link(self, client_id: str, will: Will | None = None) -> MemoryLink:
        return MemoryLink(self, client_id, will, self.obeyed)

    async def publish(self, link: MemoryLink, topic: str, payload: bytes, retain: bool) -> None:
        under_way = self._under_way.setdefault(_connection(link), [])
        under_way.append(len(payload))
        try:
            within = self._within(link, "unacknowledged", len(under_way))
            # one message may always be under way
            within &= len(under_way) < 2 or self._within(
                link, "unacknowledged_bytes", sum(under_way)
            )
            within &= self._within(link, "payload_bytes", len(payload))
            within &= not retain or self._within(link, "retained_bytes", len(payload))
            within &= self._within(link, "topic_levels", topic.count("/") + 1)
            within = within and await self._within_rates(link, len(payload))
            await asyncio.sleep(TRAVEL_S)
            if within:
                self.route(topic, payload, retain)
        finally:
            under_way.remove(len(payload))

    def subscribe(self, link: MemoryLink, topics: Sequence[str]) -> list[str]:
        if not self._may_ask(link, topics):
            return []
        held = len(link._patterns | set(topics))
        if held > self.profile.subscriptions and self.profile.name in REFUSING:
            room = self.profile.subscriptions - len(link._patterns)
            new = [topic for topic in topics if topic not in link._patterns]
            refused = new[room:]
            self.offences["subscriptions"] += 1
            return [*super().subscribe(link, [t for t in topics if t not in refused]), *refused]
        if not self._within(link, "subscriptions", held):
            return []
        return super().subscribe(link, topics)

    def unsubscribe(self, link: MemoryLink, topics: Sequence[str]) -> None:
        if self._may_ask(link, topics):
            super().unsubscribe(link, topics)

    def _may_ask(self, link: MemoryLink, topics: Sequence[str]) -> bool:
        asked = self._asked.setdefault(_connection(link), deque())
        now = asyncio.get_running_loop().time()
        asked.append(now)
        while now - asked[0] >= 1:
            asked.popleft()
        within = self._within(link, "subscribes_per_s", len(asked))
        return self._within(link, "filters", len(topics)) and within

    async def _within_rates(self, link: MemoryLink, size: int) -> bool:
        sent = self._sent.setdefault(_connection(link), deque())
        now = asyncio.get_running_loop().time()
        sent.append((now, size + HEAD_BYTES))
        while now - sent[0][0] >= 1:
            sent.popleft()
        messages, content = len(sent), sum(size for _, size in sent)
        is_patient = self.profile.name in PATIENT
        within = self._within(link, "messages_per_s", messages, ends=not is_patient)
        within &= self._within(link, "bytes_per_s", content, ends=not is_patient)
        if within or not is_patient:
            return within
        if self.profile.name == "aws":
            await asyncio.sleep(UNACKNOWLEDGED_S)
            link._lose("a message was not acknowledged")
            return False
        await asyncio.sleep(messages / self.profile.messages_per_s)
        return True

    def _within(self, link: MemoryLink, thing: str, used: int, *, ends: bool = True) -> bool:
        """Whether this much is allowed. It is not: the connection ends, with an exception."""
        self.most[thing] = max(self.most[thing], used)
        limit: int = getattr(self.profile, thing)
        if used <= limit:
            return True
        self.offences[thing] += 1
        if ends:
            link._lose(f"{used} {thing}, at most {limit}")
        return False


def _connection(link: MemoryLink) -> tuple[int, float]:
    """The limits are those of a connection: a client that is back begins afresh."""
    return id(link), link._since
