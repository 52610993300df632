"""The initial models of a scenario: their seeds, what needs no torch for them, and the file that has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np

from covey.shared import extras
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import entropy
from covey.shared.storage import json_text
from covey.shared.storage.files import atomic_replace

Starts = tuple[list[Vector], Layout]


def seeds_of(scenario: Scenario) -> list[int]:
    """The seed of each initial model."""
    return [entropy(scenario.seed, "init", start) for start in range(scenario.strategy.starts)]


def starts_of(scenario: Scenario) -> Starts | None:
    """The initial models of a scenario, where no torch is needed for them and nothing about them can fail; else None."""
    if not extras.has("light"):
        return None
    return cast("Starts | None", extras.part("light", "sketch").starts_of(scenario))


def write_starts(out: Path, starts: Sequence[Vector], layout: Layout) -> None:
    """Write initial models as .npz: `starts`, float32 (n, d), and `layout`, a text of JSON."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_replace(out) as temporary, temporary.open("wb") as file:
        np.savez(file, starts=np.stack(starts), layout=np.array(json_text.dumps(layout.to_wire())))
