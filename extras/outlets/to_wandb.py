"""Weights & Biases: a run with configuration, metrics by round, and a summary.

Its own settings say where it writes: WANDB_MODE=offline needs neither an account nor a network. The project is
WANDB_PROJECT, else the scenario's name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb

from covey.extras.outlets.tracker import Outcome, TrackedRun, known_id, remember_id

EXIT_CODES = {"finished": 0, "stopped": 0, "failed": 1}


class WeightsAndBiases:
    """One run of Weights & Biases; a resumed run of ours continues it."""

    def __init__(self) -> None:
        self._run: Any = None  # wandb's run, once there are figures

    def __repr__(self) -> str:
        return f"<WeightsAndBiases {self._run!r}>"

    def begin(self, run: TrackedRun) -> None:
        """Start the run, or continue the one that this folder had."""
        earlier = known_id(run.folder, "wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", run.experiment),
            name=run.name,
            dir=str(run.folder),
            config=dict(run.settings),
            id=earlier or None,
            resume="allow" if earlier else None,
            settings=wandb.Settings(silent=True, console="off"),
        )
        remember_id(run.folder, "wandb", self._run.id)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Write metrics; `round` is their horizontal axis, because a resumed run may come back to a step."""
        self._run.log({"round": step, **figures})

    def end(self, outcome: Outcome, summary: Mapping[str, float], files: Sequence[Path]) -> None:
        """Write the final figures, and close the run."""
        self._run.summary.update(dict(summary))
        self._run.finish(exit_code=EXIT_CODES[outcome])
