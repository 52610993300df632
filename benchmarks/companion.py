"""What a companion of the fleet adds to what devices use, on tables of devices that were not made for it.

    python -m benchmarks.companion --files runs/real-files --page benchmarks/results/companion.md

`benchmarks.real_files_side` writes the files. Each fleet runs as `coordinator init` proposes it, without a companion, with trees
and with a line alone; next to them are trees at home, and scikit-learn's boosted trees on the rows of all devices, which no
federation has. Test rows are the product's. One run with trees is judged without, with a line and with trees. A point is a hundredth of the accuracy, or of the RMSE of the constant; figures are
means over devices, and so are gains, with the standard error of the devices.

Some fleets run with a fault: a device whose target is a hundred times as large, where the figures are those of the others;
targets in another order; and three in ten reports of each message of the companion that do not come.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import numpy as np
import numpy.typing as npt
import yaml

from benchmarks.measuring import Found, record_options, resumed, show_tables
from benchmarks.real_files import proposed
from benchmarks.real_files_side import FILES, FURTHER
from covey.agent.data.dataset import Dataset
from covey.agent.worker.sources import dataset
from covey.agent.worker.worker import answer
from covey.coordinator.record.notices import ignore
from covey.coordinator.run.options import RunOptions
from covey.extras.judge.candidates import BeforeHome, Candidate, OfFold
from covey.extras.judge.judge import Judgement
from covey.extras.judge.mixture import FleetWeights, Float64, Judged, chosen, fitted
from covey.extras.simulate.driver import simulate, source_of
from covey.extras.simulate.workers import WorkerPool
from covey.extras.trees.companion import Accompanied, Growing, OfFleet
from covey.shared.candidate_names import COMPANION, NONE, REFITS, SERVED
from covey.shared.numerics.figures import figures_of, weighted_mean
from covey.shared.scenario.load import from_mapping
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.task import Task
from covey.shared.seeds import generator
from covey.shared.strategies import phase_names
from covey.shared.strategies.base import Phase
from covey.shared.strategies.client_half import Fold, Local, Report
from covey.shared.wire.jobs import WorkerJob

OUT = Path(__file__).parent / "results" / "companion.json"
COMPANIONS = ("linear", "trees")
LONGER = 40  # rounds
LEAST = 0.1  # points: less is no gain, whatever the error
ROUNDS = 10
# With one class or value a row: those of the first trial, and those that were chosen afterwards by their description.
FLEETS = (
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
)
OTHERS = (
    "titanic",
    "resumes",
    "yogurt",
    "cholera",
    "old-maps",
    "aids",
    "births",
    "bone-marrow",
    "rodents",
    "air-crashes",
    "shares",
    "solar-flares",
    "cities",
    "doctor-visits",
    "multicentre",
    "stops",
    "pupils",
    "ratings",
    "light chains",
    "taxi",
    "diseases",
)
SETS = {"the first 23": FLEETS, "21 others": OTHERS}
METHODS = ("fedavg", "fedclust")
TIMES, SHUFFLED, MISSING = "one target x 100", "shuffled targets", "reports missing"
FAULTS = {
    MISSING: ("weather", "hotel", "flights", "houses", "computers"),
    TIMES: ("weather", "hotel", "storms", "houses"),
    SHUFFLED: ("weather", "hotel", "houses", "mortgages", "image-segments", "exam"),
}
MISSED = 0.3  # of the reports of a message
Figures = npt.NDArray[np.float64]  # of the devices


class Setting(NamedTuple):
    """What a fleet runs with, but for the companion."""

    method: str = "fedavg"
    seed: int = 1
    rounds: int = ROUNDS
    test: str = "proposed"  # or random: which rows test
    fault: str = "no"

    def key(self, fleet: str) -> str:
        """Of a cell of the record."""
        return "/".join(
            (fleet, self.method, str(self.seed), str(self.rounds), self.test, self.fault)
        )


def settings(seeds: Sequence[int]) -> Iterator[tuple[Setting, Sequence[str]]]:
    """All of them, each with its fleets, those that say most first."""
    first, *others = seeds
    yield Setting(seed=first), FLEETS
    yield Setting(seed=first, rounds=LONGER), FLEETS
    yield Setting("fedclust", first), FLEETS
    yield Setting(seed=first), OTHERS
    yield Setting(seed=first, test="random"), ("exchange-rates", "weather")
    for fault, fleets in FAULTS.items():
        yield Setting(seed=first, fault=fault), fleets
    for seed in others:
        yield Setting(seed=seed), FLEETS
    yield Setting("fedclust", first, LONGER), FLEETS
    ways = [(method, rounds) for rounds in (LONGER, ROUNDS) for method in METHODS]
    for (method, rounds), seed in product(ways, others):
        if (method, rounds) != ("fedavg", ROUNDS):
            yield Setting(method, seed, rounds), FLEETS
    for seed, method, rounds in product(seeds, METHODS, (ROUNDS, LONGER)):
        if (seed, method, rounds) != (first, "fedavg", ROUNDS):
            yield Setting(method, seed, rounds), OTHERS


@dataclass(frozen=True)
class Place:
    """Where things are."""

    files: Path
    made: Path

    def scenario(self, fleet: str, setting: Setting, companion: str) -> Scenario:
        """Of a run: what `coordinator init` proposes, which is asked once for each fleet."""
        kept = self.made / f"{fleet}.yaml"
        if not kept.exists():
            target = {**FILES, **FURTHER}[fleet].target
            kept.write_text(yaml.safe_dump(proposed(self.files / fleet, target)))
        content: dict[str, Any] = yaml.safe_load(kept.read_text("utf-8"))
        content.pop("compare", None)
        content["rounds"]["count"] = setting.rounds
        content |= {"seed": setting.seed, "strategy": {"name": setting.method}}
        content["task"] |= {} if setting.test == "proposed" else {"test": setting.test}
        folder = self.files / fleet
        if setting.fault in (TIMES, SHUFFLED):
            target = content["task"]["target"]
            folder = spoilt(folder, self.made / f"{fleet}, {setting.fault}", target, setting)
        agents = len(list(folder.iterdir()))
        content["fleet"] = {"agents": agents, "data": str(folder), "partition": "by_group"}
        content["evaluation"] = {"deliver": {"companion": companion}} if companion else {}
        return from_mapping(content)


def spoilt(folder: Path, into: Path, target: str, setting: Setting) -> Path:
    """A copy of the files whose targets have a fault."""
    into.mkdir(exist_ok=True)
    for number, path in enumerate(sorted(folder.iterdir())):
        head, *rows = csv.reader(path.read_text("utf-8").splitlines())
        place = head.index(target)
        values = [row[place] for row in rows]
        if setting.fault == SHUFFLED:
            values = [
                values[one]
                for one in generator(setting.seed, "shuffled", number).permutation(len(rows))
            ]
        elif not number:
            values = [str(100 * float(one)) if one not in ("", "NA") else one for one in values]
        with (into / path.name).open("w", encoding="utf-8", newline="") as file:
            changed = [
                [*row[:place], value, *row[place + 1 :]]
                for row, value in zip(rows, values, strict=True)
            ]
            csv.writer(file).writerows([head, *changed])
    return into


# -- one run, judged with each companion -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """What the candidates of a device have answered."""

    judged: Judged | None
    names: tuple[str, ...]
    tests: Mapping[str, Float64]  # answers on the test rows
    truth: npt.NDArray[Any]  # of these

    @classmethod
    def of(cls, known: Judgement, candidates: Mapping[str, Candidate], local: Local) -> Self:
        tests = {name: one.answers(local, "test") for name, one in candidates.items()}
        return cls(known.judged, known.names, tests, local.targets("test"))

    def without(self, name: str) -> Seen:
        """As if a candidate had not been there."""
        names = tuple(one for one in self.names if one != name)
        judged = self.judged
        if judged is not None:
            answers = {one: judged.answers[one] for one in names}
            judged = Judged.of(answers, judged.truth, judged.of_samples, judged.measure)
        return replace(self, judged=judged, names=names)

    def figure(self, weights: Mapping[str, float]) -> float:
        """RMSE or accuracy of a mixture on the test rows."""
        mixed = weighted_mean(list(weights.values()), [self.tests[name] for name in weights])
        found = figures_of(self.truth, mixed)
        return float(np.sqrt(found["mse"]) if "mse" in found else found["accuracy"])


class InProcess(WorkerPool):
    """Does the work of a pool in this process, where it can be watched and bent."""

    def __init__(self) -> None:
        super().__init__(1, Path())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()

    def call(self, job: WorkerJob[Any]) -> Any:
        return answer(job)


class Watching(InProcess):
    """Keeps what judges have seen, in the order of the devices' orders."""

    def __init__(self, missed: float) -> None:
        super().__init__()
        self.seen: dict[str, list[Seen]] = {}
        self.missed = missed  # of the reports for a companion

    def __enter__(self) -> Self:
        self.before, self.terms = Judgement.__dict__["made"], Growing.terms
        missed, terms = self.missed, self.terms

        def come(method: Growing, state: Accompanied, phase: Phase, client: str, report: Report):  # type: ignore[no-untyped-def]
            draw = generator(state.seed, "missing", state.message, client).random()
            is_missing = phase.name == phase_names.COMPANION and draw < missed
            return () if is_missing else terms(method, state, phase, client, report)

        Growing.terms = come  # type: ignore[method-assign, assignment]
        judging, seen = self.before.__func__, self.seen

        def made(cls: Any, local: Local, given: BeforeHome, folds: Any, *rest: Any, **more: Any):  # type: ignore[no-untyped-def]
            folds = list(folds)
            known, candidates = judging(cls, local, given, folds, *rest, **more)
            own = Seen.of(known, candidates, local)
            seen.setdefault("", []).append(own.without(COMPANION))
            seen.setdefault("trees", []).append(own)
            if given.companion is not None:
                seen.setdefault("linear", []).append(_by_line(own, given.companion, local, folds))
            return known, candidates

        Judgement.made = classmethod(made)  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        Judgement.made = self.before  # type: ignore[method-assign]
        Growing.terms = self.terms  # type: ignore[method-assign]
        super().__exit__()


