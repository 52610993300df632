"""A run that is followed at its broker: what is retained, what comes live, and the operator's commands."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from covey.coordinator.serve.service import last_will
from covey.extras.dashboard.dashboard import DashboardRequest, opened
from covey.extras.dashboard.hub import LiveState
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.link import Received, Up
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.wire.documents import Control, RosterMessage
from covey.shared.wire.topics import Topics
from tests import brokers
from tests.coordinator import dashboards
from tests.coordinator.dashboards import agents, phase, status

TOPICS = Topics("default")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with brokers.start("embedded", tmp_path) as url:
        yield url


def publish(url: str, *messages: tuple[str, bytes]) -> None:
    """Retain these messages at the broker."""

    async def program() -> None:
        async with MqttLink(url, client_id="coordinator") as link:
            async for incoming in link.incoming():
                if isinstance(incoming, Up):
                    break
            for topic, payload in messages:
                assert await link.publish(topic, payload, retain=True)

    asyncio.run(program())


def wait_until(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def shown(hub: object, key: str) -> object:
    assert isinstance(hub, LiveState)
    update = hub.update_after(-1, 0.0)
    assert update is not None
    value: object = getattr(update.state, key)
    return value


def line(number: int) -> bytes:
    return json.dumps(phase(number, evaluated=number / 20)).encode()


def roster(run: str = "r1") -> bytes:
    return RosterMessage(run=run, agents=agents(3)).to_bytes()


def test_a_run_is_followed_at_its_broker_and_obeys(url: str) -> None:
    running = status(state="open", phase="train", round=1).to_bytes()
    retained = [
        (TOPICS.coordinator_status, running),
        (TOPICS.roster, roster()),
        (TOPICS.metrics, line(1)),
    ]
    publish(url, *retained)
    request = DashboardRequest(None, BrokerUrl.parse(url), "default", "", port=0)
    with opened(request) as server:
        hub = server.shown
        wait_until(lambda: shown(hub, "newest_figure") == 0.05)
        assert (shown(hub, "state"), shown(hub, "name"), shown(hub, "connected")) == (
            "running",
            "pilot",
            True,
        )
        publish(url, (TOPICS.metrics, line(1)), (TOPICS.metrics, line(2)))
        wait_until(lambda: shown(hub, "newest_figure") == 0.1)
        bars = shown(hub, "bars")
        assert isinstance(bars, list | tuple)
        assert len(bars) == 2, "a line that is sent again counts once"

        publish(url, (TOPICS.coordinator_status, last_will(TOPICS).payload))
        wait_until(lambda: shown(hub, "state") == "offline")
        assert (shown(hub, "name"), shown(hub, "rounds")) == ("pilot", 20)

        assert server.send is not None
        assert server.send(Control(command="pause")) is None
        publish(url, (TOPICS.roster, b"not a roster"), (TOPICS.roster, roster("r2")))
        wait_until(lambda: shown(hub, "run") == "r2")
        assert shown(hub, "newest_figure") is None, "the lines were those of another run"


def test_a_command_reaches_the_control_topic(url: str) -> None:
    request = DashboardRequest(None, BrokerUrl.parse(url), "default", "", port=0)
    received: list[bytes] = []

    async def listen(send: Callable[[], object]) -> None:
        async with asyncio.timeout(60), MqttLink(url, client_id="coordinator") as link:
            async for incoming in link.incoming():
                if isinstance(incoming, Up):
                    await link.subscribe([TOPICS.control])
                    assert await asyncio.to_thread(send) is None
                if isinstance(incoming, Received):
                    received.append(incoming.payload)
                    return

    with opened(request) as server:
        wait_until(lambda: shown(server.shown, "connected"))
        assert server.send is not None
        command = server.send
        asyncio.run(listen(lambda: command(Control(command="forget", agent="pi-7"))))
    assert received == [b'{"command":"forget","agent":"pi-7"}']


def test_a_folder_of_another_run_gets_no_commands(url: str, tmp_path: Path) -> None:
    dashboards.write_plan(tmp_path)
    dashboards.write_roster(tmp_path, agents(3))
    publish(url, (TOPICS.roster, roster("r2")))
    request = DashboardRequest(tmp_path, BrokerUrl.parse(url), "default", "", port=0)
    with opened(request) as server:
        wait_until(lambda: "another run" in str(shown(server.shown, "problem")))
        assert server.send is not None
        assert (
            server.send(Control(command="stop")) == "the broker shows another run than this folder"
        )


def test_a_broker_that_is_away_is_named_and_nothing_is_sent() -> None:
    request = DashboardRequest(None, BrokerUrl.parse("mqtt://127.0.0.1:1"), "default", "", port=0)
    with opened(request) as server:
        wait_until(lambda: "trying again" in str(shown(server.shown, "problem")))
        assert shown(server.shown, "connected") is False
        assert server.send is not None
        assert "trying again" in str(server.send(Control(command="pause")))
