"""Covey from Python: load a scenario, run it, compare methods, and read what a run has left.

The functions here do what the commands `coordinator run` and `coordinator compare` do, in the same folders, and return typed
results with rows that `pandas.DataFrame` takes as they are.
"""

from __future__ import annotations

import asyncio
import base64
import contextvars
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy.typing as npt

from covey.shared import extras
from covey.coordinator.record.notices import Notice, Observer, ignore
from covey.coordinator.view.milestones import Evaluated, RoundEnded, milestones
from covey.coordinator.view.table import Table
from covey.coordinator.view.words import MODE_TITLES
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.numerics.measures import MeasureName, measured, shown_measure
from covey.shared.own_code.consent import AllowedCode, consented
from covey.shared.own_code.faults import own_code
from covey.shared.scenario.load import from_mapping
from covey.shared.scenario.load import load as read_scenario
from covey.shared.scenario.scenario import Scenario

T = TypeVar("T")
ScenarioLike = Scenario | Mapping[str, Any] | str | os.PathLike[str]
Mode = Literal["server", "delivered", "tuned", "knn", "last", "best"]
Average = Literal["macro", "micro"]
ARGUMENTS = {  # of `run` and `compare`, by the options that messages name
    "this command line must allow it": "allow it",
    r"--resume\b": "resume=True",
    r"--in-process\b": "in_process=True",
    r"--(allow|track|cells) ([\w.:/-]*\w)": r'\1=["\2"]',
    r"--(out|allow|track|cells|broker)\b": r"\1",
    r"--data-root\b": "data_root",
    r"--set options\b": "overrides",
}


@dataclass(frozen=True)
class Result:
    """A run that is over, read from its folder.

    Attributes:
        folder: The run's folder. `coordinator report FOLDER` shows it as well.
        summary: The content of `result.json`.
    """

    folder: Path
    summary: Mapping[str, Any]

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Result:
        """The result in the folder of a finished run.

        Args:
            folder: The folder that `run` or `coordinator run` made.

        Raises:
            UserError: The folder holds no finished run, or its files are damaged.

        Example:
            >>> covey.Result.read("runs/smoke").method
            'fedclust'
        """
        from covey.coordinator.record.records import finished

        place = Path(folder)
        return cls(place, finished(place))

    def __repr__(self) -> str:
        averages = self.summary["accuracy"]
        mode: Mode = "delivered" if averages.get("delivered") else "server"
        measure = shown_measure(averages.get(mode) or {})
        figure = None if measure is None else self.figure(mode, measure.name)
        shown = "no figures"
        if measure is not None and figure is not None:
            shown = measured(measure, figure, f"{measure.label} {MODE_TITLES[mode]}")
        return f"<Result {self.method}: {self.clusters} groups, {shown}, in {self.folder}>"

    def _repr_html_(self) -> str:
        """The deciding figure in a sentence, all figures and their chart, as a notebook shows them."""
        curves = extras.part("dashboard", "curves").curves
        html_report = extras.part("dashboard", "html_report")
        document = extras.part("dashboard", "svg").document

        [run] = curves([self.folder], [dict(self.summary)])
        sentence = f"<p>{escape(html_report.headline(self.summary, run.measure))}</p>"
        charts = [
            _image(document(picture.drawing), picture.title) for picture in html_report.drawn([run])[:1]
        ]
        table = html_report.figures_by_mode(self.summary).only(range(3))  # the first measure
        return "".join([sentence, table.html(), *charts])

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.summary["method"])

    @property
    def clusters(self) -> int:
        """The number of clusters at the end; 1 for a method with a single model."""
        return int(self.summary["clusters"])

    @property
    def assignment(self) -> dict[str, int]:
        """The cluster of each agent, by the agent's id. Empty for a method without hard clusters."""
        return {agent: int(cluster) for agent, cluster in self.summary["assignment"].items()}

    @property
    def ari(self) -> float | None:
        """Adjusted Rand index of the clusters against the fleet's true groups; None if these are unknown."""
        found = self.summary["ari"]
        return None if found is None else float(found)

    def accuracy(self, mode: Mode = "delivered", average: Average = "macro") -> float | None:
        """An average of the agents' test accuracies, as a share between 0 and 1.

        Args:
            mode: "delivered" is what each agent uses, as the tables have it ("in use"; the served model where agents do not choose),
                "server" the served model, "tuned" the served one after fine-tuning on the agent, "last" the agent's own model
                after its latest training, "best" the best that was tracked.
            average: "macro" counts every agent once, "micro" every test sample once.

        Returns:
            The share, or None if the run was not evaluated in this mode, or if the task is a regression.

        Example:
            >>> result = covey.Result.read("runs/smoke")
            >>> 0 < result.accuracy("tuned", "micro") <= 1
            True
        """
        return self.figure(mode, "accuracy", average)

    def figure(
        self, mode: Mode = "delivered", measure: MeasureName = "rmse", average: Average = "macro"
    ) -> float | None:
        """An average of the agents' test figures, such as the error of a regression.

        Args:
            mode: As for `accuracy`.
            measure: "accuracy", "f1" (shares) and "loss" of a classification; "rmse", "mae" (in the units of the target),
                "r2", "mse" and "loss" of a regression.
            average: "macro" is the mean of the agents' own figures, "micro" the figure of all test samples together.

        Returns:
            The figure, or None if the run has none in this mode and measure.

        Example:
            >>> result = covey.Result.read("runs/smoke")
            >>> result.figure("server", "f1") <= 1
            True
        """
        by_mode = self.summary["accuracy"]
        figures = by_mode.get(mode) or (by_mode.get("server") if mode == "delivered" else None) or {}
        averages = figures.get(measure) or {}
        found = averages.get(average)
        return None if found is None else float(found)

    def history(self) -> list[dict[str, Any]]:
        """One row for each phase of the run, in order: round, phase, reports, loss, seconds, bytes and more.

        Nested values are left out, so that `pandas.DataFrame(result.history())` has plain columns.

        Example:
            >>> result = covey.Result.read("runs/smoke")
            >>> [row["round"] for row in result.history() if row["phase"] == "train"]
            [0, 1, 2]
        """
        from covey.coordinator.record.records import lines

        phases = [line for line in lines(self.folder) if line["event"] == "phase"]
        return [_plain(line) for line in phases]

    def agents(self) -> list[dict[str, Any]]:
        """One row for each agent: its cluster, samples, rounds and figures in each mode, from `agents.parquet`."""
        from pyarrow import parquet

        table = parquet.read_table(self.folder / "agents.parquet")
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows

    def models(self) -> list[dict[str, npt.NDArray[Any]]]:
        """The model of each cluster, in order: arrays by the name of the parameter, as `torch.load_state_dict` takes them
        after `torch.from_numpy`."""
        from safetensors.numpy import load_file

        from covey.shared.storage.files import model_files

        return [load_file(file) for file in model_files(self.folder / "models")]


