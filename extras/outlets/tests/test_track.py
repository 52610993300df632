"""Experiment trackers: they get the figures of the record, and their failures are no failures of a run."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from covey.coordinator.record.notices import Notice
from covey.coordinator.run.result import write_all
from covey.coordinator.view.milestones import Evaluated, RoundEnded, milestones
from covey.extras.compare.grid import Cell
from covey.extras.dashboard.tests.pages import keep_inputs
from covey.extras.outlets import tracking as module
from covey.extras.outlets.tracked_run import finish_tracked, track_afterwards
from covey.extras.outlets.tracker import TrackedRun, known_id, remember_id
from covey.extras.outlets.tracking import Tracking, check_trackers, settings_of, tracking
from covey.shared.errors import UserError
from tests.kit.small_run import in_process, scenario
from tests.processes import ROOT

SCENE = scenario("fedclust", evaluation={"every": 1}, broker="mqtt://me:secret@example.org")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Notice]]:
    """The folder of a finished run, and the notices that it gave."""
    folder = tmp_path_factory.mktemp("tracked")
    notices: list[Notice] = []
    done = in_process(folder, SCENE, observer=notices.append)
    write_all(done, None)
    keep_inputs(folder, SCENE)
    return folder, notices


def result_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def tracked(name: str, folder: Path, notices: Sequence[Notice]) -> list[str]:
    """Track a run that has already been; the remarks that came of it."""
    remarks: list[str] = []
    shown: list[Notice] = []
    with tracking([name], SCENE, folder, remarks.append) as trackers:
        observer = trackers.before(shown.append)
        for notice in notices:
            observer(notice)
        finish_tracked(trackers, folder, result_of(folder))
    assert shown == list(notices)
    return remarks


def test_milestones_have_the_figures_of_the_record(recorded: tuple[Path, list[Notice]]) -> None:
    folder, notices = recorded
    found = [milestone for notice in notices for milestone in milestones(notice)]
    rounds = [one for one in found if isinstance(one, RoundEnded)]
    evaluations = [one for one in found if isinstance(one, Evaluated)]
    assert [one.round for one in rounds] == [1, 2, 3]
    assert [one.round for one in evaluations] == [1, 2, 3]
    result = result_of(folder)
    macro = result["accuracy"]["server"]["accuracy"]["macro"]
    assert evaluations[-1].figure("server", "accuracy") == macro
    assert evaluations[-1].figures()["server/accuracy/macro"] == macro
    assert evaluations[-1].figure("server", "nothing") is None
    assert dict(rounds[-1].cluster_sizes) == result["cluster_sizes"]
    assert rounds[-1].bytes_up == result["bytes"]["vectors_up"]


def test_settings_are_flat_and_name_no_password() -> None:
    settings = settings_of(SCENE)
    assert settings["strategy.name"] == "fedclust"
    assert settings["rounds.count"] == 3
    assert settings["task.features"] == "[5]"
    assert "secret" not in json.dumps(settings)


class Recording:
    """A tracker that keeps its calls, and fails at one of them."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[tuple[str, Any]] = []
        self._fails = fails

    def begin(self, run: TrackedRun) -> None:
        self._note("begin", run.name)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._note("log", step)

    def end(self, outcome: str, summary: Mapping[str, float], files: Sequence[Path]) -> None:
        self._note("end", outcome)

    def _note(self, call: str, value: Any) -> None:
        if call == self._fails:
            raise OSError(f"{call}: no route to host")
        self.calls.append((call, value))


@pytest.mark.parametrize(
    ("fails", "calls", "remarks"),
    [
        ("", ["begin", *6 * ["log"], "end"], []),
        ("log", ["begin"], ["--track x: log: no route to host; the run continues without it"]),
    ],
)
def test_a_tracker_that_fails_gets_no_more_calls_and_the_run_continues(
    fails: str, calls: list[str], remarks: list[str], recorded: tuple[Path, list[Notice]]
) -> None:
    folder, notices = recorded
    tracker = Recording(fails)
    said: list[str] = []
    one = Tracking("x", lambda: tracker, TrackedRun("e", "n", folder, {}), said.append)
    for notice in notices:
        one.observe(notice)
    one.close("stopped")
    assert ([call for call, _ in tracker.calls], said) == (calls, remarks)
    assert fails or tracker.calls[-1] == ("end", "stopped")


