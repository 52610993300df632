"""Messages between a process and its workers over two pipes: four bytes of length, then msgpack.

Both ends import this module, so it needs neither numpy nor torch.
"""

from __future__ import annotations

from typing import IO, Any

import msgpack

MAX_FRAME_BYTES = 1 << 30
HEAD_BYTES = 4
Job = dict[str, Any]


def pack(message: Job) -> bytes:
    """The frame of a message: its head and its body."""
    body: bytes = msgpack.packb(message, use_bin_type=True)
    return len(body).to_bytes(HEAD_BYTES, "little") + body


def read(pipe: IO[bytes]) -> Job | None:
    """The next message; None if the other end has closed the pipe. Raises ValueError for an impossible length."""
    head = pipe.read(HEAD_BYTES)
    if len(head) < HEAD_BYTES:
        return None
    length = frame_length(head)
    body = pipe.read(length)
    if len(body) < length:
        return None
    return unpack(body)


def frame_length(head: bytes) -> int:
    """The number of bytes that follow a head. Raises ValueError for more than MAX_FRAME_BYTES."""
    length = int.from_bytes(head, "little")
    if length > MAX_FRAME_BYTES:
        raise ValueError(
            f"a message of {length} bytes between a process and its worker, at most {MAX_FRAME_BYTES}"
        )
    return length


def unpack(body: bytes) -> Job:
    """The message in the body of a frame."""
    message: Job = msgpack.unpackb(body, raw=False)
    return message
