"""Accuracy against epsilon: client-level privacy of FedAvg and FedClust, and DP-SGD on devices; digits, Fashion-MNIST.

    python benchmarks/privacy.py --data digits
    python benchmarks/privacy.py --data fashion-mnist --data-root ../shared/data
    python benchmarks/privacy.py --show

Cells that are finished stay in the JSON file and are not run again; what is printed are tables in markdown. The
coordinator's half of a cell (clustering, clip, noise, account) is the code of every run. Local training is softmax
regression from zero, written here in numpy for all agents at once, so that a cell takes about a second. Four planted groups
hold classes of their own, so that clustering has something to find.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant

from covey.agent.data.partition import fleet_data
from covey.coordinator.run.private_fold import Ledger, PrivateFold
from covey.shared.files import write_atomically
from covey.shared.numerics.metrics import adjusted_rand
from covey.shared.numerics.vectors import Layout, Tensor, Vector
from covey.shared.privacy.noise import Noise
from covey.shared.privacy.settings import SignaturePrivacy, noised
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.seeds import generator
from covey.shared.strategies.base import Phase, Report, Setup

OUT = Path(__file__).parent / "results" / "privacy.json"
CLASSES, GROUPS = 10, 4
ORDERS = (
    *range(2, 65),
    128,
    256,
)  # of Renyi: whole ones are quick to compute, others gain little here
DELTA = 1e-4  # below one over the number of agents, and over the examples of an agent
NOISES = (None, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # None: neither clip nor noise
SIGNATURE_NOISES = (
    0.03,
    0.1,
    0.3,
)  # of FedClust with noise 2 on its sums; elsewhere both are the same
TARGETS = (None, 32.0, 16.0, 8.0, 4.0, 2.0, 1.0, 0.5)

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Setting:
    """What is the same in all cells of one data set and kind of privacy.

    Client-level privacy needs many agents, for its noise is divided by their number: there are as many as the data
    can bear, with few examples each. DP-SGD needs many examples on a device: few agents share the same data.
    """

    agents: int
    limit: int | None
    rounds: int
    epochs: int
    batch: int
    lr: float
    clip: float


SETTINGS = {
    ("digits", "client"): Setting(120, None, 15, 2, 6, 0.5, 1.0),
    ("digits", "local"): Setting(20, None, 15, 2, 24, 0.5, 1.0),
    ("fashion-mnist", "client"): Setting(500, 14_000, 15, 2, 12, 0.05, 0.5),
    ("fashion-mnist", "local"): Setting(20, 14_000, 15, 2, 100, 0.1, 1.0),
}
TASKS: dict[str, dict[str, Any]] = {
    "digits": {"features": [1, 8, 8], "scale": 1 / 16},
    "fashion-mnist": {"features": [1, 28, 28], "scale": 1 / 255},
}


@dataclass(frozen=True)
class Cell:
    """One run. `noise` is the noise multiplier of sums (client) or the target epsilon (local); None: no privacy at all.
    `signature` is the noise multiplier of FedClust's signatures where it differs from that of the sums."""

    data: str
    kind: str
    method: str
    noise: float | None
    seed: int
    signature: float | None = None

    @property
    def group(self) -> str:
        """Names the cell but for its seed."""
        words = (self.data, self.kind, self.method, self.noise, self.signature)
        return "/".join(str(word) for word in words)

    @property
    def key(self) -> str:
        return f"{self.group}/{self.seed}"


def cells(data: str, seeds: Sequence[int]) -> list[Cell]:
    """All cells of a data set, those of one seed before those of the next."""
    found = []
    for seed in seeds:
        for method in ("fedavg", "fedclust"):
            found += [Cell(data, "client", method, noise, seed) for noise in NOISES]
        found += [
            Cell(data, "client", "fedclust", 2.0, seed, signature) for signature in SIGNATURE_NOISES
        ]
        for method in ("fedavg", "fedclust"):
            found += [Cell(data, "local", method, target, seed) for target in TARGETS]
    return found


