"""The models that devices use now, from their own statuses: they change after a run, when no coordinator keeps a roster."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from covey.shared.errors import DecodeError
from covey.shared.mqtt.link import Link, Message
from covey.shared.wire.documents import AgentStatus
from covey.shared.wire.topics import Topics

WITHIN_S = 1.0
MAX_AGENTS = 1000  # of a larger fleet, the roster has what it has
BATCH = 100  # topics of one subscription


async def add_models_in_use(link: Link, topics: Topics, rows: dict[str, dict[str, Any]]) -> None:
    """Complete the rows of a roster with the models that devices use now.

    Args:
        link: connected.
        topics: of the federation.
        rows: of the roster, by agent; `model` of each is set if its status has one.
    """
    if not rows or len(rows) > MAX_AGENTS:
        return
    awaited = {topics.status(agent): agent for agent in rows}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WITHIN_S):
            await _subscribe(link, list(awaited))
            async for incoming in link.incoming():
                if not isinstance(incoming, Message):
                    continue
                agent = awaited.pop(incoming.topic, None)
                if agent is not None:
                    _complete(rows[agent], incoming.payload)
                if not awaited:
                    return


async def _subscribe(link: Link, wanted: list[str]) -> None:
    for start in range(0, len(wanted), BATCH):
        await link.subscribe(wanted[start : start + BATCH])


def _complete(row: dict[str, Any], payload: bytes) -> None:
    try:
        status = AgentStatus.from_bytes(payload)
    except DecodeError:  # cleared, or of another version
        return
    if status.model is not None:
        row["model"] = status.model.model_dump(mode="json")
