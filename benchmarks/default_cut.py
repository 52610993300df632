"""What the defaults of clustered methods make of eight fleets, with clusters and without; prints a table, writes JSON.

    python -m benchmarks.default_cut --data-root ../shared/data [--seeds 1 2 3] [--fleets writers har]

Every method has the number of clusters, and all else, as it comes; it runs beside Local and FedAvg on the same agents.
`--rules` trains nothing but FedClust's first phase, and asks every rule that chooses a cut what it makes of the signatures.
Fleets with clusters: writers of two populations, digits in planted groups, Fashion-MNIST upside down for half of the
agents. Fleets whose agents differ without known clusters: people with a phone, two labels an agent, writers of one population.
Fleets without any: equal shares of digits and of Fashion-MNIST, where one cluster is right.

Each cell is written to --out as soon as it is done, and a second start continues where the first one ended. `--table`
runs nothing and prints what there is; `--page` puts the tables into a Markdown page that has them already.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from covey.agent.data import Dataset, fit
from covey.agent.data.partition import client_dataset, fleet_data
from covey.agent.training.learner import TorchLocal
from covey.agent.training.models import initial
from covey.coordinator.processes.launch import setup_of
from covey.coordinator.run.folding import pooled
from covey.coordinator.run.rules import rules_of
from covey.coordinator.simulate.simulation import InProcess
from covey.shared.client import shuffle
from covey.shared.files import write_atomically
from covey.shared.numerics.metrics import adjusted_rand
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.seeds import generator
from covey.shared.strategies.base import ClientId, Job, Report, Setup, Training
from covey.shared.strategies.fedclust import FedClust
from covey.shared.strategies.pacfl import Pacfl
from covey.shared.wire.messages import OrderMessage

ROUNDS = 10
ALONE = ("local", "fedavg")
METHODS = (*ALONE, "fedclust", "pacfl", "cfl", "ifca", "fesem")
RULES: dict[str, FedClust | Pacfl] = {
    "fedclust, gap": FedClust(choose="gap"),
    "fedclust, silhouette": FedClust(choose="silhouette"),
    "fedclust, rotations": FedClust(),
    "pacfl, gap": Pacfl(choose="gap"),
    "pacfl, rotations": Pacfl(),
}
Found = dict[str, dict[str, Any]]  # the figures of each cell by its key
TOLERANCE = (
    0.5  # points of E-tuned that a clustered method may fall below the worse of Local and FedAvg
)
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
    """Task, training section and fleet section; `one` where one cluster is the truth."""

    task: Mapping[str, Any]
    fleet: Mapping[str, Any]
    training: Mapping[str, Any]
    one: bool = False


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
    return Fleet(
        task,
        {"agents": agents, "data": data, "partition": partition, "limit": limit},
        training,
        one,
    )


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


@dataclass(frozen=True)
class Cell:
    """One run."""

    fleet: str
    method: str
    seed: int

    @property
    def key(self) -> str:
        return f"{self.fleet}/{self.method}/{self.seed}"


def scenario(cell: Cell) -> Scenario:
    fleet = FLEETS[cell.fleet]
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
    """Everybody's data and true clusters (none where they are not known), the same for all methods of a seed."""
    scene = scenario(Cell(fleet, "fedavg", seed))
    data, split = fleet_data(scene, data_root)
    names = [agent_name(i, split.agents) for i in range(split.agents)]
    owned = {name: fit(client_dataset(data, split, i), scene.task) for i, name in enumerate(names)}
    known = split.truth is not None and len(np.unique(split.truth)) > 1
    return owned, tuple(split.truth.tolist()) if known and split.truth is not None else ()