def _by_line(own: Seen, companion: OfFold, local: Local, folds: Sequence[Fold]) -> Seen:
    """With the line of a companion in the place of all of it."""

    def line(fold: int | None) -> Candidate:
        whole = cast(OfFleet, companion(fold))
        return replace(whole, ensemble=whole.ensemble.upto(0))

    tests = {**own.tests, COMPANION: line(None).answers(local, "test")}
    judged = own.judged
    if judged is not None:
        found = [line(number).answers(fold.local, "test") for number, fold in enumerate(folds)]
        answers = {**judged.answers, COMPANION: np.concatenate(found)}
        judged = Judged.of(answers, judged.truth, judged.of_samples, judged.measure)
    return replace(own, judged=judged, tests=tests)


def used(seen: Sequence[Seen]) -> list[Mapping[str, float]]:
    """The weights that each device uses in the end, as a run finds them."""
    judged = [one.judged for one in seen if one.judged is not None]
    fleet: FleetWeights | None = None
    for _ in range(REFITS if judged else 0):
        weights = [fitted(one, None if fleet is None else fleet.weights) for one in judged]
        votes = [one.vote(own) for one, own in zip(judged, weights, strict=True)]
        fleet = FleetWeights.of(weights, [one for one in votes if one is not None])
    return [chosen(one.judged, one.names, fleet).weights for one in seen]


