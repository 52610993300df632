"""The `agent` command, as its own process where that is the point: what needs `embedded`."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL
from pathlib import Path

import pytest

from covey.extras.embedded.program import EmbeddedBroker
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.wire.documents import AgentStatus
from covey.shared.wire.topics import Topics
from tests.agent.test_worker import data
from tests.conformance.test_links import message, up
from tests.processes import ROOT


@pytest.mark.processes
async def test_one_program_takes_part_in_several_federations(tmp_path: Path) -> None:
    async with EmbeddedBroker() as broker, asyncio.timeout(60):
        command = [sys.executable, "-m", "covey.agent.cli", "start", "--data", data(tmp_path)]
        command += ["--state", tmp_path / "state", "--broker", broker.url, "--id", "pi"]
        command += ["--also", "north", "--model-dir", tmp_path / "models"]
        process = await asyncio.create_subprocess_exec(*map(str, command), stdout=DEVNULL, cwd=ROOT)
        topics = [Topics(federation).status("pi") for federation in ("default", "north")]
        async with MqttLink(broker.url, client_id="c") as link:
            await up(link)
            await link.subscribe(topics)
            for online in (True, False):
                waited = set(topics)
                while waited:
                    arrived = await message(link)
                    if AgentStatus.from_bytes(arrived.payload).online is online:
                        waited.discard(arrived.topic)
                if online:
                    process.terminate()
        assert await process.wait() == 0
        folders = [tmp_path / "state", tmp_path / "state" / "@north"]
        assert all((folder / "models").is_dir() for folder in folders)
        assert (tmp_path / "models" / "@north").is_dir(), "models in use are apart"
