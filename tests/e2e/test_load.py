"""Stock limits, noise on every topic, and models that do not fit into memory a hundred times."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.memory import run
from covey.shared.mqtt.link import Received, Up
from covey.shared.mqtt.mqtt_link import MqttLink
from tests.e2e.conftest import coordinator, finish, fleet
from tests.processes import free_port, model_bytes, mosquitto, needs_mosquitto, rows

pytestmark = [pytest.mark.processes, pytest.mark.broker, needs_mosquitto]

NOISE = 3000
KINDS = {"order", "model", "report", "status", "metrics", "roster"}


@pytest.mark.whole
def test_fifty_agents_with_forty_parts_each_on_a_stock_mosquitto(tmp_path: Path) -> None:
    port, agents = free_port(), 50
    sections: dict[str, Any] = {
        "fleet": {"agents": agents, "partition": {"name": "iid"}, "faults": {}},
        "training": {"epochs": 1},
        "task": {
            "model": {"name": "mlp", "options": {"hidden": 133}}
        },  # 9 985 values: 40 parts of 1 KiB
        "rounds": {
            "count": 1,
            "participation": 1.0,
            "start_agents": agents,
            "timing": {"absence_s": 5},
        },
        "wire": {"part_bytes": 1024},
    }
    with mosquitto(tmp_path, port), fleet(tmp_path, port, **sections):
        finish(coordinator(tmp_path, port, "--set", "strategy.name=fedavg", **sections), 300)
    trained = [row for row in rows(tmp_path / "run") if row["phase"] == "train"]
    assert [len(row["reported"]) for row in trained] == [agents]
    assert all(row["missing"] == [] for row in rows(tmp_path / "run"))


@pytest.mark.whole
def test_noise_on_every_topic_changes_no_byte_and_is_counted(
    tmp_path: Path, undisturbed: Path
) -> None:
    port = free_port()
    with mosquitto(tmp_path, port), fleet(tmp_path, port) as agents:
        this = coordinator(tmp_path, port)
        asyncio.run(
            make_noise(f"mqtt://127.0.0.1:{port}", NOISE, psutil.Process(agents.process.pid))
        )
        assert this.process.poll() is None, "the noise came after the run"
        finish(this)
    assert model_bytes(tmp_path / "run") == model_bytes(undisturbed)
    roster = json.loads((tmp_path / "run" / "roster.json").read_text())
    assert sum(roster["refusals"].values()) > NOISE / 10
    assert {"checksum", "version", "too long", "not msgpack", "fields"} & set(roster["refusals"])


@pytest.mark.whole
def test_a_coordinator_grows_by_a_few_models_and_not_by_all_reports() -> None:
    figures = run(reports=40, hidden=400, at_once=8)
    model = 4 * figures["parameters"] / 1e6
    assert figures["bytes_up"] / 1e6 > 40 * model
    # The process's own pages: files of the spool that are mapped for a fold, and libraries, can be dropped at any time.
    assert figures["growth"]["anonymous"] < 12 * model, figures


async def make_noise(url: str, count: int, agents: psutil.Process) -> None:
    """Listen to a run, and send what was heard back damaged, cut short, or replaced by random bytes.

    It begins once every kind of message was heard, and the training stands still until it is over: in mid-run on any machine.
    """
    dice = random.Random(7)  # noqa: S311 - noise
    heard: dict[str, bytes] = {}
    async with MqttLink(url, client_id="noise") as link, AsyncExitStack() as after:
        sent, held = 0, False
        async for incoming in link.incoming():
            if isinstance(incoming, Up):
                await link.subscribe(["covey/#"])
            if not isinstance(incoming, Received) or not incoming.payload:
                continue
            heard.setdefault(incoming.topic, incoming.payload)
            if not {kind(topic) for topic in heard} >= KINDS:
                continue
            if not held:
                held = True
                workers = agents.children(recursive=True)
                assert workers, "nobody trains"
                for worker in workers:
                    worker.suspend()
                    after.callback(worker.resume)
            for _ in range(25):
                topic = dice.choice(sorted(heard))
                sent += await link.publish(topic, damaged(heard[topic], dice))
            if sent >= count:
                return
    raise AssertionError("the link ended")


def kind(topic: str) -> str:
    """The leaf of a topic, without the number of a part."""
    return next(word for word in reversed(topic.split("/")) if not word.isdigit())


def damaged(payload: bytes, dice: random.Random) -> bytes:
    """One of the payload's many wrong versions; never the payload itself."""
    match dice.randrange(3):
        case 0:
            return dice.randbytes(dice.randrange(1, 200))
        case 1:
            return payload[: dice.randrange(1, max(len(payload), 2))] or b"\0"
    changed = bytearray(payload)
    for _ in range(dice.randrange(1, 4)):
        changed[dice.randrange(len(changed))] ^= dice.randrange(1, 256)
    return bytes(changed) if bytes(changed) != payload else payload[:-1]
