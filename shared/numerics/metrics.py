"""Figures of models and clusters, in numpy alone: agents compute their own accuracy and F1.

For one client: `accuracy`, `macro_f1`. Over clients: the `micro` and `macro` averages. For clusters
against true groups: `adjusted_rand`, `mutual_information`, `purity`; these take any hashable labels
of equal length; `matching` finds the cluster that stands for each truth.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Classes = npt.NDArray[Any]  # class indices (n,)


def accuracy(truth: Classes, predicted: Classes) -> float:
    """The share of samples whose class was predicted. Raises ValueError for no samples."""
    _check_lengths(truth, predicted)
    return float(np.mean(truth == predicted))


def macro_f1(truth: Classes, predicted: Classes) -> float:
    """The mean F1 over the classes that occur in truth or predictions, FeSEM's definition.

    F1 of a class is 2 TP / (2 TP + FP + FN), which is 0 where precision or recall is undefined.
    Raises ValueError for no samples.
    """
    _check_lengths(truth, predicted)
    scores = []
    for label in np.union1d(truth, predicted):
        is_label = truth == label
        predicted_label = predicted == label
        true_positives = np.count_nonzero(is_label & predicted_label)
        # 2 TP + FP + FN counts each true and each predicted sample of the class once
        either = np.count_nonzero(is_label) + np.count_nonzero(predicted_label)
        scores.append(2 * true_positives / either)
    return math.fsum(scores) / len(scores)


def macro_recall(truth: Classes, predicted: Classes) -> float:
    """The mean over the classes that occur in truth of the share of their samples that was predicted.

    Raises ValueError for no samples.
    """
    _check_lengths(truth, predicted)
    return float(
        np.mean([np.mean(predicted[truth == label] == label) for label in np.unique(truth)])
    )


def macro_auc(truth: Classes, scores: npt.NDArray[np.float64]) -> float | None:
    """The mean over the classes of the area under the ROC curve of one class against the rest.

    The area is the share of pairs of a sample of the class and another sample in which the first has the higher score;
    a tie counts half (Mann and Whitney 1947).

    Args:
        truth: class indices (n,).
        scores: (n, classes).

    Returns:
        None if all samples are of one class.
    """
    areas = []
    for label in np.unique(truth):
        is_label = truth == label
        others = np.sort(scores[~is_label, label])
        if len(others):
            own = scores[is_label, label]
            below = np.searchsorted(others, own) + np.searchsorted(others, own, "right")
            areas.append(float(np.mean(below)) / (2 * len(others)))
    return math.fsum(areas) / len(areas) if areas else None


def micro(values: Sequence[float], amounts: Sequence[float]) -> float:
    """The mean over clients weighted by their amounts of data, not scikit-learn's "micro".

    Raises:
        ValueError: the amounts sum to zero.
    """
    total = math.fsum(amounts)
    if not total > 0:
        raise ValueError(
            "a weighted mean needs a positive amount of data, "
            f"not {total} over {len(values)} clients"
        )
    weighted = [value * amount for value, amount in zip(values, amounts, strict=True)]
    return math.fsum(weighted) / total


def macro(values: Sequence[float]) -> float:
    """The plain mean over clients. Raises ValueError for none."""
    return micro(values, [1.0] * len(values))


def adjusted_rand(a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
    """The agreement of two partitions over pairs: 0 by chance, 1 for equal partitions.

    Hubert and Arabie 1985. Raises ValueError for empty partitions.
    """
    table = _contingency(a, b)
    both = _pairs(table.cells)
    first = _pairs(table.rows)
    second = _pairs(table.columns)
    all_pairs = max(math.comb(len(a), 2), 1)
    chance = first * second / all_pairs
    most = (first + second) / 2
    if most == chance:  # only where both put all together, or both keep all apart
        return 1.0
    return (both - chance) / (most - chance)


def mutual_information(a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
    """Mutual information over the mean of the two entropies; 1 if both entropies are 0.

    Natural logarithms. Raises ValueError for empty partitions.
    """
    table = _contingency(a, b)
    joint = _entropy(table.cells)
    first = _entropy(table.rows)
    second = _entropy(table.columns)
    if first + second == 0:
        return 1.0
    return max(2 * (first + second - joint) / (first + second), 0.0)


def purity(found: Sequence[Hashable], truth: Sequence[Hashable]) -> float:
    """The share of clients that belong to the commonest true group of their cluster."""
    table = _contingency(found, truth)
    best: dict[Hashable, int] = {}
    for (cluster, _), count in table.cells.items():
        best[cluster] = max(best.get(cluster, 0), count)
    return sum(best.values()) / len(found)


def matching(costs: npt.ArrayLike) -> tuple[int, ...]:
    """The row (a cluster) that stands for each column (a truth), at the least sum of costs.

    A row stands for one column at most. Needs scipy.

    Raises:
        ValueError: there are fewer rows than columns.
    """
    from scipy.optimize import linear_sum_assignment

    table = np.asarray(costs, np.float64)
    if table.ndim != 2 or table.shape[0] < table.shape[1]:
        raise ValueError(
            f"costs of shape {table.shape}: expected a row (group) for each column (truth)"
        )
    _, rows = linear_sum_assignment(table.T)
    return tuple(int(row) for row in rows)


@dataclass(frozen=True)
class _Contingency:
    """How often each pair of labels occurs, and each label of either side."""

    cells: Counter[Any]
    rows: Counter[Any]
    columns: Counter[Any]


def _contingency(a: Sequence[Hashable], b: Sequence[Hashable]) -> _Contingency:
    if len(a) == 0:
        raise ValueError("two empty partitions cannot be compared")
    return _Contingency(Counter(zip(a, b, strict=True)), Counter(a), Counter(b))


def _pairs(counts: Counter[Any]) -> int:
    """The number of pairs within the same cell."""
    return sum(math.comb(count, 2) for count in counts.values())


def _entropy(counts: Counter[Any]) -> float:
    total = counts.total()
    shares = [count / total for count in counts.values()]
    return math.fsum(-share * math.log(share) for share in shares)


def _check_lengths(truth: Classes, predicted: Classes) -> None:
    if truth.shape != predicted.shape or truth.ndim != 1 or len(truth) == 0:
        raise ValueError(
            f"expected one prediction per sample: predictions have shape {predicted.shape}, "
            f"the truth has {truth.shape}"
        )
