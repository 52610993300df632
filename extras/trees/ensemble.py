"""A line and trees that a fleet makes by sums: what a device adds, and what comes of all of it. Pure, and NumPy alone.

Three ensembles grow side by side. Each leaves out another third of a device's units, so that it can answer them as rows that it
has never seen; where a device judges, nothing is flattered, and in use the mean of the three answers.

A line is made by steps of Newton (Hastie, Tibshirani, Friedman: The Elements of Statistical Learning, 2009, sections 3.4.1 and
4.4.1): the sums of a step are the gradient and the products of inputs, weighted by curvature. Values need one step, which is
ridge regression, and classes five.

Trees are extremely randomised (Geurts, Ernst, Wehenkel: Extremely randomized trees, Machine Learning 63, 2006, with K = 1): their
splits are drawn from the seed, so that only the sums of their leaves travel. A message brings the leaves of twenty trees, whose
mean is one step of second-order boosting (Chen, Guestrin: XGBoost, KDD 2016, equation 5) on what is left so far; a whole step, for
the mean of trees that divide by chance is short already. No split is searched, no sum of a child is taken from that of its parent, and so a device that is missing in one message harms nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from covey.extras.trees.design import Design, Flags, Float64, Form, Indices
from covey.shared.numerics.vectors import Vector
from covey.shared.seeds import generator

Float32 = npt.NDArray[np.float32]

FOLDS = 3
NEWTON = 5  # steps of a line for classes
RIDGE = 1.0  # in rows: the penalty of a line's weights, but for the constant, and of a leaf
TREES = 20  # a message
DEPTH = 6
LEAVES = 1 << DEPTH
SPLITS = LEAVES - 1
SPREAD = 1.2  # deviations of a cut from the mean of its column
LARGEST = 4.0  # deviations: a residual counts as no larger one
FLATTEST = 1e-6  # curvature
UNLIKELIEST = 1e-4  # the least that a loss takes as probability of the truth
MESSAGES = 30  # of trees
PATIENCE = 5  # messages without a lower loss; then trees end

KEPT = 256  # of the newest scores in a process: the next message needs those of the one before


@dataclass(frozen=True)
class Splits:
    """Where the trees of a message divide, by tree and node: the children of node i are 2 i + 1 and 2 i + 2."""

    column: Indices  # (trees, nodes)
    cut: Float64  # (trees, nodes): larger numbers go right
    words: Flags  # (trees, nodes, words): which of them go right
    missing: Flags  # (trees, nodes): whether missing cells go right


@lru_cache(KEPT)
def splits(form: Form, seed: int, message: int) -> Splits:
    """Those of a message, the same on every machine."""
    draws = generator(seed, "companion", message)
    shape = (TREES, SPLITS)
    column = draws.integers(len(form.columns), size=shape)
    cut = draws.normal(scale=SPREAD, size=shape)
    missing = draws.random(shape) < 0.5
    return Splits(column, cut, draws.random((*shape, max(form.words, 1))) < 0.5, missing)


@lru_cache(KEPT)
def leaf_of(form: Form, seed: int, message: int, design: Design) -> Indices:
    """The leaf (trees, n) of each row in the trees of a message."""
    drawn, is_word = splits(form, seed, message), form.are_words
    trees, rows = np.arange(TREES)[:, None], np.arange(len(design))
    node = np.zeros((TREES, len(design)), np.int64)
    for _ in range(DEPTH):
        column = drawn.column[trees, node]
        right = design.numbers[rows, column] > drawn.cut[trees, node]
        if form.words:
            word = drawn.words[trees, node, design.words[rows, column]]
            right = np.where(is_word[column], word, right)
        if design.missing.any():
            is_missing = design.missing[rows, column]
            right = np.where(is_missing, drawn.missing[trees, node], right)
        node = 2 * node + 1 + right
    return node - SPLITS


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Three lines, and the leaves of their trees. The splits follow from the seed."""

    form: Form
    seed: int
    line: Float32  # (folds, inputs + 1, scores)
    leaves: Float32  # (messages, folds, trees, leaves, scores)

    @classmethod
    def begun(cls, form: Form, seed: int) -> Self:
        """Nothing yet: every score is 0."""
        line = np.zeros((FOLDS, form.width + 1, form.scores), np.float32)
        return cls(form, seed, line, np.zeros((0, *_leaf_shape(form)), np.float32))

    @classmethod
    def of_vector(cls, form: Form, seed: int, vector: Vector) -> Self:
        """The inverse of `vector`. Raises ValueError for another length."""
        begun = cls.begun(form, seed)
        line, leaves = np.split(vector, [begun.line.size])
        return replace(
            begun,
            line=line.reshape(begun.line.shape),
            leaves=leaves.reshape(-1, *_leaf_shape(form)),
        )

    @property
    def vector(self) -> Vector:
        """All its numbers, those of the newest trees last."""
        return np.concatenate([self.line.ravel(), self.leaves.ravel()])

    @cached_property
    def before(self) -> Ensemble:
        """Without the trees of the newest message."""
        return replace(self, leaves=self.leaves[:-1])

    @cached_property
    def digest(self) -> bytes:
        """Names the scores that it gives."""
        if not len(self.leaves):
            begun = repr((self.form, self.seed)).encode() + self.line.tobytes()
        else:
            begun = self.before.digest + self.leaves[-1].tobytes()
        return blake2b(begun, digest_size=16).digest()

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ensemble) and self.digest == other.digest

    def upto(self, messages: int) -> Ensemble:
        """With the trees of these first messages."""
        return replace(self, leaves=self.leaves[:messages])

    def probabilities(self, design: Design, fold: int | None = None) -> Float64:
        """Probabilities of classes (n, classes), or standardised values (n, 1).

        Args:
            design: the rows.
            fold: whose ensemble answers; None: the mean of all three.
        """
        found = _answers(scores(self, design), self.form)
        answer: Float64 = found.mean(axis=0) if fold is None else found[fold]
        return answer


