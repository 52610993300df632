"""E-delivered of our defaults, next to the best that is known after the fact, trees, and doing nothing.

    python -m benchmarks.own_data --data-root ../shared/data --out runs/own-data
    /tmp/files/bin/python benchmarks/real_files_side.py runs/real-files further    # its docstring makes that interpreter
    python -m benchmarks.delivered --data-root ../shared/data [--seeds 1 2 3] [--shares all tenth] [--fleets even pupils]

Each cell is one run of the product without a broker, with all defaults but those that a fleet of `benchmarks.kin_fleets` has, of
a scenario `own_*.yaml`, or of a proposal of `coordinator init` (`FURTHER`). 10 rounds with all agents, or 30 with a tenth of them.

Figures are macro averages over the agents on their test samples: accuracy in %, or of a regression 100 x (1 - RMSE / RMSE of the
constant). So of both the constant of a regression has 0, a model without errors 100, and a point is one hundredth. *The best* is
the largest mean over seeds of all methods in all modes (E-server, E-tuned, E-last, E-delivered), of trees and of the constant.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pyarrow import parquet

from benchmarks import kin
from benchmarks.kin_fleets import FLEETS, HARD, NATURAL, SETTINGS
from benchmarks.measuring import Found, record_options, resumed, show_tables
from benchmarks.real_files import of_device, proposed
from benchmarks.real_files_side import FURTHER
from covey.agent.data.dataset import Dataset
from covey.agent.learner_choice import BUILT_IN, NUMPY
from covey.agent.worker.sources import dataset
from covey.coordinator.record.notices import ignore
from covey.coordinator.run.options import RunOptions
from covey.extras.judge.trees import trees_for
from covey.extras.simulate.driver import simulate, source_of
from covey.extras.simulate.workers import WorkerPool
from covey.shared.scenario.load import from_mapping
from covey.shared.scenario.scenario import Scenario

OUT = Path(__file__).parent / "results" / "delivered.json"
DEFAULTS = ("fedavg", "fedclust", "kin", "ifca")
METHODS = (*DEFAULTS, "local")
MODES = {"server": "E-server", "tuned": "E-tuned", "last": "E-last", "delivered": "E-delivered"}
SHARES = {"all": (1.0, 10), "tenth": (0.1, 30)}  # of the agents in a round, and rounds
OWN = ("own_table", "own_series", "own_images")
WHOLE = (
    "writers",
    "two populations",
    "people",
    "dealt",
    "ahead",
    "values",
)  # of `NATURAL`: as the product divides them
LENET = {f"lenet, {name}": name for name in FLEETS}
ALL = (*FLEETS, *WHOLE, *OWN, *FURTHER, *LENET)  # of the page's tables
CLOSE = 0.5  # points behind the best


@dataclass(frozen=True)
class Place:
    """Where data come from, and where what is made of them goes."""

    root: Path  # of the larger data sets
    own: Path  # of benchmarks.own_data
    files: Path  # of benchmarks.real_files_side
    made: Path


@dataclass(frozen=True)
class Cell:
    """One run."""

    fleet: str
    share: str
    method: str
    seed: int

    @property
    def key(self) -> str:
        return f"{self.fleet}/{self.share}/{self.method}/{self.seed}"


def scenario(cell: Cell, place: Place) -> Scenario:
    """What a coordinator would run."""
    content = _of_fleet(cell, place)
    part, rounds = SHARES[cell.share]
    content |= {"seed": cell.seed, "strategy": {"name": cell.method}}
    content["rounds"] = {"count": rounds, "participation": part}
    # what it uses by default is no single method any more
    content["evaluation"] = {"deliver": "served"} if cell.method == "local" else {}
    content["fleet"]["workers"] = 1
    content.pop("compare", None)
    return from_mapping(content)


def _of_fleet(cell: Cell, place: Place) -> dict[str, Any]:
    name = LENET.get(cell.fleet, cell.fleet)
    if cell.fleet in OWN:
        file = Path(__file__).parents[1] / "scenarios" / f"{name}.yaml"
        content: dict[str, Any] = yaml.safe_load(file.read_text("utf-8"))
        content["fleet"]["data"] = str(place.own / name.removeprefix("own_"))
        return content
    if name in FURTHER:
        folder = place.files / name
        kept = place.made / f"{name}.yaml"
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(yaml.safe_dump(proposed(folder, FURTHER[name].target)))
        content = yaml.safe_load(kept.read_text("utf-8"))
        agents = len(list(folder.iterdir()))
        return content | {"fleet": {"agents": agents, "data": str(folder), "partition": "by_group"}}
    setting = "lenet" if cell.fleet in LENET else "digits"
    scene = kin.scenario(kin.Cell(name, "fedavg", cell.seed, setting))
    content = scene.model_dump(mode="json", include={"name", "task", "training", "fleet"})
    if name in WHOLE and NATURAL[name].make is None:
        return content
    content["fleet"] |= _stored(name, cell.seed, setting, place)
    return content


def _stored(fleet: str, seed: int, setting: str, place: Place) -> dict[str, Any]:
    """The data of all agents in one file, and a partition that gives each its own: section `fleet` of a scenario."""
    data, split = (place.made / f"{setting}-{fleet}-{seed}-{what}.npz" for what in ("x", "who"))
    if not split.exists():
        data.parent.mkdir(parents=True, exist_ok=True)
        owned, truth = kin.people(fleet, seed, setting, place.root)
        agents = list(owned.values())
        arrays: dict[str, Any] = {
            "x": np.concatenate([one.features for one in agents]),
            "y": np.concatenate([one.targets for one in agents]),
            "x_test": np.concatenate([one.test_features for one in agents]),
            "y_test": np.concatenate([one.test_targets for one in agents]),
        }
        np.savez(data, **arrays)
        ends = [np.cumsum([0, *(len(one) for one in parts)]) for parts in _targets(agents)]
        who: dict[str, Any] = {
            "train_idx": np.arange(ends[0][-1]),
            "train_ptr": ends[0],
            "test_idx": np.arange(ends[1][-1]),
            "test_ptr": ends[1],
        }
        if truth:
            who["truth"] = np.array(truth)
        np.savez(split, **who)
    return {"data": str(data.resolve()), "partition": str(split.resolve()), "limit": None}


def _targets(agents: Sequence[Dataset]) -> tuple[list[Any], list[Any]]:
    return [one.targets for one in agents], [one.test_targets for one in agents]


def measured(cell: Cell, place: Place, pool: WorkerPool) -> dict[str, Any]:
    """The mean over agents of each mode, of the constant and of trees; how far E-delivered is ahead of these two, with standard
    errors over agents; agents that use no model; clusters; seconds of processors."""
    scene = scenario(cell, place)
    in_numpy = scene.task.model.name in (BUILT_IN[NUMPY] or ())
    os.environ["COVEY_LEARNER"] = NUMPY if in_numpy else "torch"
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        root = place.root.resolve()
        result = simulate(scene, RunOptions(folder, data_root=root), pool, ignore)
        rows = parquet.read_table(folder / "agents.parquet").to_pylist()
        seconds = time.perf_counter() - began
        alone = _alone(cell.fleet, cell.seed if cell.fleet not in (*OWN, *FURTHER) else 0)
        if not alone:
            share = source_of(folder, root)
            wanted = ("boosting", "constant") if trees_for(scene.task) else ("constant",)
            for index in range(len(rows)):
                data = dataset(replace(share, index=index), scene.task)
                alone.append(of_device(data, scene.task, wanted))
    none = np.array([one["constant"] for one in alone])
    unit = float(none.mean()) if scene.task.classes is None else 0.0

    def points(figures: Sequence[float]) -> Any:
        """In hundredths, (agents,)."""
        return 100 * (1 - np.array(figures) / unit) if unit else np.array(figures)

    found: dict[str, Any] = {}
    measure, factor = ("rmse", 1.0) if unit else ("accuracy", 100.0)
    for mode in MODES:
        if all(row.get(f"{mode}_{measure}") is not None for row in rows):
            found[mode] = points([factor * row[f"{mode}_{measure}"] for row in rows])
    found["none"] = points(none.tolist())
    if "boosting" in alone[0]:
        found["trees"] = points([one["boosting"] for one in alone])
    figures: dict[str, Any] = {name: round(float(own.mean()), 2) for name, own in found.items()}
    for name in ("none", "trees"):
        if name in found and "delivered" in found:
            apart = found["delivered"] - found[name]
            error = apart.std(ddof=1) / np.sqrt(len(apart))
            figures[f"ahead of {name}"] = [round(float(one), 2) for one in (apart.mean(), error)]
    unused = sum((row.get("uses") or "").startswith("no model") for row in rows)
    sizes = [int(result["clusters"]), unused, len(rows)]
    return figures | {"clusters, without model, agents": sizes, "seconds": round(seconds, 1)}


@cache
def _alone(fleet: str, seed: int) -> list[dict[str, float]]:
    """Figures of scikit-learn's models on each device, the same for all methods; filled by the first of them."""
    return []