@dataclass(frozen=True)
class RunEnded:
    """A run is over and its folder is complete. It is the last event of a callback.

    Attributes:
        result: The result.

    Example:
        >>> event = covey.RunEnded(covey.Result.read("runs/smoke"))
        >>> event.result.clusters
        2
    """

    result: Result


Event = RoundEnded | Evaluated | RunEnded
Callback = Callable[[Event], None]


@dataclass(frozen=True)
class Comparison:
    """The finished cells of a comparison.

    Attributes:
        folder: The comparison's folder; each cell's run has a folder of its own below it.
        cells: One row for each finished cell (partition, method, seed), with its figures as shares and its traffic.
        methods: One row for each partition and method. A figure `x` has its mean over the seeds under `x` and its
            population deviation under `x_std`; `seeds` is how many seeds are finished.
        verdicts: A sentence for each method that found clusters: whether they were worth it.
        tables: The tables that `coordinator compare` prints.
    """

    folder: Path
    cells: Sequence[Mapping[str, Any]]
    methods: Sequence[Mapping[str, Any]]
    verdicts: Sequence[str] = ()
    tables: Sequence[Table] = field(default=(), repr=False)

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.methods)} methods, {len(self.cells)} cells, in {self.folder}>"

    def to_frame(self) -> Any:
        """The rows of `cells` as a pandas DataFrame.

        Raises:
            UserError: pandas is not installed.
        """
        try:
            import pandas  # type: ignore[import-untyped, import-not-found, unused-ignore]
        except ImportError:
            raise UserError("to_frame needs pandas; install it: pip install pandas") from None
        return pandas.DataFrame(list(self.cells))

    def to_latex(self) -> str:
        """The tables in LaTeX, with rules of the package booktabs."""
        return "\n".join(table.latex() for table in self.tables)

    def _repr_html_(self) -> str:
        """The verdicts and the tables, as a notebook shows them."""
        sentences = "".join(f"<p>{escape(verdict)}</p>" for verdict in self.verdicts)
        return sentences + "".join(table.html() for table in self.tables)


def load(scenario: str | os.PathLike[str], *overrides: str, allow: Iterable[str] = ()) -> Scenario:
    """Read a scenario file and check it.

    Args:
        scenario: The file.
        overrides: Keys to change, such as "rounds.count=5", as `--set` takes them.
        allow: Code of your own that the scenario may name, as `--allow` takes it.

    Returns:
        The scenario, complete with all defaults. It is immutable; `scenario.model_copy(update=...)` changes a copy.

    Raises:
        UserError: The file cannot be read or has mistakes; the message lists every one with its line.

    Example:
        >>> covey.load("scenarios/digits.yaml", "rounds.count=5").rounds.count
        5
    """
    with _words_of_python(), consented(AllowedCode.parse(allow)):
        return read_scenario(Path(scenario), overrides)


