"""The figures of a model on test data, from its outputs: what an agent reports of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.shared.numerics.measures import Kind
from covey.shared.numerics.metrics import accuracy, macro_auc, macro_f1, macro_recall

Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]
Classes = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Figures = dict[str, Any]

LARGEST_FIGURE = 1e99  # a coordinator refuses larger numbers
HALF = 0.5  # a label with a larger probability is predicted
SMALLEST = np.finfo(np.float64).tiny  # in place of a probability of 0, whose logarithm is infinite


def kind_of(truth: npt.NDArray[Any]) -> Kind:
    """What a task asks for, by its targets: float32 values, int64 classes (n,), bool labels (n, labels) or anomalies (n,)."""
    match truth.dtype.kind, truth.ndim:
        case "f", _:
            return "values"
        case "b", 1:
            return "anomalies"
        case "b", _:
            return "labels"
    return "classes"


def answers(outputs: Float32, kind: Kind) -> Float64:
    """What outputs of a model say, in float64: probabilities of classes (n, classes) or labels (n, labels), values
    (n, 1) or (n, steps), or thresholds and errors (n, 2) of anomalies."""
    match kind:
        case "classes":
            return softmax(outputs)
        case "labels":
            return np.asarray(1 / (1 + np.exp(-outputs.astype(np.float64))))
    return outputs.astype(np.float64)


def figures_of(truth: npt.NDArray[Any], found: Float64) -> Figures:
    """Figures of the answers of a model.

    Args:
        truth: targets of n >= 1 samples.
        found: as `answers` gives them.
    """
    match kind_of(truth):
        case "values":
            return regression_figures(truth, found)
        case "classes":
            return classification_figures(truth, found)
        case "labels":
            return label_figures(truth, found)
        case "anomalies":
            return anomaly_figures(truth, found)


def label_figures(truth: Flags, probabilities: Float64) -> Figures:
    """Figures of several labels, each of which a sample has or not.

    Args:
        truth: (n, labels).
        probabilities: (n, labels) of having the label.

    Returns:
        n; accuracy, the share of right decisions; f1, recall and auc, means over the labels: a label without a positive
        sample has no recall, one without positive samples and predictions no F1, one whose samples are all alike no AUC;
        loss (mean cross-entropy).
    """
    predicted = probabilities > HALF
    hits = (predicted & truth).sum(axis=0)
    positive, either = truth.sum(axis=0), truth.sum(axis=0) + predicted.sum(axis=0)
    areas = [
        macro_auc(own.astype(np.int64), np.column_stack([1 - scores, scores]))
        for own, scores in zip(truth.T, probabilities.T, strict=True)
    ]
    known = [area for area in areas if area is not None]
    return {
        "n": len(truth),
        "accuracy": float(np.mean(predicted == truth)),
        "f1": float(np.mean(2 * hits[either > 0] / either[either > 0])) if either.any() else 1.0,
        "recall": float(np.mean(hits[positive > 0] / positive[positive > 0]))
        if positive.any()
        else 1.0,
        **({"auc": math.fsum(known) / len(known)} if known else {}),
        "loss": float(_entropies(truth, probabilities).mean()),
    }


def _entropies(truth: Flags, probabilities: Float64) -> Float64:
    """The cross-entropy of each sample (n,), the mean over its labels."""
    of_truth = np.where(truth, probabilities, 1 - probabilities)
    entropies: Float64 = -_logs(of_truth).mean(axis=1)
    return entropies


def _logs(probabilities: Float64) -> Float64:
    """Logarithms of what answers gave to the truth. Of a mean of answers, rounding may leave a little more than 1."""
    logs: Float64 = np.log(np.clip(probabilities, SMALLEST, 1.0))
    return logs


def anomaly_figures(truth: Flags, found: Float64) -> Figures:
    """Figures of a search for unusual samples, which are those whose error exceeds the threshold.

    Args:
        truth: (n,) whether a sample is unusual; all False without labels.
        found: (n, 2) the threshold, and the error of the sample.

    Returns:
        As `classification_figures` of two classes. loss is the mean error of usual samples.
    """
    threshold, error = found.T
    share = error / np.maximum(error + threshold, SMALLEST)
    of_classes = classification_figures(truth.astype(np.int64), np.column_stack([1 - share, share]))
    usual = error if truth.all() else error[~truth]
    return {**of_classes, "loss": float(usual.mean())}


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
    cross_entropy = -np.mean(_logs(of_true_class))
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


def baseline_figures(
    train: npt.NDArray[Any], truth: npt.NDArray[Any], last: tuple[Float64, Float64] | None = None
) -> Figures:
    """Figures of an agent that ignores all features: its most frequent class, the mean of its own targets, or how
    frequent each of its labels is. Anomalies have none.

    That of a forecast answers with the last value where this is nearer to the targets of the training part.

    Args:
        train: targets of the training part (m,) or (m, labels), m >= 1: class indices int64, values float32, or bool.
        truth: targets of the test part (n,) or (n, labels), n >= 1, of the same kind.
        last: of forecasts, the last values before those of train and of truth, in their shapes.
    """
    match kind_of(truth):
        case "values":
            mean = np.mean(train.astype(np.float64))
            if (
                last is not None
                and np.square(train - last[0]).mean() < np.square(train - mean).mean()
            ):
                return regression_figures(truth, last[1])
            return regression_figures(truth, np.full(truth.shape, mean))
        case "labels":
            return label_figures(truth, np.tile(train.mean(axis=0), (len(truth), 1)))
        case "anomalies":
            return {"n": 0}
    shares = np.bincount(train, minlength=int(truth.max()) + 1) / len(train)
    return classification_figures(truth, np.tile(shares, (len(truth), 1)))


def errors(truth: npt.NDArray[Any], outputs: Float64, measure: str = "") -> Float64:
    """The error of each sample (n,), whose mean a model that is better by a measure makes smaller.

    Args:
        truth: targets (n,): class indices int64, values float32, of forecasts (n, steps), labels (n, labels) or anomalies.
        outputs: as `answers` gives them.
        measure: of values: mae gives absolute errors, any other squared ones. Of classes: accuracy gives 1 for a wrong class
            and 0 for the right one; recall and f1 the same with equal weight for each class; auc and loss the cross-entropy.
            Of labels: auc and loss give the cross-entropy, others the share of wrong decisions. Anomalies have one error.
    """
    kind = kind_of(truth)
    if kind == "anomalies":
        return outputs[:, 1]
    if kind == "labels":
        if measure in ("auc", "loss"):
            return _entropies(truth, outputs)
        return np.asarray(np.mean((outputs > HALF) != truth, axis=1))
    if kind == "values":
        distances: Float64 = outputs - truth.reshape(outputs.shape)
        of_steps = np.abs(distances) if measure == "mae" else distances**2
        return np.asarray(of_steps.mean(axis=1))
    if measure in ("auc", "loss"):
        return -_logs(outputs[np.arange(len(truth)), truth])
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
