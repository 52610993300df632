"""At the edge of its settings, one method becomes another: in whole runs, without a network and over it.

A row holds a method's settings at that edge and the method that it must equal. Both sides are run on the same path, with the same
seed, batches and draws. Elsewhere: that a run has one outcome whatever the order of arrival
(test_wire_equals_in_process.py, tests/coordinator/test_rounds_any_order.py), and that the primitives agree with brute
force (test_clustering.py, test_metrics.py, test_matching.py and test_trimmed.py in tests/shared).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from covey.agent.worker.memory_file import StoredMemory
from covey.coordinator.processes.launch import setup_of
from covey.coordinator.run.run import Run
from covey.shared.numerics.fedma import permute
from covey.shared.numerics.vectors import Layout, Tensor, Vector, combine, mean
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import generator
from covey.shared.strategies.base import ClientId, Setup
from covey.shared.strategies.client_half import (
    AS_ORDERED,
    LAST_MODEL,
    ClientState,
    Drill,
    SampleIndices,
    TrainingResult,
)
from covey.shared.strategies.perfedavg import groups
from tests import clock
from tests.bowl import Bowl, Softmax, softmax_client
from tests.kit import small_run
from tests.kit.memory_broker import MemoryBroker
from tests.kit.scenes import VECTORS, Scenes
from tests.kit.small_fleet import PATIENT, Fleet
from tests.kit.small_run import GROUPS, rules, samples_of

# -- who takes part --------------------------------------------------------------------------------


def unequal() -> dict[ClientId, Softmax]:
    """Two groups of labels, two layers. 10 to 16 samples, which are two batches of 8 for everybody."""
    layers = ("body.weight", "head.bias")
    own = [softmax_client(GROUPS[i % 2], seed=i, n=10 + 2 * i) for i in range(4)]
    return {f"agent-{i}": replace(local, names=layers) for i, local in enumerate(own)}


def equal() -> dict[ClientId, Softmax]:
    return {f"agent-{i}": softmax_client(GROUPS[i % 2], seed=i, n=16) for i in range(4)}


def one() -> dict[ClientId, Softmax]:
    return {"agent-0": softmax_client((0, 1, 2), seed=0, n=20)}


@dataclass(frozen=True)
class Second(Softmax):
    """Trains on every second batch alone: the b2 of Per-FedAvg's pairs."""

    def batches(self, epochs: int | None = None) -> Iterator[list[SampleIndices]]:
        for batches in super().batches(epochs):
            yield [pair[1] for pair in groups(batches, 2)]


def on_second_batches() -> dict[ClientId, Softmax]:
    return {
        client: Second(local.x, local.y, local.classes, local.names)
        for client, local in unequal().items()
    }


MLP = Layout(
    tuple(
        tensor
        for name, units, inputs in (("fc1", 6, 5), ("fc2", 5, 6), ("fc3", 4, 5))
        for tensor in (Tensor(f"{name}.weight", (units, inputs)), Tensor(f"{name}.bias", (units,)))
    ),
    6,
)


@dataclass(frozen=True)
class Units(Bowl):
    """A bowl among the weights of a network with hidden units; these come back from training in any order."""

    shuffled: bool = False

    def train(self, start: Vector, drill: Drill = AS_ORDERED) -> TrainingResult:
        done, draw = super().train(start, drill), generator(self.seed, "units")
        orders = [draw.permutation(6), draw.permutation(5)]
        return replace(done, end=permute(done.end, orders, MLP)) if self.shuffled else done


# -- runs ------------------------------------------------------------------------------------------

People = Mapping[ClientId, Softmax] | Mapping[ClientId, Units]
SEED = 9  # in three rounds everybody is drawn at least once, and not all equally often
SGD = {"epochs": 2, "batch": 8, "lr": 0.1, "momentum": 0.5, "weight_decay": 0.01}
WHOLE = {
    "batch": 100,
    "momentum": 0.0,
}  # one step an epoch without memory: the order of samples has no say


@dataclass(frozen=True)
class Ended:
    """A run that is over, and the model (d,) that each client holds since its last training."""

    run: Run
    held: dict[ClientId, Vector]

    @property
    def models(self) -> tuple[Vector, ...]:
        return self.run.strategy.clusters(self.run.state)

    @property
    def served(self) -> dict[ClientId, float]:
        """Each client's test loss in mode `server`."""
        return {
            client: numbers["server"]["loss"]
            for client, numbers in self.run.members.evaluation.items()
        }

    @property
    def reporters(self) -> list[list[ClientId]]:
        """Who reported, round by round."""
        rows = map(json.loads, (self.run.folder / "rounds.jsonl").read_text().splitlines())
        return [row["reported"] for row in rows if row.get("phase") == "train"]


