"""Whether a broker delivers what it acknowledges. Pure: time is the number of looks.

Brokers acknowledge messages that they drop, because of access rules or their size (MQTT 3.1.1 has no other answer). A program that
subscribes to the topic of its own status hears itself, and that costs no message. A status that it never hears is the proof.
"""

from __future__ import annotations

LOOK_S = (
    5.0  # between two looks; a program that was frozen has missed looks, and none of them counts
)
# looks without a word after which a message counts as dropped: together the time after which a silent link is asked whether
# it is alive, and longer than the largest part of a model takes at 20 kB/s
LOOKS = 6
BUSY_BYTES = 1 << 14  # that arrived since the last look: what we wait for may be behind them
MAX_AWAITED = 8  # newest messages


class ReadBack:
    """The messages of one connection to topics to which it is subscribed, as long as it has not heard them."""

    def __init__(self) -> None:
        self.missing = ""  # the topic that is said not to come back; empty if the broker delivers
        self._subscribed: set[str] = set()
        # topics and payloads, oldest first, and the looks since the broker has acknowledged them; None: it has not yet
        self._awaited: dict[tuple[str, bytes], int | None] = {}
        self._bytes = 0  # that arrived since the last look

    def __repr__(self) -> str:
        return f"<ReadBack: {len(self._awaited)} awaited>"

    @property
    def waits(self) -> bool:
        """Whether to look again."""
        return bool(self._awaited) and not self.missing

    def subscribed(self, topics: set[str]) -> None:
        """The broker has granted these subscriptions."""
        self._subscribed |= topics

    def unsubscribed(self, topics: set[str]) -> None:
        """Nothing comes from these topics any more."""
        self._subscribed -= topics
        self._awaited = {one: looks for one, looks in self._awaited.items() if one[0] not in topics}

    def published(self, topic: str, payload: bytes) -> None:
        """A retained message is about to leave: it may come back before it is acknowledged."""
        if payload and topic in self._subscribed:
            self._awaited[topic, payload] = None
            if len(self._awaited) > MAX_AWAITED:
                del self._awaited[next(iter(self._awaited))]

    def acknowledged(self, topic: str, payload: bytes) -> None:
        """The broker has acknowledged it."""
        if (topic, payload) in self._awaited:
            self._awaited[topic, payload] = 0

    def arrived(self, topic: str, payload: bytes) -> bool:
        """A message arrived. True if the broker delivers again, after it was said that it does not."""
        self._bytes += len(payload)
        if (topic, payload) not in self._awaited:
            return False
        # what was published on its topic before it and did not come was overtaken: a topic retains one message
        newer = list(self._awaited).index((topic, payload)) + 1
        for before in list(self._awaited)[:newer]:
            if before[0] == topic:
                del self._awaited[before]
        if topic != self.missing:
            return False
        self.missing = ""
        return True

    def look(self) -> bool:
        """Count a look. True if it is to be said now that the topic `missing` does not come back."""
        is_busy = self._bytes >= BUSY_BYTES
        self._bytes = 0
        for one, looks in self._awaited.items():
            if looks is not None:
                self._awaited[one] = 0 if is_busy else looks + 1
        silent = [topic for (topic, _), looks in self._awaited.items() if (looks or 0) >= LOOKS]
        if self.missing or not silent:
            return False
        self.missing = silent[0]
        return True


# what to look at where a broker drops messages
SETTINGS = (
    "its access rules for this user, its limits on the size of messages (message_size_limit), its mount points, and whether it "
    "keeps retained messages: `broker doctor` tries all of them"
)


def swallowed(topic: str) -> str:
    """What a person reads of a broker that acknowledges and does not deliver."""
    return (
        f"the broker acknowledges what is published to {topic} and does not send it back within {LOOKS * LOOK_S:.0f} s: it drops "
        f"messages, and others may get none. Check {SETTINGS}"
    )


def delivered(topic: str) -> str:
    """What a person reads once it delivers again."""
    return f"the broker delivers what is published to {topic} again"
