"""What the defaults of clustered methods make of eight fleets, with clusters and without; prints a table, writes JSON.

    python -m benchmarks.default_cut --data-root ../shared/data [--seeds 1 2 3] [--fleets writers har]

Every method has the number of clusters, and all else, as it comes; it runs beside Local and FedAvg on the same agents, and
FedClust and PACFL also with the largest relative gap, their default until then.
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

from agent.data import Dataset, fit
from agent.learner import TorchLocal
from agent.models import initial
from agent.partition import client_dataset, fleet_data
from coordinator.command import rules_of
from coordinator.inprocess import InProcess
from coordinator.launch import setup_of
from shared.client import shuffle
from shared.files import write_atomically
from shared.messages import OrderMessage
from shared.metrics import adjusted_rand
from shared.scenario import Scenario, agent_name
from shared.strategy import ClientId, Training

ROUNDS = 10
ALONE = ("local", "fedavg")
OLDER = ("fedclust, gap", "pacfl, gap")
METHODS: dict[str, dict[str, Any]] = {
    "local": {"name": "local"},
    "fedavg": {"name": "fedavg"},
    "fedclust": {"name": "fedclust"},
    "fedclust, gap": {"name": "fedclust", "choose": "gap"},
    "pacfl": {"name": "pacfl"},
    "pacfl, gap": {"name": "pacfl", "choose": "gap"},
    "cfl": {"name": "cfl"},
    "ifca": {"name": "ifca"},
    "fesem": {"name": "fesem"},
}
Found = dict[str, dict[str, Any]]  # the figures of each cell by its key
TOLERANCE = 0.5  # points of E-tuned that a clustered method may fall below the worse of Local and FedAvg
OUT = Path(__file__).parent / "results" / "default_cut.json"
MLP = {"name": "mlp", "options": {"hidden": 64}}
IMAGES = {"features": [1, 28, 28], "classes": 10, "scale": 1 / 255, "model": MLP}
DIGITS = {"features": [1, 8, 8], "classes": 10, "scale": 1 / 16, "model": MLP}
WINDOWS = {"features": [9, 128], "classes": 6, "model": {"name": "cnn1d"}, "standardise": "federated"}
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
    return Fleet(task, {"agents": agents, "data": data, "partition": partition, "limit": limit}, training, one)


FLEETS = {
    "writers": _fleet(IMAGES, 24, "mnist-writer", {**WRITERS, "populations": {"hsf0": 12, "hsf4": 12}}),
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
            "strategy": METHODS[cell.method],
            "rounds": {"count": ROUNDS},
            "evaluation": {"tune_epochs": 1},
            "fleet": fleet.fleet,
        }
    )


@cache
def people(fleet: str, seed: int, data_root: str) -> tuple[dict[ClientId, Dataset], tuple[int, ...]]:
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
        return TorchLocal(owned[client], scene.task, setup.layout, training, shuffle(work, client), work.scaling)

    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        driver = InProcess(Path(folder), scene, setup, rules_of(scene), local_for)
        driver.run.spool.durable = False
        run = driver.complete({name: (len(one.targets), len(one.test_targets)) for name, one in owned.items()})
    told = list(run.facts.evaluation.values())
    assign = run.strategy.assignment(run.state)
    labels = [assign.get(name, -1) for name in owned]
    counts = sorted(np.unique(labels, return_counts=True)[1].tolist(), reverse=True)
    found = {mode: float(np.mean([one[mode]["accuracy"] for one in told])) for mode in ("server", "tuned")}
    rand = adjusted_rand(labels, list(truth)) if truth and assign else None
    seconds = time.process_time() - began
    return {**found, "sizes": counts if assign else [], "ari": rand, "seconds": round(seconds, 1)}


def cells(fleets: Sequence[str], seeds: Sequence[int]) -> Iterator[Cell]:
    """The defaults come before the older rules, and all cells of the first seed before any of the second."""
    for older in (False, True):
        labels = [label for label in METHODS if (label in OLDER) == older]
        for seed, fleet, label in itertools.product(seeds, fleets, labels):
            yield Cell(fleet, label, seed)


def of(found: Found, fleet: str, label: str, key: str) -> list[Any]:
    """A figure of all the seeds that are there."""
    parts = [(name.split("/"), figures) for name, figures in sorted(found.items())]
    return [figures[key] for (place, method, _), figures in parts if (place, method) == (fleet, label)]


def table(found: Found) -> str:
    """Markdown: a row per fleet and method; percent as means over seeds, clusters and ARI seed by seed."""
    lines = ["| fleet | method | clusters | ARI | E-server | E-tuned |", "|---|---|---|---|---:|---:|"]
    for fleet, label in itertools.product(FLEETS, METHODS):
        tuned = of(found, fleet, label, "tuned")
        if not tuned:
            continue
        sizes = of(found, fleet, label, "sizes")
        rands = [rand for rand in of(found, fleet, label, "ari") if rand is not None]
        clusters = ", ".join(str(len(one)) for one in sizes) if any(sizes) else ""
        shares = ", ".join(f"{rand:.2f}" for rand in rands) if label not in ALONE else ""
        server = 100 * float(np.mean(of(found, fleet, label, "server")))
        lines.append(
            f"| {fleet} | {label} | {clusters} | {shares} | {server:.1f} | {100 * float(np.mean(tuned)):.1f} |"
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


def put_into(page: Path, found: Found) -> None:
    """Replace the table of a page."""
    pattern = r"^\| fleet \| method \| clusters .*(?:\n\|.*)*"
    text = re.sub(pattern, lambda _: table(found), page.read_text("utf-8"), flags=re.MULTILINE)
    write_atomically(page, text.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data-root", default="../shared/data")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--fleets", nargs="+", default=list(FLEETS), choices=list(FLEETS))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--table", action="store_true", help="run nothing, print what there is")
    parser.add_argument("--page", type=Path, help="a Markdown page whose table is brought up to date")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    found: Found = json.loads(given.out.read_text())["cells"] if given.out.exists() else {}
    for cell in [] if given.table else cells(given.fleets, given.seeds):
        if cell.key in found:
            continue
        found[cell.key] = measured(cell, given.data_root)
        print(cell.key, found[cell.key], flush=True)
        write_atomically(given.out, json.dumps({"rounds": ROUNDS, "cells": found}, indent=1).encode())
    if given.page is not None:
        put_into(given.page, found)
    print(table(found))
    for (fleet, label), points in behind(found).items():
        print(f"{label} on {fleet}: {points:.1f} points of E-tuned below the worse of Local and FedAvg")


if __name__ == "__main__":
    main()
