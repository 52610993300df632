"""Files that ship inside packages, as small fleets: what `coordinator init` proposes, and its models next to scikit-learn's defaults.

    /tmp/files/bin/python benchmarks/real_files_side.py runs/real-files    # its docstring has the commands for that interpreter
    git worktree add --detach /tmp/before COMMIT
    python -m benchmarks.real_files runs/real-files --before /tmp/before/src --out benchmarks/results/real_files.json

Each fleet is proposed twice, by an older commit and by this one, without any option; without `--before` the record keeps what it has
of the older one. Then its proposal for the target that a person
would choose (`FILES`) runs as it is, for ten rounds. scikit-learn trains on each device alone, on the same columns and rows, and is
judged on the same test rows, as mean over the devices: accuracy in %, or RMSE. `python -m benchmarks.real_files --page` prints the
table of the record.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.real_files_side import FILES
from covey.agent.data.check import load_local
from covey.agent.data.dataset import Dataset
from covey.shared.scenario.load import from_mapping
from covey.shared.scenario.task import Task

RECORD = Path(__file__).parent / "results" / "real_files.json"
ROUNDS = 10
OTHERS = ("boosting", "linear", "constant")
Figures = dict[str, float]


def proposed(folder: Path, target: str = "", src: str = "") -> dict[str, Any]:
    """The scenario that `coordinator init` proposes, or why it refuses: its last line.

    Args:
        folder: a file for each device.
        target: the column to predict; empty: none is named.
        src: the `src` of another checkout, whose program is asked.
    """
    command = [sys.executable, "-m", "covey.coordinator.cli", "init"]
    for path in sorted(folder.iterdir()):
        command += ["--from", path.name]
    if target:
        command += ["--target", target]
    environment = os.environ | ({"PYTHONPATH": src} if src else {})
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = done.stderr.partition("error: ")[2].splitlines() or [done.stderr.strip()[-300:]]
        return {"refused": lines[0]}
    scenario: dict[str, Any] = yaml.safe_load(done.stdout)
    return scenario


def facts_of(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """What counts of a proposal: its target, its inputs, and the words of the devices that are in it."""
    if "refused" in scenario:
        return dict(scenario)
    task = scenario["task"]
    words = task.get("categories", {})
    return {
        "target": task["target"],
        "numbers": [
            name for name in task["columns"] if name not in {*words, *task.get("times", ())}
        ],
        "words": {name: len(own) if isinstance(own, list) else own for name, own in words.items()},
        "times": list(task.get("times", ())),
        "window": "window" in task,
    }


def trained(scenario: dict[str, Any], folder: Path) -> Figures:
    """The figures of a run of the proposal, macro: of the served model, and of what each device uses."""
    agents = len(list(folder.iterdir()))
    scenario["rounds"]["count"] = ROUNDS
    scenario["fleet"] = {
        "agents": agents,
        "data": str(folder),
        "partition": "by_group",
        "workers": 1,
    }
    scenario.pop("compare")
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "scenario.yaml"
        path.write_text(yaml.safe_dump(scenario))
        command = [sys.executable, "-m", "covey.coordinator.cli", "run", str(path), "--in-process"]
        done = subprocess.run(
            [*command, "--out", f"{name}/run"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-600:])
        found = json.loads((Path(name) / "run" / "result.json").read_text())["accuracy"]
    task = from_mapping(scenario).task
    measure, factor = ("rmse", 1.0) if task.classes is None else ("accuracy", 100.0)
    return {
        mode: round(factor * found[mode][measure]["macro"], 4)
        for mode in ("server", "delivered")
        if found.get(mode) and found[mode].get(measure)
    }


def alone(scenario: Mapping[str, Any], folder: Path) -> Figures:
    """The figures of scikit-learn's defaults on each device alone, and of its most frequent class or mean: macro."""
    task = from_mapping(scenario).task
    devices = [load_local(path, task=task) for path in sorted(folder.iterdir())]
    found: dict[str, list[float]] = {}
    for device in devices:
        for name, figure in of_device(device, task).items():
            found.setdefault(name, []).append(figure)
    return {name: round(float(np.mean(own)), 4) for name, own in found.items()}


