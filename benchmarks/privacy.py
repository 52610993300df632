"""Accuracy against epsilon: client-level privacy of FedAvg and FedClust, and DP-SGD on devices; digits, Fashion-MNIST.

    python benchmarks/privacy.py --data digits
    python benchmarks/privacy.py --data fashion-mnist --data-root ../shared/data
    python benchmarks/privacy.py --show

Cells that are finished stay in the JSON file and are not run again; the program prints tables in markdown. The
coordinator's half of a cell (clustering, clip, noise, account) is the code of every run. Local training is softmax
regression from zero, written here in numpy for all agents at once, so that a cell takes about a second. Four planted groups
hold classes of their own, so that clustering has something to find.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
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

from covey.agent.data.partition import client_dataset, fleet_data
from covey.extras.private.private_sums import Ledger, PrivateSums
from covey.shared.numerics.metrics import adjusted_rand
from covey.shared.numerics.vectors import Layout, Tensor, Vector
from covey.shared.privacy.settings import Noise, noised
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.seeds import generator
from covey.shared.storage.files import write_atomically
from covey.shared.strategies.base import Phase, Setup
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.reading import folded

OUT = Path(__file__).parent / "results" / "privacy.json"
CLASSES = 10
GROUPS = 4
# of Renyi: whole ones are quick to compute, others gain little here
ORDERS = (*range(2, 65), 128, 256)
DELTA = 1e-4  # below one over the number of agents, and over the examples of an agent
NOISES = (None, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # None: neither clip nor noise
# of FedClust with noise 2 on its sums; elsewhere both are the same
SIGNATURE_NOISES = (0.03, 0.1, 0.3)
TARGETS = (None, 32.0, 16.0, 8.0, 4.0, 2.0, 1.0, 0.5)
METHODS = ("fedavg", "fedclust")

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Setting:
    """What all cells of one data set and kind of privacy have in common.

    Client-level privacy needs many agents, because its noise is divided by their number: as many as the data can bear,
    with few examples each. DP-SGD needs many examples on a device: few agents share the same data.
    """

    agents: int
    limit: int | None  # training samples of the whole fleet
    rounds: int
    epochs: int
    batch: int
    lr: float
    clip: float  # norm of a step (client) or of an example's gradient (local)


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
    """One run."""

    data: str
    kind: str  # "client" or "local"
    method: str
    noise: float | None  # multiplier of sums (client) or target epsilon (local); None: no privacy
    seed: int
    signature: float | None = None  # noise multiplier of signatures, if it is not that of the sums

    @property
    def group(self) -> str:
        """Names the cell but for its seed."""
        words = (self.data, self.kind, self.method, self.noise, self.signature)
        return "/".join([str(word) for word in words])

    @property
    def key(self) -> str:
        """The cell's name in the JSON file."""
        return f"{self.group}/{self.seed}"


def cells(data: str, seeds: Sequence[int]) -> list[Cell]:
    """All cells of a data set, those of one seed before those of the next."""
    found: list[Cell] = []
    for seed in seeds:
        for method, noise in itertools.product(METHODS, NOISES):
            found.append(Cell(data, "client", method, noise, seed))
        for signature in SIGNATURE_NOISES:
            found.append(Cell(data, "client", "fedclust", 2.0, seed, signature))
        for method, target in itertools.product(METHODS, TARGETS):
            found.append(Cell(data, "local", method, target, seed))
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
        signature = cell.signature
        if signature is None:
            signature = cell.noise
        section["signatures"] = {"clip": setting.clip, "noise_multiplier": signature}
    return section


