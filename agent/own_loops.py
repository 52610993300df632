"""The loop of a task's model: a class of the user's own, a client of Flower or an estimator of scikit-learn."""

from __future__ import annotations

from typing import cast

from covey.agent.own_code import Loop, users_builder
from covey.shared import extras
from covey.shared.errors import PublicError, UserError
from covey.shared.own_code import faults
from covey.shared.own_code.consent import BUILT_IN_MODELS, AllowedCode, framework_of
from covey.shared.scenario.task import Task


def loop_of(task: Task, allowed: AllowedCode) -> Loop | None:
    """The task's model if it is a client or an estimator of another framework, or a class with `start`, `train` and
    `evaluate`; None for modules of torch.

    Raises:
        UserError: it cannot be imported or made.
        ConsentError: the model is not built in, and `allowed` does not name it.
    """
    name = task.model.name
    if name in BUILT_IN_MODELS:
        return None
    builder = users_builder(name, allowed)
    match framework_of(name):
        case "flower":
            flower = extras.part("light", "flower", "task.model")
            return cast(Loop, flower.FlowerLoop(builder, name, task.model.options))
        case "sklearn":
            sklearn = extras.part("light", "estimators", "task.model")
            return cast(Loop, sklearn.EstimatorLoop(builder, name, task, task.model.options))
    if not all(callable(getattr(builder, part, None)) for part in ("start", "train", "evaluate")):
        return None
    if task.model.adapters is not None:
        raise PublicError(
            f"task.model.adapters: adapters are for modules of torch, and {name} trains by a loop of its own; remove them"
        )
    try:
        return cast(Loop, builder(task.features, task.outputs, **task.model.options))
    except (Exception, SystemExit) as error:  # the user's code, or options that it does not know
        raise UserError(
            f"task.model {name!r} with features {list(task.features)} and options {task.model.options}: "
            f"{faults.said(error)}"
        ) from error
