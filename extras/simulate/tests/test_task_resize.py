"""Images of mixed sizes and colours, brought to the form of the task: what needs `simulate`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from covey.agent.data.check import load_local
from covey.extras.simulate.tests.device_run import devices, scenes


def photos(folder: Path, device: int) -> Path:
    """Dark and light images with a gradient, each of a size of its own."""
    rng = np.random.default_rng(device)
    for number in range(24):
        name = ("dark", "light")[number % 2]
        height, width = rng.integers(5, 30, 2)
        noise = rng.integers(0, 90, (height, width))
        pixels = noise + (30 if name == "dark" else 120)
        path = folder / f"device-{device}" / name / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    return folder / f"device-{device}"


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_a_folder_of_mixed_sizes_from_files_to_figures(tmp_path: Path, method: str) -> None:
    scene = scenes(
        {
            "features": [1, 8, 8],
            "classes": ["dark", "light"],
            "resize": "bilinear",
            "standardise": "federated",
            "model": {"name": "linear"},
        }
    )(method)
    files = {f"device-{i}": photos(tmp_path, i) for i in range(3)}
    assert load_local(files["device-0"], task=scene.task).shape == (1, 8, 8)
    run = devices(tmp_path / "run", scene, files)
    accuracies = [figures["tuned"]["accuracy"] for figures in run.members.evaluation.values()]
    assert np.mean(accuracies) > 0.8