def measured(cell: Cell, data_root: str) -> dict[str, Any]:
    """E-server and E-tuned as macro averages over agents, the sizes of the clusters, ARI where the truth is known."""
    owned, truth = people(cell.fleet, cell.seed, data_root)
    scene = scenario(cell)
    starts = [initial(scene.task, cell.seed, place) for place in range(scene.strategy.starts)]
    setup = setup_of(scene, [start for start, _ in starts], starts[0][1])

    def local_for(client: ClientId, order: OrderMessage) -> TorchLocal:
        work = order.work
        assert work is not None
        training = Training.model_validate(work.training)
        return TorchLocal(
            owned[client], scene.task, setup.layout, training, shuffle(work, client), work.scaling
        )

    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        driver = InProcess(Path(folder), scene, setup, rules_of(scene), local_for)
        driver.run.spool.durable = False
        run = driver.complete(
            {name: (len(one.targets), len(one.test_targets)) for name, one in owned.items()}
        )
    told = list(run.facts.evaluation.values())
    assign = run.strategy.assignment(run.state)
    labels = [assign.get(name, -1) for name in owned]
    counts = sorted(np.unique(labels, return_counts=True)[1].tolist(), reverse=True)
    found = {
        mode: float(np.mean([one[mode]["accuracy"] for one in told]))
        for mode in ("server", "tuned")
    }
    rand = adjusted_rand(labels, list(truth)) if truth and assign else None
    seconds = time.process_time() - began
    return {**found, "sizes": counts if assign else [], "ari": rand, "seconds": round(seconds, 1)}


def judged(fleet: str, seed: int, data_root: str) -> dict[str, dict[str, Any]]:
    """What each rule makes of the signatures of one fleet: the sizes of the clusters, ARI where the truth is known."""
    owned, truth = people(fleet, seed, data_root)
    scene = scenario(Cell(fleet, "fedclust", seed))
    start, layout = initial(scene.task, seed)
    setup = setup_of(scene, [start], layout)
    found: dict[str, dict[str, Any]] = {}
    reports: dict[str, list[tuple[ClientId, Report]]] = {}
    scaling = _scaling(owned, scene, setup) if scene.task.standardise == "federated" else None
    for label, strategy in RULES.items():
        if strategy.name not in reports:
            reports[strategy.name] = [
                (client, _signed(strategy, client, data, scene, setup, scaling))
                for client, data in owned.items()
            ]
        state: Any = strategy.form_clusters(strategy.init(setup), reports[strategy.name])  # type: ignore[arg-type]
        labels = list(state.assign.values())
        counts = sorted(np.unique(labels, return_counts=True)[1].tolist(), reverse=True)
        found[label] = {
            "sizes": counts,
            "ari": adjusted_rand(labels, list(truth)) if truth else None,
        }
    return found


def _local(
    client: ClientId,
    data: Dataset,
    scene: Scenario,
    setup: Setup,
    scaling: Mapping[str, Sequence[float]] | None,
) -> TorchLocal:
    draw = generator(scene.seed, "signature", client)
    return TorchLocal(data, scene.task, setup.layout, setup.training, draw, scaling)


def _scaling(
    owned: Mapping[ClientId, Dataset], scene: Scenario, setup: Setup
) -> dict[str, list[float]]:
    """Means and deviations of the fleet's channels."""
    sums = [_local(client, data, scene, setup, None).moments() for client, data in owned.items()]
    return pooled([{"count": one.count, "sum": one.total, "square": one.square} for one in sums])


def _signed(
    strategy: FedClust | Pacfl,
    client: ClientId,
    data: Dataset,
    scene: Scenario,
    setup: Setup,
    scaling: Mapping[str, Sequence[float]] | None,
) -> Report:
    """The report of an agent's signature."""
    job = Job(
        "signature", 0, client, scene.seed, setup.starts, {}, None, setup.layout, setup.training
    )
    return strategy.work(job, _local(client, data, scene, setup, scaling), {})[0]


def cells(fleets: Sequence[str], seeds: Sequence[int]) -> Iterator[Cell]:
    """All cells of the first seed come before any of the second."""
    for seed, fleet, method in itertools.product(seeds, fleets, METHODS):
        yield Cell(fleet, method, seed)


def of(found: Found, fleet: str, label: str, key: str) -> list[Any]:
    """A figure of all the seeds that are there."""
    parts = [(name.split("/"), figures) for name, figures in sorted(found.items())]
    return [
        figures[key] for (place, method, _), figures in parts if (place, method) == (fleet, label)
    ]