def _held(client_states: Mapping[ClientId, ClientState]) -> dict[ClientId, Vector]:
    return {
        client: client_state[LAST_MODEL]
        for client, client_state in client_states.items()
        if LAST_MODEL in client_state
    }


def in_process(folder: Path, scene: Scenario, setup: Setup, people: People) -> Ended:
    driver = small_run.driver(folder, scene, people, start=setup)
    run = driver.complete(samples_of(people))
    return Ended(run, _held(driver.clients.memories))


def wire(folder: Path, scene: Scenario, setup: Setup, people: People) -> Ended:
    """The same by the coordinator service and agents that talk over a broker."""
    told = rules(scene, **PATIENT)

    async def whole() -> Ended:
        async with Fleet(folder, scene, told, MemoryBroker(seed=5), people) as fleet:
            run = await fleet.serve(
                Run.start(folder / "run", scene, setup, rules=told, run="r1", now=0.0)
            )
            kept = {client: agent.outbox.memory for client, agent in fleet.agents.items()}
            return Ended(
                run, _held({client: StoredMemory(path) for client, path in kept.items() if path})
            )

    return clock.run(whole())


Play = Callable[[Path, Scenario, Setup, People], Ended]
PATHS = {"in process": in_process, "wire": wire}


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Play:
    return PATHS[request.param]


scenes = Scenes.of(
    "reduction",
    VECTORS,
    seed=SEED,
    training=SGD,
    evaluation={"tune_epochs": 0, "deliver": "served"},
)


def scenario_of(
    people: People,
    strategy: Mapping[str, Any],
    training: Mapping[str, Any] | None = None,
    **rounds: Any,
) -> Scenario:
    has_classes = isinstance(next(iter(people.values())), Softmax)  # else values for targets
    return scenes(
        strategy,
        task={} if has_classes else {"classes": None},
        training=training or {},
        rounds={"count": 2, "participation": 0.5, "start_agents": len(people), **rounds},
    )


def initial(layout: Layout, j: int = 0) -> Vector:
    return generator(SEED, "init", j).normal(0, 0.1, layout.size).astype(np.float32)


def played(
    path: Play,
    folder: Path,
    strategy: Mapping[str, Any],
    people: People,
    training: Mapping[str, Any] | None = None,
    start: Vector | None = None,
    **rounds: Any,
) -> Ended:
    scene = scenario_of(people, strategy, training, **rounds)
    first = next(iter(people.values()))
    layout = first.layout if isinstance(first, Softmax) else MLP
    starts = (
        [initial(layout, j) for j in range(scene.strategy.starts)] if start is None else [start]
    )
    return path(folder, scene, setup_of(scene, starts, layout), people)


def same(ours: Ended, theirs: Ended, *, exact: bool = False) -> None:
    """Who took part, the one model, and what each client is served."""
    rtol, atol = (0.0, 0.0) if exact else (1e-5, 1e-7)
    assert ours.reporters == theirs.reporters
    (model,), (wanted,) = ours.models, theirs.models
    np.testing.assert_allclose(model, wanted, rtol=rtol, atol=atol)
    assert ours.served == pytest.approx(theirs.served, rel=rtol, abs=0)


# -- FedAvg ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FedAvgs:
    """A method and its settings, and the FedAvg that it is. `exact`: the same arithmetic, so the same bits."""

    name: str
    strategy: dict[str, Any]
    people: Callable[[], dict[ClientId, Softmax]] = unequal
    training: dict[str, Any] = field(default_factory=dict)
    fedavg_people: Callable[[], dict[ClientId, Softmax]] | None = None
    fedavg_training: dict[str, Any] | None = None
    exact: bool = False
    rounds: dict[str, Any] = field(default_factory=dict)


