"""Messages between an agent and its worker: the frames of `covey.shared.wire.frames`, and an async way to read them."""

from __future__ import annotations

import asyncio

from covey.shared.wire.frames import MAX_FRAME_BYTES, Job, frame_length, pack, read, unpack

__all__ = ["MAX_FRAME_BYTES", "Job", "pack", "read", "receive"]


async def receive(pipe: asyncio.StreamReader) -> Job | None:
    """The next message; None when the other end has closed the pipe."""
    try:
        head = await pipe.readexactly(4)
        return unpack(await pipe.readexactly(frame_length(head)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
