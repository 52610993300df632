"""Several brokers for one link: which one comes next, and what the commands accept."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.agent.cli.program import app as agent
from covey.coordinator.cli.program import app as coordinator
from covey.coordinator.cli.run import run
from covey.coordinator.record.notices import ignore
from covey.coordinator.run.options import RunOptions
from covey.shared.cli import BrokerAddresses
from covey.shared.errors import UserError
from covey.shared.mqtt.backoff import BRIEF_S, Backoff, Failover
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.link import Down
from covey.shared.mqtt.mqtt_link import MqttLink
from tests.kit.small_run import scenario
from tests.processes import free_ports

A, B, C = (BrokerUrl(host) for host in "abc")


def after(*lasted_s: float) -> str:
    """The host of the next attempt, after connections that lasted so long."""
    brokers = Failover([A, B, C])
    for seconds in lasted_s:
        brokers.ended(seconds)
    return brokers.current.host


@pytest.mark.parametrize(
    ("lasted_s", "host"),
    [
        ((), "a"),
        ((0,), "b"),
        ((0, 0), "c"),
        ((0, 0, 0), "a"),
        ((0, 100), "b"),  # a working connection was lost: the same broker comes first
        ((0, 100, 0), "c"),
        ((BRIEF_S - 1,), "b"),  # it accepts, and throws us out again
    ],
)
def test_a_failure_turns_to_the_next_broker_and_a_working_one_is_kept(
    lasted_s: tuple[float, ...], host: str
) -> None:
    assert after(*lasted_s) == host


@pytest.mark.parametrize("away_s", [20.0, 120.0])
def test_a_fleet_is_back_within_ten_seconds_of_the_return_of_a_node_without_which_others_end_connections_at_once(
    away_s: float,
) -> None:
    """As RabbitMQ's do: A is away, and B and C accept every connection and end it."""
    for number in range(200):
        dice = random.Random(number)  # noqa: S311 - chance, no secrets
        brokers, backoff, now = Failover([A, B, C]), Backoff(uniform=dice.uniform), 0.0
        while now < away_s:
            lasted_s = 0.0 if brokers.current is A else 0.1
            now += lasted_s + backoff.delay(brokers.ended(lasted_s))
        assert now - away_s < 10.0


def test_one_broker_is_its_own_successor() -> None:
    alone = Failover([A])
    alone.ended(0)
    assert alone.current == A
    with pytest.raises(ValueError, match="at least one"):
        Failover([])


@pytest.mark.whole
@pytest.mark.parametrize("several", [["mqtt://a"], ["mqtt://a", "mqtt://b"]])
def test_a_cluster_has_several_addresses_and_no_simulated_fleet(
    several: list[str], tmp_path: Path
) -> None:
    fleet = {"fleet": {"agents": 8}} if len(several) > 1 else {}
    urls = tuple(map(BrokerUrl.parse, several))
    options = RunOptions(tmp_path, brokers=urls, cluster=True)
    with pytest.raises(UserError, match=f"got {len(several)} addresses"):
        asyncio.run(run(scenario("fedavg", **fleet), options, ignore))


async def test_each_broker_that_is_out_of_reach_is_named_once() -> None:
    ports = free_ports(2)
    brokers = [BrokerUrl("127.0.0.1", port) for port in ports]
    async with (
        asyncio.timeout(60),
        MqttLink(brokers, client_id="a", backoff=Backoff(first_s=0.01, max_s=0.05)) as link,
    ):
        for broker in brokers:
            down = await anext(link.incoming())
            assert isinstance(down, Down)
            assert str(broker) in down.why
        await asyncio.sleep(0.3)
    assert [item async for item in link.incoming()] == []


@pytest.mark.whole
def test_commands_that_connect_to_one_broker_refuse_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    typed = ["--broker", "mqtt://a", "--broker", "mqtt://b"]
    for command in ("status", "lab pause", "dashboard"):
        done = CliRunner().invoke(coordinator, [*command.split(), *typed])
        assert done.exit_code == 2
        assert "2 brokers: this command connects to one" in done.stderr
    monkeypatch.setenv("COVEY_BROKER", "mqtt://a,mqtt://b")
    done = CliRunner().invoke(coordinator, ["status"])
    assert "2 brokers" in done.stderr


@pytest.mark.parametrize(
    "text", ["mqtt://a,mqtt://b:1", "mqtt://a mqtt://b:1", "mqtt://a, mqtt://b:1"]
)
def test_the_environment_names_several_brokers_with_commas(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COVEY_BROKER", text)
    done = CliRunner().invoke(
        agent, ["lab", "service", "--data", str(tmp_path), "--id", "pi"], catch_exceptions=False
    )
    assert "--broker mqtt://a --broker mqtt://b:1" in done.stdout


def test_a_comma_in_a_password_divides_nothing() -> None:
    connection = BrokerAddresses(("mqtt://ann:a,b@host",))
    (url,) = connection.urls("pi")
    assert url.password == "a,b"
    with pytest.raises(UserError, match="2 brokers"):
        BrokerAddresses(("mqtt://a", "mqtt://b")).url()