def clusters_of(found: Found, fleet: str, label: str) -> str:
    """Numbers of clusters seed by seed, and ARI where the truth is known."""
    sizes = of(found, fleet, label, "sizes")
    rands = [rand for rand in of(found, fleet, label, "ari") if rand is not None]
    numbers = ", ".join(str(len(one)) for one in sizes) if any(sizes) else ""
    return f"{numbers} ({', '.join(f'{rand:.2f}' for rand in rands)})" if rands else numbers


def rules_table(rules: Found) -> str:
    """Markdown: a row per fleet, a column per rule."""
    lines = [f"| signatures of | {' | '.join(RULES)} |", "|---|" + "---|" * len(RULES)]
    for fleet in FLEETS:
        columns = [clusters_of(rules, fleet, label) for label in RULES]
        if any(columns):
            lines.append(f"| {fleet} | {' | '.join(columns)} |")
    return "\n".join(lines)


def table(found: Found) -> str:
    """Markdown: a row per fleet and method; percent as means over seeds, clusters and ARI seed by seed."""
    lines = ["| fleet | method | clusters (ARI) | E-server | E-tuned |", "|---|---|---|---:|---:|"]
    for fleet, method in itertools.product(FLEETS, METHODS):
        if tuned := of(found, fleet, method, "tuned"):
            server = 100 * float(np.mean(of(found, fleet, method, "server")))
            clusters = "" if method in ALONE else clusters_of(found, fleet, method)
            lines.append(
                f"| {fleet} | {method} | {clusters} | {server:.1f} | {100 * float(np.mean(tuned)):.1f} |"
            )
    return "\n".join(lines)


def behind(found: Found) -> dict[tuple[str, str], float]:
    """By fleet and clustered method: points of E-tuned below the worse of Local and FedAvg, where they exceed 0.5."""
    gaps: dict[tuple[str, str], float] = {}
    for fleet, label in itertools.product(FLEETS, METHODS):
        figures = [of(found, fleet, one, "tuned") for one in (label, *ALONE)]
        if label in ALONE or not all(figures):
            continue
        own, *others = (100 * float(np.mean(one)) for one in figures)
        if min(others) - own > TOLERANCE:
            gaps[fleet, label] = min(others) - own
    return gaps


def put_into(page: Path, rules: Found, found: Found) -> None:
    """Replace the two tables of a page."""
    text = replaced(page.read_text("utf-8"), "signatures of", rules_table(rules))
    write_atomically(page, replaced(text, "fleet", table(found)).encode())


def replaced(text: str, first: str, made: str) -> str:
    """The text with another table in place of the one whose first column is called so."""
    return re.sub(rf"^\| {first} \| .*(?:\n\|.*)*", lambda _: made, text, flags=re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data-root", default="../shared/data")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--fleets", nargs="+", default=list(FLEETS), choices=list(FLEETS))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument(
        "--rules", action="store_true", help="no full runs: what each rule makes of the signatures"
    )
    parser.add_argument("--table", action="store_true", help="run nothing, print what there is")
    parser.add_argument(
        "--page", type=Path, help="a Markdown page whose table is brought up to date"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    record: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    rules: Found = record.get("rules", {})
    found: Found = record.get("cells", {})
    for seed, fleet in itertools.product(given.seeds, given.fleets if given.rules else []):
        if f"{fleet}/fedclust, gap/{seed}" not in rules:
            rules |= {
                f"{fleet}/{label}/{seed}": one
                for label, one in judged(fleet, seed, given.data_root).items()
            }
            write_record(given.out, rules, found)
    for cell in [] if given.table or given.rules else cells(given.fleets, given.seeds):
        if cell.key not in found:
            found[cell.key] = measured(cell, given.data_root)
            print(cell.key, found[cell.key], flush=True)
            write_record(given.out, rules, found)
    if given.page is not None:
        put_into(given.page, rules, found)
    print(f"{rules_table(rules)}\n\n{table(found)}")
    for (fleet, method), points in behind(found).items():
        print(
            f"{method} on {fleet}: {points:.1f} points of E-tuned below the worse of Local and FedAvg"
        )


def write_record(out: Path, rules: Found, found: Found) -> None:
    """What was found so far, with the settings that the code above does not say."""
    write_atomically(
        out, json.dumps({"rounds": ROUNDS, "rules": rules, "cells": found}, indent=1).encode()
    )


if __name__ == "__main__":
    main()
