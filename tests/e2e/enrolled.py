"""Data and a scenario of devices, and how to wait for their programs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.processes import Program, until

TASK = {"features": [4], "classes": 2, "model": {"name": "linear"}}
SCENARIO = {
    "name": "enrolled",
    "seed": 1,
    "training": {"batch": 10, "lr": 0.1},
    "strategy": {
        "name": "fedclust",
        "n_clusters": 2,
    },  # signatures, clusters' models, reports: all kinds of topics
    "rounds": {"count": 1, "start_agents": 2, "quorum": 2},
    "evaluation": {"deliver": "served"},
}


def data(folder: Path, seed: int) -> Path:
    x = np.random.default_rng(seed).normal(size=(40, 4)).astype(np.float32)
    path = folder / f"{seed}.npz"
    np.savez(
        path,
        x=x,
        y=(x[:, 0] > 0).astype(np.int64),
        x_test=x[:10],
        y_test=(x[:10, 0] > 0).astype(np.int64),
    )
    return path


def ended(this: Program, within_s: float = 120.0) -> int:
    """Wait for its end. Returns the exit code."""
    until(lambda: this.process.poll() is not None, within_s, of=this)
    code = this.process.returncode
    assert code is not None
    return code
