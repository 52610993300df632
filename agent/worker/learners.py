"""The learner of a device, and of a task: each is imported when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from covey.agent.learner_choice import TORCH
from covey.agent.learning import Learner, Library
from covey.shared import extras
from covey.shared.own_code.consent import framework_of

if TYPE_CHECKING:
    from covey.agent.policy import OwnersRules
    from covey.shared.numerics.vectors import Vector
    from covey.shared.scenario.task import Task


def load_library(name: str) -> Library:
    """The library of the learner of this name, before there is a task."""
    if framework_of(name):
        return cast(Library, extras.part("light", "own_loop", "task.model").BARE)
    return load_learner(name)


def load_learner(name: str) -> Learner:
    """The learner of our own of this name."""
    if name == TORCH:
        from covey.agent.training import torch_learner

        return torch_learner.LEARNER
    return cast(Learner, extras.part("light", "numpy_learner", "--learner numpy").LEARNER)


def learner_for(task: Task, rules: OwnersRules) -> Learner:
    """What trains a task's model: the loop that a model of the user's own brings, or the learner that the device chose.

    Raises:
        UserError: the model cannot be imported or made.
        ConsentError: the model is not built in, and the rules do not allow it.
    """
    from covey.agent.own_loops import loop_of

    loop = loop_of(task, rules.allowed)
    if loop is None:
        return load_learner(rules.learner)
    if framework_of(task.model.name) == "flower":
        flower = extras.part("light", "flower", "task.model")

        assert isinstance(loop, flower.FlowerLoop)  # noqa: S101 - its name promises one
        return cast(Learner, flower.FlowerLearner(loop))
    return cast(Learner, extras.part("light", "own_loop", "task.model").LoopLearner(loop))


def new_weights(task: Task, seed: int) -> Vector | None:
    """Weights (d,) that nothing has trained, of a model that is built in; None for others, and where only torch can draw."""
    if not extras.has("light"):
        return None
    return cast("Vector | None", extras.part("light", "sketch").drawn(task, seed))
