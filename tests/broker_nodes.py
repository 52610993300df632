"""Nodes of NATS, RabbitMQ, Mosquitto and aedes on this machine: each a process that can be killed and started again."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.processes import Program, free_ports, listens

RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
READY_S = 90.0

# a broker of the library aedes, whose nodes share a Redis
AEDES = """
const { Aedes } = require('aedes')
const [port, redis] = process.argv.slice(-2).map(Number)
Aedes.createBroker({
  mq: require('mqemitter-redis')({ port: redis }),
  persistence: require('aedes-persistence-redis')({ port: redis }),
}).then((broker) => require('net').createServer(broker.handle).listen(port, '127.0.0.1'))
"""


@dataclass
class Node:
    """A broker's process; `ports` are those that it listens on once it is ready."""

    command: list[str]
    folder: Path
    ports: list[int]
    settings: Mapping[str, str] | None = None
    program: Program | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.ports[0]}"

    def start(self) -> None:
        """Start the process, without waiting for it."""
        self.program = Program(
            self.command, self.folder / "output.txt", module=False, settings=self.settings
        )

    def ready(self) -> None:
        """Wait until the node listens. The test fails if it ends instead."""
        until = time.monotonic() + READY_S
        while not all(map(listens, self.ports)):
            assert self.program is not None
            if self.program.process.poll() is not None or time.monotonic() > until:
                pytest.fail(f"{self.command[0]} did not start:\n{self.program.output[-2000:]}")
            time.sleep(0.1)

    def kill(self) -> None:
        """kill -9, of the processes that it started, too."""
        assert self.program is not None
        children = psutil.Process(self.program.process.pid).children(recursive=True)
        self.program.kill()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    def stop(self) -> None:
        if self.program is not None:
            self.program.stop()


@contextlib.contextmanager
def running(nodes: list[Node]) -> Iterator[list[Node]]:
    """The nodes, started together and ready, until the block ends."""
    with ExitStack() as stack:
        for node in nodes:
            stack.callback(node.stop)
            node.start()
        for node in nodes:
            node.ready()
        yield nodes


def _folders(folder: Path, count: int) -> list[Path]:
    found = [folder / f"node-{number}" for number in range(count)]
    for own in found:
        own.mkdir(parents=True)
    return found


def nats(folder: Path, count: int = 1) -> contextlib.AbstractContextManager[list[Node]]:
    """NATS with JetStream and its MQTT gateway; several nodes keep every stream on up to three of them."""
    if shutil.which("nats-server") is None:
        pytest.skip("nats-server is not installed")
    ports = free_ports(3 * count)
    mqtt, clients, routes = ports[:count], ports[count : 2 * count], ports[2 * count :]
    names = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
    nodes: list[Node] = []
    for number, own in enumerate(_folders(folder, count)):
        lines = [
            f"server_name: covey-{number}",
            f"host: 127.0.0.1\nport: {clients[number]}\nmax_payload: 8MB",
            f'jetstream {{ store_dir: "{own}/js" }}',
            f"mqtt {{ host: 127.0.0.1, port: {mqtt[number]} }}",
        ]
        if count > 1:
            listen = f"host: 127.0.0.1, port: {routes[number]}"
            lines.append(f"cluster {{ name: covey, {listen}, routes: [{names}] }}")
        (own / "nats.conf").write_text("\n".join(lines) + "\n")
        nodes.append(Node(["nats-server", "-c", str(own / "nats.conf")], own, [mqtt[number]]))
    return running(nodes)


