"""Three devices over MQTT: a model is delivered, used, and replaced, also on one that comes late.

The agents, the coordinator and the commands are the real ones, all in one process: the worker's jobs run in a thread, so
that torch is imported once.
"""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from covey.agent.device.identity import Identity
from covey.agent.device.keeper import KeepOptions
from covey.agent.device.service import Agent
from covey.agent.kept.model_dir import Index, read_index
from covey.agent.worker.predict import model_in_use, predict
from covey.agent.worker.start import write_start
from covey.agent.worker.worker import answer
from covey.coordinator.cli import promote
from covey.coordinator.cli import run as command
from covey.coordinator.cli.promote import DeploymentDone, Way
from covey.coordinator.deploy.decide import Command
from covey.coordinator.deploy.registry import publications
from covey.coordinator.disk.versions import last_version, round_name, save_version
from covey.coordinator.record.notices import Notice
from covey.coordinator.run.options import RunOptions
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.scenario.load import load
from covey.shared.seeds import generator
from covey.shared.wire.jobs import DeviceData
from tests.agent.conftest import single_thread  # noqa: F401  a fixture
from tests.kit.scenes import Scenes
from tests.processes import free_port, mosquitto, needs_mosquitto

pytestmark = [pytest.mark.processes, pytest.mark.broker, needs_mosquitto]

# the sign of the first feature means the opposite in the south
SITES = {"north-1": 1, "north-2": 1, "south-1": -1}
ROUNDS = 3


class InThread:
    """The worker's jobs, one at a time, in a thread of this process."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        async with self._turn:
            return await asyncio.to_thread(answer, job)


def table(path: Path, sign: int) -> Path:
    draw = generator(sign + 2, "model in use")
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "state"])
        for _ in range(60):
            a, b = draw.normal(0, 2, 2).tolist()
            writer.writerow([a, b, "worn" if a * sign > 0 else "ok"])
    return path


PUMPS = Scenes.of(
    "pumps",
    {"features": [2], "classes": ["ok", "worn"], "model": {"name": "linear"}},
    seed=1,
    training={"epochs": 5, "batch": 10, "lr": 0.1},
    strategy={"name": "fedclust", "n_clusters": 2},
    rounds={"count": ROUNDS, "start_agents": len(SITES), "deadline_s": 60},
    evaluation={"every": 1, "tune_epochs": 0},
)


def started_alike(folder: Path) -> Path:
    """The scenario with a start of its own."""
    write_start(PUMPS(), folder / "start.npz")
    return PUMPS.written(folder, task={"init": str(folder / "start.npz")})


class Devices:
    """Agents that live until the end of the context."""

    def __init__(self, folder: Path, url: BrokerUrl, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.url = url
        self.notices: list[tuple[str, dict[str, Any]]] = []
        self._stack = stack
        self._pool = InThread()

    async def start(self, name: str, sign: int) -> None:
        source = DeviceData(data=str(table(self.folder / f"{name}.csv", sign)), label="state")
        identity = Identity(name, "default", source, self.folder / f"state-{name}", durable=False)
        agent = Agent(
            identity,
            self._pool,
            keep=KeepOptions(self.models(name), margin=0.2),  # 12 test samples are few
            observer=lambda notice: self.notices.append((name, notice.to_json())),
        )
        link = MqttLink(self.url, client_id=agent.client_id, will=agent.will)
        await self._stack.enter_async_context(link)
        life = asyncio.create_task(agent.run(link))

        async def end() -> None:
            agent.stop()
            await life

        self._stack.push_async_callback(end)

    def models(self, name: str) -> Path:
        return self.folder / f"models-{name}"

    def index(self, name: str) -> Index:
        return read_index(self.models(name))

    def rounds(self) -> list[int]:
        """The round of the model in use on each device; -1 for none."""
        found = []
        for name in SITES:
            kept = self.index(name).in_use
            found.append(-1 if kept is None else kept.version.round)
        return found

    def predicted(self, name: str) -> str | float:
        """What the device's model makes of a large first feature, in a file without targets."""
        new = self.folder / "new.csv"
        new.write_text("a,b\n5,0\n")
        [only] = predict(model_in_use(self.models(name)), new)
        return only.prediction


@asynccontextmanager
async def devices(folder: Path, url: BrokerUrl) -> AsyncIterator[Devices]:
    async with AsyncExitStack() as stack:
        yield Devices(folder, url, stack)


async def published(urls: Sequence[BrokerUrl], runs: Path, version: str) -> DeploymentDone:
    return await promote.deploy(Command(), version, Way(urls, runs, wait_s=20))


async def until(condition: Callable[[], Any], within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110  files have no event to wait for
            await asyncio.sleep(0.05)


@pytest.mark.usefixtures("single_thread")
async def test_a_model_is_delivered_used_and_replaced(tmp_path: Path) -> None:
    port = free_port()
    run = tmp_path / "run"
    url = BrokerUrl.parse(f"mqtt://127.0.0.1:{port}")
    seen: list[Notice] = []
    with mosquitto(tmp_path, port):
        async with devices(tmp_path, url) as fleet:
            for name, sign in SITES.items():
                await fleet.start(name, sign)
            options = RunOptions(run, brokers=(url,))
            await command.run(load(started_alike(tmp_path)), options, seen.append)

            # delivered by the run's own orders, and used
            assert fleet.rounds() == [ROUNDS] * len(SITES)
            assert [fleet.predicted(name) for name in SITES] == ["worn", "worn", "ok"]
            assert [one.act for one in publications(run)] == ["publish"]
            assert "published" in {notice.event for notice in seen}

            # a device that was never there gets the model that fits its data, after the run has ended
            await fleet.start("late", -1)
            await until(lambda: fleet.index("late").in_use)
            assert fleet.predicted("late") == "ok"

            # replaced: twice the weights are as accurate
            last = last_version(run)
            other = replace(last, round=7, models=tuple(2 * model for model in last.models))
            save_version(run, round_name(7), other)
            sent = await published([url], tmp_path, f"{run}@7")
            assert sent.outcome.taken == ["late", *SITES]
            assert fleet.rounds() == [7] * len(SITES)
            assert fleet.index("north-1").pinned
            for name in SITES:
                kept = fleet.index(name)
                assert kept.note.startswith("in use: run@7")
                assert kept.in_use is not None
                assert kept.in_use.version.name == "run@7"
                assert [one.version.name for one in kept.previous] == [f"run@{ROUNDS}"], (
                    "the run's publication has named what its last order delivered"
                )
    acts = [(one.act, one.round) for one in publications(run)]
    assert acts == [("publish", 3), ("promote", 7)]
    result = json.loads((run / "result.json").read_text())
    assert result["clusters"] == 2
