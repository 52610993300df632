"""The open step as an aggregator needs it, read from the coordinator's task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.engine.step import phase_from_json
from covey.coordinator.processes.launch import setup_of
from covey.shared.errors import DecodeError
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.own_code.consent import AllowedCode
from covey.shared.scenario.code import check_code
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import Phase
from covey.shared.wire.aggregates import AggregatorTask
from covey.shared.wire.codec import decode_model


@dataclass(frozen=True)
class OpenStep:
    """What checking and adding up the reports of one step takes."""

    run: str
    number: int
    scenario: Scenario
    phase: Phase
    state: Any  # the strategy's, with arrays mapped from a folder
    layout: Layout
    bases: Mapping[str, bytes]  # encoded models by digest in hexadecimal digits

    def base(self, wanted: bytes) -> Vector:
        """The model with this digest, as agents see it. Raises DecodeError where no order names it."""
        content = self.bases.get(wanted.hex())
        if content is None:
            raise DecodeError("no base", f"no model of this step has digest {wanted.hex()}")
        return decode_model(content, self.layout)


def read_task(task: AggregatorTask, folder: Path, allowed: AllowedCode) -> OpenStep:
    """The step that a task describes.

    Args:
        task: from the coordinator.
        folder: empty; arrays of the state are mapped from it.
        allowed: code of a user's own that this command line allows.

    Raises:
        ConsentError: the scenario names code that is not allowed here.
        UserError: the state is damaged.
        ValueError: something in the task is not what a coordinator of this version sends.
    """
    scenario = Scenario.model_validate(json.loads(task.scenario))
    check_code(scenario, allowed)
    strategy = scenario.method
    layout = Layout.from_wire(task.layout)
    # only the kind of the state matters here, so any models will do
    zeros = [np.zeros(layout.size, np.float32)] * strategy.starts
    fresh = strategy.init(setup_of(scenario, zeros, layout))
    checkpoint = Checkpoint(folder)
    checkpoint.import_state(task.state, task.arrays)
    return OpenStep(
        run=task.run,
        number=task.step,
        scenario=scenario,
        phase=phase_from_json(json.loads(task.phase)),
        state=checkpoint.state(fresh),
        layout=layout,
        bases=task.bases,
    )
