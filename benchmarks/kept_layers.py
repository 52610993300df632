"""Methods whose agents keep some layers or a part of a model, next to those that share all or nothing. Prints tables, writes JSON.

    python -m benchmarks.kept_layers [--seeds 1 2 3]

- mlp: 64 and 32 units, trained by NumPy
- cnn4: 8 filters, trained by torch; it has the group norm that FedBN keeps
- fashion: an MLP like the first, on 5 000 images of Fashion-MNIST, which must be below --data-root
- lenet, cifar: LeNet-5 on 20 000 images of Fashion-MNIST at 50 agents, and on 8 000 of CIFAR-10 at 40
- writers: LeNet-5 on the digits of 40 writers of MNIST, 20 census staff and 20 students; nothing else divides them

With LeNet-5 on divisions by label some methods have a second row, with the label prior of each agent (`task.label_prior: on`).

The first two have handwritten digits. 20 agents, with two labels an agent (label skew of 20 %) and with a Dirichlet division of 0.1. E-tuned is
fine-tuned for one epoch. Traffic counts float32 values of all rounds, both ways, without evaluations. Every cell is written to --out as soon
as it is finished, and a second start resumes after the last finished cell. `--table` runs nothing.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import mean_and_spread, record_options, resumed
from benchmarks.torch_runs import TorchClients, device_options, megabytes, repeatable, started
from covey.agent.data import Dataset, fit
from covey.agent.data.partition import client_dataset, fleet_data
from covey.coordinator.run.run import Run
from covey.coordinator.view.words import MODE_TITLES
from covey.extras.light.numpy_learner import NumpyLocal
from covey.shared.errors import PublicError
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.strategies.base import ClientId, Training
from covey.shared.wire.messages import OrderMessage
from covey.shared.work.at_hand import shuffle

OUT = Path(__file__).parent / "results" / "kept_layers.json"
MODES = ("server", "tuned", "last")
PARTITIONS: Mapping[str, Any] = {
    "skew20": {"name": "label_skew", "share": 0.2},
    "skew30": {"name": "label_skew", "share": 0.3},
    "dirichlet01": {"name": "dirichlet", "alpha": 0.1, "test": "proportional"},
    "writers": {"name": "by_group", "min_samples": 60, "populations": {"hsf0": 20, "hsf4": 20}},
}
SKEWED = ("skew20", "dirichlet01")
METHODS: Mapping[str, dict[str, Any]] = {
    "local": {"name": "local"},
    "fedavg": {"name": "fedavg"},
    "ditto": {"name": "ditto"},
    "fedper": {"name": "fedrep", "head": "joint"},
    "fedrep": {"name": "fedrep"},
    "fedrep, head last": {"name": "fedrep", "head": "last"},
    "fedbabu": {"name": "fedbabu"},
    "fedbn": {"name": "fedbn"},
    "scaffold": {"name": "scaffold"},
    "fedala": {"name": "fedala"},
    "feddbe": {"name": "feddbe"},
    "ifca": {"name": "ifca", "n_clusters": 4},
    "fedclust": {"name": "fedclust", "vote": "none"},
    "clove": {"name": "clove", "n_clusters": 4},
    "fedgwc": {"name": "fedgwc"},
    "pacfl": {"name": "pacfl", "vote": "none"},
}
OF_CLUSTERS = ("ifca", "fedclust", "clove", "fedgwc")
WITHOUT_NORM = tuple(method for method in METHODS if method not in ("fedbn", "pacfl"))
PRIOR = ", prior"  # ends the name of a method whose agents compute with their label prior
WITH_PRIOR = ("local", "fedavg", "ifca", "fedclust", "pacfl")
BY_LABEL = (*WITHOUT_NORM, "pacfl", *(method + PRIOR for method in WITH_PRIOR))
DIGITS = {"features": [1, 8, 8], "scale": 1 / 16}
FASHION = {"features": [1, 28, 28], "scale": 1 / 255}
COLOURED = {"features": [3, 32, 32], "scale": 1 / 255}


@dataclass(frozen=True)
class Setting:
    """What the runs of a table have in common."""

    model: Mapping[str, Any]
    task: Mapping[str, Any]
    data: Mapping[str, Any]
    methods: tuple[str, ...]
    rounds: int
    lr: float = 0.1
    agents: int = 20
    partitions: tuple[str, ...] = SKEWED
    neighbours: int = 0  # of a mode that the stored rows still have

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes of evaluation of its table."""
        return (*MODES, "knn") if self.neighbours else MODES


