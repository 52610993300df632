"""Accuracy of clustered methods with their defaults on fleets with clusters and without. Prints a table, writes JSON.

    python -m benchmarks.default_cut --data-root ../shared/data [--seeds 1 2 3] [--fleets writers har]

Every method keeps the default of every setting, the number of clusters included, and is compared with Local and FedAvg on
the same agents. `--rules` trains FedClust's first phase only, and applies every rule that chooses a cut to the signatures,
also where agents have log-normal numbers of samples.
Fleets with clusters: writers of two populations, digits in planted groups, Fashion-MNIST upside down for half of the
agents. Fleets whose agents differ without known clusters: people with a phone, two labels an agent, writers of one population.
Fleets without clusters, for which one is right: equal shares of digits and of Fashion-MNIST.

Each cell is written to --out as soon as it is finished, and a second start resumes after the last finished cell. `--table`
runs nothing and prints the finished cells; `--page` replaces the tables in a Markdown page that has them already.
"""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import record_options, show_tables
from benchmarks.torch_runs import TorchClients, repeatable, started
from covey.agent.data import Dataset, fit
from covey.agent.data.dataset import take
from covey.agent.data.partition import client_dataset, fleet_data
from covey.agent.data.survey import DataSurvey
from covey.agent.training.learner import TorchLocal
from covey.coordinator.fold.statistics import pooled
from covey.shared.files import write_atomically
from covey.shared.numerics.metrics import adjusted_rand
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.seeds import generator
from covey.shared.strategies.base import ClientId, Job, Report, Setup
from covey.shared.strategies.bases.cut import found as shifts_found
from covey.shared.strategies.fedclust import FedClust
from covey.shared.strategies.pacfl import Pacfl
from covey.shared.strategies.phase_names import CARD
from covey.shared.strategies.reading import folded

ROUNDS = 10
ALONE = ("local", "fedavg")
METHODS = (*ALONE, "fedclust", "pacfl", "cfl", "ifca", "fesem")
RULES: dict[str, FedClust | Pacfl] = {
    "fedclust": FedClust(),
    "final layers": FedClust(signature="final_layer"),
    "no gate": FedClust(gate="none"),
    "rotations": FedClust(choose="rotations", signature="final_layer", gate="none"),
    "pacfl": Pacfl(),
    "pacfl, rotations": Pacfl(choose="rotations", gate="none"),
}
FEWEST = 8  # samples that an agent keeps
SIGMA = 0.7  # of the logarithm of the share of its samples that an agent keeps
Found = dict[str, dict[str, Any]]  # the figures of each cell by its key
# points of E-tuned that a clustered method may fall below the worse of Local and FedAvg
TOLERANCE = 0.5
OUT = Path(__file__).parent / "results" / "default_cut.json"
MLP = {"name": "mlp", "options": {"hidden": 64}}
IMAGES = {"features": [1, 28, 28], "classes": 10, "scale": 1 / 255, "model": MLP}
DIGITS = {"features": [1, 8, 8], "classes": 10, "scale": 1 / 16, "model": MLP}
WINDOWS = {
    "features": [9, 128],
    "classes": 6,
    "model": {"name": "cnn1d"},
    "standardise": "federated",
}
PLAIN = {"epochs": 2, "batch": 10, "lr": 0.1}
WRITERS = {"name": "by_group", "min_samples": 100}


@dataclass(frozen=True)
class Fleet:
    """Sections of a scenario."""

    task: Mapping[str, Any]
    fleet: Mapping[str, Any]
    training: Mapping[str, Any]
    one: bool = False  # whether one cluster is the truth
    sigma: float = 0.0  # > 0: numbers of samples are log-normal


def _fleet(
    task: Mapping[str, Any],
    agents: int,
    data: str,
    partition: Mapping[str, Any],
    limit: int | None = None,
    *,
    one: bool = False,
    training: Mapping[str, Any] = PLAIN,
) -> Fleet:
    section = {"agents": agents, "data": data, "partition": partition, "limit": limit}
    return Fleet(task, section, training, one)