def run(
    scenario: ScenarioLike,
    out: str | os.PathLike[str] | None = None,
    *,
    broker: str | None = None,
    in_process: bool = True,
    resume: bool = False,
    data_root: str | os.PathLike[str] | None = None,
    allow: Iterable[str] = (),
    observe: Callable[[Notice], None] | None = None,
    callbacks: Sequence[Callback] = (),
    track: Sequence[str] = (),
) -> Result:
    """Run a scenario to its end.

    Args:
        scenario: A `Scenario`, a scenario file, or its content as a mapping.
        out: The run's folder; it must be new. Without it, the run goes into a new temporary folder.
        broker: The address of a broker, for a fleet of devices or to simulate one over a real network.
        in_process: Train without a broker. It gives identical results faster. It is ignored if `broker` is given.
        resume: Continue the run that was interrupted in `out`.
        data_root: The folder of the larger data sets.
        allow: Code of your own that may run here: modules, functions, or entry points of installed packages.
        observe: Called with each notice of the run, such as `PhaseFolded`; `notice.to_json()` is what `--json` prints.
        callbacks: Called with a `RoundEnded` after each training round, an `Evaluated` after each evaluation of all
            agents, and at last with a `RunEnded`, in the thread of the run. An exception that they raise ends the run.
        track: Experiment trackers that the run is logged to as well: "mlflow", "tensorboard", "wandb".

    Returns:
        The result, read from the run's folder.

    Raises:
        UserError: The scenario has mistakes, the folder is in use, the data is missing, the run was abandoned, or the
            library of a tracker is not installed.
        ConsentError: The scenario names code of its own that `allow` does not name.

    Example:
        >>> covey.run("scenarios/smoke.yaml", "runs/smoke").ari
        1.0
    """
    from covey.coordinator.cli import run as over_a_broker
    from covey.coordinator.run.options import RunOptions

    allowed = AllowedCode.parse(allow)
    with _words_of_python(), consented(allowed), own_code():
        checked = _scenario(scenario)
        folder = (
            Path(tempfile.mkdtemp(prefix="covey-")) / checked.name if out is None else Path(out)
        )
        root = None if data_root is None else Path(data_root)
        brokers = _broker_at(broker)
        options = RunOptions(folder, resume, data_root=root, allowed=allowed, brokers=brokers)
        following: AbstractContextManager[Any] = nullcontext()
        if track:
            trackers = extras.part("outlets", "tracking", "track")
            trackers.check_trackers(track)
            following = trackers.tracking(track, checked, folder, _warn)
        notify = _notifying(observe or ignore, [*_progress(checked), *callbacks])

        def work() -> Any:
            with following as tracked:
                observer = notify if tracked is None else tracked.before(notify)
                found: dict[str, Any] | None
                if in_process and broker is None:
                    driver = extras.part("simulate", "driver", "in_process")
                    found = driver.alone(checked, options, observer)
                else:
                    found = asyncio.run(over_a_broker.run(checked, options, observer))
                if found is not None and tracked is not None:
                    tracked.finished(found)
            return found

        if _outside_of_event_loops(work) is None:
            raise UserError(f"{folder}: the run was stopped; continue it with resume=True")
    result = Result.read(folder)
    for callback in callbacks:
        callback(RunEnded(result))
    return result