def scenario(cell: Cell) -> Scenario:
    """The scenario that a coordinator would run."""
    setting = SETTINGS[cell.data, cell.kind]
    strategy: dict[str, Any] = {"name": cell.method}
    if cell.method == "fedclust":
        strategy |= {"n_clusters": GROUPS, "linkage": "ward"}
    partition = {"name": "grouped_labels", "groups": GROUPS}
    fleet = {
        "agents": setting.agents,
        "data": cell.data,
        "limit": setting.limit,
        "partition": partition,
    }
    return Scenario.model_validate(
        {
            "name": "privacy",
            "seed": cell.seed,
            "task": {**TASKS[cell.data], "classes": CLASSES, "model": {"name": "linear"}},
            "training": {"epochs": setting.epochs, "batch": setting.batch, "lr": setting.lr},
            "strategy": strategy,
            "rounds": {"count": setting.rounds},
            "privacy": privacy_of(cell, setting),
            "fleet": fleet,
        }
    )


def privacy_of(cell: Cell, setting: Setting) -> dict[str, Any] | None:
    """The scenario's section."""
    if cell.noise is None:
        return None
    if cell.kind == "local":
        return {
            "local": {"target_epsilon": cell.noise, "max_grad_norm": setting.clip, "delta": DELTA}
        }
    section: dict[str, Any] = {
        "client": {"clip": setting.clip, "noise_multiplier": cell.noise, "delta": DELTA}
    }
    if cell.method == "fedclust":
        signature = cell.noise if cell.signature is None else cell.signature
        section["signatures"] = {"clip": setting.clip, "noise_multiplier": signature}
    return section


