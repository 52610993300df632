"""What was under way when connections ended. Pure.

A broker that gets a larger packet than it takes ends the connection, and ends the next one for the same message. From the
outside that is a connection that comes and goes.
"""

from __future__ import annotations

from covey.shared.mqtt.profiles import HEAD_BYTES, UNLIMITED

SUSPECT = 2  # connections in a row that ended over one message


class Losses:
    """The messages of one link that were not acknowledged when its connections ended."""

    def __init__(self) -> None:
        self._under_way: list[tuple[int, str]] = []  # sizes of payloads, and their topics
        self._size = 0  # of the largest one at the latest end
        self._topic = ""  # its own; empty: nothing was under way
        self._times = 0  # ends in a row over this topic

    def __repr__(self) -> str:
        return f"<Losses: {self._times} over {self._topic or 'nothing'}>"

    @property
    def is_suspect(self) -> bool:
        """Whether it is likely that the message ends the connections."""
        return self._times >= SUSPECT

    def leaves(self, topic: str, size: int) -> None:
        """A message leaves; `left` follows."""
        self._under_way.append((size, topic))

    def left(self, topic: str, size: int, *, taken: bool) -> None:
        """It is not under way any more."""
        self._under_way.remove((size, topic))
        if taken and topic == self._topic and size >= self._size:
            self._times = 0

    def ended(self) -> None:
        """The connection has ended."""
        size, topic = max(self._under_way, default=(0, ""))
        self._times = self._times + 1 if topic and topic == self._topic else bool(topic)
        self._size, self._topic = size, topic

    def why(self, payload_bytes: int) -> str:
        """What a person reads.

        Args:
            payload_bytes: the largest payload that the broker takes; `UNLIMITED` if it names none.
        """
        seen = f"again while {self._size} bytes to {self._topic} were under way"
        if payload_bytes + HEAD_BYTES >= UNLIMITED:
            return f"{seen}; if it happens again, check the largest packet that the broker takes with `broker doctor`"
        most = payload_bytes + HEAD_BYTES
        if self._size <= payload_bytes:
            return f"{seen}; it takes packets of {most} bytes, so that is not the reason"
        return (
            f"{seen}: the broker takes packets of at most {most} bytes, and ends the connection for a larger one; raise its "
            "limit (max_packet_size), or begin a run with a lower wire.part_bytes"
        )