def _leaf_shape(form: Form) -> tuple[int, ...]:
    return (FOLDS, TREES, LEAVES, form.scores)


@lru_cache(KEPT)
def scores(ensemble: Ensemble, design: Design) -> Float64:
    """What each of the three ensembles has learned of some rows (folds, n, scores)."""
    if not len(ensemble.leaves):
        found: Float64 = design.line @ ensemble.line.astype(np.float64)
        return found
    leaf = leaf_of(ensemble.form, ensemble.seed, len(ensemble.leaves) - 1, design)
    of_trees = ensemble.leaves[-1].astype(np.float64)[:, np.arange(TREES)[:, None], leaf]
    step: Float64 = of_trees.mean(axis=1)
    return step + scores(ensemble.before, design)


def _answers(found: Float64, form: Form) -> Float64:
    if not form.classes:
        return found
    logits = np.concatenate([np.zeros_like(found), found], -1) if form.scores == 1 else found
    shares: Float64 = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return shares


# -- what a device adds ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """The rows of a fold of a device, or all rows of a device without folds."""

    design: Design
    targets: npt.NDArray[Any]  # (n,) classes, or standardised values
    fold: int | None  # that leaves them out

    def slopes(self, ensemble: Ensemble) -> tuple[Float64, Float64]:
        """Gradient and curvature of the loss by each score (folds, n, scores): of values half of the squared error, of classes
        the cross-entropy, whose curvature is that of single scores, as LightGBM scales it."""
        found = scores(ensemble, self.design)
        classes = ensemble.form.classes
        if not classes:
            return np.clip(found - self.targets[:, None], -LARGEST, LARGEST), np.ones_like(found)
        shares = _answers(found, ensemble.form)
        flat = np.maximum(shares * (1 - shares), FLATTEST)
        steep = shares - np.eye(classes)[self.targets]
        if classes == 2:
            return steep[..., 1:], flat[..., 1:]
        return steep, flat * classes / (classes - 1)

    def loss(self, ensemble: Ensemble) -> float:
        """The sum of losses of the ensemble that has not seen these rows."""
        found = ensemble.probabilities(self.design, self.fold)
        if not ensemble.form.classes:
            error = np.clip(found[:, 0] - self.targets, -LARGEST, LARGEST)
            return float((error**2).sum())
        of_truth = found[np.arange(len(found)), self.targets]
        return float(-np.log(np.maximum(of_truth, UNLIKELIEST)).sum())


