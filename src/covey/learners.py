"""All that training of your own needs, in one import: a class with `start`, `train` and `evaluate`, which `task.model` names.

    from covey.learners import OrderedTraining, State, TrainingData

docs/from-flower.md shows how to write one, and how a client of Flower or an estimator of scikit-learn takes part as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from covey.agent.own_code import Loop, State
from covey.shared.errors import DataError, PublicError
from covey.shared import extras
from covey.shared.own_code.faults import OwnCodeError

if TYPE_CHECKING:
    from covey.extras.light.own_loop import OrderedTraining, TrainingData

__all__ = [
    "DataError",
    "Loop",
    "OrderedTraining",
    "OwnCodeError",
    "PublicError",
    "State",
    "TrainingData",
]


def __getattr__(name: str) -> Any:
    """What the extra `light` has of them, which may not be installed."""
    if name not in __all__:
        raise AttributeError(f"module 'covey.learners' has no attribute {name!r}")
    return getattr(extras.part("light", "own_loop", f"covey.learners.{name}"), name)