class Agents:
    """All agents of a fleet and their softmax regressions, trained side by side.

    Models are (agents, classes, values + 1): the last column is the bias. Examples are (examples, values + 1), with a one
    at the end.
    """

    def __init__(self, plan: Scenario, data_root: Path | None) -> None:
        assert plan.fleet is not None
        data, split = fleet_data(plan, data_root)
        self.plan, self.seed = plan, plan.seed
        self.names = [agent_name(i, plan.fleet.agents) for i in range(plan.fleet.agents)]
        self.rows = [split.train(i) for i in range(len(self.names))]
        assert split.truth is not None
        self.truth = [int(group) for group in split.truth]
        self.inputs = _with_ones(data.features, plan.task.scale)
        self.targets = np.asarray(data.targets, np.int64)
        test = data.test_features if split.test_of == "test" else data.features
        test_targets = data.test_targets if split.test_of == "test" else data.targets
        self.tests = []
        for group in range(GROUPS):
            own = split.test(self.truth.index(group))
            self.tests.append(
                (_with_ones(test[own], plan.task.scale), np.asarray(test_targets)[own])
            )

    @property
    def layout(self) -> Layout:
        values = self.inputs.shape[1] - 1
        return Layout((Tensor("fc.weight", (CLASSES, values)), Tensor("fc.bias", (CLASSES,))), 2)

    def train(self, starts: Sequence[Vector], round_: int) -> list[Vector]:
        """Local SGD of every agent from its start (d,)."""
        training = self.plan.training
        models = np.stack([_matrix(start) for start in starts])
        draw = generator(self.seed, "benchmark order", round_)
        for _ in range(training.epochs):
            orders = [draw.permutation(rows) for rows in self.rows]
            for at in range(0, max(map(len, orders)), training.batch):
                batch = _padded([order[at : at + training.batch] for order in orders])
                errors = self._errors(models, batch)
                sizes = np.maximum((batch >= 0).sum(axis=1), 1)
                gradient = np.matmul(errors.swapaxes(1, 2), self.inputs[batch])
                models -= training.lr * gradient / sizes[:, None, None].astype(np.float32)
        return [_vector(model) for model in models]

    def train_privately(
        self, starts: Sequence[Vector], round_: int, clip: float, noise: float
    ) -> list[Vector]:
        """DP-SGD of every agent: Poisson samples, examples' gradients clipped, noise on their sum.

        The gradient of an example is an outer product, so its norm is that of the error times that of the input.
        """
        training = self.plan.training
        models = np.stack([_matrix(start) for start in starts])
        draw = generator(self.seed, "benchmark samples", round_)
        for _ in range(training.epochs * steps_per_epoch(self.rows, training.batch)):
            chosen = [
                rows[draw.random(len(rows)) < training.batch / len(rows)] for rows in self.rows
            ]
            batch = _padded(chosen)
            errors = self._errors(models, batch)
            inputs = self.inputs[batch]
            norms = np.linalg.norm(errors, axis=2) * np.linalg.norm(inputs, axis=2)
            errors *= np.minimum(1.0, clip / np.maximum(norms, 1e-12))[:, :, None].astype(
                np.float32
            )
            total = np.matmul(errors.swapaxes(1, 2), inputs)
            total += np.float32(clip * noise) * draw.standard_normal(total.shape, dtype=np.float32)
            models -= training.lr * total / training.batch
        return [_vector(model) for model in models]

    def accuracy(self, models: Sequence[Vector]) -> float:
        """Mean over agents of the accuracy of each one's model on the test data of its group."""
        scores: dict[tuple[int, int], float] = {}
        for group, model in zip(self.truth, models, strict=True):
            if (group, id(model)) not in scores:
                inputs, targets = self.tests[group]
                guesses = (inputs @ _matrix(model).T).argmax(axis=1)
                scores[group, id(model)] = float(np.mean(guesses == targets))
        return float(
            np.mean(
                [scores[group, id(model)] for group, model in zip(self.truth, models, strict=True)]
            )
        )

    def _errors(self, models: Floats, batch: Rows) -> Floats:
        """Chances minus truth of each example of each agent's batch, (agents, batch, classes); 0 where there is none."""
        inputs, targets = self.inputs[batch], self.targets[batch]
        logits = np.matmul(inputs, models.swapaxes(1, 2))
        logits -= logits.max(axis=2, keepdims=True)
        chances = np.exp(logits)
        chances /= chances.sum(axis=2, keepdims=True)
        chances -= np.eye(CLASSES, dtype=np.float32)[targets]
        chances *= (batch >= 0)[:, :, None]
        return np.asarray(chances, np.float32)


@lru_cache(maxsize=1)
def fleet_of(data: str, kind: str, seed: int, data_root: Path | None) -> Agents:
    """The agents that all cells of one data set, kind of privacy and seed have in common."""
    return Agents(scenario(Cell(data, kind, "fedavg", None, seed)), data_root)


