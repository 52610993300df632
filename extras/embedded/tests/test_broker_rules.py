"""Attacks on the access rules: what needs `embedded`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from covey.shared.mqtt.broker_url import BrokerUrl, Tls
from covey.shared.mqtt.link import Received
from covey.shared.mqtt.mqtt_link import MqttLink
from tests.attacks.test_broker_rules import WAYS
from tests.certificates import Authority, Signed
from tests.conformance.test_links import message, up
from tests.processes import ROOT

ORDER = "covey/f/agents/pi-7/order"


@contextmanager
def running(*options: str) -> Iterator[str]:
    """`broker up` on a free port; its address."""
    command = [sys.executable, "-m", "covey.broker.cli", "up", "--port", "0", "--json", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield str(json.loads(process.stdout.readline())["url"])
        finally:
            process.terminate()


def link(url: str, authority: Authority, own: Signed, user: str = "") -> MqttLink:
    """A connection with a client certificate, which may call itself `user` in its CONNECT."""
    address = BrokerUrl.parse(url, Tls(authority.cert, own.cert, own.key))
    named = BrokerUrl(address.host, address.port, address.tls, user or None, "x" if user else None)
    return MqttLink(named, client_id=f"{own.cert.stem}-{user}")


@pytest.mark.processes
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("claims", ["", "coordinator"])
async def test_client_certificates_are_held_to_the_rules(
    way: Sequence[str], claims: str, tmp_path: Path
) -> None:
    """Before: no rules at all with `--tls-ca`, so that the forged order came first. The user is the CN, not the claim."""
    authority = Authority(tmp_path)
    server, coordinator, pi, spy = map(authority.sign, ("server", "coordinator", "pi-7", "spy"))
    options = [
        "--tls-cert",
        str(server.cert),
        "--tls-key",
        str(server.key),
        "--tls-ca",
        str(authority.cert),
    ]
    with running(*options, *way) as url:
        async with link(url, authority, coordinator) as owner, link(url, authority, pi) as agent:
            await up(owner, agent)
            await agent.subscribe([ORDER])
            async with link(url, authority, spy, claims) as forger:
                await up(forger)
                await forger.publish(ORDER, b"forged", retain=True)
            await owner.publish(ORDER, b"genuine", retain=True)
            assert await message(agent) == Received(ORDER, b"genuine")


@pytest.mark.processes
@pytest.mark.parametrize("way", WAYS)
async def test_a_single_user_is_kept_below_coveys_topics(way: Sequence[str]) -> None:
    """Before: `--user` had no rules."""
    with running("--user", "ann", "--password", "secret", *way) as url:
        place = BrokerUrl.parse(url)
        ann = BrokerUrl(place.host, place.port, user="ann", password="secret")
        async with MqttLink(ann, client_id="a") as one:
            await up(one)
            await one.subscribe([ORDER, "elsewhere"])
            async with MqttLink(ann, client_id="b") as other:
                await up(other)
                await other.publish("elsewhere", b"x")
            await one.publish(ORDER, b"work")
            assert await message(one) == Received(ORDER, b"work")