# -- the table ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A fleet: means over the seeds that all methods have."""

    fleet: str
    seeds: int
    figures: Mapping[tuple[str, str], float]  # by method and mode; none and trees are methods
    ahead: Mapping[tuple[str, str], tuple[float, float]]  # by method, of none or trees

    def best(self, *, delivered: bool = True) -> tuple[str, str]:
        """The method and the mode that are best."""
        allowed = [key for key in self.figures if delivered or key[1] != "delivered"]
        return max(allowed, key=lambda key: self.figures[key])

    def behind(self, method: str, *, delivered: bool = True) -> float:
        """How far what devices use is behind it."""
        return self.figures[self.best(delivered=delivered)] - self.figures[method, "delivered"]

    def loses(self, method: str, other: str) -> bool:
        """Whether devices are worse off than with none or trees, by more than a standard error over agents."""
        gain, error = self.ahead.get((method, other), (0.0, 0.0))
        return gain < -error


def rows_of(found: Found, share: str) -> Iterator[Row]:
    """The fleets of which all methods have finished a seed."""
    for fleet in (*ALL, *HARD):
        cells = {
            seed: [found.get(Cell(fleet, share, method, seed).key, {}) for method in METHODS]
            for seed in range(1, 10)
        }
        seeds = [
            list(zip(METHODS, own, strict=True))
            for own in cells.values()
            if all("server" in one for one in own)
        ]
        if not seeds:
            continue
        figures: dict[tuple[str, str], list[float]] = {}
        ahead: dict[tuple[str, str], list[list[float]]] = {}
        for method, cell in (pair for own in seeds for pair in own):
            for mode in MODES:
                if mode in cell:
                    figures.setdefault((method, mode), []).append(cell[mode])
            for other in ("none", "trees"):
                if other in cell:
                    figures.setdefault((other, ""), []).append(cell[other])
                if f"ahead of {other}" in cell:
                    ahead.setdefault((method, other), []).append(cell[f"ahead of {other}"])
        yield Row(
            fleet,
            len(seeds),
            {key: float(np.mean(own)) for key, own in figures.items()},
            {key: _over_seeds(own) for key, own in ahead.items()},
        )


