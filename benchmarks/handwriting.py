"""What the agents of each cluster write: samples of a finished run's simulated fleet, a row of images for each agent.

    python -m benchmarks.handwriting runs/writers --out benchmarks/results/figures/handwriting.png

FeSEM's authors show such samples as a case study of their clusters (Long et al. 2023). A coordinator has no samples: this
program reads the data set of a simulated fleet, as its workers do, and is therefore no part of a run's report.
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
GAP = 12  # pixels between two clusters
WHITE = 255
CLASSES = 10


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "run", type=Path, help="the folder of a finished run of grey images with a simulated fleet"
    )
    parser.add_argument("--data-root", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, required=True, help="the .png to write")
    options = parser.parse_args(arguments)
    result_file = options.run / "result.json"
    result = json.loads(result_file.read_text())
    scenario = load(options.run / "scenario.yaml")
    data, split = fleet_data(scenario, options.data_root)
    datasets: dict[str, Dataset] = {}
    for index in range(split.agents):
        name = agent_name(index, split.agents)
        datasets[name] = client_dataset(data, split, index)
    pixels = mosaic(datasets, result["assignment"], scenario.seed)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(options.out, optimize=True)


def mosaic(datasets: Mapping[str, Dataset], assignment: Mapping[str, int], seed: int) -> Pixels:
    """The picture (height, width), dark on white.

    Clusters come from top to bottom, some agents of each drawn on the seed, in a row per agent one of its training images
    for every class that it has.
    """
    bands: list[Pixels] = []
    for cluster in sorted(set(assignment.values())):
        members = sorted(agent for agent, own in assignment.items() if own == cluster)
        order = generator(seed, "handwriting", cluster).permutation(len(members))
        rows: list[Pixels] = []
        for index in order[:AGENTS]:
            agent = members[index]
            rows.append(row_of(datasets[agent]))
        band = np.concatenate(rows)
        gap = np.full((GAP, band.shape[1]), WHITE, np.uint8)
        bands += [band, gap]
    without_last_gap = bands[:-1]
    return np.concatenate(without_last_gap)


def row_of(data: Dataset) -> Pixels:
    """The first training image (height, width) of each class, side by side; a class that the agent lacks is white."""
    height, width = data.features.shape[-2:]
    images: Any = data.features.reshape(-1, height, width)
    labels = np.asarray(data.targets)
    cells: list[Pixels] = []
    for label in range(CLASSES):
        cell = np.full((height, width), WHITE, np.uint8)
        own = np.flatnonzero(labels == label)
        if len(own):
            cell = WHITE - images[own[0]].astype(np.uint8)
        cells.append(cell)
    return np.concatenate(cells, axis=1)


if __name__ == "__main__":
    main()