def measured(fleet: str, setting: Setting, place: Place) -> dict[str, Any]:
    """The points of each device: of what it uses with each companion, of the served model, and of trees on all rows.

    A companion changes nothing of the model, so that one run with trees is judged three times. The run's own figure
    of trees is kept next to the one that is found here.
    """
    scene = place.scenario(fleet, setting, "trees")
    began = time.process_time()
    missed = MISSED if setting.fault == MISSING else 0.0
    with tempfile.TemporaryDirectory() as name, Watching(missed) as pool:
        folder = Path(name) / "run"
        result = simulate(scene, RunOptions(folder), pool, ignore)
        source = source_of(folder, None)
        devices = [
            dataset(replace(source, index=index), scene.task)
            for index in range(scene.fleet.agents if scene.fleet else 0)
        ]
    is_values = scene.task.classes is None
    plain = pool.seen[""]
    count = counted(plain, setting)
    unit = np.mean([plain[one].figure({NONE: 1.0}) for one in count]) if is_values else 0.0
    figures, weights = {"served": [plain[one].figure({SERVED: 1.0}) for one in count]}, {}
    if setting.fault == "no":
        figures["trees on all rows"] = pooled(devices, scene.task)
        measure, accuracy = "rmse" if is_values else "accuracy", result["accuracy"]
        figures["trees by the run"] = [accuracy["delivered"][measure]["macro"]]
        if "trees" in accuracy:
            figures["trees at home"] = [accuracy["trees"][measure]["macro"]]
    for companion, seen in pool.seen.items():
        uses = used(seen)
        figures[companion or "none"] = [seen[one].figure(uses[one]) for one in count]
        weights[companion] = float(np.mean([uses[one].get(COMPANION, 0.0) for one in count]))
    return {
        **{name: points(own, float(unit)) for name, own in figures.items()},
        "weight": {name: round(weights[name], 3) for name in COMPANIONS},
        "seconds": round(time.process_time() - began, 1),
    }


