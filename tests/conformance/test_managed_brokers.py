"""Runs over each managed broker stay within its limits, and fail where the clients do not know them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from covey.agent.device.service import NameTakenError
from covey.coordinator.processes.launch import setup_of
from covey.coordinator.run.run import Run
from covey.coordinator.serve.connect import fitted
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.profiles import KIB, MOSQUITTO, PROFILES, Profile
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId, Setup
from tests import clock
from tests.bowl import Softmax
from tests.kit.limited_broker import LimitedBroker
from tests.kit.small_fleet import PATIENT, Fleet
from tests.kit.small_run import fingerprint, in_process, rules, scenario

BY_NAME = {profile.name: profile for profile in PROFILES}
LENET = 4442  # features, which with ten classes make as many values as LeNet-5 has
MANY = {"features": 1500, "part_bytes": KIB}  # 59 parts: more than a connection may subscribe to
PATIENCE_S = 120.0  # of virtual time


def people(features: int, agents: int) -> dict[ClientId, Softmax]:
    draw = np.random.default_rng(5)
    return {
        f"agent-{number}": Softmax(draw.normal(size=(10, features)), np.arange(10), 10)
        for number in range(agents)
    }


def scene(features: int, agents: int, part_bytes: int) -> Scenario:
    return scenario(
        "fedavg",
        task={"features": [features], "classes": 10, "model": {"name": "linear"}},
        training={"epochs": 1, "batch": 10},
        rounds={"count": 2, "participation": 1.0, "start_agents": agents},
        wire={"part_bytes": part_bytes},
    )


def start_of(scene: Scenario, fleet: dict[ClientId, Softmax]) -> Setup:
    layout = fleet["agent-0"].layout
    return setup_of(scene, [np.zeros(layout.size, np.float32)], layout)


@dataclass(frozen=True)
class Trial:
    """A run over a managed broker, in which one agent is killed as it fetches the model of the second round."""

    profile: Profile
    features: int = LENET
    agents: int = 2
    part_bytes: int = 512 * KIB  # the default

    def __str__(self) -> str:
        return f"{self.profile}-{self.features}-{self.part_bytes}"

    @property
    def fleet(self) -> dict[ClientId, Softmax]:
        return people(self.features, self.agents)

    @property
    def scene(self) -> Scenario:
        return scene(self.features, self.agents, self.part_bytes)

    def over(
        self, folder: Path, broker: LimitedBroker, patience_s: float = PATIENCE_S
    ) -> Run | None:
        """The run, or None if it is not over in time."""
        fleet = self.fleet
        url = BrokerUrl("broker", profile=broker.obeyed)
        this = fitted(self.scene, [url])

        async def kill(running: Fleet) -> None:
            while not [step for _, step in running.pool.worked if step > 1]:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.1)
            await running.vanish("agent-0")
            running.join("agent-0")

        async def whole() -> Run | None:
            patient = rules(this, **PATIENT)
            async with Fleet(folder, this, patient, broker, fleet) as running:
                now = asyncio.get_running_loop().time()
                run = Run.start(
                    folder / "run", this, start_of(this, fleet), rules=patient, run="r1", now=now
                )
                killing = asyncio.create_task(kill(running))
                try:
                    async with asyncio.timeout(patience_s):
                        return await running.serve(run)
                except TimeoutError:
                    return None
                finally:
                    killing.cancel()
                    broker.ended = asyncio.get_running_loop().time()

        return clock.run(whole())

    def alone(self, folder: Path) -> Run:
        """The same run without a broker."""
        fleet = self.fleet
        return in_process(folder, self.scene, fleet, start=start_of(self.scene, fleet))


TRIALS = [
    *[Trial(profile) for profile in PROFILES[1:]],
    *[Trial(BY_NAME[name], **MANY) for name in ("aws", "azure", "emqx-serverless")],
]


@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_a_run_stays_within_the_limits_of_a_managed_broker(trial: Trial, tmp_path: Path) -> None:
    broker = LimitedBroker(trial.profile)
    run = trial.over(tmp_path, broker)
    assert run is not None
    assert not broker.offences
    used = {thing: used / getattr(broker.profile, thing) for thing, used in broker.most.items()}
    assert max(used.values()) <= 1


def test_the_bytes_are_those_of_a_run_without_a_broker(tmp_path: Path) -> None:
    trial = Trial(BY_NAME["aws"])
    run = trial.over(tmp_path / "aws", LimitedBroker(trial.profile))
    assert run is not None
    assert fingerprint(run) == fingerprint(trial.alone(tmp_path / "alone"))


@pytest.mark.parametrize(
    ("trial", "exceeded"),
    [
        (Trial(BY_NAME["aws"]), "payload_bytes"),
        (Trial(BY_NAME["azure"]), "retained_bytes"),
        (Trial(BY_NAME["aws"], **MANY), "filters"),
        (Trial(BY_NAME["emqx-serverless"], **MANY), "subscriptions"),
        (Trial(BY_NAME["hivemq"], features=5, agents=12), "unacknowledged"),
    ],
    ids=str,
)
def test_the_same_without_the_profile_exceeds_a_limit_and_does_not_end(
    trial: Trial, exceeded: str, tmp_path: Path
) -> None:
    broker = LimitedBroker(trial.profile, MOSQUITTO)
    run = trial.over(tmp_path, broker)
    assert broker.offences[exceeded]
    assert run is None


async def _twins(folder: Path) -> None:
    """Two devices with one id, and one client id, at a broker that lets the newer connection take over."""
    broker = LimitedBroker(BY_NAME["aws"])
    fleet = people(5, 1)
    this = scene(5, 1, KIB)
    patient = rules(this, **PATIENT)
    async with Fleet(folder / "older", this, patient, broker, fleet) as older:
        await asyncio.sleep(1)
        younger = Fleet(folder / "younger", this, patient, broker, {})
        younger.people, younger.sources = fleet, older.sources
        younger.join("agent-0", session="younger")
        with pytest.raises(NameTakenError):
            await asyncio.wait_for(younger.lives["agent-0"], 600)
        await asyncio.sleep(60)
        assert broker.clients == ["agent-0"]


def test_of_two_devices_with_one_fixed_client_id_the_younger_gives_way(tmp_path: Path) -> None:
    clock.run(_twins(tmp_path))
