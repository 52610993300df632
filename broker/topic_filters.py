"""Topics and topic filters with `+` and `#`: who is subscribed to a topic, which retained messages match a filter.

The rules are those of MQTT 3.1.1, section 4.7. The matching itself is paho's prefix tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from paho.mqtt.matcher import MQTTMatcher

Holder = TypeVar("Holder")

MAX_TEXT_BYTES = 65535  # of every string in MQTT: its length travels in two bytes


def is_topic(text: str) -> bool:
    """Whether a message can be published to it."""
    if any(sign in text for sign in "+#\0"):
        return False
    return _has_length_of_mqtt(text)


def is_filter(text: str) -> bool:
    """Whether a client can subscribe to it. `+` stands for a whole level, `#` for all remaining levels."""
    if "\0" in text or not _has_length_of_mqtt(text):
        return False
    levels = text.split("/")
    if levels[-1] == "#":
        levels.pop()
    return all(level == "+" or not has_wildcard(level) for level in levels)


def has_wildcard(text: str) -> bool:
    """Whether a filter, or one level of it, contains a wildcard."""
    return "+" in text or "#" in text


def _has_length_of_mqtt(text: str) -> bool:
    return 0 < len(text.encode(errors="replace")) <= MAX_TEXT_BYTES


def matches(pattern: str, topic: str) -> bool:
    """Whether the filter matches the topic. A wildcard never matches a first level that begins with `$`."""
    matcher = MQTTMatcher()  # type: ignore[no-untyped-call]
    matcher[pattern] = True
    return _has_match(matcher, topic)


def _has_match(matcher: MQTTMatcher, topic: str) -> bool:
    for _ in matcher.iter_match(topic):  # type: ignore[no-untyped-call]
        return True
    return False


class Subscriptions(Generic[Holder]):
    """Who holds which filters, at which QoS."""

    def __init__(self) -> None:
        # filter -> holders and their QoS; a filter without holders is removed
        self._tree = MQTTMatcher()  # type: ignore[no-untyped-call]

    def add(self, pattern: str, holder: Holder, qos: int = 1) -> None:
        """Subscribe, or change the QoS of a subscription."""
        try:
            self._tree[pattern][holder] = qos
        except KeyError:
            self._tree[pattern] = {holder: qos}

    def remove(self, pattern: str, holder: Holder) -> None:
        """Unsubscribe. Without such a subscription, nothing happens."""
        try:
            holders: dict[Holder, int] = self._tree[pattern]
        except KeyError:
            return
        holders.pop(holder, None)
        if not holders:
            del self._tree[pattern]  # type: ignore[no-untyped-call]

    def holders_of(self, topic: str) -> dict[Holder, int]:
        """Everyone who gets a message of this topic, once each, at the highest QoS of the matching filters."""
        found: dict[Holder, int] = {}
        for holders in self._tree.iter_match(topic):  # type: ignore[no-untyped-call]
            for holder, qos in holders.items():
                found[holder] = max(qos, found.get(holder, 0))
        return found


class Retained:
    """The last retained payload of every topic."""

    def __init__(self) -> None:
        self._payloads: dict[str, bytes] = {}  # by topic, never empty
        self.size_bytes = 0  # of all topics and payloads together

    def __len__(self) -> int:
        return len(self._payloads)

    def __contains__(self, topic: str) -> bool:
        return topic in self._payloads

    def __repr__(self) -> str:
        return f"<Retained: {len(self)} topics, {self.size_bytes} bytes>"

    def keep(self, topic: str, payload: bytes) -> None:
        """Remember a retained message. An empty payload clears its topic."""
        before = self._payloads.pop(topic, None)
        if before is not None:
            self.size_bytes -= len(topic) + len(before)
        if payload:
            self._payloads[topic] = payload
            self.size_bytes += len(topic) + len(payload)

    def clear(self) -> None:
        """Forget everything."""
        self._payloads.clear()
        self.size_bytes = 0

    def matching(self, *patterns: str) -> Iterator[tuple[str, bytes]]:
        """(topic, payload), once each, of the messages that new subscriptions to the filters receive.

        An exact topic is looked up; filters with wildcards cost one walk over all topics, however many they are.
        """
        exact = {pattern for pattern in patterns if not has_wildcard(pattern)}
        for topic in exact & self._payloads.keys():
            yield topic, self._payloads[topic]
        matcher = MQTTMatcher()  # type: ignore[no-untyped-call]
        for pattern in set(patterns) - exact:
            matcher[pattern] = True
        if len(exact) == len(set(patterns)):
            return
        for topic, payload in list(self._payloads.items()):
            if topic not in exact and _has_match(matcher, topic):
                yield topic, payload
