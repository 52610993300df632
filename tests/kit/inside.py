"""The parts of a run, for tests that break one or look at what nobody else may see."""

from __future__ import annotations

from covey.coordinator.run.parts import Parts
from covey.coordinator.run.view import RunView


def inside(run: RunView) -> Parts:
    """All that this run consists of."""
    return run._parts
