"""The initial models of a run, as the file that the coordinator reads them from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from covey.agent.training.models import build, headed, initial
from covey.shared import json_text
from covey.shared.consent import NO_CODE, AllowedCode
from covey.shared.files import atomic_replace
from covey.shared.numerics.vectors import Vector
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import entropy


def write_start(scenario: Scenario, out: Path, allowed: AllowedCode = NO_CODE) -> None:
    """Draw the initial weights on the scenario's seed and write them as .npz.

    The file holds `starts`, float32 (strategy.starts, d), and `layout`, a text of JSON.

    Raises:
        UserError: the model cannot be built, lacks the strategy's head, or is not allowed on this machine.
    """
    task = scenario.task
    strategy = scenario.strategy
    if strategy.head:
        headed(build(task, scenario.seed, allowed), strategy.head)
    starts: list[Vector] = []
    for start in range(strategy.starts):
        vector, layout = initial(task, entropy(scenario.seed, "init", start), start, allowed)
        starts.append(vector)
    layout_text = json_text.dumps(layout.to_wire())
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_replace(out) as temporary, temporary.open("wb") as file:
        np.savez(file, starts=np.stack(starts), layout=np.array(layout_text))
