"""What the agents of each cluster write: samples of a finished run's simulated fleet, a row of images for each agent.

    python -m benchmarks.handwriting runs/writers --out docs/figures/handwriting.png

FeSEM's authors show such samples as a case study of their clusters (Long et al. 2023). A coordinator has no samples: this
reads the data set of a simulated fleet, as its workers do, and is therefore no part of a run's report.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from covey.agent.data import Dataset
from covey.agent.data.partition import client_dataset, fleet_data
from covey.shared.scenario.load import load
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.seeds import generator

Pixels = npt.NDArray[np.uint8]
AGENTS = 4  # of each cluster
GAP = 12  # pixels between two clusters, white


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "run", type=Path, help="the folder of a finished run of grey images with a simulated fleet"
    )
    parser.add_argument("--data-root", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, required=True, help="the .png to write")
    options = parser.parse_args(arguments)
    result = json.loads((options.run / "result.json").read_text())
    scenario = load(options.run / "scenario.yaml")
    data, split = fleet_data(scenario, options.data_root)
    count = scenario.fleet.agents if scenario.fleet is not None else 0
    datasets = {agent_name(i, count): client_dataset(data, split, i) for i in range(count)}
    picture = mosaic(datasets, result["assignment"], scenario.seed)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(options.out, optimize=True)


def mosaic(datasets: Mapping[str, Dataset], assignment: Mapping[str, int], seed: int) -> Pixels:
    """Dark on white (height, width): clusters from top to bottom, some agents of each drawn on the seed, a row per agent
    with one of its training images for every class that it has."""
    bands: list[Pixels] = []
    for cluster in sorted(set(assignment.values())):
        members = sorted(agent for agent, own in assignment.items() if own == cluster)
        order = generator(seed, "handwriting", cluster).permutation(len(members))
        rows = [row_of(datasets[members[i]]) for i in order[:AGENTS]]
        bands.append(np.concatenate(rows))
        bands.append(np.full((GAP, bands[-1].shape[1]), 255, np.uint8))
    return np.concatenate(bands[:-1])


def row_of(data: Dataset) -> Pixels:
    """The first training image (height, width) of each class, classes side by side; white where the agent has none."""
    images: Any = data.features.reshape(len(data.features), *data.features.shape[-2:])
    labels = np.asarray(data.targets)
    cells: list[Pixels] = []
    for label in range(10):
        own = np.flatnonzero(labels == label)
        cells.append(
            255 - images[own[0]].astype(np.uint8)
            if len(own)
            else np.full_like(images[0], 255, np.uint8)
        )
    return np.concatenate(cells, axis=1)


if __name__ == "__main__":
    main()