MLP = {"name": "mlp", "options": {"hidden": [64, 32]}}
SHARED = tuple(method for method in WITHOUT_NORM if method not in OF_CLUSTERS)
CNN = {"name": "cnn4", "options": {"filters": 8}}
LENET = {"name": "lenet5"}
SETTINGS = {
    "mlp": Setting(MLP, DIGITS, {"data": "digits"}, SHARED, rounds=30, neighbours=10),
    "cnn4": Setting(
        CNN, DIGITS, {"data": "digits"}, ("local", "fedavg", "fedper", "fedbn"), rounds=15
    ),
    "fashion": Setting(
        MLP, FASHION, {"data": "fashion-mnist", "limit": 5000}, WITHOUT_NORM, rounds=30, lr=0.05
    ),
    "lenet": Setting(
        LENET,
        FASHION,
        {"data": "fashion-mnist", "limit": 20000},
        BY_LABEL,
        rounds=20,
        lr=0.05,
        agents=50,
        partitions=("skew20", "skew30", "dirichlet01"),
    ),
    "cifar": Setting(
        LENET, COLOURED, {"data": "cifar10", "limit": 8000}, BY_LABEL, rounds=20, lr=0.05, agents=40
    ),
    "writers": Setting(
        LENET,
        FASHION,
        {"data": "mnist-writer"},
        WITHOUT_NORM,
        rounds=20,
        lr=0.05,
        agents=40,
        partitions=("writers",),
    ),
}


@dataclass(frozen=True)
class Cell:
    """One run."""

    model: str
    partition: str
    method: str
    seed: int

    @property
    def key(self) -> str:
        """The cell's name in the JSON file."""
        return f"{self.model}/{self.partition}/{self.method}/{self.seed}"


# neighbours had a mode of their own when the record was made
TITLES = {**MODE_TITLES, "knn": "E-knn"}


def scenario(cell: Cell) -> Scenario:
    """The scenario that a coordinator would run."""
    setting = SETTINGS[cell.model]
    prior = "on" if cell.method.endswith(PRIOR) else "auto"
    return Scenario.model_validate(
        {
            "name": "kept_layers",
            "seed": cell.seed,
            "task": {**setting.task, "classes": 10, "model": setting.model, "label_prior": prior},
            "training": {"epochs": 2, "batch": 10, "lr": setting.lr},
            "strategy": METHODS[cell.method.removesuffix(PRIOR)],
            "rounds": {"count": setting.rounds, "participation": 0.5},
            "fleet": {
                "agents": setting.agents,
                "partition": PARTITIONS[cell.partition],
                **setting.data,
            },
        }
    )


@cache
def agents_of(model: str, partition: str, seed: int, root: Path | None) -> dict[ClientId, Dataset]:
    """Each agent's data, the same for all methods."""
    scene = scenario(Cell(model, partition, "fedavg", seed))
    whole, split = fleet_data(scene, root)
    agents = SETTINGS[model].agents
    return {
        agent_name(index, agents): fit(client_dataset(whole, split, index), scene.task)
        for index in range(agents)
    }


class Trained(TorchClients):
    """Agents that train an MLP with NumPy, and all else with torch."""

    def trainer(self, data: Dataset, client: ClientId, order: OrderMessage) -> Any:
        work = order.work
        assert work is not None
        if self.scene.task.model.name != "mlp":
            return super().trainer(data, client, order)
        training = Training.model_validate(work.training)
        return NumpyLocal(
            data,
            self.scene.task,
            self.setup.whole,
            training=training,
            rng=shuffle(work, client),
            scaling=work.scaling,
        )


