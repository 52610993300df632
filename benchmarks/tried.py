"""`coordinator try` on files of many kinds, next to `coordinator compare` of the same scenario with three seeds and all its rounds.

    /tmp/files/bin/python benchmarks/real_files_side.py runs/real-files    # its docstring has the commands for that interpreter
    /tmp/files/bin/python benchmarks/real_files_side.py runs/real-files further
    python -m benchmarks.tried --data-root ../shared/data [--only diabetes titanic]

The fleets: three machines of a factory (semicolons, decimal commas, cp1252), people of scikit-learn's diabetes by their age, folders
of pictures of twelve writers, databases of Home Assistant in three homes, and `FILES` of `benchmarks.real_files_side`. Machines and
homes are drawn; all else is real. The target is the one that a person would choose, else the proposed one.

*Agrees* compares what follows from both verdicts on the better way of training together: for it, against it, or open, where no
difference is shown. Seconds are of the clock, on a machine that does other work too, and of the processor in all programs of the
trial. `--alone` leaves the comparisons out. *Trees* are those of each device alone: with scikit-learn's leaves of 20 rows, and with the
smaller ones that few rows get now.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.measuring import Found, children_s, record_options, resumed, show_tables
from benchmarks.own_data import Handwriting, write_images
from benchmarks.real_files import of_device, proposed
from benchmarks.real_files_side import FILES, FURTHER
from covey.agent.data.check import load_local
from covey.agent.data_place import place_of
from covey.extras.compare.comparison_files import finished_rows
from covey.extras.compare.verdict import verdicts
from covey.extras.trial.devices import devices_in
from covey.extras.trial.tests.homes import QUERY, write_home
from covey.extras.trial.trial import METHODS, best_way
from covey.shared.scenario.load import from_mapping, load

OUT = Path(__file__).parent / "results" / "tried.json"
SEEDS = (1, 2, 3)
SIDES = {"worth it": "for", "not worth it": "against", "worse": "against", "not shown": "open"}
AGES = 6  # groups of people
ROWS = 600  # of a machine
HOMES = 3


@dataclass(frozen=True)
class Fleet:
    """What a user has in a folder."""

    make: Callable[[Path], None]  # writes the data of each device into a folder
    target: str = ""
    query: str = ""  # of the databases in the folder


def fleets(options: Any) -> dict[str, Fleet]:
    """All fleets by name."""
    root = options.data_root / "mnist_writer.npz"
    found = {
        "three machines": Fleet(machines, "Ausschuss"),
        "diabetes by age": Fleet(by_age, "progression"),
        "pictures": Fleet(partial(pictures, root)),
        "Home Assistant": Fleet(homes, "temperature", QUERY),
    }
    for name, file in {**FILES, **FURTHER}.items():
        found[name] = Fleet(partial(copied, options.files / name), file.target)
    return found


# -- files ---------------------------------------------------------------------------------------------------------


def machines(folder: Path) -> None:
    """Three tables as a German spreadsheet writes them; on the third machine heat has the opposite effect."""
    draws = np.random.default_rng(3)
    for machine in (1, 2, 3):
        with (folder / f"machine_{machine}.csv").open("w", newline="", encoding="cp1252") as file:
            writer = csv.writer(file, delimiter=";")
            names = "Zeit,Temperatur (°C),Vibration,Strom,Drehzahl,Teil,Ausschuss"
            writer.writerow(names.split(","))
            writer.writerows(_of_a_machine(machine, draws))


def _of_a_machine(machine: int, draws: np.random.Generator) -> Iterator[list[str]]:
    for row in range(ROWS):
        heat, shaking = draws.normal(), draws.normal()
        current = 10 + 0.05 * (60 + 5 * heat) + draws.normal()
        turns = 3000 + 80 * draws.normal()
        odds = (-1.2 if machine == 3 else 1.2) * heat + 1.5 * shaking - 1.0
        is_scrap = draws.random() < 1 / (1 + np.exp(-2 * odds))
        at = datetime(2026, 11, 1) + timedelta(minutes=7 * row)
        numbers = [
            f"{60 + 4 * machine + 5 * heat:.1f}",
            f"{0.8 + 0.4 * shaking:.3f}",
            f"{current:.2f}",
        ]
        cells = [number.replace(".", ",") for number in numbers]
        part = f"TEIL-{draws.integers(10**6):06d}"
        yield [f"{at:%d.%m.%Y %H:%M}", *cells, f"{turns:.0f}", part, "ja" if is_scrap else "nein"]


def by_age(folder: Path) -> None:
    """scikit-learn's diabetes data in its own units, the youngest people on the first device."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    rows = np.column_stack([data.data, data.target])
    in_order = rows[np.argsort(data.data[:, data.feature_names.index("age")], kind="stable")]
    for number, own in enumerate(np.array_split(in_order, AGES)):
        with (folder / f"age-{number + 1}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([*data.feature_names, "progression"])
            writer.writerows(own.tolist())


def pictures(source: Path, folder: Path) -> None:
    """Handwritten digits of twelve people, a folder for each."""
    with tempfile.TemporaryDirectory() as name:
        write_images(Path(name), Handwriting.read(source))
        for writer in sorted(Path(name).glob("*/*")):
            writer.rename(folder / writer.name)


def homes(folder: Path) -> None:
    """The database of each home."""
    for number in range(HOMES):
        write_home(folder / f"home-{number + 1}.db", seed=number, days=7)


def copied(source: Path, folder: Path) -> None:
    """The files of a data set of a package."""
    for file in sorted(source.iterdir()):
        (folder / file.name).symlink_to(file.absolute())


# -- a cell --------------------------------------------------------------------------------------------------------


def measured(fleet: Fleet, *, alone: bool = False) -> dict[str, Any]:
    """The answers of both commands for one fleet; `alone`: of the trial."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "devices"
        folder.mkdir()
        fleet.make(folder)
        sources = [str(file) for file in sorted(folder.iterdir())]
        if fleet.query:
            sources = [f"sqlite:{source}?query={fleet.query}" for source in sources]
        scenario = Path(name) / "scenario.yaml"
        target = fleet.target or proposed(folder).get("task", {}).get("target", "")
        wanted = ["--target", target] if target else []
        before = children_s()
        done = coordinator("try", *sources, *wanted, "--out", str(scenario), "--json")
        cpu_s = round(children_s() - before, 1)
        row: dict[str, Any] = {"devices": len(sources), "cpu_s": cpu_s}
        if done.returncode:
            return row | {"refused": done.stderr.partition("error: ")[2].strip()[-400:]}
        tried = json.loads(done.stdout)
        kept = ("seconds", "sentence", "method", "outcome", "worse_for", "ways", "odd")
        row["try"] = {key: tried[key] for key in kept}
        row["try"]["odd"] = [one.replace(f"{folder}/", "") for one in tried["odd"]]
        content = yaml.safe_load(scenario.read_text("utf-8"))
        row["target"] = content["task"].get("target", "")
        if alone:
            return row
        row["compare"] = compared(content, sources, Path(name))
        if row["compare"].get("trees") is not None and not fleet.query:
            row["large_leaves"] = large_leaves(content, sources)
        row["agrees"] = agreement(row["try"]["outcome"], row["compare"].get("outcome", ""))
        return row


def compared(content: dict[str, Any], sources: Sequence[str], folder: Path) -> dict[str, Any]:
    """The verdict of three seeds on the better way of training together."""
    rule = {"name": "by_group", "split": "time"}
    (folder / "copies").mkdir()
    devices_in(folder / "copies", sources)
    content["fleet"] = {
        "agents": len(sources),
        "data": str(folder / "copies"),
        "partition": rule,
        "workers": 1,
    }
    content["compare"] = {"methods": [{"name": name} for name in METHODS], "seeds": [*SEEDS]}
    path, out = folder / "compared.yaml", folder / "compared"
    path.write_text(yaml.safe_dump(content), "utf-8")
    done = coordinator("compare", str(path), "--in-process", "--out", str(out))
    if done.returncode:
        return {"failed": done.stderr.strip()[-400:]}
    scenario = load(path)
    best = best_way(verdicts(scenario, finished_rows(scenario, out)))
    return {
        "sentence": best.sentence,
        "method": best.method,
        "outcome": best.outcome,
        "figure": best.figure,
        "trees": next((one.figure for one in best.references if one.method == "trees"), None),
    }


def large_leaves(content: dict[str, Any], sources: Sequence[str]) -> float:
    """The figure of trees at home with scikit-learn's leaves of 20 rows, mean over the devices: a share, or RMSE."""
    task = from_mapping(content).task
    devices = [load_local(place_of(source), task=task) for source in sources]
    found = [of_device(device, task, ["boosting"])["boosting"] for device in devices]
    return float(np.mean(found)) / (1 if task.classes is None else 100)


def agreement(tried: str, compared: str) -> str:
    """Whether one seed and fewer rounds lead to the same decision: "yes", "no", or "open" where one of both shows nothing."""
    sides = {SIDES.get(tried, "open"), SIDES.get(compared, "open")}
    if len(sides) == 1:
        return "yes"
    return "open" if "open" in sides else "no"


def coordinator(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "covey.coordinator.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# -- the table -----------------------------------------------------------------------------------------------------


def page(found: Found) -> str:
    """A line for each fleet."""
    lines = [
        "| fleet | devices | target | `coordinator try` | seconds, of the processor | three seeds | agrees | trees: leaves of 20, now |",
        "| :-- | --: | :-- | :-- | --: | :-- | :-- | --: |",
    ]
    for name, row in found.items():
        if "refused" in row:
            said = " ".join(row["refused"].split())
            lines.append(
                f"| {name} | {row['devices']} | – | refused: {said} | {row['cpu_s']} | – | – | – |"
            )
            continue
        tried, other = row["try"], row.get("compare", {"sentence": "–"})
        said = other.get("sentence") or f"failed: {other['failed']}"
        seconds = f"{tried['seconds']}, {row['cpu_s']:.0f}"
        trees = [row.get("large_leaves"), other.get("trees")]
        both = "–" if None in trees else " → ".join(f"{figure:.4g}" for figure in trees)
        lines.append(
            f"| {name} | {row['devices']} | {row.get('target') or '–'} | {tried['sentence']} | {seconds} | {said} "
            f"| {row.get('agrees', '–')} | {both} |"
        )
    return "\n".join(lines)


def _shown(row: dict[str, Any]) -> str:
    return "refused" if "refused" in row else str(row.get("agrees", "tried alone"))


def counts(found: Found) -> str:
    """How often both agree."""
    answered = [row["agrees"] for row in found.values() if "agrees" in row]
    of_each = {one: answered.count(one) for one in ("yes", "open", "no")}
    seconds = sorted(row["try"]["seconds"] for row in found.values() if "try" in row)
    return (
        f"Of {len(answered)} fleets with both verdicts they agree on {of_each['yes']}, one of both is open on {of_each['open']}, and they "
        f"contradict one another on {of_each['no']}; the trial took {seconds[len(seconds) // 2]} s in the median, {seconds[-1]} s at most."
    )


def main() -> None:
    parser = record_options(__doc__, OUT, SEEDS)
    parser.add_argument("--data-root", type=Path, default=Path("../shared/data"))
    parser.add_argument("--files", type=Path, default=Path("runs/real-files"))
    parser.add_argument("--only", nargs="*", help="names of fleets")
    parser.add_argument("--alone", action="store_true", help="trials without comparisons")
    options = parser.parse_args()
    all_of_them = fleets(options)
    wanted = options.only or [*all_of_them]
    cells = {name: partial(measured, all_of_them[name], alone=options.alone) for name in wanted}
    found = resumed(options, cells, {"seeds": [*SEEDS]}, _shown)
    show_tables(options, {"fleet": page(found)})
    print(counts(found))


if __name__ == "__main__":
    main()