def steps_per_epoch(rows: Sequence[Rows], batch: int) -> int:
    """Of the largest agent; all do as many, so that they can be trained side by side."""
    return -(-max(map(len, rows)) // batch)


def measured(cell: Cell, data_root: Path | None) -> dict[str, Any]:
    """Run one cell."""
    began = time.process_time()
    plan = scenario(cell)
    agents = fleet_of(cell.data, cell.kind, cell.seed, data_root)
    start = np.zeros(agents.layout.size, np.float32)
    training = plan.training
    strategy: Any = plan.strategy
    state = strategy.init(
        Setup((start,), agents.layout, plan.seed, plan.rounds.count, 1.0, training)
    )
    private = (
        PrivateFold(plan, plan.privacy, plan.name.encode() + bytes([plan.seed]), Ledger())
        if plan.privacy
        else None
    )
    local = plan.privacy.local if plan.privacy is not None else None
    phases = plan.rounds.count + (1 if cell.method == "fedclust" else 0)
    noise = spent = 0.0
    if local is not None:
        assert local.target_epsilon is not None
        steps = phases * training.epochs * steps_per_epoch(agents.rows, training.batch)
        rate = round(
            training.batch / min(map(len, agents.rows)) + 5e-4, 3
        )  # of the smallest agent, for all
        noise = multiplier_for(local.target_epsilon, rate, steps)
        spent = sampled_epsilon(noise, rate, steps)

    def trained(models: Sequence[Vector], round_: int) -> list[Vector]:
        if local is None:
            return agents.train(models, round_)
        return agents.train_privately(models, round_, local.max_grad_norm, noise)

    if cell.method == "fedclust":
        signatures = trained([start] * len(agents.names), -1)
        settings = plan.privacy.signatures if plan.privacy is not None else None
        if settings is not None:
            signatures = [
                _noised(one, start, settings, plan.seed, i) for i, one in enumerate(signatures)
            ]
        reports = [
            (name, Report({"signature": one}, 1))
            for name, one in zip(agents.names, signatures, strict=True)
        ]
        if private is not None:
            for name, report in reports:
                private.enter("signature", 1, name, report)
        state = strategy.fold(state, Phase("signature"), reports)
    for round_ in range(plan.rounds.count):
        ends = trained(served(strategy, state, agents.names), round_)
        models = zip(agents.names, agents.rows, ends, strict=True)
        reports = [(name, Report({"model": end}, len(rows))) for name, rows, end in models]
        if private is None:
            state = strategy.fold(state, Phase(), reports)
        else:
            state = private.fold(state, Phase(), reports)
            private.count_sums(Phase(), reports)
    clusters = strategy.assignment(state)
    found = [clusters[name] for name in agents.names] if clusters else []
    account = private.spent() if private is not None else {}
    epsilon = (
        account["client"]["epsilon"]
        if "client" in account
        else spent
        if local is not None
        else None
    )
    return {
        **asdict(cell),
        "accuracy": agents.accuracy(served(strategy, state, agents.names)),
        "epsilon": epsilon,
        "ari": adjusted_rand(found, agents.truth) if found else None,
        "setting": asdict(SETTINGS[cell.data, cell.kind]),
        "examples": int(np.median([len(rows) for rows in agents.rows])),
        "seconds": round(time.process_time() - began, 1),
    }


def served(strategy: Any, state: Any, names: Sequence[str]) -> list[Vector]:
    """Each agent's model."""
    models, clusters = strategy.clusters(state), strategy.assignment(state)
    return [models[clusters.get(name, 0)] for name in names]


@lru_cache(maxsize=4096)
def sampled_epsilon(noise: float, rate: float, steps: int) -> float:
    """Epsilon of DP-SGD, by dp-accounting's RDP accountant."""
    accountant = RdpAccountant(ORDERS)
    step = PoissonSampledDpEvent(min(rate, 1.0), GaussianDpEvent(noise))
    accountant.compose(SelfComposedDpEvent(step, steps))
    return float(accountant.get_epsilon(DELTA))


@lru_cache(maxsize=4096)
def multiplier_for(target: float, rate: float, steps: int) -> float:
    """The least noise that keeps so many steps below the target, to a hundredth."""
    low, high = 0.2, 400.0
    while high / low > 1.005:
        middle = (low * high) ** 0.5
        if sampled_epsilon(middle, rate, steps) > target:
            low = middle
        else:
            high = middle
    return high


def _noised(
    vector: Vector, base: Vector, settings: SignaturePrivacy, seed: int, agent: int
) -> Vector:
    return noised(vector, base, settings, Noise.simulated(seed, "benchmark signature", agent))


def _with_ones(features: npt.NDArray[Any], scale: float) -> Floats:
    flat = features.reshape(len(features), -1).astype(np.float32) * np.float32(scale)
    return np.concatenate([flat, np.ones((len(flat), 1), np.float32)], axis=1)


def _matrix(vector: Vector) -> Floats:
    """Weights and biases of a vector (d,) side by side."""
    values = vector.size // CLASSES - 1
    weights = vector[: CLASSES * values].reshape(CLASSES, values)
    biases = vector[CLASSES * values :].reshape(CLASSES, 1)
    return np.concatenate([weights, biases], axis=1)


def _vector(matrix: Floats) -> Vector:
    return np.concatenate([matrix[:, :-1].ravel(), matrix[:, -1]]).astype(np.float32)


def _padded(batches: Sequence[Rows]) -> Rows:
    """Batches of different sizes as one table; -1 where there is no example."""
    table = np.full((len(batches), max(1, *map(len, batches))), -1, np.int64)
    for row, batch in zip(table, batches, strict=True):
        row[: len(batch)] = batch
    return table


def table(rows: Sequence[dict[str, Any]], data: str, kind: str) -> list[str]:
    """A markdown table of one data set and kind of privacy: means over seeds, and their deviation."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if (row["data"], row["kind"]) == (data, kind):
            cell = Cell(**{name: row[name] for name in Cell.__dataclass_fields__})
            groups.setdefault(cell.group, []).append(row)
    first = "noise multiplier" if kind == "client" else "target epsilon"
    lines = [f"| method | {first} | epsilon | accuracy, % | ARI |", "|---|---:|---:|---:|---:|"]
    return lines + [_line(own) for own in groups.values()]


def _line(rows: Sequence[dict[str, Any]]) -> str:
    one = rows[0]
    accuracies = [100 * row["accuracy"] for row in rows]
    deviation = f" ± {np.std(accuracies, ddof=1):.1f}" if len(rows) > 1 else ""
    epsilons = [row["epsilon"] for row in rows]
    epsilon = "no bound" if None in epsilons else f"{max(epsilons):.2f}"
    rands = [row["ari"] for row in rows if row["ari"] is not None]
    ari = (
        f"{abs(round(float(np.mean(rands)), 2)):.2f}" if rands else "–"
    )  # chance may be a trace below 0
    noise = "no privacy" if one["noise"] is None else f"{one['noise']:g}"
    if one["kind"] == "client" and one["noise"] == 0:
        noise = "0 (clip only)"
    if one["signature"] is not None:
        noise += f", signatures {one['signature']:g}"
    return (
        f"| {one['method']} | {noise} | {epsilon} | {np.mean(accuracies):.1f}{deviation} | {ari} |"
    )


def tables(rows: Sequence[dict[str, Any]]) -> str:
    """All that was measured so far."""
    text: list[str] = []
    for (data, kind), setting in SETTINGS.items():
        own = [row for row in rows if (row["data"], row["kind"]) == (data, kind)]
        if own:
            name = "client-level" if kind == "client" else "example-level (DP-SGD)"
            seeds = ", ".join(str(seed) for seed in sorted({row["seed"] for row in own}))
            facts = f"{setting.agents} agents with about {own[0]['examples']} examples each, {setting.rounds} rounds"
            text += [f"\n{data}, {name}: {facts}, seeds {seeds}\n", *table(own, data, kind)]
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", choices=TASKS, nargs="+", default=["digits"])
    parser.add_argument("--data-root", type=Path, help="where named data sets lie")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument(
        "--only", default="", help="run only cells whose key holds this, e.g. client/fedavg"
    )
    parser.add_argument("--show", action="store_true", help="run nothing, print what is there")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    done: dict[str, dict[str, Any]] = (
        json.loads(given.out.read_text()) if given.out.exists() else {}
    )
    wanted = (
        [] if given.show else [cell for data in given.data for cell in cells(data, given.seeds)]
    )
    for cell in wanted:
        if cell.key in done or given.only not in cell.key:
            continue
        done[cell.key] = measured(cell, given.data_root)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(given.out, json.dumps(done, indent=0).encode())
    print(tables(list(done.values())))


if __name__ == "__main__":
    main()
