"""The figures of a model on test data, from its outputs: what an agent reports of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.shared.numerics.metrics import accuracy, macro_auc, macro_f1, macro_recall

Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]
Classes = npt.NDArray[np.int64]
Figures = dict[str, Any]

LARGEST_FIGURE = 1e99  # a coordinator refuses larger numbers
SMALLEST = np.finfo(np.float64).tiny  # in place of a probability of 0, whose logarithm is infinite


def classification_figures(truth: Classes, probabilities: Float64) -> Figures:
    """Figures of predicted class probabilities.

    Args:
        truth: class indices (n,), n >= 1.
        probabilities: (n, classes); each row sums to 1.

    Returns:
        n, correct (a count), accuracy, f1 and recall (macro), loss (mean cross-entropy), and auc (macro) unless all samples
        are of one class.
    """
    count = len(truth)
    samples = np.arange(count)
    predicted = probabilities.argmax(axis=1)
    of_true_class = probabilities[samples, truth]
    cross_entropy = -np.mean(np.log(np.maximum(of_true_class, SMALLEST)))
    correct = np.count_nonzero(predicted == truth)
    auc = macro_auc(truth, probabilities)
    return {
        "n": count,
        "correct": int(correct),
        "accuracy": accuracy(truth, predicted),
        "f1": macro_f1(truth, predicted),
        "recall": macro_recall(truth, predicted),
        **({} if auc is None else {"auc": auc}),
        "loss": float(cross_entropy),
    }


def regression_figures(truth: Float32, values: Float64) -> Figures:
    """Figures of predicted values, in the units of the targets.

    Args:
        truth: targets (n,), of forecasts (n, steps); n >= 1.
        values: predictions (n, 1), of forecasts (n, steps).

    Returns:
        n, mse (mean squared error), mae (mean absolute error), mean and variance of the targets (population variance:
        the coordinator computes R2 from them) and loss (the same as mse); of forecasts also maes, the error of each step.
    """
    count = len(truth)
    predicted = values.ravel()
    targets = truth.astype(np.float64).ravel()
    errors = predicted - targets
    mse = np.mean(errors**2)
    mae = np.mean(np.abs(errors))
    variance = 0.0
    if (
        targets != targets[0]
    ).any():  # else rounding would leave a tiny variance, and R2 a huge one
        variance = float(np.var(targets))
    return {
        "n": count,
        "mse": float(mse),
        "mae": float(mae),
        "mean": float(np.mean(targets)),
        "variance": variance,
        "loss": float(mse),
        **({} if truth.ndim == 1 else {"maes": _by_step(np.abs(errors), truth)}),
    }


def _by_step(errors: Float64, truth: Float32) -> list[float]:
    means: list[float] = errors.reshape(truth.shape).mean(axis=0).tolist()
    return means


def baseline_figures(train: npt.NDArray[Any], truth: npt.NDArray[Any]) -> Figures:
    """Figures of an agent that ignores all features: its most frequent class, or the mean of its own targets.

    Args:
        train: targets of the training part (m,), m >= 1: class indices int64, or values float32.
        truth: targets of the test part (n,), n >= 1, of the same kind.
    """
    if truth.dtype.kind == "f":
        mean = np.full(truth.shape, np.mean(train.astype(np.float64)))
        return regression_figures(truth, mean)
    shares = np.bincount(train, minlength=int(truth.max()) + 1) / len(train)
    return classification_figures(truth, np.tile(shares, (len(truth), 1)))


def errors(truth: npt.NDArray[Any], outputs: Float64, measure: str = "") -> Float64:
    """The error of each sample (n,), whose mean a model that is better by a measure makes smaller.

    Args:
        truth: targets (n,): class indices int64, or values float32, of forecasts (n, steps).
        outputs: values (n, 1) or (n, steps), or probabilities (n, classes).
        measure: of values: mae gives absolute errors, any other squared ones. Of classes: accuracy gives 1 for a wrong class
            and 0 for the right one; recall and f1 the same with equal weight for each class; auc and loss the cross-entropy.
    """
    if truth.dtype.kind == "f":
        distances: Float64 = outputs - truth.reshape(outputs.shape)
        of_steps = np.abs(distances) if measure == "mae" else distances**2
        return np.asarray(of_steps.mean(axis=1))
    if measure in ("auc", "loss"):
        entropies: Float64 = -np.log(np.maximum(outputs[np.arange(len(truth)), truth], SMALLEST))
        return entropies
    wrong: Float64 = (outputs.argmax(axis=1) != truth).astype(np.float64)
    if measure in ("recall", "f1"):
        _, place, counts = np.unique(truth, return_inverse=True, return_counts=True)
        wrong *= len(truth) / (len(counts) * counts[place])
    return wrong


def or_diverged(figures: Figures) -> Figures:
    """The figures, or {"n", "diverged": True} if one of them is not finite: the model's outputs were not."""
    for name, figure in figures.items():
        if name != "n" and not np.max(np.abs(figure)) <= LARGEST_FIGURE:
            return {"n": figures["n"], "diverged": True}
    return figures


def softmax(logits: Float32) -> Float64:
    """Probabilities (n, classes) from logits of the same shape, in float64."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def weighted_mean(weights: Sequence[float], arrays: Sequence[Float64]) -> Float64:
    """The mean of arrays of one shape, each with its weight; the weights need not sum to 1."""
    total = math.fsum(weights)
    mean = np.zeros_like(arrays[0])
    for weight, array in zip(weights, arrays, strict=True):
        mean = mean + (weight / total) * array
    return mean
