"""`python -m tests.chaos.healthy`: fleets in which nothing is wrong, whole runs in this process, and what is odd about them: nothing.

Fleets of gateways first, which differ in number, rows and kinds of sites; then other shapes in turn. Exit code 0 only if as many
were run as were asked for, and no line was listed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from covey.extras.doctor.of_run import at_the_end
from covey.extras.secure.tests.secure_run import scene
from covey.extras.simulate.tests.device_run import devices, scenes
from tests.kit.gateways import COLUMNS, TASK, Rows, rows, written
from tests.kit.small_run import in_process

GATEWAYS, OTHERS = 45, 30
LOAD_CLASSES = ("low", "high")
Files = dict[str, Path]


@dataclass(frozen=True)
class Shape:
    """One way in which a healthy fleet can be."""

    name: str
    write: Callable[[Path, int], Files]  # into a folder, for a seed
    task: Mapping[str, Any] = field(default_factory=lambda: TASK)
    sections: Mapping[str, Any] | None = None


def gateways_of(seed: int) -> list[Rows]:
    """Devices of two or three kinds, four to twelve of them, with one to three hundred rows."""
    dice = np.random.default_rng(seed)
    kinds = int(dice.integers(2, 4))
    count = int(dice.integers(4, 13))
    return [
        rows(100 * seed + number, int(dice.integers(100, 300)), kinds) for number in range(count)
    ]


def alike(folder: Path, seed: int) -> Files:
    return {
        f"gw-{n}": written(folder / f"gw-{n}.csv", own) for n, own in enumerate(gateways_of(seed))
    }


def one_test_part(folder: Path, seed: int) -> Files:
    """A folder for each device, with training rows of its own and the test rows of all."""
    found: Files = {}
    for number, own in enumerate(gateways_of(seed)):
        place = folder / f"gw-{number}"
        written(place / "train.csv", own)
        written(place / "test.csv", rows(7777 + seed, 60, 1))
        found[f"gw-{number}"] = place
    return found


def levels(folder: Path, seed: int) -> Files:
    """Sites whose wind differs by up to three times."""
    dice = np.random.default_rng(seed)
    found: Files = {}
    for number, own in enumerate(gateways_of(seed)):
        own[:, 2] *= np.exp(dice.uniform(-0.5, 0.5))
        found[f"gw-{number}"] = written(folder / f"gw-{number}.csv", own)
    return found


def classes(folder: Path, seed: int) -> Files:
    """The load as a class: above the median of the site, or below."""
    folder.mkdir(parents=True)
    found: Files = {}
    for number, own in enumerate(gateways_of(seed)):
        path = found[f"gw-{number}"] = folder / f"gw-{number}.csv"
        words = [LOAD_CLASSES[int(row[3] > np.median(own[:, 3]))] for row in own]
        lines = [
            ",".join([*(f"{one:.3f}" for one in row[:3]), word])
            for row, word in zip(own, words, strict=True)
        ]
        path.write_text("\n".join([",".join(COLUMNS), *lines, ""]))
    return found


OF_CLASSES = {**TASK, "classes": list(LOAD_CLASSES), "target_scale": "none"}
SHAPES = (
    Shape("deliver: served", alike, sections={"evaluation": {"deliver": "served", "every": 1}}),
    Shape("one test part for all", one_test_part),
    Shape("other levels", levels),
    Shape("classes", classes, OF_CLASSES),
)  # fmt: skip
USUAL, SECURE = Shape("gateways", alike), Shape("secure sums", alike)


def fleets(count: int, others: int) -> Iterator[tuple[int, Shape]]:
    """Seeds and shapes."""
    yield from ((seed, USUAL) for seed in range(count))
    yield from (
        (1000 + place, (*SHAPES, SECURE)[place % (len(SHAPES) + 1)]) for place in range(others)
    )


def odd_in(folder: Path, seed: int, shape: Shape) -> list[str]:
    """The lines about a fleet at the end of its run."""
    if shape is SECURE:  # its agents have keys of their own
        run = in_process(folder / "run", scene(seed=seed))
        return [one.sentence for one in at_the_end(run, {})]
    files = shape.write(folder / "data", seed)
    sections = {"training": {"epochs": 2, "batch": 16, "lr": 0.02}, **(shape.sections or {})}
    run = devices(folder / "run", scenes(shape.task)(**sections), files)
    return [one.sentence for one in at_the_end(run, {})]


def main() -> int:
    """Exit code 0 only if all were run, and nothing was odd."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.healthy", description=__doc__)
    parser.add_argument("--gateways", type=int, default=GATEWAYS)
    parser.add_argument("--others", type=int, default=OTHERS)
    parser.add_argument("--out", type=Path, help="a record; fleets that it has are not run again")
    options = parser.parse_args()
    known: dict[str, list[str]] = {}
    if options.out is not None and options.out.exists():
        known = dict(json.loads(line) for line in options.out.read_text().splitlines())
    runs = lines = 0
    for seed, shape in fleets(options.gateways, options.others):
        name = f"{shape.name}, seed {seed}"
        if name not in known:
            folder = Path(tempfile.mkdtemp())
            known[name] = odd_in(folder, seed, shape)
            shutil.rmtree(folder)
            if options.out is not None:
                with options.out.open("a") as file:
                    file.write(json.dumps([name, known[name]], ensure_ascii=False) + "\n")
        runs, lines = runs + 1, lines + len(known[name])
        print(f"{name}: {'; '.join(known[name]) or 'nothing odd'}", flush=True)
    print(f"{runs} healthy fleets, {lines} lines")
    return 0 if runs == options.gateways + options.others > 0 and not lines else 1


if __name__ == "__main__":
    sys.exit(main())
