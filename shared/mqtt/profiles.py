"""What a broker allows one connection: a value that links obey, for each managed broker that we know. Pure.

The figures are those of the vendors' public pages (2025): AWS IoT Core endpoints and quotas, message broker; Azure Event
Grid quotas and limits, MQTT in a namespace with one throughput unit, and its page on retained messages; EMQX Platform
quotas, Serverless; HiveMQ's defaults. NATS counts 1024 unacknowledged messages for each subscription, and takes 65535. A broker that speaks MQTT 5 names some limits itself as it accepts a connection
(CONNACK: MQTT 5.0, section 3.2.2.3): the lower one counts.

The size of an MQTT 3.1.1 PUBLISH packet at QoS 1, to count the bytes that a run sends.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

TYPE_AND_FLAGS_BYTES = 1
TOPIC_LENGTH_BYTES = 2
PACKET_ID_BYTES = 2
BITS_PER_LENGTH_BYTE = 7  # of the remaining length, in each of its bytes


def publish_bytes(topic_bytes: int, payload_bytes: int) -> int:
    """The size of a whole packet (MQTT 3.1.1, sections 2.2 and 3.3).

    Args:
        topic_bytes: length of the topic in UTF-8.
        payload_bytes: length of the payload.
    """
    topic_field = TOPIC_LENGTH_BYTES + topic_bytes
    remaining = topic_field + PACKET_ID_BYTES + payload_bytes
    length_bits = remaining.bit_length()
    length_bytes = -(-length_bits // BITS_PER_LENGTH_BYTE)  # rounded up
    return TYPE_AND_FLAGS_BYTES + length_bytes + remaining


UNLIMITED = sys.maxsize
KIB = 1 << 10
PART_HEAD_BYTES = 1024  # a part travels with its digest and its numbers
LONGEST_TOPIC = 256  # bytes
HEAD_BYTES = publish_bytes(LONGEST_TOPIC, 1 << 20) - (1 << 20) + 1  # with empty properties
BURST_SHARE = 10  # a tenth of a second's messages may go at once


@dataclass(frozen=True)
class Profile:
    """What one connection may use of a broker. Rates are per second."""

    name: str
    mqtt5: bool = True  # speak MQTT 5, so that the broker can name its limits
    payload_bytes: int = UNLIMITED  # of a message
    retained_bytes: int = UNLIMITED  # of a retained message
    retained_messages: int = UNLIMITED  # of all clients
    subscriptions: int = UNLIMITED  # at a time
    filters: int = UNLIMITED  # in one SUBSCRIBE or UNSUBSCRIBE
    subscribes_per_s: int = UNLIMITED  # packets of both kinds
    messages_per_s: int = UNLIMITED  # published
    bytes_per_s: int = UNLIMITED  # published
    unacknowledged: int = UNLIMITED  # published messages that the broker has not acknowledged
    unacknowledged_bytes: int = UNLIMITED
    topic_levels: int = UNLIMITED
    client_id_bytes: int = UNLIMITED
    fixed_client_id: bool = False  # the broker knows a device by its client id
    connect_every_s: float = 0.0  # between two connections of one client id
    unusable: str = ""  # why Covey cannot use the broker; empty if it can

    def __str__(self) -> str:
        return self.name

    @property
    def part_bytes(self) -> int:
        """The largest part of a model or report."""
        return min(self.payload_bytes, self.retained_bytes) - PART_HEAD_BYTES

    @property
    def steady_messages(self) -> float:
        """Messages per second with which no second has more than `messages_per_s`, see `burst_messages`."""
        return self.messages_per_s - self.burst_messages

    @property
    def burst_messages(self) -> float:
        """Messages that may go at once after a pause."""
        return max(1, self.messages_per_s // BURST_SHARE)

    @property
    def steady_bytes(self) -> float:
        """Bytes per second with which no second has more than `bytes_per_s`, see `burst_bytes`."""
        return self.bytes_per_s - self.burst_bytes

    @property
    def burst_bytes(self) -> float:
        """Bytes that may go at once after a pause: a largest message, with its head."""
        return min(self.payload_bytes + HEAD_BYTES, self.bytes_per_s // 2)

    def refuses(self, topic: str, size: int, retain: bool) -> str:
        """Why the broker would not take a message with a payload of this size; empty if it would."""
        most = min(self.payload_bytes, self.retained_bytes) if retain else self.payload_bytes
        if size > most:
            return f"{size} bytes to {topic}: broker profile {self.name} takes at most {most}"
        levels = topic.count("/") + 1
        if levels > self.topic_levels:
            return f"{topic} has {levels} levels: broker profile {self.name} takes at most {self.topic_levels}"
        return ""

    def narrowed(self, connack: Mapping[str, Any]) -> Profile:
        """The profile within what the broker named in its CONNACK, by the names of its properties."""
        why = ""
        if not connack.get("RetainAvailable", 1):
            why = "the broker keeps no retained messages, and Covey needs them (retain_available of Mosquitto)"
        elif not connack.get("MaximumQoS", 1):
            why = "the broker takes messages at QoS 0 only, and Covey needs QoS 1 (max_qos of Mosquitto)"
        elif not connack.get("WildcardSubscriptionAvailable", 1):
            why = "the broker takes no wildcard subscriptions, and the coordinator's are `agents/+`"
        packet = connack.get("MaximumPacketSize", UNLIMITED)
        return replace(
            self,
            payload_bytes=min(self.payload_bytes, packet - HEAD_BYTES),
            unacknowledged=min(self.unacknowledged, connack.get("ReceiveMaximum", UNLIMITED)),
            unusable=why,
        )


MOSQUITTO = Profile("mosquitto", mqtt5=False)  # and any other broker of one's own
PROFILES = (
    MOSQUITTO,
    Profile(
        "aws",
        payload_bytes=128 * KIB,
        subscriptions=50,
        filters=8,
        messages_per_s=100,
        bytes_per_s=512 * KIB,
        unacknowledged=100,
        topic_levels=8,
        client_id_bytes=128,
        fixed_client_id=True,
        connect_every_s=1.0,
    ),
    Profile(
        "azure",
        payload_bytes=512 * KIB,
        retained_bytes=64 * KIB,
        retained_messages=10_000,
        subscriptions=50,
        filters=10,
        subscribes_per_s=5,
        messages_per_s=1000,
        bytes_per_s=1024 * KIB,
        unacknowledged=1000,
        unacknowledged_bytes=64 * KIB,
        topic_levels=8,
        fixed_client_id=True,
    ),
    Profile(
        "emqx-serverless",
        payload_bytes=1024 * KIB,
        retained_messages=2000,
        subscriptions=10,
        messages_per_s=10,
        topic_levels=10,
    ),
    Profile("hivemq", unacknowledged=10),
    Profile("nats", mqtt5=False, subscriptions=63),
)
HOSTS = {
    ".amazonaws.com": "aws",
    ".amazonaws.com.cn": "aws",
    ".eventgrid.azure.net": "azure",
    ".emqxsl.com": "emqx-serverless",
    ".emqxsl.cn": "emqx-serverless",
    ".hivemq.cloud": "hivemq",
}
NAMES = tuple(profile.name for profile in PROFILES)


def profile_named(name: str) -> Profile:
    """The profile with this name. Raises KeyError if there is none."""
    return {profile.name: profile for profile in PROFILES}[name]


def profile_of(host: str) -> Profile:
    """The profile of a broker at this host: that of the vendor whose domain it is in, else that of one's own broker."""
    for ending, name in HOSTS.items():
        if host.lower().endswith(ending):
            return profile_named(name)
    return MOSQUITTO
