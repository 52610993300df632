"""The broker that a simulated run starts for itself is for nobody else on this machine.

Before, it let in everybody: another user's order reached the fleet 1.5 s after it was published.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import psutil
import pytest

from covey.shared.errors import UserError
from covey.shared.mqtt.link import Down, Received, Up
from covey.shared.mqtt.mqtt_link import MqttLink
from tests.e2e.conftest import SIMULATED
from tests.processes import Program, needs_mosquitto, program, until, words

STATUS = "covey/default/coordinator/status"

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("numpy_learner")]


@pytest.mark.whole
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--embedded"], id="embedded"),
        pytest.param([], id="mosquitto", marks=[pytest.mark.broker, needs_mosquitto]),
    ],
)
def test_without_the_runs_own_password_no_client_is_let_in(
    tmp_path: Path, options: list[str]
) -> None:
    path = SIMULATED.written(tmp_path)
    command = words("coordinator run", path, "--out", tmp_path / "run", "--json", *options)
    with program(*command, log=tmp_path / "run.log", fresh=True) as run:
        until(lambda: '"phase"' in run.output, of=run)  # the fleet itself is let in: it works
        [url] = [row["url"] for row in events(run) if row["event"] == "broker"]
        place = url.partition("@")[2]
        assert url.startswith("mqtt://coordinator@127.0.0.1:")  # without the password
        for stranger in (
            f"mqtt://{place}",
            f"mqtt://coordinator:guess@{place}",
            f"mqtt://fleet:@{place}",
        ):
            assert "password" in answer_to(stranger)
        secrets = passwords_of(run)
        processes = [
            psutil.Process(run.process.pid),
            *psutil.Process(run.process.pid).children(recursive=True),
        ]
        shown = " ".join(word for one in processes for word in one.cmdline())
        as_agent = f"mqtt://fleet:{secrets[1]}@{place}"
        assert heard_by_an_agent(as_agent, STATUS)
        # the fleet has an agent's rights, not the coordinator's
        assert not heard_by_an_agent(as_agent, "covey/default/run/roster")
    kept = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert kept
    for secret in secrets:
        assert secret not in shown + run.output
        assert not any(secret.encode() in file.read_bytes() for file in kept)


def events(run: Program) -> list[dict[str, str]]:
    return [json.loads(line) for line in run.output.splitlines() if line.startswith("{")]


def passwords_of(run: Program) -> tuple[str, str]:
    """The coordinator's and the fleet's, as only this user may read them in the environment of the broker's process."""
    for child in psutil.Process(run.process.pid).children(recursive=True):
        settings = child.environ()
        if "COVEY_BROKER_PASSWORD" in settings:
            return settings["COVEY_BROKER_PASSWORD"], settings["COVEY_FLEET_PASSWORD"]
    raise AssertionError("no child process was given a password")


def heard_by_an_agent(url: str, topic: str) -> bool:
    """Is an agent sent the retained message of the topic, before one that it may read and asks for later?"""

    async def listen() -> bool:
        async with asyncio.timeout(60), MqttLink(url, client_id="covey-default-listener") as link:
            async for incoming in link.incoming():
                if isinstance(incoming, Up):
                    await link.subscribe([topic])
                    await link.subscribe([STATUS])
                if isinstance(incoming, Received):
                    return incoming.topic == topic
        raise AssertionError("the link ended")

    return asyncio.run(listen())


def answer_to(url: str) -> str:
    """The answer of the broker to a client that connects; empty if it is accepted."""

    async def connect() -> str:
        async with asyncio.timeout(60), MqttLink(url, client_id="stranger") as link:
            async for incoming in link.incoming():
                if isinstance(incoming, Up):
                    return ""
                if isinstance(incoming, Down):
                    return incoming.why
        raise UserError("no answer")

    return asyncio.run(connect())