FLEETS = {
    "writers": _fleet(
        IMAGES, 24, "mnist-writer", {**WRITERS, "populations": {"hsf0": 12, "hsf4": 12}}
    ),
    "planted": _fleet(DIGITS, 20, "digits", {"name": "grouped_labels", "groups": 4}),
    "rotated": _fleet(IMAGES, 24, "fashion-mnist", {"name": "rotation"}, 2400),
    "people": _fleet(
        WINDOWS,
        30,
        "har",
        {"name": "by_group", "split": "time"},
        900,
        training={"epochs": 2, "batch": 16, "lr": 0.02, "momentum": 0.5},
    ),
    "two labels": _fleet(IMAGES, 30, "fashion-mnist", {"name": "label_skew", "share": 0.2}, 3000),
    "staff": _fleet(IMAGES, 24, "mnist-writer", {**WRITERS, "populations": {"hsf0": 24}}),
    "even digits": _fleet(DIGITS, 20, "digits", {"name": "iid"}, one=True),
    "even images": _fleet(IMAGES, 24, "fashion-mnist", {"name": "iid"}, 2400, one=True),
}
UNEQUAL = {f"{name}, log-normal": replace(fleet, sigma=SIGMA) for name, fleet in FLEETS.items()}


@dataclass(frozen=True)
class Cell:
    """One run."""

    fleet: str
    method: str
    seed: int

    @property
    def key(self) -> str:
        """The cell's name in the JSON file."""
        return f"{self.fleet}/{self.method}/{self.seed}"


def scenario(cell: Cell) -> Scenario:
    """The scenario that a coordinator would run."""
    fleet = (FLEETS | UNEQUAL)[cell.fleet]
    return Scenario.model_validate(
        {
            "name": "default_cut",
            "seed": cell.seed,
            "task": fleet.task,
            "training": fleet.training,
            "strategy": {"name": cell.method},
            "rounds": {"count": ROUNDS},
            "evaluation": {"tune_epochs": 1},
            "fleet": fleet.fleet,
        }
    )


@cache
def people(
    fleet: str, seed: int, data_root: str
) -> tuple[dict[ClientId, Dataset], tuple[int, ...]]:
    """Each agent's data and true cluster (nothing if they are not known), the same for all methods of a seed."""
    scene = scenario(Cell(fleet, "fedavg", seed))
    data, split = fleet_data(scene, data_root)
    owned: dict[ClientId, Dataset] = {}
    kept = kept_shares((FLEETS | UNEQUAL)[fleet].sigma, split.agents, seed)
    for index in range(split.agents):
        name = agent_name(index, split.agents)
        own = fit(client_dataset(data, split, index), scene.task)
        samples = max(int(kept[index] * len(own.targets)), FEWEST)
        order = np.random.default_rng([seed, index]).permutation(len(own.targets))
        owned[name] = take(own, np.sort(order[:samples]))
    truth: tuple[int, ...] = ()
    if split.truth is not None and len(np.unique(split.truth)) > 1:
        truth = tuple(split.truth.tolist())
    return owned, truth


def kept_shares(sigma: float, agents: int, seed: int) -> list[float]:
    """The share of its training samples that each agent keeps; the largest is 1."""
    shares = np.exp(sigma * np.random.default_rng(seed).standard_normal(agents))
    kept: list[float] = (shares / shares.max()).tolist()
    return kept


def measured(cell: Cell, data_root: str) -> dict[str, Any]:
    """E-server and E-tuned as macro averages over agents, the sizes of the clusters, ARI if the truth is known."""
    owned, truth = people(cell.fleet, cell.seed, data_root)
    scene = scenario(cell)
    clients = TorchClients(scene, started(scene), owned)
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run = clients.run(Path(folder))
    seconds = time.process_time() - began
    evaluation = list(run.facts.evaluation.values())
    server = [figures["server"]["accuracy"] for figures in evaluation]
    tuned = [figures["tuned"]["accuracy"] for figures in evaluation]
    clusters = run.strategy.assignment(run.state)
    labels = [clusters.get(name, -1) for name in owned]
    return {
        "server": float(np.mean(server)),
        "tuned": float(np.mean(tuned)),
        "sizes": sizes_of(labels) if clusters else [],
        "ari": adjusted_rand(labels, list(truth)) if truth and clusters else None,
        "seconds": round(seconds, 1),
    }


