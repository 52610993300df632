"""The candidates of a device: everything that it can answer with from what it holds, and how each is judged out of fold.

`made` makes them of a part of the agent's training samples, once of all of them, for use, and once of each fold, to be judged
on the samples that the fold leaves out. The models that the run serves take part as they are; what trains at home trains again
in each fold. Test samples have no part in any of this.

The three snapshots after 1, 5 and 20 epochs at home are of one training. Where judging may take `budget_s` seconds only, the last
ones are left out: the first epoch on all samples shows how long one takes. Neighbours and trees are measured in the folds, and the
slowest is left out if the budget is gone after the first fold, which may load a library, or if the rest takes too long by the
second one. So judging takes at most twice the budget, unless an epoch or the first fold alone does.

Where training from the served model fits its own samples no better than the best constant does, its units are dead, as after
rounds of one agent with two classes. Training at home then begins again with new weights, where the model is built in, so that
the device is not worse off than one that trains alone. A training that has learned anything does not meet the condition.

A method's own model of an agent (Ditto, Local) counts as the served one: it has trained on all samples, so that no fold can
judge another candidate of that name.

kNN-Per (Marfoq et al. 2022): a model that remembers the training samples of its device.

Personalized Federated Learning through Local Memorization, ICML 2022, sections 3.1 and 3.2. The answers of a common model
are mixed with those of the k nearest training samples, by the inputs of the model's last layer; `mixture` weighs them.

Our deviation: weights are exp(-distance) relative to the nearest neighbour, so that they never all vanish, which changes
nothing else because they are normalised.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from covey.extras.judge.mixture import Float64, Judged, Weights
from covey.shared.candidate_names import COMPANION, HOME, HOMES, NEAR, NONE, SERVED, SOUP
from covey.shared.errors import PublicError
from covey.shared.numerics.figures import answers, kind_of, weighted_mean
from covey.shared.numerics.split import Split
from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.client_half import DataSplit, Drill, Featured, Fold, Local, Mixture
from covey.shared.work.evaluate import last_values

ROWS = 256  # of queries at once


def remembered(memory: Float64, targets: Float64, queries: Float64, k: int) -> Float64:
    """The mean of the targets of the k nearest samples, weighted by exp(-distance).

    Args:
        memory: features (m, width), m >= 1.
        targets: (m, outputs).
        queries: features (n, width).
        k: neighbours; m if there are fewer.

    Returns:
        (n, outputs).
    """
    found = np.empty((len(queries), targets.shape[1]))
    k = min(k, len(memory))
    squares = (memory**2).sum(axis=1)
    for start in range(0, len(queries), ROWS):
        rows = queries[start : start + ROWS]
        squared = squares - 2 * rows @ memory.T + (rows**2).sum(axis=1)[:, None]
        nearest = np.argpartition(squared, k - 1, axis=1)[:, :k]
        distances = np.sqrt(np.maximum(np.take_along_axis(squared, nearest, axis=1), 0))
        weights = np.exp(distances.min(axis=1, keepdims=True) - distances)
        weights /= weights.sum(axis=1, keepdims=True)
        found[start : start + ROWS] = (weights[:, :, None] * targets[nearest]).sum(axis=1)
    return found


NEIGHBOURS = 10
PER_EPOCH = 3  # epochs of work for each epoch at home: on all samples, and on two thirds of them three times
FOLDS = 3
FOR_USE = 1.5  # all samples, in parts of those of a fold
LEAST_FIT = 1e-3  # of the constant's loss: a training that takes off less of it has fitted nothing

Clock = Callable[[], float]
Snapshots = Mapping[int, Mixture]  # the served models after some epochs at home, by the epochs


@dataclass(frozen=True)
class Allowance:
    """The time for all of the judging, which begins now; the clock is not asked where it may take as long as it takes."""

    seconds: float | None = None
    clock: Clock = time.perf_counter
    began: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "began", self.now)

    @property
    def now(self) -> float:
        return 0.0 if self.seconds is None else self.clock()

    def has(self, more: float) -> bool:
        """Whether there is time for `more` seconds."""
        return self.seconds is None or self.now - self.began + more <= self.seconds


AMPLE = Allowance()


class Candidate(Protocol):
    """Something that answers."""

    def answers(self, local: Local, split: DataSplit) -> Float64:
        """The answers (n, outputs) on a part of the data, as `figures.answers` gives them."""


Make = Callable[[Local], Candidate]  # of the samples that train
OfFold = Callable[[int | None], Candidate]  # of one of the judge's folds; None: for use


@dataclass(frozen=True)
class Constant:
    """The shares of the classes or labels, or the mean of the values, whatever the sample is; or of a forecast the last value."""

    answer: Float64  # (outputs,); empty: the last value of each window

    @classmethod
    def of(cls, targets: npt.NDArray[Any], outputs: int, smoothing: float = 0.5) -> Constant:
        """That of some training samples. With `smoothing` no class has a share of 0."""
        if kind_of(targets) == "classes":
            counts = np.bincount(targets, minlength=outputs) + smoothing
            return cls(counts / counts.sum())
        return cls(targets.reshape(len(targets), -1).mean(axis=0, dtype=np.float64))

    @classmethod
    def nearest(cls, local: Local, outputs: int) -> Constant:
        """That of the samples that train; of a forecast the last value, if it is nearer to what came than the mean."""
        truth = local.targets("train")
        mean, last = cls.of(truth, outputs), cls(np.empty(0))
        if last_values(local, "train") is None:
            return mean
        wide = truth.reshape(len(truth), -1)
        errors = [np.square(one.answers(local, "train") - wide).mean() for one in (last, mean)]
        return last if errors[0] < errors[1] else mean

    def answers(self, local: Local, split: DataSplit) -> Float64:
        if not self.answer.size and (last := last_values(local, split)) is not None:
            return last
        return np.tile(self.answer, (len(local.targets(split)), 1))


@dataclass(frozen=True)
class OfModels:
    """Models with their weights."""

    mixture: Mixture

    def answers(self, local: Local, split: DataSplit) -> Float64:
        kind = kind_of(local.targets(split))
        with np.errstate(all="ignore"):  # a model whose outputs are not finite is left out later
            return weighted_mean(
                [weight for weight, _ in self.mixture],
                [answers(local.predict(model, split), kind) for _, model in self.mixture],
            )


@dataclass(frozen=True)
class Near:
    """The nearest training samples, by what the last layer of a model reads (kNN-Per)."""

    model: Vector
    memory: Float64  # (m, width)
    targets: Float64  # (m, outputs)

    @classmethod
    def of(cls, local: Local, model: Vector, outputs: int) -> Near:
        targets = local.targets("train")
        rows = np.eye(outputs)[targets] if kind_of(targets) == "classes" else targets
        features = cast(Featured, local).features(model, "train")
        return cls(model, features, rows.reshape(len(rows), -1).astype(np.float64))

    def answers(self, local: Local, split: DataSplit) -> Float64:
        queries = cast(Featured, local).features(self.model, split)
        return remembered(self.memory, self.targets, queries, NEIGHBOURS)


@dataclass(frozen=True)
class BeforeHome:
    """What an agent has before it trains at home."""

    served: Mixture
    outputs: int  # of the model
    split: Split | None = None  # what trains of a model
    new: Callable[[], Vector | None] = lambda: (
        None
    )  # weights that nothing has trained, where they can be had
    home: Mixture | None = None  # with which training at home begins; None: `served`
    others: Mapping[str, Make] = field(default_factory=dict)  # by name, such as trees
    companion: OfFold | None = None  # what the fleet has learned besides the model
    fold: int | None = None  # which of the judge's; None: all samples, for use


def made(
    local: Local, given: BeforeHome, snapshots: Snapshots, wanted: Container[str] | None = None
) -> dict[str, Candidate]:
    """The candidates of an agent that has trained at home, by name.

    Args:
        local: the samples that train.
        given: what the agent has.
        snapshots: of the training at home.
        wanted: the names of those that are made; None: all.
    """
    found: dict[str, Candidate] = {}
    for name, make in _makers(local, given, snapshots).items():
        if wanted is not None and name not in wanted:
            continue
        with suppress(PublicError):  # training of the user's own shows no last layer
            found[name] = make(local)
    return found


def names_of(local: Local, given: BeforeHome, snapshots: Snapshots) -> list[str]:
    """The candidates that such an agent can have."""
    return list(_makers(local, given, snapshots))


def _makers(local: Local, given: BeforeHome, snapshots: Snapshots) -> dict[str, Make]:
    _, largest = max(given.served, key=lambda pair: pair[0])
    makers: dict[str, Make] = {
        NONE: lambda one: Constant.nearest(one, given.outputs),
        SERVED: lambda _: OfModels(given.served),
    }
    for epochs, mixture in snapshots.items():
        makers[f"{HOME}{epochs}"] = partial(_of_models, mixture)
    if hasattr(local, "features"):
        makers[NEAR] = lambda one: Near.of(one, largest, given.outputs)
    if len(given.served) == 1 and snapshots and given.home is None:
        models = [largest, *(mixture[0][1] for mixture in snapshots.values())]
        makers[SOUP] = lambda _: OfModels(((1.0, _mean(models)),))
    if (brought := given.companion) is not None:
        makers[COMPANION] = lambda _: brought(given.fold)
    return makers | dict(given.others)


def _of_models(mixture: Mixture, _: Local) -> Candidate:
    return OfModels(mixture)


def _mean(models: Sequence[Vector]) -> Vector:
    return np.asarray(np.mean(models, axis=0, dtype=np.float64), np.float32)


def at_home(
    local: Local, given: BeforeHome, homes: Sequence[int], budget: Allowance = AMPLE
) -> dict[int, Mixture]:
    """The served models, or `given.home`, after some epochs of training at home, by the epochs: snapshots of one training.

    It ends early where time is short for it and for the folds, where the owner of the device allows no more, and where it diverges.
    """
    trained = None if given.split is None else given.split.trains
    weights, models = map(list, zip(*(given.home or given.served), strict=True))
    momenta: list[Vector | None] = [None] * len(models)
    found: dict[int, Mixture] = {}
    done, began = 0, budget.now
    for epochs in homes:
        if done:
            spent = budget.now - began
            if not budget.has(PER_EPOCH * epochs * spent / done - spent):
                break
        try:
            results = [
                local.train(
                    model,
                    Drill(epochs=epochs - done, trained=trained, velocity=velocity, at_home=True),
                )
                for model, velocity in zip(models, momenta, strict=True)
            ]
        except PublicError:
            break  # the owner allows fewer epochs or steps, or training of the user's own cannot do it
        models = [result.end for result in results]
        momenta = [result.velocity for result in results]
        if not all(np.isfinite(model).all() for model in models):
            break
        done = epochs
        if not budget.has((PER_EPOCH - 1) * (budget.now - began)):
            break  # no time for the same in the folds
        found[epochs] = tuple(zip(weights, models, strict=True))
    return found


def begun_again(local: Local, given: BeforeHome, snapshots: Snapshots) -> BeforeHome:
    """New weights to begin training at home with, added to what the agent has if the served models cannot learn.

    Args:
        local: the samples that train.
        given: what the agent has.
        snapshots: of training at home from the served models.
    """
    if given.split is not None:
        return given  # values that do not train have no new ones
    trained = snapshots[max(snapshots)] if snapshots else given.served
    truth = local.targets("train")
    best = Constant.of(truth, given.outputs, smoothing=0.0)
    answered = {NONE: best.answers(local, "train"), HOME: OfModels(trained).answers(local, "train")}
    seen = Judged.of(answered, truth, np.arange(len(truth)))
    of_best, (gain, _) = seen.losses({NONE: 1.0}).mean(), seen.gain({HOME: 1.0})
    is_fitted = HOME in seen.names and gain > LEAST_FIT * of_best
    if is_fitted or not of_best:  # nothing is better than a constant without a loss
        return given
    new = given.new()
    if new is None or new.size != given.served[0][1].size:
        return given
    return replace(given, home=((1.0, new),))


def with_models(candidate: Candidate, changed: Callable[[Mixture], Mixture]) -> Candidate:
    """The candidate with its models as they are used elsewhere."""
    match candidate:
        case OfModels(mixture):
            return OfModels(changed(mixture))
        case Near(model, memory, targets):
            [(_, used)] = changed(((1.0, model),))
            return Near(used, memory, targets)
    return candidate


# -- out of fold -------------------------------------------------------------------------------------------------------


def judged(
    folds: Iterable[Fold],
    given: BeforeHome,
    names: Iterable[str],
    measure: str = "",
    budget: Allowance = AMPLE,
) -> Judged | None:
    """What candidates answer out of fold; None without a fold.

    Args:
        folds: of the agent's training samples.
        given: what the agent has.
        names: of the candidates that it can have for use: as many snapshots are made in each fold.
        measure: of the task; empty: the usual one.
        budget: for all of the judging.
    """
    wanted = list(names)
    homes = [epochs for epochs in HOMES if f"{HOME}{epochs}" in wanted]
    found: list[dict[str, Float64]] = []
    truths, units = [], []
    spent: dict[str, list[float]] = {name: [] for name in (NEAR, *given.others)}
    for number, fold in enumerate(folds):
        given = replace(given, fold=number)
        began = budget.now
        snapshots, answered = at_home(fold.local, given, homes), {}
        trained_s = budget.now - began
        for name in wanted:
            before = budget.now
            for one in made(fold.local, given, snapshots, (name,)).values():
                answered[name] = one.answers(fold.local, "test")
            if name in spent:
                spent[name].append(budget.now - before)
        found.append(answered)
        if later := max(FOLDS - len(found), 0):
            first = len(found) == 1
            wanted = _in_time(
                wanted,
                spent,
                budget,
                trained_s=0.0 if first else later * trained_s,
                times=0.0 if first else later + FOR_USE,
            )
        truths.append(fold.local.targets("test"))
        units.append(fold.units)
    if not found:
        return None
    everywhere = [name for name in wanted if all(name in answered for answered in found)]
    return Judged.of(
        {name: np.concatenate([one[name] for one in found]) for name in everywhere},
        np.concatenate(truths),
        np.concatenate(units),
        measure,
    )


def _in_time(
    wanted: Sequence[str],
    spent: Mapping[str, Sequence[float]],
    budget: Allowance,
    *,
    trained_s: float,
    times: float,
) -> list[str]:
    """The candidates without the slowest of those that are fitted in each fold: those that are left keep to the budget.

    Args:
        wanted: their names.
        spent: seconds of each that is fitted, in each fold so far.
        budget: for all of the judging.
        trained_s: seconds for what training at home is left.
        times: how often the newest seconds of a candidate will come again.
    """
    kept = list(wanted)
    while True:
        fits = [name for name in kept if spent.get(name)]
        wasted = sum(sum(own) for name, own in spent.items() if name not in kept)
        more = trained_s + times * sum(spent[name][-1] for name in fits)
        if not fits or budget.has(more - wasted):
            return kept
        kept.remove(max(fits, key=lambda name: spent[name][-1]))


def mixed(
    candidates: Mapping[str, Candidate], weights: Weights, local: Local, split: DataSplit
) -> Float64:
    """The answers (n, outputs) of a mixture on a part of the data."""
    return weighted_mean(
        list(weights.values()), [candidates[name].answers(local, split) for name in weights]
    )
