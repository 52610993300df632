"""A scenario from its file, as every command and worker of the agent reads it."""

from __future__ import annotations

from pathlib import Path

from shared.scenario import Scenario
from shared.scenario_load import load_alone


def load_scenario(path: Path) -> Scenario:
    """A scenario file, its paths made absolute; the files that it names need not be on this machine.

    Raises UserError that names the file and, one per line, every mistake with its key path and line.
    """
    return load_alone(path)
