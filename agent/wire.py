"""Between an agent and its worker: messages of four bytes of length and msgpack, over two pipes.

Nothing here needs numpy or torch: both ends import it.
"""

from __future__ import annotations

import asyncio
from typing import Any, BinaryIO

import msgpack

LONGEST = 1 << 30
Job = dict[str, Any]


def pack(message: Job) -> bytes:
    body: bytes = msgpack.packb(message, use_bin_type=True)
    return len(body).to_bytes(4, "little") + body


def read(pipe: BinaryIO) -> Job | None:
    """The next message; None when the other end is gone."""
    head = pipe.read(4)
    if len(head) < 4:
        return None
    body = pipe.read(_length(head))
    return _unpack(body) if len(body) == _length(head) else None


async def receive(pipe: asyncio.StreamReader) -> Job | None:
    """The next message; None when the other end is gone."""
    try:
        head = await pipe.readexactly(4)
        return _unpack(await pipe.readexactly(_length(head)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def _length(head: bytes) -> int:
    length = int.from_bytes(head, "little")
    if length > LONGEST:
        raise ValueError(f"a message of {length} bytes between agent and worker")
    return length


def _unpack(body: bytes) -> Job:
    message: Job = msgpack.unpackb(body, raw=False)
    return message
