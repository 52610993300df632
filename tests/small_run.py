"""Small whole runs for tests: a few numpy clients in planted groups, a scenario for each method."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from covey.coordinator.engine.rules import Rules
from covey.coordinator.processes.launch import setup_of
from covey.coordinator.run.notices import Observer, ignore
from covey.coordinator.run.origin import Origin
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.in_process import local_driver
from covey.shared.client import shuffle
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import entropy, generator
from covey.shared.strategies.base import ClientId, Local, Setup, Training
from covey.shared.wire.messages import OrderMessage
from tests.bowl import Softmax, Trainer, perceptron_client, softmax_client
from tests.methods import METHODS

# These modes are about hidden layers; for all others a single layer is enough.
DEEP = {"fesem_ma-fedma", "fesem_ma-own"}

GROUPS = ((0, 1), (2, 3))


def clients(count: int = 8, scene: Scenario | None = None) -> dict[ClientId, Softmax]:
    """Two planted groups with disjoint labels, agents taking turns, with the scenario's kind of model."""
    client = perceptron_client if scene is not None and _deep(scene) else softmax_client
    return {f"agent-{i}": client(GROUPS[i % 2], seed=i) for i in range(count)}


def _deep(scene: Scenario) -> bool:
    return scene.task.model.name == "mlp"


def scenario(method: str, **sections: Any) -> Scenario:
    """Eight agents, three rounds, half of them in each."""
    base: dict[str, Any] = {
        "name": f"small-{method}",
        "seed": 3,
        "task": {
            "features": [5],
            "classes": 4,
            "model": {"name": "mlp" if method in DEEP else "linear"},
        },
        "training": {"epochs": 2, "batch": 8, "lr": 0.1},
        "strategy": {"name": method, **METHODS[method]},
        "rounds": {"count": 3, "participation": 0.5, "start_agents": 8},
    }
    for section, values in sections.items():
        base[section] = {**base.get(section, {}), **values} if isinstance(values, dict) else values
    return Scenario.model_validate(base)


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
    count: int = 8,
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