class Agents:
    """All agents of a fleet and their softmax regressions, trained side by side.

    Models are (agents, classes, values + 1): the last column is the bias. Examples are (examples, values + 1), with a one
    at the end.
    """

    plan: Scenario
    names: list[str]  # of the agents
    rows: list[Rows]  # each agent's training examples
    truth: list[int]  # each agent's group
    inputs: Floats  # (examples, values + 1), all training examples
    targets: Rows  # (examples,)
    tests: list[tuple[Floats, Rows]]  # each group's test examples and their classes

    def __init__(self, plan: Scenario, data_root: Path | None) -> None:
        data, split = fleet_data(plan, data_root)
        assert split.truth is not None
        agents = range(split.agents)
        self.plan = plan
        self.seed = plan.seed
        self.names = [agent_name(agent, split.agents) for agent in agents]
        self.rows = [split.train(agent) for agent in agents]
        self.truth = [int(group) for group in split.truth]
        self.inputs = _with_ones(data.features, plan.task.scale)
        self.targets = np.asarray(data.targets, np.int64)
        self.tests = []
        for group in range(GROUPS):
            own = client_dataset(data, split, self.truth.index(group))
            inputs = _with_ones(own.test_features, plan.task.scale)
            self.tests.append((inputs, own.test_targets))

    @property
    def layout(self) -> Layout:
        """Of a softmax regression."""
        values = self.inputs.shape[1] - 1
        weight = Tensor("fc.weight", (CLASSES, values))
        bias = Tensor("fc.bias", (CLASSES,))
        return Layout((weight, bias), 2)

    def train(self, starts: Sequence[Vector], round_: int) -> list[Vector]:
        """Local SGD of every agent from its start (d,)."""
        training = self.plan.training
        models = np.stack([_matrix(start) for start in starts])
        draw = generator(self.seed, "benchmark order", round_)
        for _ in range(training.epochs):
            orders = [draw.permutation(rows) for rows in self.rows]
            for start in range(0, max(len(order) for order in orders), training.batch):
                end = start + training.batch
                batch = _padded([order[start:end] for order in orders])
                errors = self._errors(models, batch)
                sizes = np.maximum((batch >= 0).sum(axis=1), 1).astype(np.float32)
                total = np.matmul(errors.swapaxes(1, 2), self.inputs[batch])
                models -= training.lr * total / sizes[:, None, None]
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
            samples: list[Rows] = []
            for rows in self.rows:
                rate = training.batch / len(rows)
                drawn = draw.random(len(rows)) < rate
                samples.append(rows[drawn])
            batch = _padded(samples)
            errors = self._errors(models, batch)
            inputs = self.inputs[batch]
            error_norms = np.linalg.norm(errors, axis=2)
            norms = np.maximum(error_norms * np.linalg.norm(inputs, axis=2), 1e-12)
            shrink = np.minimum(1.0, clip / norms).astype(np.float32)
            errors *= shrink[:, :, None]
            total = np.matmul(errors.swapaxes(1, 2), inputs)
            noise_of_step = draw.standard_normal(total.shape, dtype=np.float32)
            total += np.float32(clip * noise) * noise_of_step
            models -= training.lr * total / training.batch
        return [_vector(model) for model in models]

    def accuracy(self, models: Sequence[Vector]) -> float:
        """Mean over agents of the accuracy of each one's model on the test data of its group."""
        known: dict[tuple[int, int], float] = {}  # by group and model: most agents share both
        scores: list[float] = []
        for group, model in zip(self.truth, models, strict=True):
            key = (group, id(model))
            if key not in known:
                inputs, targets = self.tests[group]
                logits = inputs @ _matrix(model).T
                guesses = logits.argmax(axis=1)
                known[key] = float(np.mean(guesses == targets))
            scores.append(known[key])
        return float(np.mean(scores))

    def _errors(self, models: Floats, batch: Rows) -> Floats:
        """Chances minus truth of each example, (agents, batch, classes); 0 for padding, which is -1 in `batch`."""
        inputs = self.inputs[batch]
        targets = self.targets[batch]
        logits = np.matmul(inputs, models.swapaxes(1, 2))
        logits -= logits.max(axis=2, keepdims=True)
        chances = np.exp(logits)
        chances /= chances.sum(axis=2, keepdims=True)
        one_hot = np.eye(CLASSES, dtype=np.float32)
        chances -= one_hot[targets]
        is_example = batch >= 0
        chances *= is_example[:, :, None]
        return np.asarray(chances, np.float32)


