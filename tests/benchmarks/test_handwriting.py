"""The case study of handwriting: which images stand where."""

from __future__ import annotations

import numpy as np

from benchmarks.handwriting import AGENTS, GAP, mosaic
from covey.agent.data import Dataset


def dataset(value: int) -> Dataset:
    """Two samples of class 3 and one of class 5, of one brightness."""
    images = np.full((3, 1, 4, 4), value, np.uint8)
    images[1] = 0  # a second one of class 3 is not shown
    none = np.empty((0, 1, 4, 4), np.uint8)
    return Dataset(images, np.array([3, 3, 5]), none, np.empty(0, np.int64))


def test_each_row_is_an_agent_of_its_cluster_and_each_column_a_class() -> None:
    datasets = {f"a{i}": dataset(100 + i) for i in range(12)}
    assignment = {agent: int(agent >= "a5") for agent in datasets}
    picture = mosaic(datasets, assignment, seed=1)
    assert picture.shape == (2 * AGENTS * 4 + GAP, 40)
    assert np.array_equal(picture, mosaic(datasets, assignment, seed=1))
    assert (picture[:, :12] == 255).all()  # nobody has the classes 0 to 2
    above = {255 - int(row[12]) for row in picture[: AGENTS * 4]}
    below = {255 - int(row[12]) for row in picture[AGENTS * 4 + GAP :]}
    members = {
        k: {100 + int(agent[1:]) for agent, own in assignment.items() if own == k} for k in (0, 1)
    }
    assert above <= members[0]
    assert below <= members[1]
    assert len(above) == len(below) == AGENTS
