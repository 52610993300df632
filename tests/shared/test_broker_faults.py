"""A broker comes back with a fault: a link reports which, and the old settings heal it. Against Mosquitto itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from covey.broker.programs.mosquitto import find
from covey.shared.mqtt import backoff, mqtt_link
from covey.shared.mqtt.backoff import Backoff
from covey.shared.mqtt.broker_url import BrokerUrl, Tls
from covey.shared.mqtt.link import Down, Echo, Incoming, Up, Will
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.mqtt.read_back import LOOKS
from tests.certificates import DAY_S, Authority
from tests.kit.small_fleet import PATIENT
from tests.kit.small_run import rules, scenario
from tests.mosquitto_fleet import MosquittoFleet
from tests.processes import free_ports

pytestmark = pytest.mark.skipif(find() is None, reason="mosquitto is not installed")

STATUS = "covey/f/agents/a/status"
ONLINE = bytes(900)
LARGE = bytes(3000)  # a part of a report
LOOK_S = 0.05
LIVES_S = 1.5  # a certificate that ends in the middle of a test


class Broker:
    """Mosquitto on one port, under one configuration after another."""

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(1)
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None

    async def runs(self, *settings: str) -> None:
        """Start it (again) with these settings."""
        await self.stop()
        program, config = find(), self._folder / "mosquitto.conf"
        assert program is not None
        lines = [f"listener {self.port} 127.0.0.1", "allow_anonymous true", *settings]
        config.write_text("\n".join([*lines, "user root", ""]))
        self._process = await asyncio.create_subprocess_exec(
            program, "-c", str(config), stderr=asyncio.subprocess.DEVNULL
        )

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await process.wait()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    one = Broker(tmp_path)
    yield one
    await one.stop()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt_link, "LOOK_S", LOOK_S)


class Program:
    """What every program of Covey does: it subscribes to its own status and publishes it after each `Up`."""

    def __init__(self, url: BrokerUrl | str, *more: tuple[str, bytes]) -> None:
        self.items: list[Incoming] = []
        self._more = more
        self._link = MqttLink(
            url,
            client_id="a",
            will=Will(STATUS, b"gone"),
            backoff=Backoff(first_s=0.05, max_s=0.1, away_s=0.1),
        )

    async def __aenter__(self) -> Program:
        await self._link.__aenter__()
        self._task = asyncio.create_task(self._live())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await self._link.__aexit__(None, None, None)

    async def _live(self) -> None:
        async for item in self._link.incoming():
            self.items.append(item)
            if isinstance(item, Up):
                await self._link.subscribe([STATUS])
                await self._link.publish(STATUS, ONLINE, retain=True)
                for topic, payload in self._more:
                    await self._link.publish(topic, payload)

    async def until(self, shows: Callable[[Incoming], bool], within_s: float = 60) -> Incoming:
        """The first item that shows it, and forget all up to there."""
        async with asyncio.timeout(within_s):
            while True:
                while self.items:
                    if shows(item := self.items.pop(0)):
                        return item
                await asyncio.sleep(0.01)

    async def is_down(self, *words: str) -> None:
        """Wait until it reports why it is down, in these words."""
        await self.until(
            lambda item: isinstance(item, Down) and all(word in item.why for word in words)
        )

    async def is_up(self) -> None:
        await self.until(lambda item: isinstance(item, Up))


def secured(folder: Path, by: Authority, *, days: int = 2) -> list[str]:
    """Settings for TLS with a new certificate of this authority."""
    signed = by.sign("broker", days=days)
    for path in (signed.cert, signed.key):
        path.chmod(0o644)
    return [f"certfile {signed.cert}", f"keyfile {signed.key}"]


async def test_a_certificate_that_expired_or_is_of_another_authority_is_named_while_a_program_runs(
    broker: Broker, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    own, other = Authority(tmp_path), Authority(tmp_path / "other")
    await broker.runs(*secured(tmp_path, own))
    url = BrokerUrl("127.0.0.1", broker.port, tls=Tls(ca=own.cert))
    async with Program(url) as program:
        await program.is_up()
        await broker.runs(*secured(tmp_path, own, days=-1))
        await program.is_down("has expired", "broker lab renew")
        await broker.runs(*secured(tmp_path / "other", other))
        await program.is_down("an authority that this machine does not know", "--credentials")
        await broker.runs(*secured(tmp_path, own))
        await program.is_up()


async def test_a_device_whose_own_certificate_ends_names_it_and_returns_with_the_renewed_file(
    broker: Broker, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    settings = [*secured(tmp_path, authority), "require_certificate true"]
    settings += [f"cafile {authority.cert}", "use_identity_as_username true"]
    await broker.runs(*settings)
    own = authority.sign("a", days=LIVES_S / DAY_S)
    url = BrokerUrl("127.0.0.1", broker.port, tls=Tls(authority.cert, own.cert, own.key))
    async with Program(url) as program:
        await program.is_up()
        await asyncio.sleep(LIVES_S)
        downs = [item for item in program.items if isinstance(item, Down)]
        assert downs == [], "a connection outlives its certificate"
        await broker.runs(*settings)
        await program.is_down("this machine's certificate has expired", "cert")
        whole = own.key.read_bytes()
        own.key.write_bytes(b"half a copy")
        await asyncio.sleep(0.5)
        own.key.write_bytes(whole)
        authority.sign("a")
        await program.is_up()


async def test_a_program_that_runs_takes_a_new_authority_from_its_file(
    broker: Broker, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    own, other = Authority(tmp_path), Authority(tmp_path / "other")
    await broker.runs(*secured(tmp_path, own))
    async with Program(BrokerUrl("127.0.0.1", broker.port, tls=Tls(own.cert))) as program:
        await program.is_up()
        await broker.runs(*secured(tmp_path / "other", other))
        await program.is_down("an authority that this machine does not know")
        own.cert.write_bytes(other.cert.read_bytes())
        await program.is_up()


async def test_a_port_at_which_nobody_listens_any_more_is_named(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "EVERY_S", 0.3)
    await broker.runs()
    async with Program(f"mqtt://127.0.0.1:{broker.port}") as program:
        await program.is_up()
        await broker.stop()
        await program.is_down("the connection was lost")
        await program.is_down("refused")
        await asyncio.sleep(1.0)
        assert program.items == []
        await broker.runs()
        await program.is_up()


@pytest.mark.parametrize("fault", ["acl", "size"])
async def test_a_broker_that_drops_what_it_acknowledges_is_named(
    fault: str, broker: Broker, tmp_path: Path
) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic read covey/#\n")
    settings = {"acl": f"acl_file {acl}", "size": "message_size_limit 500"}
    await broker.runs()
    async with Program(f"mqtt://127.0.0.1:{broker.port}") as program:
        await program.is_up()
        await asyncio.sleep(3 * LOOKS * LOOK_S)
        assert not [item for item in program.items if isinstance(item, Echo)]
        await broker.runs(settings[fault])
        echo = await program.until(lambda item: isinstance(item, Echo))
        assert isinstance(echo, Echo)
        for word in (STATUS, "access rules", "message_size_limit", "mount points", "broker doctor"):
            assert word in echo.why
        await broker.runs()
        await program.is_up()
        await asyncio.sleep(3 * LOOKS * LOOK_S)
        assert not [item for item in program.items if isinstance(item, Echo)]


async def test_a_broker_that_delivers_statuses_and_drops_models_is_named_before_a_round_is_void(
    broker: Broker, tmp_path: Path
) -> None:
    await broker.runs("message_size_limit 500")  # a status has less
    scene = scenario("fedavg", task={"model": {"name": "mlp"}})
    url = f"mqtt://127.0.0.1:{broker.port}"
    fleet = MosquittoFleet(tmp_path, scene, rules(scene, **PATIENT), [url])

    async def drops() -> dict[str, Any]:
        while not (found := [row for row in fleet.rows if row["event"] == "delivery"]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return dict(found[0])

    async with fleet:
        coordinating = asyncio.create_task(fleet.coordinate())
        try:
            async with asyncio.timeout(60):
                notice = await drops()
        finally:
            coordinating.cancel()
    for word in ("/clusters/", "message_size_limit", "broker doctor"):
        assert word in notice["why"]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("retain_available false", ["no retained messages", "retain_available"]),
        ("max_qos 0", ["QoS 0 only", "max_qos"]),
        ("max_packet_size 2000", ["3000 bytes to covey/f/agents/a/report", "at most 2000 bytes"]),
    ],
)
async def test_a_limit_over_which_a_broker_ends_connections_is_named(
    setting: str, words: list[str], broker: Broker
) -> None:
    await broker.runs()
    report = ("covey/f/agents/a/report", LARGE)
    async with Program(f"mqtt://127.0.0.1:{broker.port}", report) as program:
        await program.is_up()
        await broker.runs(setting)
        await program.is_down(*words)
        await broker.runs()
        await program.is_up()
