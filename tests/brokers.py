"""All brokers of the link suite, each started on a free port of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from covey.broker.limits import Limits
from covey.broker.programs.mosquitto import Mosquitto, find
from covey.broker.programs.options import BrokerOptions
from covey.shared import extras
from covey.shared.mqtt.link import Will
from covey.shared.mqtt.mqtt_link import MqttLink
from tests import broker_nodes
from tests.kit.memory_broker import MemoryBroker

STOCK = "listener {port} 127.0.0.1\nallow_anonymous true\n"
ROOMY = BrokerOptions(limits=Limits(packet=9 << 20))  # the suites send parts of the largest size
NAMES = ("memory", "embedded", "mosquitto", "mosquitto-stock", "nats", "rabbitmq")


def open_link(
    broker: MemoryBroker | str, client_id: str, will: Will | None = None, **options: Any
) -> Any:
    """A link for `async with`, to a memory broker or to the url of a real one."""
    if isinstance(broker, MemoryBroker):
        return broker.link(client_id, will)
    return MqttLink(broker, client_id=client_id, will=will, **options)


def start(name: str, folder: Path) -> contextlib.AbstractContextManager[str]:
    """A real broker that runs while the context is open; yields its url. Skips the test if it is not installed."""
    match name:
        case "embedded":
            if not extras.has("embedded"):
                pytest.skip("covey's extra embedded is not installed")
            return hosted(lambda: embedded(ROOMY))
        case "mosquitto" | "mosquitto-stock":
            if find() is None:
                pytest.skip("mosquitto is not installed")
            return hosted(
                lambda: Mosquitto(ROOMY, config=STOCK if name == "mosquitto-stock" else None)
            )
        case "nats":
            return _only(broker_nodes.nats(folder))
        case "rabbitmq":
            return _only(broker_nodes.rabbitmq(folder))
    raise ValueError(name)


def embedded(options: BrokerOptions) -> Any:
    """The broker in Python, not started."""
    from covey.extras.embedded.program import EmbeddedBroker

    return EmbeddedBroker(options)


@contextlib.contextmanager
def _only(nodes: contextlib.AbstractContextManager[list[broker_nodes.Node]]) -> Iterator[str]:
    with nodes as [node]:
        yield node.url


@contextlib.contextmanager
def hosted(make: Callable[[], Any]) -> Iterator[str]:
    """A broker in an event loop of its own, because each test has another loop. Yields the broker's url."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def make_and_enter() -> Any:
        return await make().__aenter__()

    running = asyncio.run_coroutine_threadsafe(make_and_enter(), loop).result(60)
    try:
        yield str(running.url)
    finally:
        asyncio.run_coroutine_threadsafe(running.stop(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