def measured(root: Path | None, cell: Cell) -> dict[str, Any]:
    """Accuracy in each mode and megabytes per agent, or why there are none."""
    try:
        return figures_of(root, cell)
    except PublicError as error:  # an agent's training diverged
        return {"failed": str(error)}


def figures_of(root: Path | None, cell: Cell) -> dict[str, Any]:
    """Accuracy in each mode, and megabytes per agent. Raises PublicError if a training diverges."""
    scene = scenario(cell)
    people = agents_of(cell.model, cell.partition, cell.seed, root)
    with tempfile.TemporaryDirectory() as folder:
        run = Trained(scene, started(scene), people).run(Path(folder))
        modes = {mode: accuracy(run, mode) for mode in SETTINGS[cell.model].modes}
        devices = ", ".join(sorted(set(run.members.by_agent(lambda one: one.device).values())))
        return {**modes, "mb": megabytes(run, len(people)), "device": devices}


def accuracy(run: Run, mode: str) -> float:
    """The mean over the agents that have something to test on, in percent."""
    shares = [
        figures[mode]["accuracy"]
        for figures in run.members.evaluation.values()
        if mode in figures and figures[mode]["n"]
    ]
    return round(100 * float(np.mean(shares)), 3)


def cells(
    models: Sequence[str], seeds: Sequence[int], partitions: Sequence[str], methods: Sequence[str]
) -> Iterator[Cell]:
    """All cells of the first seed come before any of the second."""
    for model, seed in itertools.product(models, seeds):
        setting = SETTINGS[model]
        for partition, method in itertools.product(setting.partitions, setting.methods):
            if partition in partitions and method in methods:
                yield Cell(model, partition, method, seed)


def table(found: Mapping[str, Mapping[str, float]], model: str, seeds: Sequence[int]) -> str:
    """Markdown: a row for each partition and method that has run with all seeds."""
    modes = SETTINGS[model].modes
    head = ("partition", "method", *[TITLES[mode] for mode in modes], "MB an agent")
    lines = [f"| {' | '.join(head)} |", "|---|---|" + "--:|" * (len(head) - 2)]
    for partition, method in itertools.product(SETTINGS[model].partitions, SETTINGS[model].methods):
        keys = [Cell(model, partition, method, seed).key for seed in seeds]
        if any(key not in found for key in keys):
            continue
        rows = [found[key] for key in keys]
        failed = sum("failed" in row for row in rows)
        if failed:
            text = f"diverged with {failed} of {len(rows)} seeds"
            lines.append(f"| {partition} | {method} | {text} |{' |' * len(modes)}")
            continue
        figures = [mean_and_spread([row[mode] for row in rows]) for mode in modes]
        size = f"{np.mean([row['mb'] for row in rows]):.2f}"
        lines.append(f"| {' | '.join([partition, method, *figures, size])} |")
    return "\n".join(lines)


def main() -> None:
    parser = record_options(__doc__, OUT, [1, 2, 3])
    device_options(parser)
    parser.add_argument(
        "--partitions", nargs="+", choices=list(PARTITIONS), default=list(PARTITIONS)
    )
    methods = list(dict.fromkeys([*METHODS, *BY_LABEL]))
    parser.add_argument("--methods", nargs="+", choices=methods, default=methods)
    parser.add_argument("--models", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--data-root", type=Path, help="the folder of fashion-mnist")
    options = parser.parse_args()
    repeatable(options)
    settings = {
        "settings": {name: asdict(one) for name, one in SETTINGS.items()},
        "partitions": PARTITIONS,
    }
    todo = cells(options.models, options.seeds, options.partitions, options.methods)
    planned = {cell.key: partial(measured, options.data_root, cell) for cell in todo}
    found = resumed(options, planned, settings)
    for model in options.models:
        print(f"\n{model}\n\n{table(found, model, options.seeds)}")


if __name__ == "__main__":
    main()