def of_device(data: Dataset, task: Task, wanted: Sequence[str] = OTHERS) -> Figures:
    """The figures of some of scikit-learn's models on one device: accuracy in %, or RMSE."""
    from sklearn.compose import make_column_transformer
    from sklearn.dummy import DummyClassifier, DummyRegressor
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    x, test = (
        one.reshape(len(one), -1).astype(float) for one in (data.features, data.test_features)
    )
    x, test = (np.where(np.isnan(x).all(0), 0, one) for one in (x, test))
    words = [] if task.window else [
        place for place, column in enumerate(task.table_columns) if column.kind == "category"
    ]  # fmt: skip
    numbers = [place for place in range(x.shape[1]) if place not in words]
    prepared = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="ignore"), words),
    )
    is_values = task.classes is None
    models: dict[str, Any] = {
        "boosting": HistGradientBoostingRegressor()
        if is_values
        else HistGradientBoostingClassifier(),
        "linear": make_pipeline(
            prepared, Ridge() if is_values else LogisticRegression(max_iter=1000)
        ),
        "constant": DummyRegressor() if is_values else DummyClassifier(),
    }
    found: Figures = {}
    y = data.targets.reshape(len(data.targets), -1)
    expected = data.test_targets.reshape(len(data.test_targets), -1)
    for name in wanted:
        model = models[name]
        errors: list[Any] = []
        for step in range(y.shape[1]):  # of a forecast
            own = model
            if len(np.unique(y[:, step])) < 2:  # logistic regression needs two classes
                own = models["constant"]
            errors.append(own.fit(x, y[:, step]).predict(test) - expected[:, step])
        if is_values:
            found[name] = float(np.sqrt(np.mean(np.square(errors))))
        else:
            found[name] = 100 * float(np.mean(np.array(errors) == 0))
    return found


# -- the table ---------------------------------------------------------------------------------------------------------


def page(record: Mapping[str, Any]) -> str:
    """The record as a table."""
    lines = [
        "| fleet | devices | target: before, now | words that leave: before, now | rows numbered: before, now | target of a person "
        "| E-server | E-delivered | boosting | linear | constant |",
        "| :-- | --: | :-- | --: | --: | :-- | --: | --: | --: | --: | --: |",
    ]
    for name, row in record["fleets"].items():
        both = [row["before"], row["now"]]
        shown = " → ".join(f"`{one.get('target', 'refused')}`" for one in both)
        words = " → ".join(str(sum(one.get("words", {}).values())) for one in both)
        counted = " → ".join("yes" if "rownames" in one.get("numbers", ()) else "–" for one in both)
        figures = [
            row["figures"].get(key)
            for key in ("server", "delivered", "boosting", "linear", "constant")
        ]
        cells = ["–" if one is None else f"{one:.4g}" for one in figures]
        lines.append(
            f"| {name} | {row['devices']} | {shown} | {words} | {counted} | `{row['target']}`, {row['measure']} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def counts(record: Mapping[str, Any]) -> list[str]:
    """Sentences on the page that are counts over the fleets."""
    rows = list(record["fleets"].values())
    numbered = [
        sum("rownames" in row[when].get("numbers", ()) for row in rows)
        for when in ("before", "now")
    ]
    compared = [row for row in rows if "delivered" in row["figures"]]
    gains = [
        [(row["figures"]["delivered"] - row["figures"][one]) * (1 if row["measure"] == "%" else -1) for one in OTHERS]
        for row in compared
    ]  # fmt: skip
    ahead = sum(min(own[:2]) > 0 for own in gains)
    near = sum(
        min(own[:2]) <= 0 and min(own[:2]) >= -0.1 * row["figures"]["delivered"]
        for own, row in zip(gains, compared, strict=True)
    )
    worse = [name for name, row in record["fleets"].items() if "delivered" in row["figures"]]
    worse = [name for name, own in zip(worse, gains, strict=True) if own[2] < 0]
    named = f" ({', '.join(worse)})" if worse else ""
    return [
        f"inputs in {numbered[0]} of {len(rows)} before, in {numbered[1] or 'none'} now.",
        f"better than both defaults in {ahead} of {len(compared)}, within a tenth of the better one in {near} more; "
        f"worse than the constant in {len(worse)}{named}.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--before", default="", help="the src of an older checkout")
    parser.add_argument("--commit", default="", help="its commit")
    parser.add_argument("--only", nargs="*", default=list(FILES))
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--page", action="store_true", help="print the table of the record")
    options = parser.parse_args()
    if options.page:
        record = json.loads(options.out.read_text())
        print("\n\n".join([page(record), *counts(record)]))
        return
    warnings.simplefilter("ignore")
    fleets: dict[str, Any] = {}
    kept = {} if options.before else json.loads(RECORD.read_text())
    for name in options.only:
        folder, file = options.folder / name, FILES[name]
        now = proposed(folder)
        scenario = proposed(folder, file.target) if file.target else now
        row: dict[str, Any] = {
            "source": file.source,
            "devices": len(list(folder.iterdir())),
            "before": kept["fleets"][name]["before"]
            if kept
            else facts_of(proposed(folder, src=options.before)),
            "now": facts_of(now),
            "target": file.target or facts_of(now).get("target", ""),
            "measure": "",
            "figures": {},
        }
        if "refused" not in scenario:
            row["measure"] = "%" if scenario["task"]["classes"] is not None else "RMSE"
            row["figures"] = {**alone(scenario, folder), **trained(scenario, folder)}
        fleets[name] = row
        print(name, row["figures"], flush=True)
        settings = {"rounds": ROUNDS, "before": options.commit or kept["settings"]["before"]}
        options.out.write_text(
            json.dumps({"settings": settings, "fleets": fleets}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