def compare(
    scenario: ScenarioLike,
    out: str | os.PathLike[str],
    *,
    cells: Sequence[str] = (),
    broker: str | None = None,
    in_process: bool = True,
    data_root: str | os.PathLike[str] | None = None,
    allow: Iterable[str] = (),
    observe: Callable[[str, Notice], None] | None = None,
) -> Comparison:
    """Run every method of a scenario's compare section on every partition and seed.

    Finished cells are kept and interrupted cells resume, so the same call continues a comparison.

    Args:
        scenario: A `Scenario` with a compare section, a scenario file, or its content as a mapping.
        out: The comparison's folder. The tables are written there as well.
        cells: Only these cells: "fedavg/1", or "fedavg" for all seeds. Empty for all.
        broker: The address of a broker; without it, cells run in process.
        in_process: Train without a broker. It is ignored if `broker` is given.
        data_root: The folder of the larger data sets.
        allow: Code of your own that may run here.
        observe: Called with the name of a cell and a notice of its run.

    Returns:
        The finished cells, and their means and deviations over the seeds.

    Raises:
        UserError: The scenario has mistakes or no compare section, or a folder holds a run of another scenario.
        ConsentError: The scenario names code of its own that `allow` does not name.

    Example:
        >>> scenario = "scenarios/digits_compare.yaml"
        >>> comparison = covey.compare(scenario, "runs/compare", cells=["local/1"])
        >>> [row["method"] for row in comparison.methods]
        ['local']
    """
    command = extras.part("compare", "compare")
    comparison_files = extras.part("compare", "comparison_files")
    summaries = extras.part("compare", "rows").summaries
    tables = extras.part("compare", "tables").tables
    verdict = extras.part("compare", "verdict")
    from covey.coordinator.run.options import RunOptions

    allowed = AllowedCode.parse(allow)
    with _words_of_python(), consented(allowed), own_code():
        checked = _scenario(scenario)
        folder = Path(out)
        root = None if data_root is None else Path(data_root)
        brokers = _broker_at(broker)
        options = RunOptions(folder, data_root=root, allowed=allowed, brokers=brokers)
        without_broker = in_process and broker is None

        def watching(cell: Any) -> AbstractContextManager[Observer]:
            heard = ignore if observe is None else partial(observe, cell.name)
            return nullcontext(_notifying(heard, _progress(cell.scenario, f"{cell.name}: ")))

        def work() -> bool:
            return bool(
                command.run_cells(checked, options, cells, watching, in_process=without_broker)
            )

        if not _outside_of_event_loops(work):
            raise UserError(f"{folder}: the comparison was stopped; the same call continues it")
        rows = comparison_files.finished_rows(checked, folder)
        comparison_files.write_tables(checked, folder, rows)
    cell_rows = [row.to_json() for row in rows]
    found = summaries(checked, rows)
    alone = verdict.deciding(checked, rows)
    return Comparison(
        folder,
        cell_rows,
        [_flat(one.to_json()) for one in found],
        [one.sentence for one in verdict.verdicts(checked, rows)],
        [*tables(checked, found), *verdict.standings(checked, rows)] if alone is None else [alone],
    )


@contextmanager
def _words_of_python() -> Iterator[None]:
    """Messages inside the block name arguments of these functions, not options of a command line."""
    try:
        yield
    except UserError as error:
        text = str(error)
        for option, argument in ARGUMENTS.items():
            text = re.sub(option, argument, text)
        error.args = (text, *error.args[1:])
        raise


def _notifying(observer: Observer, callbacks: Sequence[Callback]) -> Observer:
    """An observer that calls callbacks at milestones, after the given one."""

    def observe(notice: Notice) -> None:
        observer(notice)
        for milestone in milestones(notice):
            for callback in callbacks:
                callback(milestone)

    return observe


def _progress(scenario: Scenario, begins: str = "") -> Sequence[Callback]:
    """A line that a notebook shows and replaces after each round; nothing elsewhere."""
    if "ipykernel" not in sys.modules:
        return ()
    rounds = scenario.rounds.count

    def shown(done: int, more: str = "") -> dict[str, str]:
        text = f"{begins}round {done} of {rounds}{more}"
        bar = f'<progress value="{done}" max="{rounds}"></progress>'
        return {"text/plain": text, "text/html": f"{bar} {escape(text)}"}

    line = import_module("IPython.display").display(shown(0), raw=True, display_id=True)

    def show(event: Event) -> None:
        if isinstance(event, RoundEnded):
            loss = "" if event.loss is None else f", loss {event.loss:.3f}"
            line.update(shown(event.round, loss), raw=True)

    return () if line is None else (show,)


def _image(svg: str, title: str) -> str:
    """A picture whose style reaches nothing else on the page of a notebook."""
    content = base64.b64encode(svg.encode()).decode()
    address = f"data:image/svg+xml;base64,{content}"
    return f'<img alt="{escape(title)}" style="max-width: 100%" src="{address}">'


def _warn(text: str) -> None:
    """What went wrong with a tracker, as a warning."""
    warnings.warn(text, stacklevel=2)


def _broker_at(address: str | None) -> tuple[BrokerUrl, ...]:
    return () if address is None else (BrokerUrl.parse(address),)


def _scenario(given: ScenarioLike) -> Scenario:
    if isinstance(given, Scenario):
        return given
    if isinstance(given, Mapping):
        return from_mapping(given)
    return read_scenario(Path(given))


def _outside_of_event_loops(work: Callable[[], T]) -> T:
    """Do the work in a thread of its own if this one has an event loop, as that of a notebook has."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    context = contextvars.copy_context()
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(context.run, work).result()


def _plain(line: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a record that fit into one cell of a table."""
    return {key: value for key, value in line.items() if not isinstance(value, Mapping | list)}


def _flat(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of a method with plain columns, for a table."""
    row: dict[str, Any] = {}
    for key, value in summary.items():
        if key == "seeds":
            row[key] = len(value)
        elif isinstance(value, Mapping):
            row[key] = value["mean"]
            row[f"{key}_std"] = value["std"]
        elif not isinstance(value, list):
            row[key] = value
    return row
