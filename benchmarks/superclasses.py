"""Fuzzy-CFL's setting (Tang et al. 2024): agents that mix two groups of labels, and how well a run finds the mixtures.

    python -m benchmarks.superclasses data cifar10.npz superclasses.npz [--seed 1]
    coordinator compare scenarios/fuzzy_cifar10_73.yaml --in-process --data-root .
    python -m benchmarks.superclasses run runs/fuzzy_cifar10_73/fuzzy/seed-1 cifar10.npz --major 0.7

`data` writes an .npz whose groups are the agents of both mixtures, 7:3 and 9:1: half of the agents have that share of
their samples from super-class 0 (the vehicles), the others from super-class 1. Their populations are `7to3 of 0`, `7to3
of 1` and so on. A file has the draw of one seed: the cells of another seed need a file of their own.

`run` prints the figures of a finished run:

- the squared error of the memberships that the method estimates, against the true mixtures: mean over agents of the sum
  over clusters, and that over K; clusters are matched to super-classes for the least error
- accuracy of each super-class's own cluster on all test images of that super-class, matched for the highest sum
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file
from scipy.optimize import linear_sum_assignment

from covey.agent.data import Dataset, fit, load
from covey.agent.policy import NO_CODE_RULES
from covey.agent.worker.learners import learner_for
from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.processes.launch import started
from covey.coordinator.view.table import NONE, Column, Table
from covey.extras.compare.rows import ComparisonRow, summaries
from covey.extras.compare.tables import tables
from covey.shared.numerics import metrics
from covey.shared.scenario.load import load_without_files
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.seeds import generator
from covey.shared.storage.files import model_files

FIRST = (0, 1, 8, 9)  # super-class 0: the vehicles of CIFAR-10
AGENTS = 20
MAJORS = {0.7: "7to3", 0.9: "9to1"}
# figures of a cell -> column, digits after the point, factor
COLUMNS = {
    "superclass_0_accuracy": ("super-class 0", 2, 100.0),
    "superclass_1_accuracy": ("super-class 1", 2, 100.0),
    "membership_mse": ("membership MSE", 4, 1.0),
    "membership_mse_mean": ("MSE / K", 4, 1.0),
}

Indices = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


# -- the data ---------------------------------------------------------------------------------------------------------


def mixtures(major: float, agents: int) -> npt.NDArray[np.float64]:
    """The share of both super-classes in each agent's samples, (agents, 2)."""
    share = np.full(agents, 1 - major)
    share[: (agents + 1) // 2] = major
    return np.stack([share, 1 - share], axis=1)


def divided(
    truth: npt.NDArray[np.float64],
    targets: Array,
    test_targets: Array,
    rng: np.random.Generator,
    first: Sequence[int] = FIRST,
) -> tuple[list[Indices], list[Indices]]:
    """The training and the test samples of each agent: as many for all as both super-classes suffice for."""
    pools, tests = (
        [np.flatnonzero(part == k) for k in (True, False)]
        for part in (np.isin(targets, first), np.isin(test_targets, first))
    )
    size = _largest_size(truth, pools)
    test_size = min(size // 5, _largest_size(truth, tests))
    return _mixed(truth, size, pools, rng), _mixed(truth, test_size, tests, rng)


def _largest_size(truth: npt.NDArray[np.float64], pools: Sequence[Indices]) -> int:
    sizes = [len(pool) for pool in pools]
    # the shares of two agents, one of each half, sum to one: a pool loses about agents * size / 2 samples
    size = 2 * min(sizes) // len(truth)
    while size and not np.all(_counts(truth, size).sum(axis=0) <= sizes):
        size -= 1
    return size


def _counts(truth: npt.NDArray[np.float64], size: int) -> Indices:
    first = np.round(truth[:, 0] * size).astype(np.int64)
    return np.stack([first, size - first], axis=1)


def _mixed(
    truth: npt.NDArray[np.float64], size: int, pools: Sequence[Indices], rng: np.random.Generator
) -> list[Indices]:
    """`size` samples for each agent, from both pools by its shares; no sample is drawn twice."""
    pieces = []
    for pool, counts in zip(pools, _counts(truth, size).T, strict=True):
        drawn = rng.permutation(pool)[: counts.sum()]
        pieces.append(np.split(drawn, np.cumsum(counts)[:-1]))
    return [np.concatenate(own) for own in zip(*pieces, strict=True)]


def write_data(data: Dataset, out: Path, seed: int, agents: int = AGENTS) -> None:
    """The samples of all agents of both mixtures, agent after agent."""
    train: list[Indices] = []
    test: list[Indices] = []
    groups: list[list[str]] = [[], []]
    populations: list[str] = []
    for major, label in MAJORS.items():
        truth = mixtures(major, agents)
        rng = generator(seed, "partition")
        parts = divided(truth, data.targets, data.test_targets, rng)
        for agent, rows in enumerate(zip(*parts, strict=True)):
            for held, names, own in zip((train, test), groups, rows, strict=True):
                held.append(own)
                names += [f"{label} {agent:02}"] * len(own)
            populations += [f"{label} of {int(agent >= (agents + 1) // 2)}"] * len(rows[0])
    row, test_row = np.concatenate(train), np.concatenate(test)
    np.savez(
        out,
        x=data.features[row],
        y=data.targets[row],
        x_test=data.test_features[test_row],
        y_test=data.test_targets[test_row],
        groups=groups[0],
        test_groups=groups[1],
        populations=populations,
        label_names=np.array(data.labels),
    )


# -- a finished run ---------------------------------------------------------------------------------------------------


def membership(
    estimated: Mapping[str, Sequence[float]], truth: Mapping[str, Sequence[float]]
) -> float | None:
    """The squared error over the agents that both know; None for none, or for another number of clusters."""
    both = sorted(estimated.keys() & truth.keys())
    if not both or len(estimated[both[0]]) != len(truth[both[0]]):
        return None
    found, true = (np.array([table[agent] for agent in both]) for table in (estimated, truth))
    errors = ((found[:, :, None] - true[:, None, :]) ** 2).mean(axis=0)
    return float(errors[linear_sum_assignment(errors)].sum())


def by_superclass(table: Sequence[Sequence[float]]) -> list[float] | None:
    """From accuracies (clusters, super-classes) that of each super-class's own cluster; a single model stands for all."""
    accuracies = np.array(table)
    if len(accuracies) == 1:
        return [float(one) for one in accuracies[0]]
    if accuracies.size == 0 or len(accuracies) < accuracies.shape[1]:
        return None
    _, clusters = linear_sum_assignment(-accuracies.T)
    return [float(accuracies[cluster, k]) for k, cluster in enumerate(clusters)]


def accuracies(scenario: Scenario, models: Path, data: Dataset) -> list[list[float]]:
    """Accuracy of each model file (rows) on all test images of each super-class (columns)."""
    of_first = np.isin(data.test_targets, FIRST)
    learner = learner_for(scenario.task, NO_CODE_RULES)
    layout = learner.layout(scenario.task, NO_CODE_RULES.allowed)
    rng = generator(scenario.seed, "superclasses")  # nothing is drawn: there are only predictions
    local = learner.local(
        fit(data, scenario.task),
        scenario.task,
        layout,
        training=scenario.training,
        rng=rng,
        rules=NO_CODE_RULES,
    )
    truth = local.targets("test")
    found = []
    for path in model_files(models):
        predicted = np.argmax(local.predict(layout.vector(load_file(path)), "test"), axis=1)
        found.append(
            [metrics.accuracy(truth[own], predicted[own]) for own in (of_first, ~of_first)]
        )
    return found


def figures(run: Path, data: Dataset, major: float) -> dict[str, float | None]:
    """The figures of a finished run, by the names in COLUMNS."""
    scenario = load_without_files(run / "scenario.yaml")
    method = scenario.method
    state = Checkpoint(run / "checkpoint").state(method.init(started(run, scenario)))
    assert scenario.fleet is not None
    agents = scenario.fleet.agents
    shares = mixtures(major, agents).tolist()
    truth = {agent_name(i, agents): share for i, share in enumerate(shares)}
    error = membership(method.shown(state).memberships, truth)
    own = by_superclass(accuracies(scenario, run / "models", data)) or (None, None)
    mean = None if error is None else error / 2
    return dict(zip(COLUMNS, (*own, error, mean), strict=True))


# -- the record -------------------------------------------------------------------------------------------------------


def with_columns(scenario: Scenario, rows: Sequence[ComparisonRow]) -> list[Table]:
    """The tables of a comparison, with the figures of super-classes where its rows have some, before the groups."""
    made = []
    for table in tables(scenario, summaries(scenario, rows)):
        label = table.title.partition(":")[0].partition(", ")[2]
        own = [row for row in rows if row.partition == label]
        place = table.headers.index("groups")
        for key, (title, digits, scale) in COLUMNS.items():
            if all(row.columns.get(key) is None for row in own):
                continue
            cells = [
                _words([row for row in own if row.method == line[0]], key, digits, scale)
                for line in table.rows
            ]
            columns = [
                *table.columns[:place],
                Column(title, is_number=True),
                *table.columns[place:],
            ]
            lines = [
                [*line[:place], cell, *line[place:]]
                for line, cell in zip(table.rows, cells, strict=True)
            ]
            table = replace(table, columns=columns, rows=lines)
            place += 1
        made.append(table)
    return made


def _words(rows: Sequence[ComparisonRow], key: str, digits: int, scale: float) -> str:
    """Mean and deviation over seeds; of one seed the figure alone."""
    values = [row.columns[key] for row in rows if row.columns.get(key) is not None]
    if not values:
        return NONE
    mean = f"{scale * fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean}±{scale * pstdev(values):.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("data", help="write the data of both mixtures")
    making.add_argument("source", type=Path)
    making.add_argument("out", type=Path)
    making.add_argument("--seed", type=int, default=1)
    measuring = commands.add_parser("run", help="print the figures of a finished run")
    measuring.add_argument("folder", type=Path)
    measuring.add_argument("data", type=Path, help="cifar10.npz, whose test part is predicted")
    measuring.add_argument("--major", type=float, choices=MAJORS, default=0.7)
    options = parser.parse_args()
    if options.command == "data":
        write_data(load(options.source), options.out, options.seed)
    else:
        print(json.dumps(figures(options.folder, load(options.data), options.major)))


if __name__ == "__main__":
    main()
