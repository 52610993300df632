"""Finish a run: write its models, its table of agents and its result."""

from __future__ import annotations

from typing import Any

from covey.coordinator.record import truth
from covey.coordinator.run.result import write_all, write_models
from covey.coordinator.run.run import Run


def finish(this: Run) -> dict[str, Any]:
    """Write models, the table of agents and the result of a completed run to its folder.

    Returns the result, as `result.json` holds it.
    """
    write_models(this)
    known = truth.truth_of(this.scenario, this.folder)
    return write_all(this, known, truth.partition_digest(this.folder))
