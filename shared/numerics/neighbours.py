"""kNN-Per (Marfoq et al. 2022): a model that remembers the training samples of its device.

Personalized Federated Learning through Local Memorization, ICML 2022, sections 3.1 and 3.2. The answers of a common model
are mixed with those of the k nearest training samples, by the inputs of the model's last layer; the share of these is
chosen on samples that are held back from the memory.

Our deviations: weights are exp(-distance) relative to the nearest neighbour, so that they never all vanish, which changes
nothing else because they are normalised; every third unit of training samples chooses the share, and all are remembered then.
The model has trained on them, which favours the model.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

ROWS = 256  # of queries at once
EVERY = 3  # of the units chooses
SHARES = np.linspace(0, 1, 11)


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


def judging(units: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which samples (m,) choose the share: those of every third unit."""
    judges: npt.NDArray[np.bool_] = units % EVERY == 0
    return judges


def share_of_memory(
    features: Float64,
    targets: Float64,
    served: Float64,
    judges: npt.NDArray[np.bool_],
    errors: Callable[[Float64], float],
    k: int,
) -> float:
    """The share of the neighbours in an answer, by the errors of the samples that judge with the others as memory.

    Args:
        features: of the training samples (m, width).
        targets: (m, outputs).
        served: the model's answers to them (m, outputs).
        judges: which of them judge (m,).
        errors: the mean error of answers to these.
        k: neighbours.

    Returns:
        0 without a sample to remember or one that judges; of equally good shares the smallest.
    """
    if judges.all() or not judges.any():
        return 0.0
    own = remembered(features[~judges], targets[~judges], features[judges], k)
    losses = [errors(share * own + (1 - share) * served[judges]) for share in SHARES]
    return float(SHARES[int(np.argmin(losses))])
