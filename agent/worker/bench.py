"""How long the work of a round takes on this device: measured on its own data, with the training loop of its learner."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covey.agent.data import Dataset
from covey.agent.data.check import load_local
from covey.agent.policy import DEFAULT_RULES, OwnersRules
from covey.agent.worker.learners import learner_for
from covey.shared import extras
from covey.shared.numerics.split import Mask, Split
from covey.shared.numerics.vectors import Vector
from covey.shared.scenario.load import load_without_files
from covey.shared.scenario.task import Model, Task
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import Drill, Local

WARM_UP_STEPS = 2  # the first steps allocate memory and choose kernels
MIN_STEPS = 3
MAX_STEPS = 500
LARGEST_START = 0.01  # of a weight: its value does not matter for the time that a step takes
TRAINING_S = 5.0  # training is measured for about this long


@dataclass(frozen=True)
class BenchFigures:
    """What was measured on the data of this device."""

    model: str
    values: int  # parameters and buffers of the model
    samples: int  # of the training part
    test_samples: int
    step_s: float  # one step of SGD, with the batch size of the measurement
    evaluation_s: float  # the outputs for the whole test part


def task_of(data: str, label: str | None, scenario: Path | None, model: str | None) -> Task:
    """The task to measure: that of a scenario, or the one that `agent check --propose` finds for the data.

    Args:
        data: as for `agent start`.
        label: the column of a table to predict.
        scenario: a scenario file; None: propose a task.
        model: a built-in model that replaces the task's; None: the task's.

    Raises:
        UserError: the scenario or the data cannot be read, or the model cannot be built for the data.
    """
    if scenario is not None:
        task = load_without_files(scenario).task
    else:
        proposals = extras.part("proposals", "proposal_data", "a task that nobody names")
        task = proposals.task_of_table(data, label)
    if model is not None:
        task = task.model_copy(update={"model": Model(name=model)})
    return task


def measure(
    data: str, label: str | None, task: Task, training: Training, rules: OwnersRules = DEFAULT_RULES
) -> BenchFigures:
    """Train and evaluate on the data of this device, for a few seconds. Nothing is kept of the model.

    Args:
        data: as for `agent start`.
        label: the column of a table to predict.
        task: what to train.
        training: settings of local SGD.
        rules: of this device; they name the learner.

    Raises:
        DataError: the data cannot be read, or does not fit the task.
        UserError: the model cannot be built for the task.
    """
    samples = load_local(data, label, task)
    local, start, trained = _local_of(samples, task, training, rules)
    step_s = _seconds_per_step(local, start, trained)
    local.predict(start, "test")  # the first pass allocates memory
    began = time.perf_counter()
    local.predict(start, "test")
    evaluation_s = time.perf_counter() - began
    return BenchFigures(
        task.model.name,
        start.size,
        len(samples.targets),
        len(samples.test_targets),
        step_s,
        evaluation_s,
    )


def one_step(samples: Dataset, task: Task, training: Training, rules: OwnersRules) -> None:
    """Train one step and evaluate on the data of this device, to see whether that fits into memory.

    Args:
        samples: in the form of the task.
        task: what to train.
        training: its batch.
        rules: of this device; they name the learner.
    """
    local, start, trained = _local_of(samples, task, training, rules)
    local.train(start, Drill(steps=1, trained=trained))
    local.predict(start, "test")


def _local_of(
    samples: Dataset, task: Task, training: Training, rules: OwnersRules
) -> tuple[Local, Vector, Mask | None]:
    """The data ready for training, a small model, and what of it the task trains."""
    learner = learner_for(task, rules)
    layout = learner.layout(task, rules.allowed)
    generator = np.random.default_rng(0)
    start = generator.uniform(0, LARGEST_START, layout.size).astype(np.float32)
    local = learner.local(samples, task, layout, training=training, rng=generator, rules=rules)
    split = Split.by_patterns(layout, task.share, task.keep, task.freeze)
    return local, start, split.trains


def _seconds_per_step(local: Local, start: Vector, trained: Mask | None) -> float:
    """Seconds of one step of SGD: the mean over some seconds of training."""
    local.train(start, Drill(steps=WARM_UP_STEPS, trained=trained))
    began = time.perf_counter()
    local.train(start, Drill(steps=MIN_STEPS, trained=trained))
    first_s = (time.perf_counter() - began) / MIN_STEPS
    steps = min(max(int(TRAINING_S / max(first_s, 1e-6)), MIN_STEPS), MAX_STEPS)
    began = time.perf_counter()
    local.train(start, Drill(steps=steps, trained=trained))
    return (time.perf_counter() - began) / steps


def peak_memory_mb() -> int:
    """The largest resident memory of this process so far, in MB; 0 if this system does not know."""
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1 << 10  # bytes on macOS, KiB elsewhere
    return peak * unit >> 20
