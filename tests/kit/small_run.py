"""Small whole runs for tests: a few numpy clients in planted groups, a scenario for each method.

The scenario has all knobs: methods and options, synchronous or buffered rounds, how long agents take.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from covey.coordinator.engine.rules import Rules
from covey.coordinator.processes.launch import setup_of
from covey.coordinator.record.notices import Observer, ignore
from covey.coordinator.run.origin import Origin
from covey.coordinator.run.rules import rules_of
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.in_process import LocalClients, local_driver
from covey.coordinator.simulate.virtual_clock import Driver
from covey.shared.client import shuffle
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import entropy, generator
from covey.shared.strategies.base import ClientId, Local, Setup, Training
from covey.shared.wire.messages import OrderMessage
from tests.bowl import Softmax, Trainer, perceptron_client, softmax_client
from tests.kit.scenes import VECTORS, Scenes, changed
from tests.methods import METHODS

# These modes are about hidden layers; for all others a single layer is enough.
DEEP = {"fesem_ma-fedma", "fesem_ma-own"}

AGENTS = 8
GROUPS = ((0, 1), (2, 3))
DURATIONS = {"median_s": 1.0, "sigma": 1.0}


def clients(count: int = AGENTS, scene: Scenario | None = None) -> dict[ClientId, Softmax]:
    """Two planted groups with disjoint labels, agents taking turns, with the scenario's kind of model."""
    client = perceptron_client if scene is not None and _deep(scene) else softmax_client
    return {f"agent-{i}": client(GROUPS[i % 2], seed=i) for i in range(count)}


def _deep(scene: Scenario) -> bool:
    return scene.task.model.name == "mlp"


def scenario(method: str, **sections: Any) -> Scenario:
    """Eight agents, three rounds, half of them in each."""
    model = {"name": "mlp" if method in DEEP else "linear"}
    base = Scenes.of(
        f"small-{method}",
        {**VECTORS, "model": model},
        seed=3,
        training={"epochs": 2, "batch": 8, "lr": 0.1},
        rounds={"count": 3, "participation": 0.5, "start_agents": AGENTS},
    )
    return base({"name": method, **METHODS[method], **sections.pop("strategy", {})}, **sections)


def buffered(method: str, **sections: Any) -> Scenario:
    """Eight agents with log-normal durations, six buffered rounds of three reports."""
    fleet = {"agents": AGENTS, "durations": DURATIONS, "partition": "iid"}
    rounds = {
        "mode": "buffered",
        "count": 6,
        "buffer": 3,
        "participation": 1.0,
        "start_agents": AGENTS,
    }
    shared = changed({"fleet": fleet, "rounds": rounds}, sections)
    return scenario(method, **shared)


def setup(scene: Scenario) -> Setup:
    layout = clients(1, scene)["agent-0"].layout
    starts = [
        generator(scene.seed, "init", j).normal(0, 0.1, layout.size).astype(np.float32)
        for j in range(scene.strategy.starts)
    ]
    return setup_of(scene, starts, layout)


def layout_text(scene: Scenario) -> str:
    """The layout of the scenario's models, as a `start.npz` has it."""
    return json.dumps(setup(scene).layout.to_wire())


def rules(scene: Scenario, **changes: Any) -> Rules:
    r = scene.rounds
    base = Rules(
        seed=scene.seed,
        rounds=r.count,
        participation=r.participation,
        start_agents=r.start_agents or 1,
    )
    base = replace(base, quarantine_after=scene.aggregation.quarantine_after)
    return replace(base, **changes)


def local_for(locals_: Mapping[ClientId, Trainer]) -> Any:
    """Data for a job: the client's, with the job's own randomness."""

    def local(client: ClientId, order: OrderMessage) -> Local:
        assert order.work is not None
        training = Training.model_validate(order.work.training)
        seed = int(shuffle(order.work, client).integers(2**62))
        return replace(locals_[client], training=training, seed=seed)

    return local


def in_process(
    folder: Path,
    scene: Scenario,
    count: int = AGENTS,
    observer: Observer = ignore,
    origin: Origin | None = None,
    audit_key: bytes | None = None,
    **changes: Any,
) -> Run:
    """The whole run without a network."""
    people = clients(count, scene)
    own_rules = rules(scene, **changes)
    start = setup(scene)
    local = local_for(people)
    driver = local_driver(folder, scene, start, own_rules, local, observer, origin, audit_key)
    return driver.complete(
        {client: (local.examples, local.examples) for client, local in people.items()}
    )


def people(count: int = AGENTS) -> dict[ClientId, tuple[int, int]]:
    """Training and test samples of all agents."""
    return {client: (local.examples, local.examples) for client, local in clients(count).items()}


def driver(folder: Path, scene: Scenario, **changes: Any) -> Driver[LocalClients]:
    """A new run with the rules of its scenario, and what drives it."""
    own_rules = replace(rules_of(scene), **changes)
    return local_driver(folder, scene, setup(scene), own_rules, local_for(clients(scene=scene)))


def complete(folder: Path, scene: Scenario, **changes: Any) -> Run:
    """The whole run with the rules of its scenario."""
    return driver(folder, scene, **changes).complete(people())


def fingerprint(run: Run) -> list[bytes]:
    """The bytes of all cluster models, and who is in which cluster."""
    assignment = repr(sorted(run.strategy.assignment(run.state).items())).encode()
    return [
        *(np.ascontiguousarray(model).tobytes() for model in run.strategy.clusters(run.state)),
        assignment,
    ]


__all__ = [
    "METHODS",
    "clients",
    "entropy",
    "fingerprint",
    "in_process",
    "local_for",
    "rules",
    "scenario",
    "setup",
]
