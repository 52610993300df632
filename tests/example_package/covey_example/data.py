"""Points around four centres in the plane."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def blobs(path: Path) -> dict[str, np.ndarray]:
    """400 points (400, 2) with their centre's number as the class. The path is not used."""
    rng = np.random.default_rng(7)
    classes = np.arange(400) % 4
    centres = np.array([[0, 0], [0, 4], [4, 0], [4, 4]])
    points = centres[classes] + rng.normal(0, 0.5, (400, 2))
    return {"x": points.astype(np.float32), "y": classes}
