"""Windows over the rows of a table: what needs `simulate`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from covey.agent.data.check import load_local
from covey.extras.simulate.tests.device_run import devices, scenes
from tests.agent.test_task_columns import written


def recording(folder: Path, device: int) -> Path:
    """Two sensors of a machine that idles (flat) or runs (a wave), in stretches of 24 rows."""
    rng = np.random.default_rng(device)
    lines: list[str] = []
    for row in range(480):
        runs = (row // 24) % 2 == 1
        wave = np.sin(row) if runs else 0.0
        noise = rng.normal(0, 0.1, 2)
        state = "run" if runs else "idle"
        x = "" if row % 50 == 7 else f"{wave + noise[0]:.3f}"
        lines.append(f"{row},{x},{5 + wave + noise[1]:.3f},{state}")
    return written(folder / f"device-{device}", "time,x,y,state", *lines)


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_windows_over_series_from_files_to_figures(tmp_path: Path, method: str) -> None:
    scene = scenes(
        {
            "features": [2, 12],
            "classes": ["idle", "run"],
            "columns": ["x", "y"],
            "target": "state",
            "ignore": ["time"],
            "impute": "median",
            "standardise": "federated",
            "window": {"rows": 12, "stride": 6, "label": "majority"},
            "model": {"name": "mlp", "options": {"hidden": 16}},
        }
    )(method)
    files = {f"device-{i}": recording(tmp_path, i) for i in range(3)}
    assert load_local(files["device-0"], task=scene.task).features.shape[1:] == (2, 12)
    run = devices(tmp_path / "run", scene, files)
    accuracies = [figures["tuned"]["accuracy"] for figures in run.members.evaluation.values()]
    assert len(accuracies) == 3
    assert np.mean(accuracies) > 0.8
