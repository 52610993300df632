"""Publishes at QoS 1 over one connection, each awaited until the broker acknowledges it.

aiomqtt's own `publish` starts a task and a timeout for each message and counts all messages under way, which takes longer
than all the rest of a small message. This class waits on a bare future instead.
"""

from __future__ import annotations

import asyncio
from typing import Any

QOS = 1


class _Waiter:
    """Stands in the place of the event that aiomqtt sets when the acknowledgement of a message arrives."""

    __slots__ = ("_answer",)

    def __init__(self, answer: asyncio.Future[bool]) -> None:
        self._answer = answer

    def set(self) -> None:
        """The broker has acknowledged the message."""
        _settle(self._answer, taken=True)


class Acknowledgements:
    """The messages of one connection that the broker has not acknowledged yet.

    Args:
        client: the connected aiomqtt client.
        at_once: messages under way at once; more wait their turn, in order.
        within_s: time for an acknowledgement.
    """

    def __init__(self, client: Any, *, at_once: int, within_s: float) -> None:
        self._paho = client._client
        self._pending: dict[int, Any] = client._pending_publishes  # by message id
        self._turns = asyncio.Semaphore(at_once)
        self._within_s = within_s
        self._answers: set[asyncio.Future[bool]] = set()  # awaited now
        self._has_ended = False

    def __repr__(self) -> str:
        return f"Acknowledgements({len(self._answers)} awaited)"

    async def publish(self, topic: str, payload: bytes, retain: bool) -> bool:
        """Publish a message. Returns whether the broker has acknowledged it in time.

        Raises:
            ValueError: no message can have this topic or payload.
        """
        async with self._turns:
            if self._has_ended:
                return False
            info = self._paho.publish(topic, payload, QOS, retain)
            if info.rc != 0:
                return False
            return await self._acknowledged(info.mid)

    async def _acknowledged(self, message_id: int) -> bool:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool] = loop.create_future()
        self._pending[message_id] = _Waiter(answer)
        self._answers.add(answer)
        timer = loop.call_later(self._within_s, _settle, answer, False)
        try:
            return await answer
        finally:
            timer.cancel()
            self._answers.discard(answer)
            self._pending.pop(message_id, None)

    def end(self) -> None:
        """The connection has ended: nothing that is still under way was acknowledged."""
        self._has_ended = True
        for answer in self._answers:
            _settle(answer, taken=False)


def _settle(answer: asyncio.Future[bool], taken: bool) -> None:
    if not answer.done():
        answer.set_result(taken)