FEDAVG: dict[str, Any] = {"name": "fedavg"}
CFL = {"name": "cfl", "eps_1": 0.0, "eps_2": 0.0, "warmup": 0}
STEP = {"epochs": 1, "batch": 100, "momentum": 0.0}
SCHEDULE = {"lr_steps": [[0.5, 0.1]]}  # of two rounds the second
PLAIN = {"momentum": 0.0, "weight_decay": 0.0}
IS_FEDAVG = [
    FedAvgs("fedprox without pull", {"name": "fedprox", "mu": 0.0}, exact=True),
    FedAvgs("fednova of equal steps", {"name": "fednova"}, training={"momentum": 0.0}),
    FedAvgs("feddws that goes all the way", {"name": "feddws", "epsilon": 1.0, "anneal": "none"}),
    FedAvgs(
        "feddist of equal samples", {"name": "feddist", "epsilon": 1.0, "anneal": "none"}, equal
    ),
    FedAvgs(
        "fedsgd, one step on all",
        {"name": "fedsgd"},
        training={"momentum": 0.9},
        fedavg_training=STEP,
    ),
    FedAvgs(
        "fedsgd, one step on all, with a schedule",
        {"name": "fedsgd"},
        training={"momentum": 0.9, **SCHEDULE},
        fedavg_training={**STEP, **SCHEDULE},
    ),
    FedAvgs("feddane of one client", {"name": "feddane", "mu": 0.0}, one),
    FedAvgs("cfl without splits", CFL, rounds={"participation": 1.0}),
    FedAvgs("cfl, half of them", CFL, rounds={"count": 3}),
    FedAvgs("given with one group", {"name": "given", "groups": {"all": ["*"]}}, exact=True),
    FedAvgs("ifca with one model", {"name": "ifca", "n_clusters": 1}),
    FedAvgs("ifca with one head", {"name": "ifca", "n_clusters": 1, "shared_trunk": True}),
    FedAvgs("hypocluster with one model", {"name": "hypocluster", "n_clusters": 1}),
    FedAvgs("pacfl up to 180 degrees", {"name": "pacfl", "beta": 180.0}, exact=True),
    FedAvgs(
        "pacfl, principal angles",
        {"name": "pacfl", "beta": 180.0, "measure": "principal"},
        exact=True,
    ),
    FedAvgs("fedclust, endless lambda", {"name": "fedclust", "lambda": 1e300}, exact=True),
    FedAvgs("fedem with one component", {"name": "fedem", "n_clusters": 1}),
    FedAvgs("fuzzy with one cluster", {"name": "fuzzy", "n_clusters": 1, "beta": 0.0}),
    FedAvgs("lg that shares all layers", {"name": "lg", "shared_layers": 2}),
    FedAvgs(
        "perfedavg without inner step",
        {"name": "perfedavg", "alpha": 0.0, "beta": 0.1},
        training={"lr": 5.0, "momentum": 0.9},
        fedavg_people=on_second_batches,
        fedavg_training={"lr": 0.1, **PLAIN},
    ),
    FedAvgs(
        "perfedavg without inner step, with a schedule",
        {"name": "perfedavg", "alpha": 0.0, "beta": 0.1},
        training={"lr": 5.0, "momentum": 0.9, **SCHEDULE},
        fedavg_people=on_second_batches,
        fedavg_training={"lr": 0.1, **PLAIN, **SCHEDULE},
    ),
]


# over the wire a run has the same bytes (test_wire_equals_in_process.py); one row shows that it is so here
PLAYED = [(in_process, row) for row in IS_FEDAVG] + [(wire, IS_FEDAVG[8])]


@pytest.mark.parametrize(("path", "row"), PLAYED, ids=lambda one: getattr(one, "name", ""))
def test_it_is_fedavg(tmp_path: Path, path: Play, row: FedAvgs) -> None:
    ours = played(path, tmp_path / "ours", row.strategy, row.people(), row.training, **row.rounds)
    training = row.training if row.fedavg_training is None else row.fedavg_training
    theirs = played(
        path,
        tmp_path / "fedavg",
        FEDAVG,
        (row.fedavg_people or row.people)(),
        training,
        **row.rounds,
    )
    same(ours, theirs, exact=row.exact)


def first_models(people: Mapping[ClientId, Softmax], phase: str, epochs: int) -> Vector:
    """The plain mean of what everybody's training in a run's first phase ends with."""
    scene = scenario_of(people, FEDAVG)
    ends = []
    for client, local in people.items():
        seed = int(generator(scene.seed, "shuffle", client, 0, phase).integers(2**62))
        start = initial(local.layout)
        ends.append(
            (
                replace(local, training=scene.training, seed=seed)
                .train(start, Drill(epochs=epochs))
                .end,
                1.0,
            )
        )
    return mean(ends)


ROBUST = {"name": "robust", "n_clusters": 1, "beta": 0.0, "first_epochs": 3}
UNIFORM = {
    "name": "feddist",
    "epsilon": 1.0,
    "anneal": "none",
}  # FedAvg in which all clients count the same
FESEM = {"name": "fesem", "n_clusters": 1, "mu": 0.0}
FROM_MEAN: dict[str, Any] = {
    "robust without trimming": (ROBUST, UNIFORM, unequal, "solve", 3, 0.5),
    "fesem with one centre": (FESEM, FEDAVG, equal, "warmup", 2, 1.0),
}