def sums_of(ensemble: Ensemble, parts: Sequence[Rows], *, grows: bool) -> Float64:
    """What a device adds to the next step of a line, or of trees: see `length`.

    Args:
        ensemble: so far.
        parts: all rows of the device.
        grows: trees.
    """
    add = _leaf_sums if grows else _line_sums
    found = np.zeros(length(ensemble.form, grows=grows))
    of_folds = found[: len(found) - 3 * grows].reshape(FOLDS, -1)
    for part in parts:
        steep, flat = part.slopes(ensemble)
        for fold in range(FOLDS):
            if fold != part.fold:
                of_folds[fold] += add(ensemble, part.design, steep[fold], flat[fold])
        if grows and part.fold is not None:
            found[-3:] += part.loss(ensemble.before), part.loss(ensemble), len(part.design)
    return found


def length(form: Form, *, grows: bool) -> int:
    """Numbers that a device adds. A line: by fold and score the gradient of its weights, and the upper half of their curvature.
    Trees: by fold, tree, leaf and score the sums of both, then of the rows that the ensembles have not seen the loss before the
    newest trees, the loss with them, and their number."""
    if grows:
        return FOLDS * TREES * LEAVES * form.scores * 2 + 3
    inputs = form.width + 1
    upper: int = inputs * (inputs + 1) // 2
    return FOLDS * form.scores * (inputs + upper)


def _line_sums(_: Ensemble, design: Design, steep: Float64, flat: Float64) -> Float64:
    upper = np.triu_indices(design.line.shape[1])
    curved = [(design.line.T @ (design.line * one[:, None]))[upper] for one in flat.T]
    return np.concatenate([(steep.T @ design.line).ravel(), *curved])


def _leaf_sums(ensemble: Ensemble, design: Design, steep: Float64, flat: Float64) -> Float64:
    leaf = leaf_of(ensemble.form, ensemble.seed, len(ensemble.leaves), design)
    place = (leaf + LEAVES * np.arange(TREES)[:, None]).ravel()
    slopes = np.concatenate([steep, flat], axis=1).T
    found = [np.bincount(place, np.tile(one, TREES), TREES * LEAVES) for one in slopes]
    return np.stack(found, axis=1, dtype=np.float64).ravel()


# -- what comes of all of it -------------------------------------------------------------------------------------------


def stepped(ensemble: Ensemble, sums: Float64) -> Ensemble:
    """The ensemble with another step of its lines.

    Args:
        ensemble: without trees.
        sums: of all devices, each as `sums_of` gives them.
    """
    form, inputs = ensemble.form, ensemble.form.width + 1
    penalty = RIDGE * np.eye(inputs)
    penalty[0, 0] = FLATTEST
    upper = np.triu_indices(inputs)
    line = ensemble.line.astype(np.float64)
    for own, of_fold in zip(line, sums.reshape(FOLDS, -1), strict=True):
        steep, curved = np.split(of_fold, [form.scores * inputs])
        for score, half in enumerate(curved.reshape(form.scores, -1)):
            whole = np.zeros((inputs, inputs))
            whole[upper] = half
            whole = whole + np.triu(whole, 1).T
            down = steep.reshape(form.scores, inputs)[score] + penalty @ own[:, score]
            own[:, score] -= np.linalg.solve(whole + penalty, down)
    return replace(ensemble, line=line.astype(np.float32))


def grown(ensemble: Ensemble, sums: Float64) -> Ensemble:
    """The ensemble with the trees of another message. The arguments are those of `stepped`."""
    form = ensemble.form
    of_leaf = sums[:-3].reshape(FOLDS, TREES, LEAVES, 2, form.scores)
    newest = -of_leaf[..., 0, :] / (np.maximum(of_leaf[..., 1, :], 0) + RIDGE)
    leaves = np.concatenate([ensemble.leaves, newest[None].astype(np.float32)])
    return replace(ensemble, leaves=leaves)


def with_loss(losses: Sequence[float], sums: Float64) -> tuple[float, ...]:
    """The losses with that of another message. By how much trees lower it is by the same devices, in each message.

    Args:
        losses: before.
        sums: as `grown` takes them.
    """
    before, now = sums[-3:-1] / max(sums[-1], 1.0)
    return (*losses, losses[-1] + now - before if losses else now)


def best(losses: Sequence[float]) -> tuple[int, bool]:
    """After how many messages of trees the loss was least, and whether it has not fallen for so long that no more are worth it.

    Args:
        losses: mean of what the ensembles have not seen, before the first message of trees and after each but the last.
    """
    least = int(np.argmin(losses))
    if len(losses) - 1 - least >= PATIENCE:
        return least, True
    return len(losses), False
