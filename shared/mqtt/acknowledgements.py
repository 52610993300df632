"""Publishes at QoS 1 over one connection, each awaited until the broker acknowledges it.

aiomqtt's own `publish` starts a task and a timeout for each message and counts all messages under way, which takes longer
than all the rest of a small message. This class waits on a bare future instead.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from covey.shared.mqtt.throttle import Throttle

log = logging.getLogger(__name__)

QOS = 1
# reason codes of MQTT 5 that ask for a pause: message rate too high, quota exceeded
TRY_AGAIN = (0x96, 0x97)


class _Waiter:
    """Stands in the place of the event that aiomqtt sets when the acknowledgement of a message arrives."""

    __slots__ = ("_answer",)

    def __init__(self, answer: asyncio.Future[bool]) -> None:
        self._answer = answer

    def set(self) -> None:
        """The broker has acknowledged the message."""
        _settle(self._answer, taken=True)

    def refuse(self) -> None:
        """The broker did not take the message."""
        _settle(self._answer, taken=False)


class Acknowledgements:
    """The messages of one connection that the broker has not acknowledged yet.

    Args:
        client: the connected aiomqtt client.
        throttle: of the connection.
        within_s: time for an acknowledgement.
    """

    def __init__(self, client: Any, throttle: Throttle, *, within_s: float) -> None:
        self._paho = client._client
        self._pending: dict[int, Any] = client._pending_publishes  # by message id
        self._throttle = throttle
        self._within_s = within_s
        self._answers: set[asyncio.Future[bool]] = set()  # awaited now
        self._library_handler = self._paho.on_publish
        self._paho.on_publish = self._answered

    def __repr__(self) -> str:
        return f"Acknowledgements({len(self._answers)} awaited)"

    async def publish(self, topic: str, payload: bytes, retain: bool) -> bool:
        """Publish a message. Returns whether the broker has acknowledged it in time.

        Raises:
            ValueError: no message can have this topic or payload.
        """
        if not await self._throttle.enter(len(payload)):
            return False
        try:
            info = self._paho.publish(topic, payload, QOS, retain)
            if info.rc != 0:
                return False
            return await self._acknowledged(info.mid)
        finally:
            self._throttle.leave(len(payload))

    def _answered(self, client: Any, userdata: Any, mid: int, code: Any, properties: Any) -> None:
        """A PUBACK. One of MQTT 5 may refuse the message: for now, or for good."""
        if code.is_failure:
            log.warning("the broker refuses a message: %s", code)
            if code.value in TRY_AGAIN and mid in self._pending:
                self._pending[mid].refuse()
                return
        self._library_handler(client, userdata, mid, code, properties)

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
        self._throttle.end()
        for answer in self._answers:
            _settle(answer, taken=False)


def _settle(answer: asyncio.Future[bool], taken: bool) -> None:
    if not answer.done():
        answer.set_result(taken)