@pytest.mark.parametrize("row", FROM_MEAN.values(), ids=list(FROM_MEAN))
def test_it_is_fedavg_from_the_mean_of_the_first_models(
    tmp_path: Path, path: Play, row: Any
) -> None:
    strategy, average, people, phase, epochs, share = row
    ours = played(path, tmp_path / "ours", strategy, people(), participation=share)
    start = first_models(people(), phase, epochs)
    same(
        ours, played(path, tmp_path / "fedavg", average, people(), start=start, participation=share)
    )


# -- Local -----------------------------------------------------------------------------------------

IS_LOCAL: list[dict[str, Any]] = [
    {"name": "pacfl", "beta": -1.0},
    {"name": "fedclust", "lambda": -1.0},
    {"name": "fedsoft", "lambda": 0.0, "n_clusters": 2},
]


@pytest.mark.parametrize("strategy", IS_LOCAL, ids=lambda strategy: strategy["name"])
def test_it_is_local_in_the_rounds_in_which_a_client_takes_part(
    tmp_path: Path, path: Play, strategy: dict[str, Any]
) -> None:
    ours = played(path, tmp_path / "ours", strategy, unequal(), WHOLE, count=3)
    turns = Counter(client for reported in ours.reporters for client in reported)
    assert turns.keys() == unequal().keys()
    assert len(set(turns.values())) > 1  # or the epochs of Local would not be put to the test
    held: dict[ClientId, Vector] = {}
    served: dict[ClientId, float] = {}
    for count in set(turns.values()):
        people = {client: local for client, local in unequal().items() if turns[client] == count}
        local = {"name": "local", "epochs": SGD["epochs"] * count}
        alone = played(path, tmp_path / f"local-{count}", local, people, WHOLE, count=1)
        held, served = held | alone.held, served | alone.served
    for client, model in held.items():
        np.testing.assert_allclose(ours.held[client], model, rtol=1e-5, atol=1e-7)
    assert ours.served == pytest.approx(served, rel=1e-5, abs=0)


# -- the rest --------------------------------------------------------------------------------------


def test_fedsoft_with_one_cluster_has_full_importance_and_plain_weights(
    tmp_path: Path, path: Play
) -> None:
    whole: dict[str, Any] = {
        "count": 1,
        "participation": 1.0,
    }  # after a round clients continue from their own models
    ours = played(
        path,
        tmp_path / "ours",
        {"name": "fedsoft", "n_clusters": 1, "lambda": 0.0},
        unequal(),
        **whole,
    )
    assert ours.run.state.importance == dict.fromkeys(unequal(), (1.0,))
    (centre,), (wanted,) = (
        ours.models,
        played(path, tmp_path / "fedavg", FEDAVG, unequal(), **whole).models,
    )
    np.testing.assert_allclose(centre, wanted, rtol=1e-5, atol=1e-7)


def logits(model: Vector) -> npt.NDArray[Any]:
    """The outputs of the network for a few inputs (7, classes)."""
    out = generator(0, "inputs").normal(size=(7, 5))
    layers = list(MLP.named(model).values())
    for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
        out = np.maximum(out @ weight.T + bias, 0.0)
    return np.asarray(out @ layers[-2].T + layers[-1])


def test_fesem_ma_centres_compute_the_same_whatever_the_order_of_the_clients_units(
    tmp_path: Path, path: Play
) -> None:
    draw = generator(3, "points")
    start, way = (draw.normal(size=MLP.size).astype(np.float32) for _ in range(2))
    minima = [
        combine([(start, 1.0), (way, (-1) ** i * 0.2), (initial(MLP, i), 0.2)]) for i in range(4)
    ]
    plain, shuffled = (
        played(
            path, tmp_path / str(moved), {"name": "fesem_ma", "n_clusters": 2}, people, WHOLE, start
        )
        for moved in (False, True)
        for people in [
            {f"agent-{i}": Units(minimum, shuffled=moved) for i, minimum in enumerate(minima)}
        ]
    )
    assert len({model.tobytes() for model in plain.models}) == 2
    for ours, theirs in zip(shuffled.models, plain.models, strict=True):
        np.testing.assert_allclose(logits(ours), logits(theirs), rtol=1e-5, atol=1e-5)
