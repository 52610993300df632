"""The initial models of a run, as the file that the coordinator reads them from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from covey.agent.training.models import build, headed, initial
from covey.shared import json_text
from covey.shared.consent import NO_CODE, AllowedCode
from covey.shared.files import atomic_replace
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import entropy


def write_start(scenario: Scenario, out: Path, allowed: AllowedCode = NO_CODE) -> None:
    """Draw the initial weights on the scenario's seed and write them as .npz: `starts` (k, d) float32, `layout` as JSON.

    Raises UserError for a model that cannot be built or that this machine did not allow.
    """
    task, strategy = scenario.task, scenario.strategy
    if strategy.head:
        headed(build(task, scenario.seed, allowed), strategy.head)
    drawn = [
        initial(task, entropy(scenario.seed, "init", j), j, allowed) for j in range(strategy.starts)
    ]
    starts = np.stack([vector for vector, _ in drawn])
    layout = json_text.dumps(drawn[0][1].to_wire())
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_replace(out) as beside, beside.open("wb") as file:
        np.savez(file, starts=starts, layout=np.array(layout))
