"""Which learner trains on this device, and which tasks it takes. A waiting agent imports this: no numpy and no torch.

A learner is what a worker trains with: `covey.agent.learning` has its interface. A model of the user's own can bring its own
training instead (`agent.own_code.Loop`).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from covey.shared.errors import UserError, install
from covey.shared.own_code.consent import BUILT_IN_MODELS, framework_of
from covey.shared.wire.jobs import learner_here

TORCH = "torch"
NUMPY = "numpy"
NEEDED = ("cachetools", "safetensors")  # by each learner, with its first work


# learners of our own -> the built-in models that they train; None: all, and a user's own
BUILT_IN: Mapping[str, tuple[str, ...] | None] = {TORCH: None, NUMPY: ("linear", "mlp")}


def learner_name(wish: str | None) -> str:
    """The name of the learner that the owner chose; without a choice torch where it is installed, and numpy elsewhere.

    Raises:
        UserError: there is no such learner, or packages that it needs are missing.
    """
    for package in NEEDED:
        if find_spec(package) is None:
            light = "with agent-light in place of agent on a device without torch"
            raise UserError(
                f"the package {package}, which agents train with, is not installed; {install('agent')}, {light}"
            )
    if wish is None:
        return learner_here()
    if wish == TORCH and learner_here() != TORCH:
        raise UserError(
            f"--learner torch: torch is not installed; {install('agent')}, or choose --learner numpy"
        )
    if framework_of(wish):
        return wish
    if wish not in BUILT_IN:
        raise UserError(
            f"--learner {wish}: no such learner here; choose one of {', '.join(BUILT_IN)}, "
            "flower:MODULE:client_fn or sklearn:MODULE:make_estimator"
        )
    return wish


def cannot_train(learner: str, task: Mapping[str, Any]) -> str | None:
    """Why a learner cannot train a task's model; None if it can, or if only its worker knows.

    Args:
        learner: a name.
        task: as an order or a status carries it; its values are unchecked.
    """
    model = task.get("model", {})
    name = str(model.get("name", "mlp"))
    if framework_of(learner):
        return (
            None if name == learner else f"task.model {name!r}: this device trains {learner} only"
        )
    if framework_of(name) == "flower":
        return f"task.model {name!r}: start the agent with --learner {name}, since its client loads its own data"
    trained = BUILT_IN[learner]
    if trained is None or name not in BUILT_IN_MODELS:
        return None
    known = " and ".join(trained)
    if name not in trained:
        return (
            f"task.model {name!r}: the learner of this device ({learner}) trains {known} only; choose one of "
            "these models, or start the agent with --learner torch"
        )
    options = model.get("options") or {}
    if isinstance(options, Mapping) and options.get("head") is not None:
        return (
            f"task.model.options.head: the learner of this device ({learner}) has no projection head; start "
            "the agent with --learner torch"
        )
    return None
