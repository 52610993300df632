"""What a companion of the fleet adds to what devices use, on tables of devices that were not made for it.

    python -m benchmarks.companion runs/real-files            # files as `benchmarks.real_files_side` writes them

Each fleet runs as `coordinator init` proposes it, without a companion, with a line, and with trees; test rows are the product's.
A point is a hundredth of the accuracy, or of the RMSE of the constant. The record grows by a run at a time, and a run that is in
it is not made again.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.real_files import proposed
from benchmarks.real_files_side import FILES, FURTHER

RECORD = Path(__file__).parent / "results" / "companion.json"
ROUNDS = 10
COMPANIONS = ("", "trees", "linear")
# those of the trial with one class or value a row
FLEETS = [
    "weather",
    "hotel",
    "flights",
    "houses",
    "computers",
    "exchange-rates",
    "image-segments",
    "students",
    "mortgages",
    "quinidine",
    "towns",
    "panel-of-wages",
    "storms",
    "cars-epa",
    "airports",
    "juice",
    "kidneys",
    "liver",
    "seats",
    "crime",
    "inspections",
    "wages-by-region",
    "exam",
]


def ran(
    scenario: Mapping[str, Any], folder: Path, name: str, method: str, seed: int
) -> dict[str, Any]:
    """The figures of a run, in points, macro: of what devices use, of trees at home, and of the served model."""
    changed = copy.deepcopy(dict(scenario))
    changed.pop("compare", None)
    changed["rounds"]["count"] = ROUNDS
    changed["seed"], changed["strategy"] = seed, {"name": method}
    agents = len(list(folder.iterdir()))
    changed["fleet"] = {
        "agents": agents,
        "data": str(folder),
        "partition": "by_group",
        "workers": 1,
    }
    if name:
        changed.setdefault("evaluation", {})["deliver"] = {"companion": name}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "scenario.yaml"
        path.write_text(yaml.safe_dump(changed))
        command = [sys.executable, "-m", "covey.coordinator.cli", "run", str(path), "--in-process"]
        done = subprocess.run(
            [*command, "--out", f"{place}/run"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return {"refused": done.stderr.strip().splitlines()[-1][:300]}
        result = json.loads((Path(place) / "run" / "result.json").read_text())
    return {
        **points(result["accuracy"]),
        "uses": result.get("uses"),
        "seconds": round(time.perf_counter() - began, 1),
    }


def points(found: Mapping[str, Any]) -> dict[str, float]:
    """The figures of all modes of a result that people compare."""
    modes = {"delivered": "use", "trees": "home", "server": "served"}
    if "rmse" in found["delivered"]:
        constant = found["baseline"]["rmse"]["macro"]
        of = {
            one: 100 * (1 - found[mode]["rmse"]["macro"] / constant)
            for mode, one in modes.items()
            if "rmse" in found.get(mode, {})
        }
    else:
        of = {
            one: 100 * found[mode]["accuracy"]["macro"]
            for mode, one in modes.items()
            if "accuracy" in found.get(mode, {})
        }
    return {name: round(value, 3) for name, value in of.items()}


def gains(record: Mapping[str, Any], name: str, method: str) -> dict[str, list[float]]:
    """By fleet the gain of a companion in each seed, in points of what devices use."""
    found: dict[str, list[float]] = {}
    for key, row in record.items():
        fleet, of, companion, seed = key.split("|")
        plain = record.get(f"{fleet}|{of}||{seed}", {})
        if (of, companion) == (method, name) and "use" in row and "use" in plain:
            found.setdefault(fleet, []).append(row["use"] - plain["use"])
    return found


def summary(gained: Mapping[str, Sequence[float]]) -> str:
    """Mean, median, and how many fleets gain or lose more than half a point."""
    means = np.array([np.mean(own) for own in gained.values()])
    if not len(means):
        return "nothing yet"
    return (
        f"{len(means)} fleets: mean {means.mean():+.2f}, median {np.median(means):+.2f}, "
        f"better by half a point {(means > 0.5).sum()}, worse {(means < -0.5).sum()}, worst {means.min():+.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path)
    parser.add_argument("--methods", nargs="+", default=["fedavg", "fedclust"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--fleets", nargs="+", default=list(FLEETS))
    parser.add_argument("--record", type=Path, default=RECORD)
    chosen = parser.parse_args()
    record = json.loads(chosen.record.read_text()) if chosen.record.exists() else {}
    known = {**FILES, **FURTHER}
    for method in chosen.methods:
        for seed in chosen.seeds:
            for fleet in chosen.fleets:
                folder = chosen.files / fleet
                scenario: dict[str, Any] = {}
                for name in COMPANIONS:
                    key = f"{fleet}|{method}|{name}|{seed}"
                    if key in record or not folder.exists():
                        continue
                    scenario = scenario or proposed(folder, known[fleet].target)
                    refused = "refused" in scenario
                    record[key] = scenario if refused else ran(scenario, folder, name, method, seed)
                    chosen.record.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
                    print(key, record[key], flush=True)
        for name in COMPANIONS[1:]:
            print(method, name, summary(gains(record, name, method)))


if __name__ == "__main__":
    main()