def sizes_of(labels: Sequence[int]) -> list[int]:
    """Sizes of the clusters, the largest first."""
    _, counts = np.unique(labels, return_counts=True)
    return sorted(counts.tolist(), reverse=True)


def judged(fleet: str, seed: int, data_root: str) -> dict[str, dict[str, Any]]:
    """Each rule's clusters from the signatures of one fleet: their sizes, and ARI if the truth is known."""
    owned, truth = people(fleet, seed, data_root)
    scene = scenario(Cell(fleet, "fedclust", seed))
    setup = started(scene)
    found: dict[str, dict[str, Any]] = {}
    by_kind: dict[tuple[str, str], list[tuple[ClientId, Report]]] = {}
    scaling = None
    if scene.task.standardise == "federated":
        scaling = _scaling(owned, scene)
    for label, strategy in RULES.items():
        kind = (strategy.name, getattr(strategy, "signature", ""))
        if kind not in by_kind:
            by_kind[kind] = [
                (client, signed(strategy, client, data, scene, setup, scaling))
                for client, data in owned.items()
            ]
        before: Any = strategy.init(setup)
        state: Any = folded(strategy, before, strategy.clustering_phase(before), by_kind[kind])
        labels = list(state.assign.values())
        found[label] = {
            "sizes": sizes_of(labels),
            "ari": adjusted_rand(labels, list(truth)) if truth else None,
        }
        if state.asks:
            found[label]["shift"] = list(shifts_found(state.chances))
    return found


def _local(
    client: ClientId,
    data: Dataset,
    scene: Scenario,
    setup: Setup,
    scaling: Mapping[str, Sequence[float]] | None,
) -> TorchLocal:
    draw = generator(scene.seed, "signature", client)
    return TorchLocal(data, scene.task, setup.whole, setup.training, draw, scaling)


def _scaling(owned: Mapping[ClientId, Dataset], scene: Scenario) -> dict[str, list[float]]:
    """Means and deviations of the fleet's channels."""
    return pooled([DataSurvey(data, scene.task).statistics() for data in owned.values()])


def signed(
    strategy: FedClust | Pacfl,
    client: ClientId,
    data: Dataset,
    scene: Scenario,
    setup: Setup,
    scaling: Mapping[str, Sequence[float]] | None,
) -> Report:
    """The report of an agent's signature."""
    job = Job(
        "signature",
        0,
        client,
        scene.seed,
        setup.starts,
        {CARD: 1},
        None,
        setup.layout,
        setup.training,
    )
    report, _ = strategy.work(job, _local(client, data, scene, setup, scaling), {})
    return report


def cells(fleets: Sequence[str], seeds: Sequence[int]) -> Iterator[Cell]:
    """All cells of the first seed come before any of the second."""
    for seed, fleet, method in itertools.product(seeds, fleets, METHODS):
        yield Cell(fleet, method, seed)


def of(found: Found, fleet: str, label: str, key: str) -> list[Any]:
    """A figure of all finished seeds, in order."""
    values: list[Any] = []
    for name, figures in sorted(found.items()):
        own_fleet, own_label, _ = name.split("/")
        if (own_fleet, own_label) == (fleet, label):
            values.append(figures[key])
    return values


def clusters_of(found: Found, fleet: str, label: str) -> str:
    """Numbers of clusters seed by seed, and ARI if the truth is known."""
    sizes = of(found, fleet, label, "sizes")
    numbers = ""
    if any(sizes):
        numbers = ", ".join(str(len(one)) for one in sizes)
    rands = [f"{rand:.2f}" for rand in of(found, fleet, label, "ari") if rand is not None]
    if not rands:
        return numbers
    return f"{numbers} ({', '.join(rands)})"


