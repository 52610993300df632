"""How often a rule sees groups in fleets without any, and in fleets with a planted shift. Prints tables, writes JSON.

    python -m benchmarks.false_alarms [--agents 8 20 40 100] [--kinds digits gaussians windows]

Each cell is 30 fleets, of 100 agents 10 fleets.

Agents get equal and unequal numbers of samples. Judges see each fleet: the tests on cards (`covey.shared.numerics.kinship`),
and rotations of signatures, the default of earlier versions.

- digits: 1 797 images, dealt at random. Every second agent's are upside down. Signatures are FedClust's final layers and
  updates.
- gaussians: 100 samples an agent on average, ten classes in 64 dimensions. The inputs of every second agent are moved by a
  vector as long as the noise of one coordinate. The signature is the agent's mean input.
- windows: 100 windows an agent on average, each sharing half of its rows with the next, over three channels of an
  autoregressive series (0.9) in three regimes. One channel of every second agent is moved by half of a deviation. In place
  of rotations, a judge sees cards whose windows were dealt to blocks one by one.

Each cell is written to --out as soon as it is finished, and a second start resumes after the last finished cell.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.signal import lfilter
from sklearn.datasets import load_digits

from benchmarks.default_cut import Cell, scenario, signed
from covey.agent.data import Dataset
from covey.agent.data.kin import units_of
from covey.agent.training.models import initial
from covey.coordinator.processes.launch import setup_of
from covey.shared.files import write_atomically
from covey.shared.numerics import kinship
from covey.shared.numerics.choose_k import by_rotations
from covey.shared.numerics.clustering import euclidean
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.strategies.fedclust import FedClust

SIZES = ("equal", "log-normal 0.5", "log-normal 1", "1:5", "1:10")
SHIFTS = ("none", "planted")
OUT = Path(__file__).parent / "results" / "false_alarms.json"
MEAN = 100  # samples of a made-up agent
CLASSES, VALUES = 10, 64  # of Gaussians
REGIMES, CHANNELS, ROWS, STEP, BOUT = 3, 3, 32, 16, 80  # of windows
MEMORY = 0.9  # of the series
Indices = npt.NDArray[np.int64]
Array = npt.NDArray[np.float64]
Verdicts = dict[str, bool]  # by judge: it sees groups
Counts = dict[str, int]  # of a cell: its fleets, and those in which each judge sees groups
FLEETS = {8: 30, 20: 30, 40: 30, 100: 10}  # by the number of agents


def weights_of(sizes: str, agents: int, draw: np.random.Generator) -> Array:
    """The share of the samples that each agent gets, up to a factor."""
    weights = np.ones(agents)
    if sizes.startswith("log-normal"):
        weights = np.exp(float(sizes.split()[1]) * draw.standard_normal(agents))
    elif ":" in sizes:
        weights[: agents // 2] = float(sizes.split(":")[1])
    return weights


def shares(sizes: str, agents: int, samples: int, draw: np.random.Generator) -> list[Indices]:
    """The samples of each agent, dealt at random, at least four each."""
    weights = weights_of(sizes, agents, draw)
    own = np.maximum((samples * weights / weights.sum()).astype(int), 4)
    ends = np.minimum(np.cumsum(own), samples)
    return np.split(draw.permutation(samples), ends)[:agents]


def counts_of(sizes: str, agents: int, draw: np.random.Generator) -> list[int]:
    """The number of samples of each made-up agent, at least ten."""
    weights = weights_of(sizes, agents, draw)
    counts: list[int] = np.maximum(MEAN * agents * weights / weights.sum(), 10).astype(int).tolist()
    return counts


# -- digits -------------------------------------------------------------------------------------------


@cache
def _digits() -> tuple[npt.NDArray[np.uint8], Indices]:
    raw = load_digits()
    return raw.images.astype(np.uint8)[:, None], raw.target.astype(np.int64)


def digits(sizes: str, shift: str, agents: int, seed: int) -> Verdicts:
    """Images upside down at every second agent."""
    scene = scenario(Cell("even digits", "fedclust", seed))
    start, layout = initial(scene.task, seed)
    setup = setup_of(scene, [start], layout)
    all_images, all_labels = _digits()
    draw = np.random.default_rng(seed)
    cards = []
    strategies = {
        kind: FedClust.model_validate({"signature": kind, "choose": "rotations", "gate": "none"})
        for kind in ("final_layer", "update")
    }
    reports: dict[str, list[Any]] = {kind: [] for kind in strategies}
    for agent, rows in enumerate(shares(sizes, agents, len(all_labels), draw)):
        images, labels = all_images[rows], all_labels[rows]
        if shift != "none" and agent % 2:
            images = images[..., ::-1, ::-1].copy()
        inputs = images.reshape(len(labels), -1) / 16
        units = np.arange(len(labels))
        cards.append(kinship.card([inputs], labels, 10, units, seed, agent))
        data = Dataset(images, labels, images[:0], labels[:0])
        client = agent_name(agent, agents)
        for kind, strategy in strategies.items():
            reports[kind].append((client, signed(strategy, client, data, scene, setup, None)))
    found = {"cards": kinship.shifts(cards, seed).any}
    for judge, kind in (("rotations", "final_layer"), ("rotations, update", "update")):
        strategy = strategies[kind]
        found[judge] = len(strategy.form_clusters(strategy.init(setup), reports[kind]).models) > 1
    return found


# -- made-up data -------------------------------------------------------------------------------------


def gaussians(sizes: str, shift: str, agents: int, seed: int) -> Verdicts:
    """Inputs of every second agent moved by a vector of length 1."""
    draw = np.random.default_rng(seed)
    centres = draw.standard_normal((CLASSES, VALUES))
    away = draw.standard_normal(VALUES)
    away /= np.linalg.norm(away)
    cards = []
    means = []
    for agent, count in enumerate(counts_of(sizes, agents, draw)):
        labels = draw.integers(0, CLASSES, count)
        inputs = centres[labels] + draw.standard_normal((count, VALUES))
        if shift != "none" and agent % 2:
            inputs += away
        cards.append(kinship.card([inputs], labels, CLASSES, np.arange(count), seed, agent))
        means.append(inputs.mean(axis=0))
    return {
        "cards": kinship.shifts(cards, seed).any,
        "rotations": by_rotations(euclidean(means)).clusters > 1,
    }


def series(count: int, draw: np.random.Generator) -> tuple[Array, Indices]:
    """`count` windows (count, channels, rows) that overlap by half, and the regime in which each ends."""
    length = STEP * (count - 1) + ROWS
    noise = draw.standard_normal((length, CHANNELS)) * np.sqrt(1 - MEMORY**2)
    noise[0] /= np.sqrt(1 - MEMORY**2)
    values = lfilter([1.0], [1.0, -MEMORY], noise, axis=0)
    regimes = np.repeat(draw.integers(0, REGIMES, length // BOUT + 1), BOUT)[:length]
    values[:, 0] += regimes
    starts = STEP * np.arange(count)
    windows = np.stack([values[start : start + ROWS].T for start in starts])
    return windows, regimes[starts + ROWS - 1]


def windows(sizes: str, shift: str, agents: int, seed: int) -> Verdicts:
    """One channel of every second agent moved by half of a deviation."""
    draw = np.random.default_rng(seed)
    cards = []
    one_by_one = []
    for agent, count in enumerate(counts_of(sizes, agents, draw)):
        features, labels = series(count, draw)
        if shift != "none" and agent % 2:
            features[:, 1] += 0.5
        data = Dataset(features, labels, features[:0], labels[:0], overlap=ROWS // STEP - 1)
        inputs = features.reshape(count, -1)
        cards.append(kinship.card([inputs], labels, REGIMES, units_of(data), seed, agent))
        single = np.arange(count)
        one_by_one.append(kinship.card([inputs], labels, REGIMES, single, seed, agent))
    return {
        "cards": kinship.shifts(cards, seed).any,
        "cards, windows one by one": kinship.shifts(one_by_one, seed).any,
    }


# -- tables -------------------------------------------------------------------------------------------

Judged = Callable[[str, str, int, int], Verdicts]
KINDS: dict[str, Judged] = {"digits": digits, "gaussians": gaussians, "windows": windows}


def table(kind: str, found: dict[str, Counts]) -> str:
    """Markdown: a row per shift, sizes and agents; the share of fleets in which groups are seen, in percent."""
    own = {key: counts for key, counts in found.items() if key.startswith(f"{kind}/")}
    judges = [judge for judge in next(iter(own.values()), {}) if judge != "fleets"]
    lines = [
        f"| {kind}, shift | samples | agents | {' | '.join(judges)} |",
        "|---|---|---:|" + "---:|" * len(judges),
    ]
    for key, counts in own.items():
        percents = " | ".join(f"{100 * counts[judge] / counts['fleets']:.0f}" for judge in judges)
        _, shift, sizes, agents = key.split("/")
        lines.append(f"| {shift} | {sizes} | {agents} | {percents} |")
    return "\n".join(lines)


def seen(found: dict[str, Counts], kind: str, shift: str, judge: str) -> tuple[int, int]:
    """The fleets in which a judge sees groups, and all fleets."""
    own = [counts for key, counts in found.items() if key.startswith(f"{kind}/{shift}/")]
    return sum(counts[judge] for counts in own), sum(counts["fleets"] for counts in own)


def cells(kinds: list[str], agents: list[int]) -> Iterator[tuple[str, str, int, str]]:
    """Kind, shift, agents and sizes of each cell."""
    yield from itertools.product(kinds, SHIFTS, agents, SIZES)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--agents", type=int, nargs="+", default=list(FLEETS), choices=list(FLEETS))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    found: dict[str, Counts] = {}
    if options.out.exists():
        found = json.loads(options.out.read_text())
    for kind, shift, agents, sizes in cells(options.kinds, options.agents):
        key = f"{kind}/{shift}/{sizes}/{agents}"
        if key in found:
            continue
        seeds = range(1, FLEETS[agents] + 1)
        verdicts = [KINDS[kind](sizes, shift, agents, seed) for seed in seeds]
        counts = {judge: sum(one[judge] for one in verdicts) for judge in verdicts[0]}
        found[key] = {"fleets": FLEETS[agents], **counts}
        print(key, found[key], flush=True)
        write_atomically(options.out, json.dumps(found, indent=1).encode())
    for kind in options.kinds:
        print(table(kind, found))


if __name__ == "__main__":
    main()
