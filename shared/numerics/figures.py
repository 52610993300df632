"""The figures of a model on test data, from its outputs: what an agent reports of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.shared.numerics.metrics import accuracy, macro_f1

Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]
Classes = npt.NDArray[np.int64]
Figures = dict[str, Any]

SMALLEST = np.finfo(np.float64).tiny  # in place of a probability of 0, whose logarithm is infinite


def classification_figures(truth: Classes, probabilities: Float64) -> Figures:
    """Figures of predicted class probabilities.

    Args:
        truth: class indices (n,), n >= 1.
        probabilities: (n, classes); each row sums to 1.

    Returns:
        n, correct (a count), accuracy, f1 (macro) and loss (mean cross-entropy).
    """
    count = len(truth)
    samples = np.arange(count)
    predicted = probabilities.argmax(axis=1)
    of_true_class = probabilities[samples, truth]
    logarithms = np.log(np.maximum(of_true_class, SMALLEST))
    cross_entropy = -np.mean(logarithms)
    correct = np.count_nonzero(predicted == truth)
    return {
        "n": count,
        "correct": int(correct),
        "accuracy": accuracy(truth, predicted),
        "f1": macro_f1(truth, predicted),
        "loss": float(cross_entropy),
    }


def regression_figures(truth: Float32, values: Float64) -> Figures:
    """n, mse (mean squared error) and loss (the same) of predicted values (n, 1) for targets (n,)."""
    count = len(truth)
    predicted = values[:, 0]
    squared_errors = (predicted - truth) ** 2
    mse = float(np.mean(squared_errors))
    return {
        "n": count,
        "mse": mse,
        "loss": mse,
    }


def softmax(logits: Float32) -> Float64:
    """Probabilities (n, classes) from logits of the same shape, in float64."""
    largest = logits.max(axis=1, keepdims=True)
    shifted = logits.astype(np.float64) - largest
    powers = np.exp(shifted)
    total = powers.sum(axis=1, keepdims=True)
    probabilities = powers / total
    return np.asarray(probabilities)


def weighted_mean(weights: Sequence[float], arrays: Sequence[Float64]) -> Float64:
    """The mean of arrays of one shape, each with its weight; the weights need not sum to 1."""
    total = math.fsum(weights)
    mean = np.zeros_like(arrays[0])
    for weight, array in zip(weights, arrays, strict=True):
        share = weight / total
        mean = mean + share * array
    return mean
