"""How often a rule sees groups in fleets without any, and in fleets with a planted shift. Prints a table, writes JSON.

    python -m benchmarks.false_alarms [--fleets 30] [--agents 8 20 40]

Digits are dealt at random to agents, with equal and with unequal numbers of samples. Two judges see each fleet: the tests
on cards (`covey.shared.numerics.kinship`), and rotations of FedClust's signatures, by final layers and by updates.
Each cell is written to --out as soon as it is finished, and a second start resumes after the last finished cell.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_digits

from benchmarks.default_cut import Cell, scenario, signed
from covey.agent.data import Dataset
from covey.agent.training.models import initial
from covey.coordinator.processes.launch import setup_of
from covey.shared.files import write_atomically
from covey.shared.numerics import kinship
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.strategies.fedclust import FedClust

SIZES = ("equal", "log-normal 0.5", "log-normal 1", "1:5", "1:10")
SHIFTS = ("none", "upside down", "two labels swapped")
JUDGES = ("cards", "rotations", "rotations, update")
OUT = Path(__file__).parent / "results" / "false_alarms.json"
Indices = npt.NDArray[np.int64]


def shares(sizes: str, agents: int, samples: int, draw: np.random.Generator) -> list[Indices]:
    """The samples of each agent, dealt at random, at least four each."""
    weights = np.ones(agents)
    if sizes.startswith("log-normal"):
        weights = np.exp(float(sizes.split()[1]) * draw.standard_normal(agents))
    elif ":" in sizes:
        weights[: agents // 2] = float(sizes.split(":")[1])
    own = np.maximum((samples * weights / weights.sum()).astype(int), 4)
    ends = np.minimum(np.cumsum(own), samples)
    return np.split(draw.permutation(samples), ends)[:agents]


def shifted(
    shift: str, agent: int, images: npt.NDArray[np.uint8], labels: Indices
) -> tuple[npt.NDArray[np.uint8], Indices]:
    """The data of an agent; every second one differs."""
    if agent % 2 == 0 or shift == "none":
        return images, labels
    if shift == "upside down":
        return images[..., ::-1, ::-1].copy(), labels
    swap = np.array([1, 0, *range(2, 10)])
    return images, swap[labels]


def judged(sizes: str, shift: str, agents: int, seed: int) -> dict[str, bool]:
    """Whether each judge sees groups in one fleet."""
    scene = scenario(Cell("even digits", "fedclust", seed))
    start, layout = initial(scene.task, seed)
    setup = setup_of(scene, [start], layout)
    raw = load_digits()
    all_images = raw.images.astype(np.uint8)[:, None]
    all_labels = raw.target.astype(np.int64)
    draw = np.random.default_rng(seed)
    cards = []
    reports: dict[str, list[Any]] = {"final_layer": [], "update": []}
    for agent, rows in enumerate(shares(sizes, agents, len(all_labels), draw)):
        images, labels = shifted(shift, agent, all_images[rows], all_labels[rows])
        inputs = images.reshape(len(labels), -1) / 16
        cards.append(kinship.card([inputs], labels, 10, np.arange(len(labels)), seed, agent))
        data = Dataset(images, labels, images[:0], labels[:0])
        client = agent_name(agent, agents)
        for kind, own in reports.items():
            strategy = _by_rotations(kind)
            own.append((client, signed(strategy, client, data, scene, setup, None)))
    found = {"cards": kinship.shifts(cards, seed).any}
    for judge, kind in zip(JUDGES[1:], reports, strict=True):
        strategy = _by_rotations(kind)
        state = strategy.form_clusters(strategy.init(setup), reports[kind])
        found[judge] = len(state.models) > 1
    return found


def _by_rotations(signature: str) -> FedClust:
    return FedClust.model_validate({"signature": signature, "choose": "rotations", "gate": "none"})


def table(found: dict[str, dict[str, float]], fleets: int) -> str:
    """Markdown: a row per shift, sizes and agents; the share of fleets in which groups are seen, in percent."""
    lines = [
        f"| shift | samples | agents | {' | '.join(JUDGES)} |",
        "|---|---|---:|" + "---:|" * len(JUDGES),
    ]
    for key, counts in found.items():
        percents = " | ".join(f"{100 * counts[judge] / fleets:.0f}" for judge in JUDGES)
        lines.append(f"| {key.replace('/', ' | ')} | {percents} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--fleets", type=int, default=30)
    parser.add_argument("--agents", type=int, nargs="+", default=[8, 20, 40])
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    record: dict[str, Any] = {"fleets": options.fleets, "cells": {}}
    if options.out.exists():
        record = json.loads(options.out.read_text())
    if record["fleets"] != options.fleets:
        parser.error(f"{options.out} holds cells of {record['fleets']} fleets: give another --out")
    for shift, agents, sizes in itertools.product(SHIFTS, options.agents, SIZES):
        key = f"{shift}/{sizes}/{agents}"
        if key in record["cells"]:
            continue
        verdicts = [judged(sizes, shift, agents, seed) for seed in range(1, options.fleets + 1)]
        record["cells"][key] = {judge: sum(one[judge] for one in verdicts) for judge in JUDGES}
        print(key, record["cells"][key], flush=True)
        write_atomically(options.out, json.dumps(record, indent=1).encode())
    print(table(record["cells"], record["fleets"]))


if __name__ == "__main__":
    main()