def counted(seen: Sequence[Seen], setting: Setting) -> list[int]:
    """The places of the devices whose figures count: those without a fault of their own."""
    sizes = [float(np.abs(one.truth).mean()) for one in seen]
    return [*np.argsort(sizes)[:-1]] if setting.fault == TIMES else [*range(len(seen))]


def points(figures: Sequence[float], unit: float) -> list[float]:
    """In hundredths: of accuracies, or of errors whose constant has the error `unit`."""
    found = 100 * (1 - np.array(figures) / unit if unit else np.array(figures))
    return [round(float(one), 3) for one in found]


def rows_of(devices: Sequence[Dataset], task: Task) -> list[tuple[npt.NDArray[Any], ...]]:
    """Rows and targets, then those that test, of each device, with one number for each word in all of the fleet."""
    places: dict[int, dict[str, int]] = {}
    for place, column in enumerate(task.table_columns):
        if column.kind == "category":
            own = [one.columns.words.get(column.name, ()) for one in devices if one.columns]
            words = sorted({word for known in own for word in known})
            places[place] = {word: number for number, word in enumerate(words)}

    def aligned(features: npt.NDArray[Any], data: Dataset) -> npt.NDArray[Any]:
        found = features.reshape(len(features), -1).astype(float)
        for place, numbers in places.items():
            assert data.columns is not None
            words = data.columns.words[task.table_columns[place].name]
            own = np.array([numbers[word] for word in words], float)
            codes = found[:, place]
            is_there = ~np.isnan(codes)
            codes[is_there] = own[codes[is_there].astype(int)]
        return found

    return [
        (
            aligned(one.features, one),
            one.targets.ravel(),
            aligned(one.test_features, one),
            one.test_targets.ravel(),
        )
        for one in devices
    ]


