"""One scenario, several methods and seeds: run what is missing, print a table of means, write JSON.

    python benchmarks/side_by_side.py scenarios/writers_fesem.yaml --methods fesem fedavg --seeds 1 2 3 --out runs/writers

Every run is a folder below --out; a finished one is not run again, an interrupted one is resumed.
`--methods` takes names or "name:key=value,key=value".
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

FIGURES = {
    "E-server": ("accuracy", "server", "accuracy"),
    "E-tuned": ("accuracy", "tuned", "accuracy"),
    "E-last": ("accuracy", "last", "accuracy"),
    "F1": ("accuracy", "server", "f1"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("scenario", type=Path)
    parser.add_argument("--methods", nargs="+", required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    given = parser.parse_args()
    results = {method: [one(given, method, seed) for seed in given.seeds] for method in given.methods}
    show(given.scenario.stem, results)
    (given.out / "results.json").write_text(json.dumps(results, indent=1))


def one(given: argparse.Namespace, method: str, seed: int) -> dict[str, Any]:
    """The result of one run, which is started or resumed where it is missing."""
    name, _, options = method.partition(":")
    folder = given.out / f"{method.translate(str.maketrans(':=,', '---'))}-seed{seed}"
    if not (folder / "result.json").exists():
        sets = [f"seed={seed}", f"strategy.name={name}", *(f"strategy.{o}" for o in options.split(",") if o)]
        arguments = [word for text in (*sets, *given.overrides) for word in ("--set", text)]
        resume = ["--resume"] if (folder / "checkpoint" / "manifest.json").exists() else []
        command = [sys.executable, "-m", "coordinator.cli", "run", str(given.scenario), "--out", str(folder)]
        subprocess.run([*command, *arguments, *resume], check=True)
    data: dict[str, Any] = json.loads((folder / "result.json").read_text())
    data["folder"] = str(folder)
    return data


def show(title: str, results: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    """Mean ± population deviation over the seeds, micro / macro, in percent."""
    table = Table(title=title)
    for column in ("method", *FIGURES, "ARI", "clusters at the end"):
        table.add_column(column)
    for method, runs in results.items():
        cells = [f"{over(runs, path, 'micro')} / {over(runs, path, 'macro')}" for path in FIGURES.values()]
        ari = [run["ari"] for run in runs if run["ari"] is not None]
        sizes = "; ".join("+".join(map(str, run["cluster_sizes"].values())) or "1" for run in runs)
        table.add_row(method, *cells, " ".join(f"{value:.2f}" for value in ari) or "none", sizes)
    Console(width=150).print(table)


def over(runs: Sequence[dict[str, Any]], path: tuple[str, str, str], average: str) -> str:
    values = [100 * run[path[0]][path[1]][path[2]][average] for run in runs]
    return f"{statistics.fmean(values):.2f}±{statistics.pstdev(values):.2f}"


if __name__ == "__main__":
    main()
