"""One step of training on this device, to see whether it fits into memory."""

from __future__ import annotations

import numpy as np

from covey.agent.data import Dataset
from covey.agent.policy import OwnersRules
from covey.agent.worker.learners import learner_for
from covey.shared.numerics.split import Mask, Split
from covey.shared.numerics.vectors import Vector
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import Drill, Local

LARGEST_START = 0.01  # of a weight: its value does not matter for the memory that a step takes


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
