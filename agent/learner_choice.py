"""Which learner trains on this device, and which tasks it takes. A waiting agent imports this: no numpy and no torch.

A learner is what a worker trains with: `covey.agent.learning` has its interface. Two are built in. A package adds another
one by an entry point of the group `covey.learners`, which the owner of the device has to allow by its name.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from covey.shared import plugins
from covey.shared.errors import UserError
from covey.shared.extras import install

TORCH = "torch"
NUMPY = "numpy"


@dataclass(frozen=True)
class BuiltIn:
    """A learner of our own."""

    reference: str  # module:name of the object that implements `Learner`
    models: (
        tuple[str, ...] | None
    )  # the built-in models that it trains; None: all, and a user's own


BUILT_IN: Mapping[str, BuiltIn] = {
    TORCH: BuiltIn("covey.agent.training.torch_learner:LEARNER", None),
    NUMPY: BuiltIn("covey.agent.light.numpy_learner:LEARNER", ("linear", "mlp")),
}


def learner_name(wish: str | None) -> str:
    """The name of the learner that the owner chose; without a choice torch where it is installed, and numpy elsewhere.

    Raises:
        UserError: no such learner is built in or installed, or it is torch, and torch is missing.
    """
    has_torch = importlib.util.find_spec("torch") is not None  # looks for the file, imports nothing
    if wish is None:
        return TORCH if has_torch else NUMPY
    if wish == TORCH and not has_torch:
        raise UserError(
            f"--learner torch: torch is not installed; {install('agent')}, or choose --learner numpy"
        )
    installed = plugins.installed(plugins.LEARNERS)
    if wish not in BUILT_IN and wish not in installed:
        known = ", ".join([*BUILT_IN, *installed])
        raise UserError(f"--learner {wish}: no such learner here; choose one of {known}")
    return wish


def cannot_train(learner: str, task: Mapping[str, Any]) -> str | None:
    """Why a built-in learner cannot train a task's model; None if it can, or if only its worker knows.

    Args:
        learner: a name.
        task: as an order or a status carries it; its values are unchecked.
    """
    built_in = BUILT_IN.get(learner)
    if built_in is None or built_in.models is None:
        return None
    model = task.get("model", {})
    name = str(model.get("name", "mlp"))
    known = " and ".join(built_in.models)
    if name not in built_in.models:
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
