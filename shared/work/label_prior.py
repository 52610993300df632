"""The label prior: while a model computes on an agent's data, its outputs get the logarithm of the agent's shares of the classes.

    logits_i(x) = f(x) + log pi_i        pi_ic = (n_ic + 1/2) / (n_i + C/2)

So f learns what distinguishes the classes, and not how frequent they are at one agent or another (Menon et al. 2021, Long-tail
Learning via Logit Adjustment; FedLC, FedRoD). The logarithm is added to the bias of the last layer when a model enters the
learner and taken off when it leaves it: the agent's shares are in no vector that is sent, and every learner can do it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from covey.shared.errors import PublicError
from covey.shared.numerics.measures import kind_of_task
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.strategies.base import PRIOR
from covey.shared.strategies.client_half import AS_ORDERED, Drill, Local, Mixture, TrainingResult
from covey.shared.strategies.phase_names import MOMENTS
from covey.shared.wire.messages import Work

Prior = npt.NDArray[np.float32]  # log pi (C,)
MODELS = ("loss", "losses", "gradient", "predict", "memberships")  # whose first argument is a model


class WithPrior:
    """A `Local` whose models have the prior while they compute; it passes every other call on.

    Args:
        local: the agent's data.
        bias: the place of the last layer's bias in a model.
        prior: log pi (C,).
    """

    def __init__(self, local: Local, bias: slice, prior: Prior) -> None:
        self._local = local
        self._bias = bias
        self._prior = prior

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._local, name)
        if name not in MODELS:
            return call
        return lambda model, *arguments, **options: call(self.applied(model), *arguments, **options)

    def applied(self, model: Vector) -> Vector:
        """The model (d,) with the prior in its bias."""
        return _applied(model, self._bias, self._prior)

    def train(self, start: Vector, drill: Drill = AS_ORDERED) -> TrainingResult:
        anchor = drill.correction.anchor
        if anchor is not None:
            correction = replace(drill.correction, anchor=self.applied(anchor))
            drill = replace(drill, correction=correction)
        entered = self.applied(start)
        result = self._local.train(entered, drill)
        end = result.end.copy()
        # a bias that was not trained is the same, to the bit: adding and subtracting would round it
        is_trained = end[self._bias] != entered[self._bias]
        end[self._bias] = np.where(is_trained, end[self._bias] - self._prior, start[self._bias])
        return replace(result, end=end)


def prior_of(work: Work, local: Local, layout: Layout) -> tuple[slice, Prior] | None:
    """The place of the bias of the last layer in a model, and log pi (C,); None where the order's task does without.

    Args:
        work: of the order; with `auto` the method decides, by the number `PRIOR`.
        local: the samples that the agent trains on.
        layout: of the model.

    Raises:
        PublicError: the task asks for the prior, and the model's last layer has no bias for each class.
    """
    classes = work.task.get("classes") if kind_of_task(work.task) == "classes" else None
    if classes is None or not asks_for_prior(work):
        return None
    count = classes if isinstance(classes, int) else len(classes)
    found = own_prior(count, local, layout)
    if found is None and work.task.get("label_prior") == "on":
        raise PublicError(
            f"task.label_prior: the model's last layer has no bias for each of {count} classes; set it to off"
        )
    return found


def asks_for_prior(work: Work) -> bool:
    """Whether the outputs of models get the shares of the agent's classes in this work."""
    setting = work.task.get("label_prior", "auto")
    is_asked = setting == "on" or (setting == "auto" and PRIOR in work.numbers)
    return is_asked and work.phase != MOMENTS


def own_prior(classes: int, local: Local, layout: Layout) -> tuple[slice, Prior] | None:
    """The same for an agent whose order is known to ask for it; None if the last layer has no bias for each class."""
    last = layout.tensors[layout.trainable - 1]
    if last.shape != (classes,):
        return None
    labels = local.targets("train")
    shares = (np.bincount(labels, minlength=classes) + 0.5) / (len(labels) + classes / 2)
    return layout.span_of(last.module)[-1], np.log(shares).astype(np.float32)


def with_prior(local: Local, found: tuple[slice, Prior] | None) -> Local:
    """The data with the prior that `prior_of` found; as they are without one."""
    return local if found is None else cast(Local, WithPrior(local, *found))


def served(mixture: Mixture, found: tuple[slice, Prior] | None) -> Mixture:
    """The models as an agent uses them without this module: with its prior in their bias."""
    if found is None:
        return mixture
    return tuple((weight, _applied(model, *found)) for weight, model in mixture)


def _applied(model: Vector, bias: slice, prior: Prior) -> Vector:
    changed = model.copy()
    changed[bias] += prior
    return changed