@lru_cache(maxsize=1)
def fleet_of(data: str, kind: str, seed: int, data_root: Path | None) -> Agents:
    """The agents that all cells of one data set, kind of privacy and seed have in common."""
    return Agents(scenario(Cell(data, kind, "fedavg", None, seed)), data_root)


def steps_per_epoch(rows: Sequence[Rows], batch: int) -> int:
    """Of the largest agent; all make as many, so that they can be trained side by side."""
    largest = max(len(own) for own in rows)
    return math.ceil(largest / batch)


@dataclass(frozen=True)
class LocalNoise:
    """DP-SGD of all agents alike."""

    clip: float
    multiplier: float
    epsilon: float  # of the whole run

    @classmethod
    def of(cls, cell: Cell, plan: Scenario, agents: Agents) -> LocalNoise | None:
        """The least noise that keeps every agent below the cell's target; None without one."""
        if plan.privacy is None or plan.privacy.local is None:
            return None
        section = plan.privacy.local
        training = plan.training
        assert section.target_epsilon is not None
        phases = plan.rounds.count + 1  # one in reserve, as an agent has it
        if cell.method == "fedclust":
            phases += 1  # that of the signatures
        steps = phases * training.epochs * steps_per_epoch(agents.rows, training.batch)
        # the rate of the smallest agent, rounded up, stands for all
        smallest = min(len(rows) for rows in agents.rows)
        rate = round(training.batch / smallest + 5e-4, 3)
        multiplier = multiplier_for(section.target_epsilon, rate, steps)
        return cls(section.max_grad_norm, multiplier, sampled_epsilon(multiplier, rate, steps))


class Run:
    """One cell's run: a coordinator's half, and all agents side by side."""

    def __init__(self, cell: Cell, data_root: Path | None) -> None:
        self.plan = scenario(cell)
        self.agents = fleet_of(cell.data, cell.kind, cell.seed, data_root)
        self.strategy: Any = self.plan.strategy
        self.start = np.zeros(self.agents.layout.size, np.float32)
        setup = Setup(
            (self.start,),
            self.agents.layout,
            self.plan.seed,
            self.plan.rounds.count,
            1.0,
            self.plan.training,
        )
        self.state = self.strategy.init(setup)
        self.local_noise = LocalNoise.of(cell, self.plan, self.agents)
        self.private: PrivateSums | None = None  # the coordinator's account and noise
        if self.plan.privacy:
            key = self.plan.name.encode() + bytes([self.plan.seed])
            self.private = PrivateSums(self.plan, self.plan.privacy, key, Ledger())

    def trained(self, models: Sequence[Vector], round_: int) -> list[Vector]:
        """Every agent's model after its training."""
        noise = self.local_noise
        if noise is None:
            return self.agents.train(models, round_)
        return self.agents.train_privately(models, round_, noise.clip, noise.multiplier)

    def cluster(self) -> None:
        """FedClust's phase before the rounds."""
        agents = self.agents
        signatures = self.trained([self.start] * len(agents.names), -1)
        if self.plan.privacy is not None and self.plan.privacy.signatures is not None:
            settings = self.plan.privacy.signatures
            for index, bare in enumerate(signatures):
                noise = Noise.simulated(self.plan.seed, "benchmark signature", index)
                signatures[index] = noised(bare, self.start, settings, noise)
        reports: list[tuple[str, Report]] = []
        for name, signature in zip(agents.names, signatures, strict=True):
            reports.append((name, Report({"signature": signature}, 1)))
        if self.private is not None:
            for name, report in reports:
                self.private.enter("signature", 1, name, report)
        self.state = folded(self.strategy, self.state, Phase("signature"), reports=reports)

    def round(self, round_: int) -> None:
        """Training of every agent, and the fold."""
        agents = self.agents
        ends = self.trained(self.served(), round_)
        reports: list[tuple[str, Report]] = []
        for name, rows, end in zip(agents.names, agents.rows, ends, strict=True):
            reports.append((name, Report({"model": end}, len(rows))))
        if self.private is None:
            self.state = folded(self.strategy, self.state, Phase(), reports=reports)
        else:
            sums, bare = self.private.sums(self.state, Phase(), reports, step=round_)
            self.state = self.strategy.fold(self.state, Phase(), sums, bare)
            self.private.count_sums(Phase(), reports, self.state)

    def served(self) -> list[Vector]:
        """Each agent's model."""
        models = self.strategy.clusters(self.state)
        clusters = self.strategy.assignment(self.state)
        return [models[clusters.get(name, 0)] for name in self.agents.names]

    def epsilon(self) -> float | None:
        """What the run has spent; None without any privacy."""
        account = self.private.spent() if self.private is not None else {}
        if "client" in account:
            spent: float | None = account["client"]["epsilon"]  # None: no bound
            return spent
        if self.local_noise is not None:
            return self.local_noise.epsilon
        return None

    def rand_index(self) -> float | None:
        """Adjusted Rand index of the clusters; None for a method without clusters."""
        clusters = self.strategy.assignment(self.state)
        if not clusters:
            return None
        return adjusted_rand([clusters[name] for name in self.agents.names], self.agents.truth)


