"""A broker in memory that commands reach, whatever address is typed."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from covey.shared.mqtt.link import Link
from tests.kit.memory_broker import MemoryBroker


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> MemoryBroker:
    """The broker that the commands reach, whatever address is typed."""
    broker = MemoryBroker()

    def link(_url: object, *, client_id: str, **_: object) -> AbstractAsyncContextManager[Link]:
        return broker.link(client_id)

    monkeypatch.setattr("covey.coordinator.serve.connect.MqttLink", link)
    monkeypatch.setattr("covey.shared.mqtt.retained.QUIET_S", 0.05)
    return broker
