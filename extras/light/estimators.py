"""Estimators of scikit-learn as loops: anything with `partial_fit` whose model is `coef_` and `intercept_`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.agent.own_code import State
from covey.extras.light.own_loop import OrderedTraining
from covey.shared.errors import PublicError
from covey.shared.own_code.faults import own_code
from covey.shared.scenario.task import Task

METHODS = ("partial_fit", "get_params", "set_params")
NAMES = {
    "coef_": "linear.weight",
    "intercept_": "linear.bias",
}  # of an estimator -> of a layer, for methods that read layers


@dataclass(frozen=True)
class EstimatorLoop:
    """A `covey.learners.Loop` that calls an estimator.

    Args:
        make: returns an estimator, for the keyword arguments `options`.
        name: of the model, for messages.
        task: what an estimator predicts.
        options: `task.model.options`.
    """

    make: Callable[..., Any]
    name: str
    task: Task
    options: Mapping[str, Any]

    def start(self, seed: int) -> State:
        """See `Loop.start`: zeros, in the shapes that the estimator has after one step."""
        return {name: np.zeros_like(array) for name, array in _state(self._begun()).items()}

    def train(
        self, state: State, data: Any, settings: OrderedTraining
    ) -> tuple[State, int, Mapping[str, float]]:
        """See `Loop.train`. Rates and penalties are those of the estimator."""
        estimator = self._estimator(state)
        rows = _rows(data.features)
        with own_code(f"task.model {self.name}: partial_fit"):
            if estimator.get_params().get("random_state", 0) is None:
                estimator.set_params(random_state=settings.seed)
            for batch in _batches(len(rows), settings):
                estimator.partial_fit(rows[batch], data.targets[batch])
        return _state(estimator), len(rows), {}

    def evaluate(self, state: State, features: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """See `Loop.evaluate`: decision functions as logits, or values of a regression."""
        estimator = self._estimator(state)
        rows = _rows(features)
        with own_code(f"task.model {self.name}: evaluate"):
            if self.task.classes is None:
                return np.asarray(estimator.predict(rows)).reshape(len(rows), -1)
            outputs = np.asarray(estimator.decision_function(rows))
        if outputs.ndim == 1:  # of two classes there is one column
            outputs = np.column_stack([np.zeros_like(outputs), outputs])
        return outputs

    def _begun(self) -> Any:
        """A new estimator that has its arrays and knows all classes."""
        rows = np.zeros((1, int(np.prod(self.task.features))))
        with own_code(f"task.model {self.name}: make"):
            estimator = self.make(**self.options)
            kind = type(estimator).__name__
            if isinstance(estimator, type):
                raise PublicError(
                    f"task.model {self.name} returned the class {estimator.__name__}; expected an estimator: {estimator.__name__}()"
                )
            for method in METHODS:
                if not callable(getattr(estimator, method, None)):
                    raise PublicError(
                        f"task.model {self.name}: {kind} has no {method}; expected an estimator such as SGDClassifier"
                    )
            names_classes = "classes" in signature(estimator.partial_fit).parameters
            if names_classes != (self.task.classes is not None):
                learns, has = ("classes", "values") if names_classes else ("values", "classes")
                raise PublicError(
                    f"task.model {self.name}: {kind} learns {learns}, and the task's target has {has}; choose another estimator, or "
                    "correct task.classes"
                )
            if self.task.classes is None:
                estimator.partial_fit(rows, np.zeros(1))
            else:
                estimator.partial_fit(
                    rows, np.zeros(1, np.int64), classes=np.arange(self.task.outputs)
                )
        missing = [name for name in NAMES if not hasattr(estimator, name)]
        if missing:
            raise PublicError(
                f"task.model {self.name}: {kind} has no {' and no '.join(missing)}; expected a linear estimator"
            )
        return estimator

    def _estimator(self, state: State) -> Any:
        estimator = self._begun()
        for name in NAMES:
            like = np.asarray(getattr(estimator, name))
            setattr(estimator, name, np.array(state[NAMES[name]], like.dtype).reshape(like.shape))
        return estimator


def _state(estimator: Any) -> State:
    return {ours: np.asarray(getattr(estimator, name)) for name, ours in NAMES.items()}


def _rows(features: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Samples as estimators take them, (n, values of one)."""
    return features.reshape(len(features), -1).astype(np.float64)


def _batches(count: int, settings: OrderedTraining) -> Iterator[npt.NDArray[np.int64]]:
    """The rows of each batch of a training."""
    draws = np.random.default_rng(settings.seed)
    starts = range(0, count, settings.batch)
    orders = (draws.permutation(count) for _ in range(settings.epochs))
    batches = (order[start : start + settings.batch] for order in orders for start in starts)
    return islice(batches, settings.steps)
