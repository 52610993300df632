"""What benchmarks share: records that resume, and, for speed, a floor and a product measured in turns with their ratio.

Seconds differ from machine to machine and from hour to hour. The ratio of two things that were measured in turns does
not. `foreign` is the share of the machine that other programs used meanwhile: above a tenth, figures are marked.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from covey.shared.storage.files import write_atomically

BUSY = 0.1  # share of the machine that others may use before figures are marked
OUT = Path("runs/bench")
WIDTH = 118  # columns of a table

Measure = Callable[[], "Cost"]
Found = dict[str, dict[str, Any]]  # what was measured in each cell, by the cell's key


def record_options(doc: str | None, out: Path, seeds: Sequence[int]) -> argparse.ArgumentParser:
    """The options of a benchmark whose cells are kept."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(seeds))
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--table", action="store_true", help="run nothing, print finished cells")
    parser.add_argument("--page", type=Path, help="a Markdown page whose tables are replaced")
    return parser


def resumed(
    options: argparse.Namespace,
    cells: Mapping[str, Callable[[], dict[str, Any]]],
    settings: Mapping[str, Any],
    shown: Callable[[dict[str, Any]], object] = dict,
    indent: int | None = 1,
) -> Found:
    """The cells of a record; those that it lacks are measured, and each is written as soon as it is finished.

    Args:
        options: of `record_options`.
        cells: what measures each cell, by its key in the record.
        settings: what all cells have in common, kept with them.
        shown: what is printed of a finished cell.
        indent: of the file.
    """
    found: Found = {}
    if options.out.exists():
        found = json.loads(options.out.read_text())["cells"]
    for key, measured in ({} if options.table else cells).items():
        if key in found:
            continue
        found[key] = measured()
        print(key, shown(found[key]), flush=True)
        content = json.dumps({"settings": settings, "cells": found}, indent=indent)
        write_atomically(options.out, content.encode())
    return found


def show_tables(options: argparse.Namespace, tables: Mapping[str, str]) -> None:
    """Print Markdown tables by the name of their first column, and put them into `--page`, which has such tables already."""
    if options.page is not None:
        text = options.page.read_text("utf-8")
        for first, table in tables.items():
            text = replaced(text, first, table)
        write_atomically(options.page, text.encode())
    print("\n\n".join(tables.values()))


def replaced(text: str, first: str, made: str) -> str:
    """The text with another table in place of the one whose first column has the name `first`."""
    return re.sub(rf"^\| {first} \| .*(?:\n\|.*)*", lambda _: made, text, flags=re.MULTILINE)


@dataclass(frozen=True)
class Cost:
    """What something took, in seconds: of the clock, and of the processor in all processes that took part."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Row:
    """A product next to its floor: medians of the same number of measurements, made in turns."""

    what: str
    floor: Cost
    product: Cost
    times: int
    detail: Mapping[str, float] | None = None  # parts of the product's cost, in ms

    @property
    def wall_ratio(self) -> float:
        return self.product.wall_s / self.floor.wall_s

    @property
    def cpu_ratio(self) -> float:
        """NaN if the floor is too short for the processor's clock."""
        if not self.floor.cpu_s:
            return float("nan")
        return self.product.cpu_s / self.floor.cpu_s

    def to_json(self) -> dict[str, Any]:
        ratios = {"wall": round(self.wall_ratio, 2), "cpu": round(self.cpu_ratio, 2)}
        return {**asdict(self), "ratio": ratios}


def in_turns(what: str, floor: Measure, product: Measure, times: int) -> Row:
    """Measure both in turns, and take the medians."""
    floors: list[Cost] = []
    products: list[Cost] = []
    for _ in range(times):
        floors.append(floor())
        products.append(product())
    return Row(what, median(floors), median(products), times)


def median(costs: Sequence[Cost]) -> Cost:
    wall_s = statistics.median(cost.wall_s for cost in costs)
    return Cost(wall_s, statistics.median(cost.cpu_s for cost in costs))


def cost_of(work: Callable[[], object], repeats: int = 1) -> Cost:
    """The cost of a call in this process, the mean of some calls."""
    cpu = time.process_time()
    wall = time.perf_counter()
    for _ in range(repeats):
        work()
    wall_s = time.perf_counter() - wall
    cpu_s = time.process_time() - cpu
    return Cost(wall_s / repeats, cpu_s / repeats)


def cost_of_children(work: Callable[[], object]) -> Cost:
    """The cost of a call that starts processes and waits for their end; this process itself does not count."""
    before = children_s()
    wall = time.perf_counter()
    work()
    wall_s = time.perf_counter() - wall
    return Cost(wall_s, children_s() - before)


def children_s() -> float:
    """Processor time of all processes that this one has started, and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cpu_s_of(pids: Sequence[int]) -> float:
    """Processor time of these processes so far; those that have ended do not count."""
    total = 0.0
    for pid in pids:
        try:
            used = psutil.Process(pid).cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += used.user + used.system
    return total


def cpu_s_of_trees(pids: Sequence[int]) -> float:
    """Processor time of these processes so far, and of all that they have started, also of what has ended."""
    total = 0.0
    for pid in pids:
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            try:
                used = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += used.user + used.system + used.children_user + used.children_system
    return total


@contextmanager
def foreign_load() -> Iterator[dict[str, float]]:
    """Fills `foreign` at the end of the block: the share of all cores that other programs used."""
    found: dict[str, float] = {}
    before = _busy_s() - _own_s()
    wall = time.perf_counter()
    yield found
    others_s = _busy_s() - _own_s() - before
    cores_s = (time.perf_counter() - wall) * (os.cpu_count() or 1)
    # the system counts in ticks of a hundredth of a second: a shorter block may have one tick or none
    found["foreign"] = round(min(max(0.0, others_s / cores_s), 1.0), 2)


def _busy_s() -> float:
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    return float(sum(times[:8]) - idle)  # the fields after the eighth are part of the first two


def _own_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime + children_s()


def mean_and_spread(values: Sequence[float]) -> str:
    """The mean, and with more than one value the standard deviation; nothing without values."""
    if not values:
        return ""
    text = f"{statistics.fmean(values):.1f}"
    if len(values) > 1:
        text += f" ± {statistics.pstdev(values):.1f}"
    return text


def show(name: str, title: str, rows: Sequence[Row], load: Mapping[str, float], out: Path) -> None:
    """Print the rows as a table, and write them to NAME.json."""
    foreign = load["foreign"]
    mark = "; the machine was busy" if foreign > BUSY else ""
    table = Table(title=f"{title} (others used {foreign:.0%} of the machine{mark})")
    table.add_column("what")
    for column in ("floor CPU", "product CPU", "CPU ratio", "floor ms", "product ms", "ratio"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(row.what, *_cells(row))
    Console(width=WIDTH).print(table)
    for row in rows:
        if row.detail:
            parts = [f"{key} {value:.1f}" for key, value in row.detail.items()]
            print(f"{row.what}: CPU ms of {', '.join(parts)}")
    out.mkdir(parents=True, exist_ok=True)
    content = {**load, "rows": [row.to_json() for row in rows]}
    (out / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def _cells(row: Row) -> list[str]:
    figures = []
    for floor_s, product_s, ratio in (
        (row.floor.cpu_s, row.product.cpu_s, row.cpu_ratio),
        (row.floor.wall_s, row.product.wall_s, row.wall_ratio),
    ):
        figures += [f"{floor_s * 1e3:.1f}", f"{product_s * 1e3:.1f}", f"{ratio:.1f}x"]
    return figures
