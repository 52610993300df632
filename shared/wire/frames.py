"""Messages between a process and its workers: four bytes of length and msgpack, over two pipes.

Nothing here needs numpy or torch: both ends import it.
"""

from __future__ import annotations

from typing import IO, Any

import msgpack

MAX_FRAME_BYTES = 1 << 30
Job = dict[str, Any]


def pack(message: Job) -> bytes:
    body: bytes = msgpack.packb(message, use_bin_type=True)
    return len(body).to_bytes(4, "little") + body


def read(pipe: IO[bytes]) -> Job | None:
    """The next message; None when the other end is gone."""
    head = pipe.read(4)
    if len(head) < 4:
        return None
    body = pipe.read(frame_length(head))
    return unpack(body) if len(body) == frame_length(head) else None


def frame_length(head: bytes) -> int:
    """Bytes that follow a head. Raises ValueError for more than any message has."""
    length = int.from_bytes(head, "little")
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a message of {length} bytes between a process and its worker")
    return length


def unpack(body: bytes) -> Job:
    message: Job = msgpack.unpackb(body, raw=False)
    return message