def test_a_tracker_whose_library_refuses_to_start_ends_no_run(
    recorded: tuple[Path, list[Notice]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, notices = recorded

    def broken() -> Recording:
        raise ImportError("No module named 'json'")

    monkeypatch.setitem(module.TRACKERS, "json", broken)
    [remark] = tracked("json", folder, notices)
    assert remark.startswith("--track json: No module named")
    assert remark.endswith("the run continues without it")


class Keeping:
    """A tracker that keeps everything it gets."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def begin(self, run: TrackedRun) -> None:
        self.calls.append(run)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self.calls.append((step, dict(figures)))

    def end(self, outcome: str, summary: Mapping[str, float], files: Sequence[Path]) -> None:
        self.calls.append((outcome, dict(summary), list(files)))


def test_a_cell_of_another_machine_is_tracked_from_its_record(
    recorded: tuple[Path, list[Notice]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, notices = recorded
    cell = Cell("", "fedclust", SCENE.seed, SCENE)
    live = Keeping()
    later = Keeping()
    monkeypatch.setitem(module.TRACKERS, "live", lambda: live)
    monkeypatch.setitem(module.TRACKERS, "later", lambda: later)
    with tracking(["live"], SCENE, folder, print, cell.name) as trackers:
        observer = trackers.before(lambda notice: None)
        for notice in notices:
            observer(notice)
        finish_tracked(trackers, folder, result_of(folder))
    track_afterwards(["later"], cell, folder, print)
    assert len(live.calls) == 8
    assert later.calls == live.calls
    _, _, kept = live.calls[-1]
    assert [file.name for file in kept] == ["report.html", "scenario.yaml", "result.json"]


def test_a_run_without_any_figure_leaves_no_trace_in_a_tracker(tmp_path: Path) -> None:
    tracker = Recording()
    one = Tracking("x", lambda: tracker, TrackedRun("e", "n", tmp_path, {}), print)
    one.close("failed")
    assert tracker.calls == []


def test_a_tracker_that_is_not_there_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UserError, match="expected one of mlflow, tensorboard, wandb"):
        check_trackers(["excel"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"is not installed; .*pip install '\.\[mlflow\]'"):
        check_trackers(["mlflow"])


def test_the_ids_of_a_folder_are_kept_and_a_damaged_file_counts_as_none(tmp_path: Path) -> None:
    assert known_id(tmp_path, "mlflow") == ""
    remember_id(tmp_path, "mlflow", "a")
    remember_id(tmp_path, "wandb", "b")
    assert (known_id(tmp_path, "mlflow"), known_id(tmp_path, "wandb")) == ("a", "b")
    (tmp_path / "trackers.json").write_text('{"mlflow')
    assert known_id(tmp_path, "mlflow") == ""


def need(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed: pip install '.[{library}]'")


def need_what_make_installs(library: str) -> None:
    """Skip only in an environment that is older than its pins: `make test` renews it first, and then nothing skips."""
    made = Path(sys.prefix) / ".ready"
    pins = ROOT / "constraints.txt"
    if not made.exists() or made.stat().st_mtime < pins.stat().st_mtime:
        need(library)


def test_tensorboard_reads_the_event_files(recorded: tuple[Path, list[Notice]]) -> None:
    need_what_make_installs("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, notices = recorded
    assert tracked("tensorboard", folder, notices) == []
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    losses = events.Scalars("round/loss")
    assert [one.step for one in losses] == [1, 2, 3]
    served = events.Scalars("server/accuracy/macro")[-1].value
    expected = result_of(folder)["accuracy"]["server"]["accuracy"]["macro"]
    assert served == pytest.approx(expected)
    (final,) = events.Scalars("summary/server/accuracy/macro")
    assert final.value == pytest.approx(expected)
    text = events.Tensors("scenario")[0].tensor_proto.string_val[0]
    assert b"| strategy.name | fedclust |" in text
    sizes = {cluster: events.Scalars(f"cluster-{cluster}/agents")[-1].value for cluster in "01"}
    assert sizes == result_of(folder)["cluster_sizes"]
    assert "_hparams_/session_start_info" in events.summary_metadata


def test_mlflow_writes_its_local_store_as_the_page_has_it(
    recorded: tuple[Path, list[Notice]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_what_make_installs("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    folder, notices = recorded
    assert tracked("mlflow", folder, notices) == []
    assert (tmp_path / "mlflow.db").is_file()
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name(SCENE.name)
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", f"fedclust-{SCENE.seed}")
    assert run.data.params["strategy.name"] == "fedclust"
    history = client.get_metric_history(run.info.run_id, "round/loss")
    assert [one.step for one in history] == [1, 2, 3]
    artifacts = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert artifacts == {"report.html", "scenario.yaml", "result.json"}
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    tags = run.data.tags
    assert (tags["covey.method"], tags["covey.seed"]) == ("fedclust", str(SCENE.seed))
    assert "coordinator report" in tags["mlflow.note.content"]
    by_cluster = [name for name in run.data.metrics if name.startswith("cluster-0/")]
    assert "cluster-0/agents" in by_cluster
    assert "cluster-0/accuracy" in by_cluster
    assert None not in run.data.params.values()
    assert tracked("mlflow", folder, notices) == []  # as after --resume
    assert len(client.search_runs([experiment.experiment_id])) == 1


def test_wandb_writes_a_run_offline(
    recorded: tuple[Path, list[Notice]], monkeypatch: pytest.MonkeyPatch
) -> None:
    need("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder, notices = recorded
    assert tracked("wandb", folder, notices) == []
    (written,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    assert known_id(folder, "wandb") in written.name
