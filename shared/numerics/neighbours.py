"""kNN-Per (Marfoq et al. 2022): a model that remembers the training samples of its device.

Personalized Federated Learning through Local Memorization, ICML 2022, sections 3.1 and 3.2. The answers of a common model
are mixed with those of the k nearest training samples, by the inputs of the model's last layer; `mixture` weighs them.

Our deviation: weights are exp(-distance) relative to the nearest neighbour, so that they never all vanish, which changes
nothing else because they are normalised.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

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
