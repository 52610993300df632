"""Topic filters with `+` and `#`: who is subscribed to a topic, which retained messages a filter asks for.

MQTT 3.1.1, section 4.7. Matching itself is paho's prefix tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from paho.mqtt.matcher import MQTTMatcher

Holder = TypeVar("Holder")


def is_topic(text: str) -> bool:
    """May a message be published to it?"""
    return 0 < len(text.encode(errors="replace")) < 65536 and not any(
        sign in text for sign in "+#\0"
    )


def is_filter(text: str) -> bool:
    """May it be subscribed to? `+` fills a whole level, `#` is the whole last level."""
    if not 0 < len(text.encode(errors="replace")) < 65536 or "\0" in text:
        return False
    *levels, last = text.split("/")
    return all(level == "+" or not ("+" in level or "#" in level) for level in levels) and (
        last in ("+", "#") or not ("+" in last or "#" in last)
    )


def matches(pattern: str, topic: str) -> bool:
    """Does the filter ask for the topic? A wildcard never stands for a first level that begins with `$`."""
    matcher = MQTTMatcher()  # type: ignore[no-untyped-call]
    matcher[pattern] = True
    return any(True for _ in matcher.iter_match(topic))  # type: ignore[no-untyped-call]


class Subscriptions(Generic[Holder]):
    """Holder holds which filters, at which QoS."""

    def __init__(self) -> None:
        self._tree = MQTTMatcher()  # type: ignore[no-untyped-call]

    def add(self, pattern: str, who: Holder, qos: int = 1) -> None:
        """Subscribe, or change the QoS of a subscription."""
        try:
            self._tree[pattern][who] = qos
        except KeyError:
            self._tree[pattern] = {who: qos}

    def remove(self, pattern: str, who: Holder) -> None:
        """Unsubscribe; nothing happens where there was no subscription."""
        try:
            holders: dict[Holder, int] = self._tree[pattern]
        except KeyError:
            return
        holders.pop(who, None)
        if not holders:
            del self._tree[pattern]  # type: ignore[no-untyped-call]

    def holders_of(self, topic: str) -> dict[Holder, int]:
        """Everyone a message goes to, once each, at the highest QoS of their matching filters."""
        found: dict[Holder, int] = {}
        for holders in self._tree.iter_match(topic):  # type: ignore[no-untyped-call]
            for who, qos in holders.items():
                found[who] = max(qos, found.get(who, 0))
        return found


class Retained:
    """The last retained payload of every topic. `size_bytes`: of all topics and payloads together."""

    def __init__(self) -> None:
        self._payloads: dict[str, bytes] = {}
        self.size_bytes = 0

    def keep(self, topic: str, payload: bytes) -> None:
        """Remember a retained message; an empty one clears its topic."""
        before = self._payloads.pop(topic, None)
        if before is not None:
            self.size_bytes -= len(topic) + len(before)
        if payload:
            self._payloads[topic] = payload
            self.size_bytes += len(topic) + len(payload)

    def clear(self) -> None:
        self._payloads.clear()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._payloads)

    def matching(self, pattern: str) -> Iterator[tuple[str, bytes]]:
        """(topic, payload) of what a subscription to the filter is sent; exact topics are looked up."""
        if "+" not in pattern and "#" not in pattern:
            if pattern in self._payloads:
                yield pattern, self._payloads[pattern]
            return
        matcher = MQTTMatcher()  # type: ignore[no-untyped-call]
        matcher[pattern] = True
        for topic, payload in list(self._payloads.items()):
            if any(True for _ in matcher.iter_match(topic)):  # type: ignore[no-untyped-call]
                yield topic, payload