def measured(cell: Cell, data_root: Path | None) -> dict[str, Any]:
    """Run one cell."""
    began = time.process_time()
    run = Run(cell, data_root)
    if cell.method == "fedclust":
        run.cluster()
    for round_ in range(run.plan.rounds.count):
        run.round(round_)
    examples = [len(rows) for rows in run.agents.rows]
    return {
        **asdict(cell),
        "accuracy": run.agents.accuracy(run.served()),
        "epsilon": run.epsilon(),
        "ari": run.rand_index(),
        "setting": asdict(SETTINGS[cell.data, cell.kind]),
        "examples": int(np.median(examples)),
        "seconds": round(time.process_time() - began, 1),
    }


@lru_cache(maxsize=4096)
def sampled_epsilon(noise: float, rate: float, steps: int) -> float:
    """Epsilon of DP-SGD, by dp-accounting's RDP accountant."""
    accountant = RdpAccountant(ORDERS)
    step = PoissonSampledDpEvent(min(rate, 1.0), GaussianDpEvent(noise))
    accountant.compose(SelfComposedDpEvent(step, steps))
    return float(accountant.get_epsilon(DELTA))


@lru_cache(maxsize=4096)
def multiplier_for(target: float, rate: float, steps: int) -> float:
    """The least noise that keeps this number of steps below the target, to a hundredth."""
    low = 0.2
    high = 400.0
    while high / low > 1.005:
        middle = (low * high) ** 0.5
        if sampled_epsilon(middle, rate, steps) > target:
            low = middle
        else:
            high = middle
    return high


def _with_ones(features: npt.NDArray[Any], scale: float) -> Floats:
    """Scaled examples (n, values + 1), with a one at the end of each."""
    n = len(features)
    flat = features.reshape(n, -1).astype(np.float32)
    scaled = flat * np.float32(scale)
    ones = np.ones((n, 1), np.float32)
    return np.concatenate([scaled, ones], axis=1)


def _matrix(vector: Vector) -> Floats:
    """Weights and biases of a vector (d,) side by side."""
    cut = vector.size - CLASSES
    weights = vector[:cut].reshape(CLASSES, -1)
    biases = vector[cut:].reshape(CLASSES, 1)
    return np.concatenate([weights, biases], axis=1)


def _vector(matrix: Floats) -> Vector:
    """The vector (d,) of a matrix of weights and biases."""
    weights = matrix[:, :-1].ravel()
    biases = matrix[:, -1]
    return np.concatenate([weights, biases]).astype(np.float32)