def _over_seeds(pairs: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The mean, and the mean of the standard errors: seeds share most of the samples."""
    gain, error = np.mean(pairs, axis=0)
    return float(gain), float(error)


def table(found: Found, share: str) -> str:
    """Markdown: a row per fleet."""
    title = f"{'all' if share == 'all' else 'a tenth of the'} agents in a round"
    heads = [f"{name}: behind" for name in DEFAULTS]
    lines = [
        f"| {title} | seeds | the best | none | trees | {' | '.join(heads)} |",
        "|---|--:|---|--:|--:|" + "--:|" * len(heads),
    ]
    for row in rows_of(found, share):
        method, mode = row.best()
        best = (
            f"{method}{', ' if mode else ''}{MODES.get(mode, '')} {row.figures[method, mode]:.1f}"
        )
        others = []
        for one in ("none", "trees"):
            with suppress(KeyError):
                others.append(f"{row.figures[one, '']:.1f}")
        cells = [
            *others,
            *[""] * (2 - len(others)),
            *[f"{row.behind(one):.1f}" for one in DEFAULTS],
        ]
        lines.append(f"| {row.fleet} | {row.seeds} | {best} | {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(found: Found, share: str) -> str:
    """Markdown: a row per method, over all fleets."""
    rows = list(rows_of(found, share))
    lines = [
        f"| {'all' if share == 'all' else 'a tenth of the'} agents, E-delivered | fleets | behind the best: mean | worst "
        f"| above {CLOSE} | behind the best of E-server, E-tuned, E-last: mean | worst | above {CLOSE} | worse than none | worse than trees |",
        "|---|--:|--:|---|--:|--:|---|--:|---|---|",
    ]
    for method in DEFAULTS:
        cells = [method, str(len(rows))]
        for delivered in (True, False):
            apart = {row.fleet: row.behind(method, delivered=delivered) for row in rows}
            worst = max(apart, key=lambda fleet: apart[fleet])
            above = sum(one > CLOSE for one in apart.values())
            cells += [f"{np.mean(list(apart.values())):.1f}"]
            cells += [f"{apart[worst]:.1f} ({worst})", f"{above} of {len(rows)}"]
        for other in ("none", "trees"):
            lost = [row.fleet for row in rows if row.loses(method, other)]
            compared = sum((method, other) in row.ahead for row in rows)
            cells.append(f"{len(lost)} of {compared}{': ' if lost else ''}{', '.join(lost)}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def cells(fleets: Sequence[str], shares: Sequence[str], seeds: Sequence[int]) -> Iterator[Cell]:
    """A complete table of one seed comes before any of the next."""
    for share, seed, fleet, method in product(shares, seeds, fleets, METHODS):
        yield Cell(fleet, share, method, seed)


def main() -> None:
    parser = record_options(__doc__, OUT, [1, 2, 3])
    parser.add_argument("--fleets", nargs="+", choices=(*ALL, *HARD), default=ALL)
    parser.add_argument("--shares", nargs="+", choices=list(SHARES), default=list(SHARES))
    parser.add_argument("--data-root", type=Path, default=Path("../shared/data"))
    parser.add_argument("--own-data", type=Path, default=Path("runs/own-data"))
    parser.add_argument("--files", type=Path, default=Path("runs/real-files"))
    parser.add_argument("--made", type=Path, default=Path("runs/delivered"))
    options = parser.parse_args()
    place = Place(
        options.data_root, options.own_data.resolve(), options.files.resolve(), options.made
    )
    options.made.mkdir(parents=True, exist_ok=True)
    with WorkerPool(1, options.made / "workers.log") as pool:
        planned = {
            cell.key: partial(measured, cell, place, pool)
            for cell in cells(options.fleets, options.shares, options.seeds)
        }
        settings = {"shares": SHARES, "lenet": SETTINGS["lenet"].limit}
        found = resumed(options, planned, settings, indent=None)
    tables = {}
    for share in SHARES:
        if any(rows_of(found, share)):
            for made in (table(found, share), summary(found, share)):
                tables[made.split(" | ")[0].removeprefix("| ")] = made
    show_tables(options, tables)


if __name__ == "__main__":
    main()
