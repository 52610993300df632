"""Files as people have them, small: each kind from files to fine-tuned models."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from benchmarks.own_data import (
    Handwriting,
    Recordings,
    series_rows,
    write_images,
    write_series,
    write_tables,
)
from covey.extras.simulate.tests.device_run import devices
from covey.shared.scenario.scenario import Scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"
ACTIVITIES = ("laying", "sitting", "standing", "walking", "walking_downstairs", "walking_upstairs")
PEOPLE = 2
ROWS = 448  # of one recording: six windows of 128 rows that overlap by half
IMAGES = 40  # of one writer


@cache
def recordings() -> Recordings:
    """A recording of each activity by each person, with an orientation and a strength of its own. Windows are shuffled."""
    rng = np.random.default_rng(1)
    windows: list[Any] = []
    activities: list[str] = []
    people: list[int] = []
    for person in range(PEOPLE):
        for strength, activity in enumerate(ACTIVITIES):
            series = rng.normal(0, 0.1 * (1 + strength), (ROWS, 9))
            series[:, 6 + strength % 3] += 3.0 if strength < 3 else -3.0
            series = np.round(series, 3)
            for start in range(0, ROWS - 64, 64):
                windows.append(series[start : start + 128])
                activities.append(activity)
                people.append(person)
    order = rng.permutation(len(windows))
    found = Recordings(np.array(windows), np.array(activities), np.array(people))
    return Recordings(found.windows[order], found.activities[order], found.people[order])


@cache
def handwriting() -> Handwriting:
    """Two writers of each population; each digit is a bright row of its own."""
    digits = np.tile(np.arange(10), 4 * IMAGES // 10)
    images = np.zeros((4 * IMAGES, 28, 28), np.uint8)
    for image, digit in zip(images, digits, strict=True):
        image[4 + 2 * digit] = 255
    writers = np.repeat(np.arange(4), IMAGES)
    forms = np.repeat([0, 4], 2 * IMAGES)
    return Handwriting(images, digits, writers, forms)


def scenario(name: str) -> Scenario:
    """The scenario of the benchmark, with few rounds."""
    content = yaml.safe_load((SCENARIOS / f"{name}.yaml").read_text())
    del content["fleet"], content["compare"]
    content["rounds"] = {"count": 3}
    content["strategy"] = {"name": "fedavg"}
    return Scenario.model_validate(content)


def tuned(folder: Path, scene: Scenario, files: Mapping[str, Path]) -> dict[str, float]:
    """The mean figures of mode E-tuned over the devices."""
    run = devices(folder, scene, files)
    found = [numbers["tuned"] for numbers in run.members.evaluation.values()]
    assert len(found) == len(files)
    return {name: float(np.mean([one[name] for one in found])) for name in found[0]}


def files_in(folder: Path) -> dict[str, Path]:
    return {f"device-{i}": path for i, path in enumerate(sorted(folder.iterdir()))}


def test_windows_that_overlap_are_joined_to_their_recordings() -> None:
    one = recordings().of(0)
    chains = one.chains()
    assert sorted(len(chain) for chain in chains) == [6] * len(ACTIVITIES)
    for chain in chains:
        assert len(set(one.activities[chain])) == 1
    assert len(list(series_rows(one))) == ROWS * len(ACTIVITIES)


def test_a_regression_on_tables_with_holes_and_words(tmp_path: Path) -> None:
    write_tables(tmp_path / "table", recordings())
    files = files_in(tmp_path / "table")
    assert all(",," in path.read_text() for path in files.values())
    figures = tuned(tmp_path / "run", scenario("own_table"), files)
    assert figures["mse"] < 0.5 * figures["variance"]  # both in mg squared


def test_windows_over_series_with_holes(tmp_path: Path) -> None:
    write_series(tmp_path / "series", recordings())
    files = files_in(tmp_path / "series")
    scene = scenario("own_series")
    assert tuned(tmp_path / "run", scene, files)["accuracy"] > 0.4  # by chance 1/6


def test_folders_of_images_of_mixed_sizes(tmp_path: Path) -> None:
    write_images(tmp_path / "images", handwriting(), writers=2, min_images=IMAGES)
    populations = sorted((tmp_path / "images").iterdir())
    assert [path.name for path in populations] == ["staff", "students"]
    writers = [path for population in populations for path in sorted(population.iterdir())]
    sizes = [Image.open(next(writer.rglob("*.png"))).size for writer in writers]
    assert sizes == [(20, 20), (22, 22), (24, 24), (26, 26)]
    files = {writer.name: writer for writer in writers}
    scene = scenario("own_images")
    assert tuned(tmp_path / "run", scene, files)["accuracy"] > 0.4  # by chance 1/10