def _padded(batches: Sequence[Rows]) -> Rows:
    """Batches of different sizes as one table, padded with -1."""
    sizes = [len(batch) for batch in batches]
    table = np.full((len(batches), max(1, *sizes)), -1, np.int64)
    for row, batch in zip(table, batches, strict=True):
        row[: len(batch)] = batch
    return table


def table(rows: Sequence[dict[str, Any]], data: str, kind: str) -> list[str]:
    """A markdown table of one data set and kind of privacy: means over seeds, and their deviation."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if (row["data"], row["kind"]) == (data, kind):
            settings = {name: row[name] for name in Cell.__dataclass_fields__}
            groups.setdefault(Cell(**settings).group, []).append(row)
    first = "noise multiplier" if kind == "client" else "target epsilon"
    lines = [f"| method | {first} | epsilon | accuracy, % | ARI |", "|---|---:|---:|---:|---:|"]
    for own in groups.values():
        lines.append(_line(own))
    return lines


def _line(rows: Sequence[dict[str, Any]]) -> str:
    """The line of one cell: the mean over its seeds."""
    one = rows[0]
    percent = [100 * row["accuracy"] for row in rows]
    accuracy = f"{np.mean(percent):.1f}"
    if len(rows) > 1:
        deviation = np.std(percent, ddof=1)
        accuracy += f" ± {deviation:.1f}"
    epsilons = [row["epsilon"] for row in rows]
    epsilon = "no bound"
    if None not in epsilons:
        epsilon = f"{max(epsilons):.2f}"
    rands = [row["ari"] for row in rows if row["ari"] is not None]
    ari = "–"
    if rands:
        mean = round(float(np.mean(rands)), 2)
        ari = f"{abs(mean):.2f}"  # chance may be a trace below 0
    return f"| {one['method']} | {_noise_of(one)} | {epsilon} | {accuracy} | {ari} |"


def _noise_of(row: dict[str, Any]) -> str:
    """A cell's noise, in words."""
    noise = "no privacy"
    if row["noise"] is not None:
        noise = f"{row['noise']:g}"
    if row["kind"] == "client" and row["noise"] == 0:
        noise = "0 (clip only)"
    if row["signature"] is not None:
        noise += f", signatures {row['signature']:g}"
    return noise


def tables(rows: Sequence[dict[str, Any]]) -> str:
    """Everything measured so far."""
    text: list[str] = []
    for (data, kind), setting in SETTINGS.items():
        own = [row for row in rows if (row["data"], row["kind"]) == (data, kind)]
        if not own:
            continue
        name = "client-level" if kind == "client" else "example-level (DP-SGD)"
        seeds = sorted({str(row["seed"]) for row in own})
        examples = own[0]["examples"]
        facts = (
            f"{setting.agents} agents with about {examples} examples each, {setting.rounds} rounds"
        )
        text.append(f"\n{data}, {name}: {facts}, seeds {', '.join(seeds)}\n")
        text += table(own, data, kind)
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", choices=TASKS, nargs="+", default=["digits"])
    parser.add_argument("--data-root", type=Path, help="where named data sets lie")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument(
        "--only", default="", help="run only cells whose key holds this, e.g. client/fedavg"
    )
    parser.add_argument("--show", action="store_true", help="run nothing, print finished cells")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    done: dict[str, dict[str, Any]] = {}
    if options.out.exists():
        done = json.loads(options.out.read_text())
    planned: list[Cell] = []
    if not options.show:
        for data in options.data:
            planned += cells(data, options.seeds)
    for cell in planned:
        if cell.key in done or options.only not in cell.key:
            continue
        done[cell.key] = measured(cell, options.data_root)
        content = json.dumps(done, indent=0)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(options.out, content.encode())
    print(tables(list(done.values())))


if __name__ == "__main__":
    main()
