"""The half of `benchmarks.companion` that has XGBoost: bagging as Flower's example has it, on the rows of that benchmark.

    /tmp/files/bin/pip install xgboost
    python -m benchmarks.companion --rows hotel=/tmp/hotel.npz
    /tmp/files/bin/python benchmarks/companion_side.py /tmp/hotel.npz

In each round every device grows one tree on what all trees so far leave of its rows, and the server appends those of all devices
(`examples/xgboost-quickstart` of Flower: eta 0.1, depth 8, one local epoch). Points are those of the benchmark: hundredths of the
accuracy, or of the RMSE of each device's mean. It imports nothing of Covey, and no Flower: bagging needs neither.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import xgboost  # type: ignore[import-not-found, unused-ignore]

ROUNDS = (3, 10, 30, 100)  # three in the example


def bagged(devices: list[dict[str, Any]], classes: int) -> dict[int, float]:
    """Points by rounds, a mean over devices."""
    kind = {0: "reg:squarederror", 2: "binary:logistic"}.get(classes, "multi:softprob")
    width = classes if classes > 2 else 1
    start = 0.0 if classes else float(devices[0]["y"].mean())  # of the first model that comes
    settings = {"objective": kind, "eta": 0.1, "max_depth": 8, "tree_method": "hist"}
    settings |= {"base_score": 0.5 if classes else 0.0} | (
        {"num_class": classes} if width > 1 else {}
    )
    parts = [(one, x, y) for one in devices for x, y in (("x", "y"), ("test_x", "test_y"))]
    margins = {(id(one), x): np.full((len(one[x]), width), start) for one, x, _ in parts}
    found = {}
    for round_ in range(1, max(ROUNDS) + 1):
        trees = []
        for one in devices:
            rows = xgboost.DMatrix(one["x"], label=one["y"])
            rows.set_base_margin(margins[id(one), "x"].squeeze())
            trees.append(xgboost.train(settings, rows, num_boost_round=1))
        for one, x, _ in parts:
            rows = xgboost.DMatrix(one[x])
            rows.set_base_margin(np.zeros(len(one[x]) * width).reshape(-1, width).squeeze())
            for tree in trees:
                own = tree.predict(rows, output_margin=True)
                margins[id(one), x] += own.reshape(-1, width)
        if round_ in ROUNDS:
            found[round_] = points(devices, margins, classes)
    return found


def points(devices: list[dict[str, Any]], margins: dict[Any, Any], classes: int) -> float:
    """In hundredths."""
    tests = [(one["y"], one["test_y"], margins[id(one), "test_x"]) for one in devices]
    if classes:
        hits = [
            np.mean((found.argmax(1) if classes > 2 else found[:, 0] > 0) == truth)
            for _, truth, found in tests
        ]
        return 100 * float(np.mean(hits))
    errors = [np.sqrt(np.mean((found[:, 0] - truth) ** 2)) for _, truth, found in tests]
    constant = [np.sqrt(np.mean((own.mean() - truth) ** 2)) for own, truth, _ in tests]
    return 100 * float(1 - np.mean(errors) / np.mean(constant))


def main() -> None:
    for path in sys.argv[1:]:
        kept = np.load(path)
        parts = ("x", "y", "test_x", "test_y")
        devices = [
            {one: kept[f"{one} {place}"] for one in parts} for place in range(kept["devices"])
        ]
        found = bagged(devices, int(kept["classes"]))
        print(path, {rounds: round(own, 1) for rounds, own in found.items()}, flush=True)


if __name__ == "__main__":
    main()
