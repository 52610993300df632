"""What is measured, in numpy alone: agents compute their own accuracy and F1.

Per client: `accuracy`, `macro_f1`. Over clients: `micro` and `macro` averages. Of clusters found against a
truth: `adjusted_rand`, `mutual_information`, `purity`; these take any hashable labels of equal length. Of soft
memberships against true mixtures: `membership_mse`; `matching` says which cluster stands for which truth.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Classes = npt.NDArray[Any]  # class indices (n,)


def accuracy(truth: Classes, predicted: Classes) -> float:
    """Share of samples whose class was predicted. Raises ValueError for no samples."""
    _same_length(truth, predicted)
    return float(np.mean(truth == predicted))


def macro_f1(truth: Classes, predicted: Classes) -> float:
    """Mean F1 over the classes that occur in truth or predictions, FeSEM's definition.

    2 TP / (2 TP + FP + FN) per class, which is 0 where precision or recall is undefined.
    """
    _same_length(truth, predicted)
    scores = []
    for label in np.union1d(truth, predicted):
        hits = np.count_nonzero((truth == label) & (predicted == label))
        scores.append(
            2 * hits / (np.count_nonzero(truth == label) + np.count_nonzero(predicted == label))
        )
    return math.fsum(scores) / len(scores)


def micro(values: Sequence[float], amounts: Sequence[float]) -> float:
    """Mean over clients weighted by their amounts of data, not scikit-learn's "micro".

    Raises ValueError where the amounts sum to zero.
    """
    total = math.fsum(amounts)
    if not total > 0:
        raise ValueError(
            f"a weighted mean needs a positive amount of data, not {total} over {len(values)} clients"
        )
    return math.fsum(value * amount for value, amount in zip(values, amounts, strict=True)) / total


def macro(values: Sequence[float]) -> float:
    """Plain mean over clients. Raises ValueError for none."""
    return micro(values, [1.0] * len(values))


def adjusted_rand(a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
    """Agreement of two partitions over pairs, 0 by chance, 1 for equal ones (Hubert and Arabie 1985)."""
    both, first, second = (_pairs(counts) for counts in _tables(a, b))
    chance = first * second / max(math.comb(len(a), 2), 1)
    most = (first + second) / 2
    # most equals chance only where both put everybody together, or both keep everybody apart
    return 1.0 if most == chance else (both - chance) / (most - chance)


def mutual_information(a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
    """Mutual information over the mean of the two entropies, natural logarithms; 1 if both entropies are 0."""
    both, first, second = (_entropy(counts) for counts in _tables(a, b))
    if first + second == 0:
        return 1.0
    return max(2 * (first + second - both) / (first + second), 0.0)


def purity(found: Sequence[Hashable], truth: Sequence[Hashable]) -> float:
    """Share of clients that belong to the commonest true group of their cluster."""
    best: dict[Hashable, int] = {}
    for (cluster, _), count in _tables(found, truth)[0].items():
        best[cluster] = max(best.get(cluster, 0), count)
    return sum(best.values()) / len(found)


class MembershipError(NamedTuple):
    """`total`: mean over clients of the sum over clusters; `mean`: that divided by K; `permutation[k]`: the cluster
    that stands for k."""

    total: float
    mean: float
    permutation: tuple[int, ...]


def membership_mse(estimated: npt.ArrayLike, truth: npt.ArrayLike) -> MembershipError:
    """Squared error of soft memberships.

    Both are (N, K), rows sum to 1. Cluster ids are matched by the one permutation, the same for all clients, that
    makes the error least. Needs scipy. Raises ValueError for shapes that differ or are empty.
    """
    found, wanted = (np.asarray(shares, np.float64) for shares in (estimated, truth))
    if found.shape != wanted.shape or found.ndim != 2 or found.size == 0:
        raise ValueError(
            f"memberships of shape {found.shape} cannot be compared with a truth of {wanted.shape}"
        )
    errors = ((found[:, :, None] - wanted[:, None, :]) ** 2).mean(
        axis=0
    )  # of cluster j if it stood for k
    order = matching(errors)
    total = float(errors[list(order), range(len(order))].sum())
    return MembershipError(total, total / len(order), order)


def matching(costs: npt.ArrayLike) -> tuple[int, ...]:
    """For each column (a truth) the row (a cluster) that stands for it, each row once at most, at the least sum of costs.

    Needs scipy. Raises ValueError where there are fewer rows than columns.
    """
    from scipy.optimize import linear_sum_assignment

    table = np.asarray(costs, np.float64)
    if table.ndim != 2 or table.shape[0] < table.shape[1]:
        raise ValueError(
            f"costs of shape {table.shape}: no fewer rows (clusters) than columns (truths) are wanted"
        )
    return tuple(int(row) for row in linear_sum_assignment(table.T)[1])


def _tables(
    a: Sequence[Hashable], b: Sequence[Hashable]
) -> tuple[Counter[Any], Counter[Any], Counter[Any]]:
    if len(a) == 0:
        raise ValueError("two partitions of nobody cannot be compared")
    return Counter(zip(a, b, strict=True)), Counter(a), Counter(b)


def _pairs(counts: Counter[Any]) -> int:
    return sum(math.comb(count, 2) for count in counts.values())


def _entropy(counts: Counter[Any]) -> float:
    shares = [count / counts.total() for count in counts.values()]
    return math.fsum(-share * math.log(share) for share in shares)


def _same_length(truth: Classes, predicted: Classes) -> None:
    if truth.shape != predicted.shape or truth.ndim != 1 or len(truth) == 0:
        raise ValueError(
            f"as many predictions as samples are wanted, not {predicted.shape} for {truth.shape}"
        )
