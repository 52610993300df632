"""The learner of a device, and of a task: each is imported when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from covey.agent.learner_choice import TORCH
from covey.agent.learning import Learner, Library
from covey.shared.own_code.consent import framework_of

if TYPE_CHECKING:
    from covey.agent.policy import OwnersRules
    from covey.shared.numerics.vectors import Vector
    from covey.shared.scenario.task import Task


def load_library(name: str) -> Library:
    """The library of the learner of this name, before there is a task."""
    if framework_of(name):
        from covey.agent.light.own_loop import BARE

        return BARE
    return load_learner(name)


def load_learner(name: str) -> Learner:
    """The learner of our own of this name."""
    if name == TORCH:
        from covey.agent.training import torch_learner

        return torch_learner.LEARNER
    from covey.agent.light import numpy_learner

    return numpy_learner.LEARNER


def learner_for(task: Task, rules: OwnersRules) -> Learner:
    """What trains a task's model: the loop that a model of the user's own brings, or the learner that the device chose.

    Raises:
        UserError: the model cannot be imported or made.
        ConsentError: the model is not built in, and the rules do not allow it.
    """
    from covey.agent.light.loops import loop_of

    loop = loop_of(task, rules.allowed)
    if loop is None:
        return load_learner(rules.learner)
    if framework_of(task.model.name) == "flower":
        from covey.agent.light.flower import FlowerLearner, FlowerLoop

        assert isinstance(loop, FlowerLoop)  # noqa: S101 - its name promises one
        return FlowerLearner(loop)
    from covey.agent.light.own_loop import LoopLearner

    return LoopLearner(loop)


def new_weights(task: Task, seed: int) -> Vector | None:
    """Weights (d,) that nothing has trained, of a model that is built in; None for others."""
    from covey.shared.models.sketch import drawn

    return drawn(task, seed)