@contextlib.contextmanager
def rabbitmq(folder: Path, count: int = 1) -> Iterator[list[Node]]:
    """RabbitMQ with its MQTT plug-in; several nodes find each other through a list of names."""
    if not RABBITMQ.exists():
        pytest.skip("rabbitmq-server is not installed")
    epmd, *ports = free_ports(3 * count + 1)
    mqtt, amqp, distribution = ports[:count], ports[count : 2 * count], ports[2 * count :]
    names = [f"covey{port}@localhost" for port in mqtt]
    nodes: list[Node] = []
    for number, own in enumerate(_folders(folder, count)):
        (own / "enabled_plugins").write_text("[rabbitmq_mqtt].\n")
        lines = [
            f"listeners.tcp.1 = 127.0.0.1:{amqp[number]}",
            f"mqtt.listeners.tcp.1 = 127.0.0.1:{mqtt[number]}",
            "mqtt.allow_anonymous = true\nmqtt.default_user = guest\nmqtt.default_pass = guest",
            "loopback_users = none",
        ]
        if count > 1:
            lines.append("cluster_formation.peer_discovery_backend = classic_config")
            for place, name in enumerate(names, 1):
                lines.append(f"cluster_formation.classic_config.nodes.{place} = {name}")
        (own / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        settings = {
            "HOME": str(folder),  # one cookie for all nodes
            "ERL_EPMD_PORT": str(epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": names[number],
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(amqp[number]),
            "RABBITMQ_DIST_PORT": str(distribution[number]),
            "RABBITMQ_MNESIA_BASE": str(own / "mnesia"),
            "RABBITMQ_LOG_BASE": str(own / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(own / "enabled_plugins"),
            "RABBITMQ_CONFIG_FILE": str(own / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            # one scheduler, which sleeps while there is nothing to do
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none",
        }
        nodes.append(Node([str(RABBITMQ)], own, [mqtt[number]], settings))
    with ExitStack() as stack:
        for node in nodes:  # one after another: the first makes the cookie
            stack.callback(node.stop)
            node.start()
            node.ready()
        yield nodes
    stop = ["epmd", "-port", str(epmd), "-kill"]
    subprocess.run(stop, capture_output=True, timeout=10, check=False)


def mosquitto(
    folder: Path, count: int, *, bridged: bool = False
) -> contextlib.AbstractContextManager[list[Node]]:
    """Mosquittos that keep what they retain; independent ones, or each of them bridged to the first."""
    if shutil.which("mosquitto") is None:
        pytest.skip("mosquitto is not installed")
    ports = free_ports(count)
    nodes: list[Node] = []
    for number, own in enumerate(_folders(folder, count)):
        lines = [
            f"listener {ports[number]} 127.0.0.1",
            f"allow_anonymous true\npersistence true\npersistence_location {own}/",
            "autosave_interval 1",
        ]
        if os.geteuid() == 0:
            lines.append("user root")
        if bridged and number:
            lines += [
                f"connection to-first-{number}\naddress 127.0.0.1:{ports[0]}",
                "topic covey/# both 1\nrestart_timeout 1",
            ]
        (own / "mosquitto.conf").write_text("\n".join(lines) + "\n")
        command = ["mosquitto", "-c", str(own / "mosquitto.conf")]
        nodes.append(Node(command, own, [ports[number]]))
    return running(nodes)


@contextlib.contextmanager
def aedes(folder: Path, count: int, modules: Path) -> Iterator[list[Node]]:
    """Nodes of aedes on one Redis.

    Args:
        modules: a folder in which npm has installed aedes, aedes-persistence-redis and mqemitter-redis.
    """
    if shutil.which("redis-server") is None or not (modules / "node_modules" / "aedes").exists():
        pytest.skip("aedes or redis-server is not installed")
    redis, *ports = free_ports(count + 1)
    store, *own = _folders(folder, count + 1)
    server = ["redis-server", "--port", str(redis), "--bind", "127.0.0.1", "--save", "", "--dir"]
    paths = {"NODE_PATH": str(modules / "node_modules")}
    nodes = [
        Node(["node", "-e", AEDES, str(port), str(redis)], place, [port], paths)
        for port, place in zip(ports, own, strict=True)
    ]
    with running([Node([*server, str(store)], store, [redis])]), running(nodes):
        yield nodes
