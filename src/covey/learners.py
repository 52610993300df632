"""All that training of your own needs, in one import: a class with `start`, `train` and `evaluate`, which `task.model` names.

    from covey.learners import OrderedTraining, State, TrainingData

docs/from-flower.md shows how to write one, and how a client of Flower or an estimator of scikit-learn takes part as it is.
"""

from __future__ import annotations

from covey.agent.light.own_loop import OrderedTraining, TrainingData
from covey.agent.own_code import Loop, State
from covey.shared.errors import DataError, PublicError
from covey.shared.own_code.faults import OwnCodeError

__all__ = [
    "DataError",
    "Loop",
    "OrderedTraining",
    "OwnCodeError",
    "PublicError",
    "State",
    "TrainingData",
]
