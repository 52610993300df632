"""A run in experiment trackers: one protocol, and a thread that feeds trackers so that the run never waits for them.

A tracker may lie behind a network. If it fails, the run continues without it: figures are in the run's folder anyway.
"""

from __future__ import annotations

import importlib.util
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from covey.coordinator.record.notices import Notice, Observer
from covey.coordinator.view.lines import averages
from covey.coordinator.view.milestones import Milestone, flat, milestones, recorded_milestones
from covey.extras.outlets.tracker import Outcome, Setting, TrackedRun, Tracker
from covey.shared.errors import UserError, install
from covey.shared.scenario.scenario import Scenario

Remark = Callable[[str], None]

FILES = (
    "report.html",
    "scenario.yaml",
    "result.json",
)  # of a finished run, for trackers that keep files
PATIENCE_S = 60.0  # how long a run that is over waits for its trackers


class Tracking:
    """Feeds one tracker from a thread of its own."""

    def __init__(
        self, name: str, make: Callable[[], Tracker], run: TrackedRun, remark: Remark
    ) -> None:
        self._name = name
        self._make = make  # may fail as well: a library reads its own settings
        self._run = run
        self._remark = remark
        self._calls: queue.SimpleQueue[Callable[[Tracker], None] | None] = queue.SimpleQueue()
        self._began = False  # a run without any figure leaves no trace in the tracker
        self._result: Mapping[str, Any] | None = None  # set once the run is finished
        self._thread = threading.Thread(target=self._work, name=f"track-{name}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Tracking of {self._run.name} with {self._name}>"

    def observe(self, notice: Notice) -> None:
        """Pass the milestones of a notice on; returns at once."""
        for milestone in milestones(notice):
            self._take(milestone)

    def replay(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Pass on the milestones of a run that is over, from the lines of its record."""
        for row in rows:
            for milestone in recorded_milestones(row):
                self._take(milestone)

    def _take(self, milestone: Milestone) -> None:
        if not self._began:
            self._began = True
            self._calls.put(lambda tracker: tracker.begin(self._run))
        figures = milestone.figures()
        self._calls.put(lambda tracker: tracker.log(milestone.round, figures))

    def finished(self, result: Mapping[str, Any]) -> None:
        """The run has this result."""
        self._result = result

    def close(self, outcome: Outcome) -> None:
        """End the tracker's run, and wait for a while until everything has arrived."""
        if self._began:
            self._end(outcome)
        self._calls.put(None)
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            self._remark(f"--track {self._name}: not everything had arrived after {PATIENCE_S:g} s")

    def _end(self, outcome: Outcome) -> None:
        """The last call: with the final figures if the run has a result."""
        summary: dict[str, float] = {}
        files: list[Path] = []
        if self._result is not None:
            outcome = "finished"
            summary = _summary(self._result)
            for name in FILES:
                file = self._run.folder / name
                if file.exists():
                    files.append(file)
        self._calls.put(lambda tracker: tracker.end(outcome, summary, files))

    def _work(self) -> None:
        tracker: Tracker | None = None
        for call in iter(self._calls.get, None):
            try:
                if tracker is None:
                    tracker = self._make()
                call(tracker)
            except Exception as error:  # a library's own errors, of any kind: the run must not end
                kind = type(error).__name__
                reason = str(error).strip() or kind
                self._remark(f"--track {self._name}: {reason}; the run continues without it")
                return


def check_trackers(names: Sequence[str]) -> None:
    """Raise a UserError for a tracker that does not exist, or whose library is not installed."""
    for name in names:
        if name not in TRACKERS:
            known = ", ".join(TRACKERS)
            raise UserError(f"--track {name}: expected one of {known}")
        if importlib.util.find_spec(name) is None:
            raise UserError(f"--track {name}: the library {name} is not installed; {install(name)}")


class TrackedObserver:
    """Passes notices on to trackers."""

    def __init__(self, trackings: Sequence[Tracking]) -> None:
        self._trackings = trackings

    def __repr__(self) -> str:
        return f"<TrackedObserver {list(self._trackings)}>"

    @property
    def has_trackers(self) -> bool:
        """Whether anybody follows the run."""
        return len(self._trackings) > 0

    def before(self, observer: Observer) -> Observer:
        """An observer that feeds the trackers, and then this one."""

        def observe(notice: Notice) -> None:
            for one in self._trackings:
                one.observe(notice)
            observer(notice)

        return observe

    def replay(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Feed the trackers with the record of a run that another machine has finished."""
        lines = list(rows)
        for one in self._trackings:
            one.replay(lines)

    def finished(self, result: Mapping[str, Any]) -> None:
        """The run has this result."""
        for one in self._trackings:
            one.finished(result)


@contextmanager
def tracking(
    names: Sequence[str], scenario: Scenario, folder: Path, remark: Remark, name: str = ""
) -> Iterator[TrackedObserver]:
    """Trackers for as long as a run lasts.

    Args:
        names: keys of TRACKERS that `check_trackers` has accepted
        scenario: of the run
        folder: of the run
        remark: called with a sentence if a tracker fails
        name: of the run; empty for method and seed
    """
    method = scenario.strategy.name
    own_name = name or f"{method}-{scenario.seed}"
    run = TrackedRun(scenario.name, own_name, folder, settings_of(scenario))
    made = []
    for tracker_name in names:
        made.append(Tracking(tracker_name, TRACKERS[tracker_name], run, remark))
    outcome: Outcome = "failed"
    try:
        yield TrackedObserver(made)
        outcome = "stopped"  # unless there is a result
    except KeyboardInterrupt:
        outcome = "stopped"
        raise
    finally:
        for one in made:
            one.close(outcome)


def _mlflow() -> Tracker:
    from covey.extras.outlets import to_mlflow

    return to_mlflow.tracker()


def _tensorboard() -> Tracker:
    from covey.extras.outlets import to_tensorboard

    return to_tensorboard.TensorBoard()


def _wandb() -> Tracker:
    from covey.extras.outlets import to_wandb

    return to_wandb.WeightsAndBiases()


# by the name of its library, which is that on the command line
TRACKERS: Mapping[str, Callable[[], Tracker]] = {
    "mlflow": _mlflow,
    "tensorboard": _tensorboard,
    "wandb": _wandb,
}


def settings_of(scenario: Scenario) -> dict[str, Setting]:
    """The scenario by dotted key, without what is not set.

    The broker's address is left out, because it can hold a password.
    """
    document = scenario.model_dump(
        mode="json", by_alias=True, exclude={"broker", "brokers", "compare"}
    )
    found: dict[str, Setting] = {}
    _flatten("", document, found)
    return found


def _flatten(key: str, value: Any, found: dict[str, Setting]) -> None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            inner_key = f"{key}.{name}" if key else str(name)
            _flatten(inner_key, inner, found)
    elif value is None or value == []:
        return
    elif isinstance(value, str | int | float | bool):
        found[key] = value
    else:
        found[key] = str(value)


def _summary(result: Mapping[str, Any]) -> dict[str, float]:
    """The final figures of a run: averages by mode, clusters and their agreement, traffic, time."""
    found = {
        f"summary/{name}": figure for name, figure in flat(averages(result["accuracy"])).items()
    }
    for key in ("clusters", "rounds", "ari", "nmi", "purity", "mbit_per_agent", "seconds"):
        value = result.get(key)
        if value is not None:
            found[f"summary/{key}"] = float(value)
    return found