def rules_table(rules: Found) -> str:
    """Markdown: a row per fleet, a column per rule."""
    head = " | ".join(RULES)
    lines = [f"| signatures of | shift found | {head} |", "|---|---|" + "---|" * len(RULES)]
    for fleet in FLEETS | UNEQUAL:
        columns = [clusters_of(rules, fleet, label) for label in RULES]
        if any(columns):
            shifts = [" ".join(one) or "none" for one in of(rules, fleet, "fedclust", "shift")]
            row = " | ".join([", ".join(shifts), *columns])
            lines.append(f"| {fleet} | {row} |")
    return "\n".join(lines)


def table(found: Found) -> str:
    """Markdown: a row per fleet and method; percent as means over seeds, clusters and ARI seed by seed."""
    lines = ["| fleet | method | clusters (ARI) | E-server | E-tuned |", "|---|---|---|---:|---:|"]
    for fleet, method in itertools.product(FLEETS, METHODS):
        if not of(found, fleet, method, "tuned"):
            continue
        server = percent(found, fleet, method, "server")
        tuned = percent(found, fleet, method, "tuned")
        clusters = ""
        if method not in ALONE:
            clusters = clusters_of(found, fleet, method)
        lines.append(f"| {fleet} | {method} | {clusters} | {server:.1f} | {tuned:.1f} |")
    return "\n".join(lines)


def percent(found: Found, fleet: str, method: str, mode: str) -> float:
    """The mean over the seeds."""
    return 100 * float(np.mean(of(found, fleet, method, mode)))


def behind(found: Found) -> dict[tuple[str, str], float]:
    """By fleet and clustered method: points of E-tuned below the worse of Local and FedAvg, if they exceed 0.5."""
    gaps: dict[tuple[str, str], float] = {}
    for fleet, method in itertools.product(FLEETS, METHODS):
        finished = [of(found, fleet, one, "tuned") for one in (method, *ALONE)]
        if method in ALONE or not all(finished):
            continue
        own = percent(found, fleet, method, "tuned")
        worse = min(percent(found, fleet, one, "tuned") for one in ALONE)
        gap = worse - own
        if gap > TOLERANCE:
            gaps[fleet, method] = gap
    return gaps


def main() -> None:
    parser = record_options(__doc__, OUT, [1, 2, 3])
    parser.add_argument("--data-root", default="../shared/data")
    parser.add_argument("--fleets", nargs="+", default=list(FLEETS), choices=list(FLEETS))
    parser.add_argument(
        "--rules", action="store_true", help="no full runs: only apply each rule to the signatures"
    )
    options = parser.parse_args()
    repeatable()
    record: dict[str, Any] = {}
    if options.out.exists():
        record = json.loads(options.out.read_text())
    rules: Found = record.get("rules", {})
    found: Found = record.get("cells", {})
    if options.rules:
        unequal = [f"{fleet}, log-normal" for fleet in options.fleets]
        for seed, fleet in itertools.product(options.seeds, [*options.fleets, *unequal]):
            if all(f"{fleet}/{label}/{seed}" in rules for label in RULES):
                continue
            for label, figures in judged(fleet, seed, options.data_root).items():
                rules[f"{fleet}/{label}/{seed}"] = figures
            write_record(options.out, rules, found)
    elif not options.table:
        for cell in cells(options.fleets, options.seeds):
            if cell.key in found:
                continue
            found[cell.key] = measured(cell, options.data_root)
            print(cell.key, found[cell.key], flush=True)
            write_record(options.out, rules, found)
    show_tables(options, {"signatures of": rules_table(rules), "fleet": table(found)})
    for (fleet, method), points in behind(found).items():
        print(
            f"{method} on {fleet}: {points:.1f} points of E-tuned below the worse of Local and FedAvg"
        )


def write_record(out: Path, rules: Found, found: Found) -> None:
    """Write the finished cells, with the number of rounds that all of them share."""
    record = {"rounds": ROUNDS, "rules": rules, "cells": found}
    write_atomically(out, json.dumps(record, indent=1).encode())


if __name__ == "__main__":
    main()
