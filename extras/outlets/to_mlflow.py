"""MLflow: a run with parameters, metrics by round, and the page, the scenario and the result as artifacts.

Where it writes is MLflow's own setting: MLFLOW_TRACKING_URI, else its local store. The experiment is
MLFLOW_EXPERIMENT_NAME, else the scenario's name.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from covey.extras.outlets.tracker import Outcome, TrackedRun, known_id, remember_id
from covey.shared.programs.version import version

MAX_PARAMS = 100  # of one request
TRAINING = {"mlflow.experimentKind": "custom_model_development"}  # its page shows runs, no chats
MAX_CHARS = 250  # of a parameter's value: every version of MLflow takes as many
STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


def tracker() -> MLflow:
    """A tracker for one run."""
    logging.getLogger("mlflow").setLevel(logging.WARNING)  # its news would run across the progress
    return MLflow()


class MLflow:
    """One run of MLflow; a resumed run of ours continues it."""

    def __init__(self) -> None:
        self._client = MlflowClient()
        self._run = ""  # MLflow's id of the run
        self._last_step = 0

    def __repr__(self) -> str:
        return f"<MLflow run {self._run}>"

    def begin(self, run: TrackedRun) -> None:
        """Create the run with its parameters, or continue the one that this folder had."""
        earlier = known_id(run.folder, "mlflow")
        if earlier:
            self._run = earlier
            self._client.set_terminated(earlier, "RUNNING")
            return
        self._run = self._client.create_run(self._experiment(run), tags=_tags(run)).info.run_id
        remember_id(run.folder, "mlflow", self._run)
        params = [Param(key, str(value)[:MAX_CHARS]) for key, value in run.settings.items()]
        for start in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(self._run, params=params[start : start + MAX_PARAMS])

    def _experiment(self, run: TrackedRun) -> str:
        """The id of the experiment, which is created if it does not exist."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", run.experiment)
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            created: str = self._client.create_experiment(name, tags=TRAINING)
            return created
        known: str = experiment.experiment_id
        return known

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Write metrics in one request."""
        self._last_step = step
        now_ms = int(time.time() * 1000)
        metrics = [Metric(name, figure, now_ms, step) for name, figure in figures.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def end(self, outcome: Outcome, summary: Mapping[str, float], files: Sequence[Path]) -> None:
        """Write the final figures and the files, and close the run."""
        if summary:
            self.log(self._last_step, summary)
        for file in files:
            self._client.log_artifact(self._run, str(file))
        self._client.set_terminated(self._run, STATUS[outcome])


def _tags(run: TrackedRun) -> dict[str, str]:
    """What MLflow lists runs by, and the description on the run's page."""
    folder = str(run.folder.resolve())
    method = str(run.settings["strategy.name"])
    seed = str(run.settings["seed"])
    description = (
        f"Clustered federated learning with **{method}**, seed {seed}.\n\n"
        "`report.html` among the artifacts explains all figures. Accuracies are shares between 0 and 1; a step is a round.\n\n"
        f"To see the run again: `coordinator report {folder}`"
    )
    return {
        "mlflow.runName": run.name,
        "mlflow.source.name": "coordinator",
        "mlflow.source.type": "LOCAL",
        "mlflow.note.content": description,
        "covey.method": method,
        "covey.seed": seed,
        "covey.version": version(),
        "covey.folder": folder,
    }
