"""A hostile client as a program of its own: `python -m tests.attacks.flood PORT KIND SECONDS PER_S`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from covey.shared.wire.documents import AgentStatus
from covey.shared.wire.messages import Part, digest
from covey.shared.wire.topics import Topics

TOPICS = Topics("default")
BIG_BYTES = 4_000_000


def big(number: int) -> tuple[str, bytes]:
    """A status of 4 MB, as the message format allowed it."""
    labels = ["x" * 4000] * (BIG_BYTES // 4003)
    whole = AgentStatus.model_construct(
        agent="rogue", session="s", online=True, serial=number, labels=labels
    )
    return TOPICS.status("rogue"), whole.to_bytes()


def small(number: int) -> tuple[str, bytes]:
    """One status after another of one agent."""
    return TOPICS.status("rogue"), AgentStatus(
        agent="rogue", session="s", online=True, serial=number
    ).to_bytes()


def statuses(number: int) -> tuple[str, bytes]:
    """The same of an agent that takes part."""
    return TOPICS.status("agent-0"), AgentStatus(
        agent="agent-0", session="s", online=True, serial=number
    ).to_bytes()


def stranger(number: int) -> tuple[str, bytes]:
    """Each status from another made-up agent, as large as it may be."""
    name = f"made-up-{number}"
    status = AgentStatus(
        agent=name, session="s", online=True, serial=1, problem="p" * 4000, labels=["l" * 4000] * 3
    )
    return TOPICS.status(name), status.to_bytes()


def garbage(number: int) -> tuple[str, bytes]:
    """Garbage on the topic of reports of an agent that takes part, as large as a part may be."""
    return TOPICS.report("agent-0"), b"x" * 400_000


def first_parts(number: int) -> tuple[str, bytes]:
    """The first parts of reports that are never continued."""
    content = str(number).encode()
    part = Part(digest=digest(content), index=0, count=2, size=2000, about=2, data=content)
    return TOPICS.report("agent-0"), part.to_bytes()


def aside(number: int) -> tuple[str, bytes]:
    """Messages that nobody reads: a flood of the machine alone."""
    return f"{TOPICS.base}/nowhere", small(number)[1]


KINDS: dict[str, Callable[[int], tuple[str, bytes]]] = {
    "big": big,
    "small": small,
    "statuses": statuses,
    "stranger": stranger,
    "garbage": garbage,
    "first_parts": first_parts,
    "aside": aside,
}


def main(port: int, kind: str, count: int, per_s: float) -> None:
    """Publish this number at this rate, or as fast as broker and machine allow, and print how many were sent."""
    client = Client(CallbackAPIVersion.VERSION2, client_id=f"rogue-{kind}")
    client.max_queued_messages_set(0)
    client.connect("127.0.0.1", port)
    client.loop_start()
    began, sent = time.monotonic(), 0
    while sent < count:
        while sent < min(count, (time.monotonic() - began) * per_s):
            topic, payload = KINDS[kind](sent)
            client.publish(topic, payload, qos=0).wait_for_publish(5)
            sent += 1
        time.sleep(0.002)
    client.disconnect()
    client.loop_stop()
    print(sent, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
