"""Small whole runs for tests: a few numpy clients in planted groups, a scenario for each method.

The scenario has all knobs: methods and options, synchronous or buffered rounds, how long agents take.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from covey.coordinator.engine.rules import RoundRules
from covey.coordinator.processes.launch import setup_of
from covey.coordinator.record.notices import Observer, ignore
from covey.coordinator.record.store import Store
from covey.coordinator.run.effects import Effect
from covey.coordinator.run.folder import Origin
from covey.coordinator.run.happenings import ReportCame
from covey.coordinator.run.parts import Parts
from covey.coordinator.run.rules import rules_of
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.virtual_clock import Driver
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import generator
from covey.shared.strategies.base import ClientId, Setup, Training
from covey.shared.strategies.client_half import Local
from covey.shared.wire.messages import OrderMessage
from covey.shared.work.at_hand import shuffle
from tests.bowl import Softmax, Trainer, normed_client, perceptron_client, softmax_client
from tests.kit.local_clients import HeldBackFor, LocalClients, LocalFor, local_driver
from tests.kit.scenes import VECTORS, Scenes, changed
from tests.methods import LAYERED, METHODS, NORMED

# These are about several layers; for all others a single one is enough.
DEEP = {"fesem_ma-fedma", "fesem_ma-own", "fedrep-fedper", *LAYERED}
# The task of these is called images of one column.
IMAGES = {"fuzzy"}

AGENTS = 8
GROUPS = ((0, 1), (2, 3))
DURATIONS = {"median_s": 1.0, "sigma": 1.0}


def clients(count: int = AGENTS, scene: Scenario | None = None) -> dict[ClientId, Softmax]:
    """Two planted groups with disjoint labels, agents taking turns, with the scenario's kind of model."""
    client: Callable[..., Softmax] = softmax_client
    if scene is not None and scene.task.model.name == "mlp":
        client = perceptron_client
    if scene is not None and scene.strategy.name in NORMED:
        client = normed_client
    return {f"agent-{i}": client(GROUPS[i % 2], seed=i) for i in range(count)}


SERVED = {"deliver": "served"}


def scenario(method: str, **sections: Any) -> Scenario:
    """Eight agents, three rounds, half of them in each. No agent judges what else it could answer with: half of a run's time."""
    return judged(method, **changed({"evaluation": SERVED}, sections))


def judged(method: str, **sections: Any) -> Scenario:
    """The same, and after the last round each agent weighs what it can have, as it does unless a scenario names something else."""
    task = {**VECTORS, "model": {"name": "mlp" if method in DEEP else "linear"}}
    if method in IMAGES:
        task["features"] = [1, *VECTORS["features"], 1]
    base = Scenes.of(
        f"small-{method}",
        task,
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
    return judged(method, **shared)


def starts(scene: Scenario) -> tuple[list[Vector], Layout]:
    """The initial models, whole, and their layout."""
    layout = clients(1, scene)["agent-0"].layout
    drawn = [
        generator(scene.seed, "init", j).normal(0, 0.1, layout.size).astype(np.float32)
        for j in range(scene.strategy.starts)
    ]
    return drawn, layout


def setup(scene: Scenario) -> Setup:
    return setup_of(scene, *starts(scene))


def layout_text(scene: Scenario) -> str:
    """The layout of the scenario's models, as a `start.npz` has it."""
    return json.dumps(setup(scene).whole.to_wire())


def rules(scene: Scenario, **changes: Any) -> RoundRules:
    """Those of the scenario, changed."""
    return replace(rules_of(scene), **changes)


def local_for(locals_: Mapping[ClientId, Trainer]) -> Any:
    """Data for a job: the client's, with the job's own randomness."""

    def local(client: ClientId, order: OrderMessage) -> Local:
        assert order.work is not None
        training = Training.model_validate(order.work.training)
        seed = int(shuffle(order.work, client).integers(2**62))
        return replace(locals_[client], training=training, seed=seed)

    return local


def begun(
    folder: Path,
    scene: Scenario,
    name: str = "r1",
    now: float = 0.0,
    audit_key: bytes | None = None,
    **changes: Any,
) -> Run:
    """A new run with the rules of its scenario, whose agents are elsewhere."""
    return Run.start(
        folder,
        scene,
        setup(scene),
        rules=rules(scene, **changes),
        run=name,
        now=now,
        audit_key=audit_key,
    )


def samples_of(people: Mapping[ClientId, Trainer]) -> dict[ClientId, tuple[int, int]]:
    """Training and test samples of each."""
    return {client: (local.examples, local.examples) for client, local in people.items()}


def driver(
    folder: Path,
    scene: Scenario,
    people: Mapping[ClientId, Trainer] | None = None,
    *,
    start: Setup | None = None,
    local: LocalFor | None = None,
    held_back: HeldBackFor | None = None,
    observer: Observer = ignore,
    origin: Origin | None = None,
    audit_key: bytes | None = None,
    **changes: Any,
) -> Driver[LocalClients]:
    """A new run without a network, and what drives it.

    Args:
        people: the clients' data; None: the usual ones.
        start: None: that of the scenario.
        local: the data for an order, where `people` alone do not decide it.
        held_back: as for `LocalClients`.
        observer, origin, audit_key: as for a run.
        changes: of the scenario's rules.
    """
    if local is None:
        local = local_for(people or clients(scene=scene))
    own_start = start or setup(scene)
    own_rules = rules(scene, **changes)
    return local_driver(
        folder, scene, own_start, own_rules, local, observer, origin, audit_key, held_back
    )


def in_process(
    folder: Path, scene: Scenario, people: Mapping[ClientId, Trainer] | None = None, **knobs: Any
) -> Run:
    """The whole run; the knobs are those of `driver`."""
    people = people or clients(scene=scene)
    return driver(folder, scene, people, **knobs).complete(samples_of(people))


def received(run: Run, client: ClientId, content: bytes, now: float = 0.0) -> list[Effect]:
    """What follows from a report that comes over the wire."""
    return run.handle(ReportCame(client, lambda: content), now)


class KilledError(Exception):
    pass


def killed_at_each_step(
    first: Driver[LocalClients],
    samples: Mapping[ClientId, tuple[int, int]],
    resumed: Callable[[], tuple[Run, list[Effect]]],
) -> tuple[Run, int]:
    """A run that is killed at the first checkpoint of each step and stage, and resumed from the one before.

    Returns:
        The run at its end, and the number of kills.
    """
    save, struck = Store._save, set[tuple[Any, ...]]()

    def dies(store: Store, parts: Parts) -> None:
        place = (parts.engine.number, parts.engine.stage, parts.engine.round)
        if place not in struck:
            struck.add(place)
            raise KilledError
        save(store, parts)

    effects: list[Effect] = []
    while True:
        try:
            with patch.object(Store, "_save", dies):
                return first.complete(samples, effects), len(struck)
        except KilledError:
            first.run, found = resumed()
            effects = [*found, *first.run.desired()]


def fingerprint(run: Run) -> list[bytes]:
    """The bytes of all cluster models, and who is in which cluster."""
    assignment = repr(sorted(run.strategy.assignment(run.state).items())).encode()
    return [*(np.ascontiguousarray(model).tobytes() for model in run.models), assignment]
