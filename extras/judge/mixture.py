"""The mixture of answers that a device uses: how much each of the models that it can have counts. Pure.

    p(y | x) = sum_k w_k p_k(y | x)        or        y(x) = sum_k w_k y_k(x),        w >= 0, sum_k w_k = 1

The weights are fitted to answers out of fold: each candidate answers on samples that its training at home has not seen. Samples
weigh alike, all of them together as much as there are units (`units`), by which errors are estimated. With few units a fit is mostly chance, so that it begins with a prior: five
units for each candidate, all alike, and once the fleet's mean weights are known, twenty units that are shared out by these. Of
classes and labels the prior is a Dirichlet one and EM finds the weights; of values it is as many units whose target is the answer
of the prior's own mixture, and least squares on the simplex finds them.

A candidate that is bad everywhere would keep a little weight by its prior. So the three largest weights are kept, and of values
a candidate that is clearly worse than the constant has none at all. Two gates follow, each of one standard error over the units:

- against the served model, by the measure of the task. A likelihood rises where answers become more certain, which training at
  home does to all of them, and the errors may rise with it. So a mixture is used where mixtures are better in the fleet as a
  whole, one vote for each agent, or clearly better here; else the served model.
- against the constant. A device with nothing that is better uses the constant. One with few units has the fleet's word for its
  mixture, and uses the constant where that is better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from covey.shared.candidate_names import CANDIDATES, NONE, SERVED
from covey.shared.numerics.figures import errors, kind_of, weighted_mean
from covey.shared.numerics.votes import counted, difference

Float64 = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Weights = Mapping[str, float]  # by candidate; they sum to 1
Gain = tuple[float, float]  # a mean, and its variance

FEWEST = 25  # units: an agent with fewer uses the fleet's weights, to which it adds its own
ALIKE = 5.0  # units of the uniform prior for each candidate
OF_FLEET = 20.0  # units of the fleet's weights as prior
MOST = 3  # candidates that are mixed
SURE = 1.0  # standard errors by which something must be better
LEAST_SHARE = 1e-4  # in place of a smaller probability: one sample never decides alone
RIDGE = 1e-3  # of the mean squared error of a candidate
STEPS = 500  # of a fit, at most
PRECISION = 1e-6  # of a weight, at which a fit ends
DIGITS = 6  # of a weight that is sent, kept or used


@dataclass(frozen=True)
class Judged:
    """Answers out of fold of K candidates on the same m samples, in the form in which they are mixed.

    Of classes and labels the probability that a candidate gave to the truth; of values its answers, less the truth: a mixture of
    answers then is a mixture of errors.
    """

    names: tuple[str, ...]  # of the candidates
    found: Float64  # (m, K)
    shares: Float64  # (m,) the weight of each sample: they sum to the number of units
    units: Indices  # (m,) from 0
    has_values: bool
    answers: Mapping[str, Float64]  # by candidate (n, outputs)
    truth: npt.NDArray[Any]  # (n, ...)
    of_samples: Indices  # (n,) the unit of each sample
    measure: str  # of the task, as `figures.errors` takes it

    @classmethod
    def of(
        cls,
        answers: Mapping[str, Float64],
        truth: npt.NDArray[Any],
        units: npt.NDArray[Any],
        measure: str = "",
    ) -> Self:
        """What candidates answered.

        One with an answer that is not finite is left out.

        Args:
            answers: by candidate, (n, outputs) as `figures.answers` gives them.
            truth: targets (n,) or (n, outputs): classes, values or labels.
            units: of the samples (n,).
            measure: of the task; empty: the usual one.
        """
        kind = kind_of(truth)
        sound = [name for name in answers if np.isfinite(answers[name]).all()]
        found: list[Float64] = []
        for name in sound:
            given = answers[name]
            match kind:
                case "classes":
                    of_truth = given[np.arange(len(truth)), truth]
                case "labels":
                    of_truth = np.where(truth, given, 1 - given).ravel()
                case _:
                    of_truth = (given - truth.reshape(given.shape).astype(np.float64)).ravel()
            found.append(of_truth if kind == "values" else np.maximum(of_truth, LEAST_SHARE))
        width = 1 if kind == "classes" or not sound else answers[sound[0]].shape[1]
        single, of_sample = np.unique(units, return_inverse=True)
        of_row = np.repeat(of_sample, width)
        return cls(
            tuple(sound),
            np.stack(found, axis=1) if found else np.empty((len(of_row), 0)),
            np.full(len(of_row), len(single) / max(len(of_row), 1)),
            units=of_row.astype(np.int64),
            has_values=kind == "values",
            answers={name: answers[name] for name in sound},
            truth=truth,
            of_samples=of_sample.astype(np.int64),
            measure=measure,
        )

    @property
    def size(self) -> int:
        """Units."""
        return int(self.units.max(initial=-1)) + 1

    def only(self, names: Sequence[str]) -> Judged:
        """With these candidates alone."""
        places = [self.names.index(name) for name in names]
        return replace(self, names=tuple(names), found=self.found[:, places])

    def losses(self, weights: Weights) -> Float64:
        """The loss of each sample (m,) under a mixture: squared error, or the logarithm of what it gave to the truth."""
        w = np.array([weights.get(name, 0.0) for name in self.names])
        mixed: Float64 = self.found @ w
        return mixed**2 if self.has_values else -np.log(np.maximum(mixed, LEAST_SHARE))

    def gain(self, weights: Weights) -> tuple[float, float]:
        """By how much the mean loss is lower than that of the constant, and the standard error of this, over the units."""
        of_none, own = self.losses({NONE: 1.0}), self.losses(weights)
        if self.size < 2:
            return float((of_none - own).sum()) / max(len(own), 1), float("inf")
        gain, variance = difference(of_none, own, self.units)
        return gain, float(np.sqrt(variance))

    def vote(self, weights: Weights) -> Gain | None:
        """By how much the errors of a mixture are lower than those of the served model, by the measure of the task.

        None with fewer than two units, or without a served model. Errors of values are in units of those of the constant.
        """
        if SERVED not in self.answers or self.size < 2:
            return None
        served, own = self._errors({SERVED: 1.0}), self._errors(weights)
        if self.has_values and NONE in self.answers:
            scale = float(self._errors({NONE: 1.0}).mean()) or 1.0
            served, own = served / scale, own / scale
        return difference(served, own, self.of_samples)

    def _errors(self, weights: Weights) -> Float64:
        """The error of each sample (n,)."""
        known = {name: weight for name, weight in weights.items() if name in self.answers}
        found = weighted_mean(list(known.values()), [self.answers[name] for name in known])
        return errors(self.truth, found, self.measure)


# -- the weights of one agent ------------------------------------------------------------------------------------------


def fitted(judged: Judged, fleet: Weights | None = None) -> dict[str, float]:
    """The weights of all candidates, by what they answered and a prior.

    Args:
        judged: out of fold.
        fleet: the fleet's weights, the prior; None: all candidates alike.
    """
    usable = judged.only(_usable(judged))
    prior = _prior(usable.names, fleet)
    units = OF_FLEET if fleet else ALIKE * len(usable.names)
    return {**dict.fromkeys(judged.names, 0.0), **_fit(usable, prior, units)}


def fitted_alone(judged: Judged) -> dict[str, float]:
    """The weights by the answers alone, without any prior."""
    return _fit(judged, _prior(judged.names, None), 0.0)


def _fit(judged: Judged, prior: Float64, units: float) -> dict[str, float]:
    if not judged.names:
        return {}
    if not judged.size:
        return _rounded(dict(zip(judged.names, prior.tolist(), strict=True)))
    fit = _least_squares if judged.has_values else _em
    return _rounded(dict(zip(judged.names, fit(judged, prior, units).tolist(), strict=True)))


def _usable(judged: Judged) -> list[str]:
    """All candidates but those whose values are clearly worse than the constant. Probabilities can do no such harm."""
    if not judged.has_values or NONE not in judged.names:
        return list(judged.names)
    usable = []
    for name in judged.names:
        gain, error = judged.gain({name: 1.0})
        if not gain < -SURE * error:
            usable.append(name)
    return usable


def _prior(names: Sequence[str], weights: Weights | None) -> Float64:
    """The prior (K,) of these candidates, which sums to 1; all alike where the fleet uses none of them."""
    prior = np.array([0.0 if weights is None else weights.get(name, 0.0) for name in names])
    total = prior.sum()
    return prior / total if total else np.full(len(names), 1 / max(len(names), 1))


def _em(judged: Judged, prior: Float64, units: float) -> Float64:
    """The most likely weights (K,): expectation maximisation, with `units` of pseudo-counts."""
    found, shares = judged.found, judged.shares
    weights = np.full(len(prior), 1 / len(prior))
    for _ in range(STEPS):
        joint = found * weights
        counts = shares @ (joint / joint.sum(axis=1, keepdims=True)) + units * prior
        step = counts / counts.sum() - weights
        weights = weights + step
        if np.abs(step).max() < PRECISION:
            break
    if units:
        return weights
    # slow towards a corner: one that is better is taken
    every = [weights, *np.eye(len(prior))]
    return max(every, key=lambda one: float(shares @ np.log(found @ one)))


def _least_squares(judged: Judged, prior: Float64, units: float) -> Float64:
    """The weights (K,) on the simplex with the least squared error, with `units` whose target is the answer of the prior."""
    largest = np.abs(judged.found).max(initial=0.0) or 1.0
    apart = judged.found / largest
    squares = (apart * judged.shares[:, None]).T @ apart / judged.size
    share = units / judged.size
    # sum (e w)^2 + share * sum (f (w - prior))^2, and f (w - prior) = e (w - prior), for both sum to 1
    hessian = (1 + share) * squares
    linear = -share * squares @ prior
    # of mixtures that answer alike, the one nearest to the prior
    ridge = (RIDGE if units else PRECISION) * (float(np.trace(squares)) / len(prior) or 1.0)
    return _on_simplex(hessian + ridge * np.eye(len(prior)), linear - ridge * prior)


def _on_simplex(hessian: Float64, linear: Float64) -> Float64:
    """The w (K,) on the simplex with the smallest w H w / 2 + b w, for a positive definite H: the method of active sets.

    It begins with the best single candidate and never goes up.
    """
    count = len(linear)
    weights = np.eye(count)[int(np.argmin(np.diag(hessian) / 2 + linear))]
    active = weights > 0
    for _ in range(STEPS):
        places = np.flatnonzero(active)
        border = np.ones((len(places) + 1, len(places) + 1))
        border[:-1, :-1] = hessian[np.ix_(places, places)]
        border[-1, -1] = 0.0
        best = np.zeros(count)
        best[places] = np.linalg.solve(border, np.append(-linear[places], 1.0))[:-1]
        if best.min() < 0:  # as far as the first weight that becomes zero
            ends = np.full(count, np.inf)
            np.divide(weights, weights - best, out=ends, where=best < 0)
            first = int(np.argmin(ends))
            weights = np.maximum(weights + ends[first] * (best - weights), 0.0)
            weights[first] = 0.0
            active[first] = False
            continue
        weights = best
        slopes = hessian @ weights + linear
        least = int(np.argmin(slopes))
        if (
            active[least]
            or slopes[least] >= slopes[active].min() - PRECISION * np.abs(slopes).max()
        ):
            break
        active[least] = True
    return np.asarray(weights / weights.sum())


def _rounded(weights: Mapping[str, float]) -> dict[str, float]:
    """Weights of few digits that sum to 1: sums in another order do not change what is sent."""
    found = {name: round(weight, DIGITS) for name, weight in weights.items()}
    largest = max(found, key=lambda name: found[name])
    others = sum(weight for name, weight in found.items() if name != largest)
    return found | {largest: round(1.0 - others, DIGITS)}


# -- the fleet ---------------------------------------------------------------------------------------------------------


def fleet_weights(of_agents: Iterable[Weights]) -> dict[str, float]:
    """The mean of the weights of agents: of each candidate over those that have it. Empty without any agent."""
    totals, holders = Counter[str](), Counter[str]()
    for weights in of_agents:
        totals.update(weights)
        holders.update(weights.keys())
    return mean_weights(totals, holders)


def mean_weights(totals: Weights, holders: Weights) -> dict[str, float]:
    """The same by the sum of the weights of each candidate, and the number of agents that have it."""
    means = {name: totals[name] / holders[name] for name in CANDIDATES if holders.get(name)}
    total = sum(means.values())
    return _rounded({name: mean / total for name, mean in means.items()}) if total else {}


@dataclass(frozen=True)
class FleetWeights:
    """The agents together, as far as one of them knows."""

    weights: Weights  # the mean of theirs
    gains: bool  # whether mixtures are better than the served models, by the measure of the task

    @classmethod
    def of(cls, weights: Iterable[Weights], votes: Sequence[Gain]) -> FleetWeights:
        """What agents report: their weights, and by how much they gain."""
        return cls(fleet_weights(weights), counted(votes).z > SURE)


# -- what an agent uses ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChosenMixture:
    """What an agent uses."""

    weights: Mapping[str, float]  # of the candidates that are mixed: {NONE: 1.0}, it uses no model
    gain: float = 0.0  # by which its loss is lower than that of the constant
    error: float = float("inf")  # the standard error of the gain
    units: int = 0  # that judged

    @property
    def uses_none(self) -> bool:
        """Whether the agent answers with the constant."""
        return set(self.weights) == {NONE}


def chosen(
    judged: Judged | None,
    names: Sequence[str],
    fleet: FleetWeights | None = None,
    *,
    single: bool = False,
) -> ChosenMixture:
    """What an agent uses.

    Args:
        judged: its answers out of fold; None: too few samples to judge anything.
        names: of the candidates that it has.
        fleet: None: nothing is known of it.
        single: one candidate alone, the best one.
    """
    most = 1 if single else MOST
    units = 0 if judged is None else judged.size
    if judged is None or units < FEWEST:
        usable = names if judged is None else _usable(judged)
        weights = _largest(_known(usable, fleet), most)
    elif single:
        losses = {name: float(judged.losses({name: 1.0}).mean()) for name in judged.names}
        weights = {min(losses, key=lambda name: losses[name]): 1.0}
    else:
        weights = _largest(fitted(judged, None if fleet is None else fleet.weights), MOST)
    if judged is None or not units:
        return ChosenMixture(weights)
    if not (fleet is not None and fleet.gains) and not _is_clear(judged.vote(weights)):
        weights = {SERVED: 1.0} if SERVED in judged.names else weights
    if NONE not in judged.names:
        return ChosenMixture(weights, units=units)
    gain, error = judged.gain(weights)
    least = -SURE if units < FEWEST else SURE
    is_good = gain > least * error and np.isfinite(gain)
    return ChosenMixture(weights if is_good else {NONE: 1.0}, gain, error, units)


def _is_clear(vote: Gain | None) -> bool:
    """Whether a gain over the served model is beyond one standard error; without any to compare with it is."""
    return vote is None or vote[0] > SURE * float(np.sqrt(vote[1]))


def _known(names: Sequence[str], fleet: FleetWeights | None) -> dict[str, float]:
    """The fleet's weights of these candidates; the served model where mixtures are no better in the fleet, or nothing is known."""
    if fleet is None or not fleet.weights or not fleet.gains:
        return {SERVED if SERVED in names else NONE: 1.0}
    return dict(zip(names, _prior(names, fleet.weights).tolist(), strict=True))


def _largest(weights: Weights, most: int) -> dict[str, float]:
    """The largest weights, as many as `most`, so that they sum to 1; of equal ones the first."""
    order = sorted(weights, key=lambda name: -weights[name])
    kept = {name: weights[name] for name in order[:most] if weights[name] > 0}
    total = sum(kept.values())
    return _rounded({name: weight / total for name, weight in kept.items()})
