"""`broker doctor` and brokers that are slow, full or unusual."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from covey.broker.doctor import Doctor
from covey.broker.testing.memory_broker import MemoryBroker, MemoryLink
from covey.shared.mqtt.broker_url import BrokerUrl
from tests import clock

URL = BrokerUrl.parse("mqtt://127.0.0.1")


class LateBroker(MemoryBroker):
    """Acknowledges a message before it delivers it, as some clusters do."""

    def _route(self, topic: str, payload: bytes, retain: bool) -> None:
        if retain:
            self.retained.keep(topic, payload)
        asyncio.get_running_loop().call_later(0.5, super()._route, topic, payload, False)


class Forgetless(MemoryBroker):
    """Keeps a retained message although an empty one follows."""

    def _route(self, topic: str, payload: bytes, retain: bool) -> None:
        super()._route(topic, payload, retain and payload != b"")


@pytest.mark.parametrize(("kind", "state"), [(LateBroker, "ok"), (Forgetless, "missing")])
@clock.virtual(within_s=60)
async def test_a_late_copy_of_the_empty_message_is_not_a_message_that_is_still_there(
    kind: type[MemoryBroker], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = kind()

    def link(_url: object, *, client_id: str, **_: Any) -> MemoryLink:
        return broker.link(client_id)

    monkeypatch.setattr("covey.broker.doctor.MqttLink", link)
    doctor = Doctor(URL)
    assert (await doctor._check("retained", doctor._retain)).state == "ok"
    assert (await doctor._check("clearing", doctor._clear)).state == state
