"""All brokers of the link suite, each started on a free port of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from covey.broker.limits import Limits
from covey.broker.programs.embedded import EmbeddedBroker
from covey.broker.programs.mosquitto import Mosquitto, find
from covey.broker.programs.options import Options
from covey.broker.testing.memory_broker import MemoryBroker
from covey.shared.mqtt.link import Will
from covey.shared.mqtt.mqtt_link import MqttLink
from tests.processes import free_ports, listens

STOCK = "listener {port} 127.0.0.1\nallow_anonymous true\n"
ROOMY = Options(limits=Limits(packet=9 << 20))  # the suites send parts of the largest size
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
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
            return hosted(lambda: EmbeddedBroker(ROOMY))
        case "mosquitto" | "mosquitto-stock":
            if find() is None:
                pytest.skip("mosquitto is not installed")
            return hosted(
                lambda: Mosquitto(ROOMY, config=STOCK if name == "mosquitto-stock" else None)
            )
        case "nats":
            return _nats(folder)
        case "rabbitmq":
            return _rabbitmq(folder)
    raise ValueError(name)


@contextlib.contextmanager
def hosted(make: Callable[[], EmbeddedBroker | Mosquitto]) -> Iterator[str]:
    """A broker in an event loop of its own, because each test has another loop. Yields the broker's url."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def make_and_enter() -> EmbeddedBroker | Mosquitto:
        return await make().__aenter__()

    running = asyncio.run_coroutine_threadsafe(make_and_enter(), loop).result(60)
    try:
        yield str(running.url)
    finally:
        asyncio.run_coroutine_threadsafe(running.stop(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@contextlib.contextmanager
def _nats(folder: Path) -> Iterator[str]:
    if shutil.which("nats-server") is None:
        pytest.skip("nats-server is not installed")
    port, mqtt = free_ports(2)
    config = folder / "nats.conf"
    config.write_text(
        f'server_name: covey\nhost: 127.0.0.1\nport: {port}\nmax_payload: 8MB\njetstream {{ store_dir: "{folder}/js" }}\n'
        f"mqtt {{ host: 127.0.0.1, port: {mqtt} }}\n"
    )
    with _process(["nats-server", "-c", str(config)], folder, mqtt):
        yield f"mqtt://127.0.0.1:{mqtt}"


@contextlib.contextmanager
def _rabbitmq(folder: Path) -> Iterator[str]:
    if not RABBITMQ.exists():
        pytest.skip("rabbitmq-server is not installed")
    amqp, mqtt, distribution, epmd = free_ports(4)
    (folder / "enabled_plugins").write_text("[rabbitmq_mqtt].\n")
    (folder / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{amqp}\nmqtt.listeners.tcp.1 = 127.0.0.1:{mqtt}\n"
        "mqtt.allow_anonymous = true\nmqtt.default_user = guest\nmqtt.default_pass = guest\nloopback_users = none\n"
    )
    settings = {
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(epmd),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"covey{mqtt}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(amqp),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
    }
    with _process([str(RABBITMQ)], folder, mqtt, settings):
        yield f"mqtt://127.0.0.1:{mqtt}"
    subprocess.run(
        ["epmd", "-port", str(epmd), "-kill"], capture_output=True, timeout=10, check=False
    )


@contextlib.contextmanager
def _process(
    command: list[str],
    folder: Path,
    port: int,
    settings: dict[str, str] | None = None,
    ready_s: float = 90.0,
) -> Iterator[None]:
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=os.environ | (settings or {})
        )
    try:
        until = time.monotonic() + ready_s
        while not listens(port):
            if process.poll() is not None or time.monotonic() > until:
                pytest.fail(
                    f"{command[0]} did not start:\n{(folder / 'output.txt').read_text()[-2000:]}"
                )
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(30)
