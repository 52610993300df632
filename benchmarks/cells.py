"""What each further cell of a comparison costs, next to a process that imports torch.

    python -m benchmarks.cells [--times 3] [--cells 6]

A cell trains four agents for one round on the digits: next to nothing. So a comparison of one cell and one of many
differ by what a cell costs: its folder, its partition, its initial model, its evaluation and its result.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from benchmarks.measuring import OUT, Cost, Row, cost_of_children, foreign_load, median, show
from benchmarks.worker import import_torch


def scenario(cells: int) -> dict[str, Any]:
    """FedAvg on this number of seeds."""
    return {
        "name": "cells",
        "task": {"features": [1, 8, 8], "classes": 10, "scale": 0.0625},
        "training": {"epochs": 1, "batch": 50, "lr": 0.1},
        "strategy": {"name": "fedavg"},
        "rounds": {"count": 1, "participation": 1.0},
        "fleet": {"agents": 4, "data": "digits", "limit": 400},
        "compare": {
            "methods": [{"name": "fedavg"}],
            "seeds": list(range(1, cells + 1)),
            "metric": "server",
        },
    }


def compare(cells: int) -> Cost:
    """The cost of a comparison without a broker."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "scenario.yaml"
        file.write_text(yaml.safe_dump(scenario(cells)))
        program = [sys.executable, "-m", "covey.coordinator.cli", "compare", str(file)]
        options = ["--in-process", "--json", "--out", str(folder / "out")]
        command = [*program, *options]
        return cost_of_children(
            lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        )


def measure(times: int, cells: int) -> Row:
    """The cost of one cell more, in turns with the floor."""
    floors: list[Cost] = []
    products: list[Cost] = []
    for _ in range(times):
        floors.append(cost_of_children(lambda: import_torch([])))
        one = compare(1)
        many = compare(cells)
        further = cells - 1
        wall_s = (many.wall_s - one.wall_s) / further
        products.append(Cost(wall_s, (many.cpu_s - one.cpu_s) / further))
    return Row("a further cell, to `import torch`", median(floors), median(products), times)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--cells", type=int, default=6)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    with foreign_load() as load:
        rows = [measure(options.times, options.cells)]
    show("cells", "cells of a comparison", rows, load, options.out)


if __name__ == "__main__":
    main()
