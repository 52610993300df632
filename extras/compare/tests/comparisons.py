"""A small comparison, and the parts of it that tests ask for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from covey.extras.compare.grid import Cell, grid
from covey.shared.scenario.compare import Compare
from covey.shared.scenario.scenario import Scenario
from tests.kit.scenes import Scenes

DIGITS: dict[str, Any] = {
    "name": "small",
    "seed": 1,
    "task": {
        "features": [1, 8, 8],
        "classes": 10,
        "scale": 0.0625,
        "model": {"options": {"hidden": 16}},
    },
    "training": {"epochs": 1, "batch": 10, "lr": 0.1},
    "strategy": {"name": "fedavg"},
    "rounds": {"count": 2, "participation": 0.5},
    "evaluation": {"deliver": "served"},
    "fleet": {
        "agents": 6,
        "data": "digits",
        "limit": 300,
        "partition": {"name": "grouped_labels"},
        "workers": 1,
    },
    "compare": {
        "methods": [
            {"name": "fedavg", "training": {"momentum": 0.9}, "metric": "global"},
            {"name": "fedclust", "n_clusters": 2},
            {"label": "four", "name": "ifca", "n_clusters": 4},
        ],
        "seeds": [4, 5],
        "published": {"fedclust": 95.5},
        "metric": "last",
    },
}


scenario = Scenes(DIGITS)


def written(folder: Path, data: Mapping[str, Any]) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(dict(data)))
    return path


def compared(scene: Scenario) -> Compare:
    assert scene.compare is not None
    return scene.compare


def cell(label: str, seed: int = 4) -> Cell:
    return next(cell for cell in grid(scenario()) if (cell.label, cell.seed) == (label, seed))
