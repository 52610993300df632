"""The sending of the report in an outbox: never more than one part of it is in memory."""

from __future__ import annotations

import asyncio

from covey.agent.device.outbox import Outbox
from covey.shared.mqtt.link import Link
from covey.shared.wire.framing import REPORT_VERSION
from covey.shared.wire.parts import split


class ReportSender:
    """Sends the report that lies in an outbox.

    Args:
        outbox: where the report lies.
        topic: of the agent's reports.

    Attributes:
        just_written: step of a report that was written and not sent yet; 0 for none.
    """

    def __init__(self, outbox: Outbox, topic: str) -> None:
        self._outbox = outbox
        self._topic = topic
        self.just_written = 0

    def __repr__(self) -> str:
        return f"<ReportSender on {self._topic}>"

    async def is_whole(self, step: int) -> bool:
        """Whether the file still holds what the worker wrote. It is read again before every sending but the first."""
        if self.just_written == step:
            self.just_written = 0
            return True
        return await asyncio.to_thread(self._outbox.report_is_whole)

    async def send(self, link: Link, step: int) -> bool:
        """Send all parts, each after the broker acknowledged the one before: a stock broker drops none then.

        Returns:
            Whether the broker acknowledged every part.
        """
        path = self._outbox.report
        state = self._outbox.state
        if path is None:
            return False
        fingerprint = bytes.fromhex(state.digest)
        with path.open("rb") as file:
            parts = split(
                file, digest=fingerprint, size=state.size, part_bytes=state.part_bytes, about=step
            )
            for part in parts:
                if not await link.publish(self._topic, part.to_bytes(REPORT_VERSION)):
                    return False
        return True