def pooled(devices: Sequence[Dataset], task: Task) -> list[float]:
    """Accuracy or RMSE on each device of boosted trees that have learned the rows of all."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    is_values = task.classes is None
    made = HistGradientBoostingRegressor if is_values else HistGradientBoostingClassifier
    rows = rows_of(devices, task)
    table = np.concatenate([x for x, *_ in rows])
    table[:, np.isnan(table).all(axis=0)] = 0.0  # scikit-learn bins no column without a number
    is_word = [column.kind == "category" for column in task.table_columns] or None
    trained = made(categorical_features=is_word).fit(
        table, np.concatenate([y for _, y, *_ in rows])
    )
    found = []
    for *_, tests, truth in rows:
        answers = trained.predict(tests)
        mean = np.mean((answers - truth) ** 2) if is_values else np.mean(answers == truth)
        found.append(float(np.sqrt(mean) if is_values else mean))
    return found


def keep_rows(path: Path, fleet: str, place: Place) -> None:
    """Write the rows of a fleet for `benchmarks.companion_side`."""
    scene = place.scenario(fleet, Setting(rounds=1), "linear")
    with tempfile.TemporaryDirectory() as name, Watching(0.0) as pool:
        simulate(scene, RunOptions(Path(name) / "run"), pool, ignore)
        source = source_of(Path(name) / "run", None)
        devices = [
            dataset(replace(source, index=index), scene.task) for index in range(len(pool.seen[""]))
        ]
    arrays: dict[str, Any] = {
        "devices": len(devices),
        "classes": scene.task.outputs if scene.task.classes else 0,
    }
    for number, own in enumerate(rows_of(devices, scene.task)):
        names = (f"{one} {number}" for one in ("x", "y", "test_x", "test_y"))
        arrays |= dict(zip(names, own, strict=True))
    np.savez(path, **arrays)


# -- the tables --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mean:
    """The cells of a fleet with other seeds: each figure is a mean over those that are there."""

    cells: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, found: Found, fleet: str, setting: Setting, seeds: Sequence[int]) -> Self:
        keys = [setting._replace(seed=seed).key(fleet) for seed in seeds]
        return cls([found[key] for key in keys if key in found])

    def figures(self, name: str) -> Figures:
        """Points of the devices (devices,)."""
        found: Figures = np.array([cell[name] for cell in self.cells]).mean(axis=0)
        return found

    def gain(self, companion: str) -> Figures:
        """By how much devices are better off (devices,)."""
        return self.figures(companion) - self.figures("none")


def error(apart: Figures) -> float:
    """The standard error of the mean over devices."""
    return float(apart.std(ddof=1) / np.sqrt(len(apart)))


def with_error(apart: Figures) -> str:
    return f"{apart.mean():+.2f} ± {error(apart):.2f}"


def table(found: Found, setting: Setting, fleets: Sequence[str], seeds: Sequence[int]) -> str:
    """A row for each fleet that is there: points, and what both companions add."""
    head = ("in use", "a line", "trees", "weight", "trees at home", "trees on all rows", "seeds")
    name = ", ".join(
        [f"{setting.method}, {setting.rounds} rounds"]
        + [f"{setting.test} tests"] * (setting.test != "proposed")
        + [setting.fault] * (setting.fault != "no")
        + [title for title, own in SETS.items() if own is fleets]
    )
    lines = [f"| {name} | " + " | ".join(head) + " |", "| :-- |" + " --: |" * len(head)]
    for fleet in fleets:
        mean = Mean.of(found, fleet, setting, seeds)
        if not mean.cells:
            continue
        shown = [f"{mean.figures('none').mean():.1f}"]
        shown += [with_error(mean.gain(companion)) for companion in COMPANIONS]
        shown.append(f"{np.mean([cell['weight']['trees'] for cell in mean.cells]):.2f}")
        for rival in ("trees at home", "trees on all rows"):
            is_there = all(rival in cell for cell in mean.cells)
            shown.append(f"{mean.figures(rival).mean():.1f}" if is_there else "")
        lines.append(f"| {fleet} | {' | '.join(shown)} | {len(mean.cells)} |")
    return "\n".join(lines)


def side_by_side(found: Found, title: str, seeds: Sequence[int]) -> str:
    """What devices use, and what trees add, with both methods and numbers of rounds: a row for each fleet."""
    ways = [Setting(method, rounds=rounds) for method, rounds in product(METHODS, (ROUNDS, LONGER))]
    head = [f"{one.method}, {one.rounds}: in use | trees" for one in ways]
    lines = [f"| {title} | {' | '.join(head)} |", "| :-- |" + " --: | --: |" * len(ways)]
    for fleet in SETS[title]:
        means = [Mean.of(found, fleet, one, seeds) for one in ways]
        if sum(bool(mean.cells) for mean in means) < 2:
            continue  # it stands in the table of its only setting
        shown = [
            f"{mean.figures('none').mean():.1f} | {with_error(mean.gain('trees'))}"
            if mean.cells
            else " | "
            for mean in means
        ]
        lines.append(f"| {fleet} | {' | '.join(shown)} |")
    return "\n".join(lines)


def summary(found: Found, seeds: Sequence[int]) -> str:
    """The gains over the fleets that are there: of each companion, and of as many more rounds as trees have messages."""
    lines = [
        "| gain | tables | runs | mean | median | worst | better by an error | worse by one |",
        "| :-- |" + " --: |" * 7,
    ]

    def add(name: str, gains: Sequence[Figures], runs: int) -> None:
        means = np.array([one.mean() for one in gains])
        sure = np.array([abs(one.mean()) > max(error(one), LEAST) for one in gains])
        shown = [f"{one:+.2f}" for one in (means.mean(), np.median(means), means.min())]
        better, worse = (int((sure & (sign * means > 0)).sum()) for sign in (1, -1))
        lines.append(
            f"| {name} | {len(means)} | {runs} | {' | '.join(shown)} | {better} | {worse} |"
        )

    for (title, fleets), method in product(SETS.items(), METHODS):
        for rounds, companion in product((ROUNDS, LONGER), COMPANIONS):
            setting = Setting(method, rounds=rounds)
            means = [Mean.of(found, fleet, setting, seeds) for fleet in fleets]
            means = [mean for mean in means if mean.cells]
            if means:
                runs = sum(len(mean.cells) for mean in means)
                name = f"{companion}: {title}, {method}, {rounds} rounds"
                add(name, [mean.gain(companion) for mean in means], runs)
        few, many = (Setting(method, rounds=rounds) for rounds in (ROUNDS, LONGER))
        both = [[Mean.of(found, fleet, one, seeds) for one in (few, many)] for fleet in fleets]
        both = [pair for pair in both if pair[0].cells and pair[1].cells]
        if both:
            further = [many.figures("none") - few.figures("none") for few, many in both]
            name = f"{LONGER - ROUNDS} more rounds and no companion: {title}, {method}"
            add(name, further, sum(len(many.cells) for _, many in both))
    return "\n".join(lines)


def tables(found: Found, seeds: Sequence[int]) -> Mapping[str, str]:
    """All of them, by the name of the first column."""
    first = seeds[:1]
    made = [summary(found, seeds)]
    made += [table(found, Setting(), fleets, seeds) for fleets in SETS.values()]
    made += [side_by_side(found, title, seeds) for title in SETS]
    made += [
        table(found, one, own, first)
        for one, own in settings(seeds)
        if (one.test, one.fault) != ("proposed", "no")
    ]
    filled = [one for one in made if one.count("\n") > 1]
    return {one.partition(" |")[0].removeprefix("| "): one for one in filled}


def main() -> None:
    parser: argparse.ArgumentParser = record_options(__doc__, OUT, [1, 2, 3])
    parser.add_argument("--files", type=Path, default=Path("runs/real-files"))
    parser.add_argument("--made", type=Path, default=Path("runs/companion"))
    parser.add_argument("--rows", nargs="+", default=[], metavar="FLEET=FILE")
    options = parser.parse_args()
    options.made.mkdir(parents=True, exist_ok=True)
    place = Place(options.files.resolve(), options.made)
    for fleet, _, path in (one.partition("=") for one in options.rows):
        keep_rows(Path(path), fleet, place)
    if options.rows:
        return
    planned = {
        setting.key(fleet): partial(measured, fleet, setting, place)
        for setting, fleets in settings(options.seeds)
        for fleet in fleets
    }
    found = resumed(options, planned, {"companions": COMPANIONS}, json.dumps, indent=None)
    show_tables(options, tables(found, options.seeds))


if __name__ == "__main__":
    main()
