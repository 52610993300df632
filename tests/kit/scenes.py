"""Scenarios for tests: one builder, and the tasks that most tests start from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import yaml

from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.task import Task

VECTORS: Mapping[str, Any] = {"features": [5], "classes": 4, "model": {"name": "linear"}}
DIGITS: Mapping[str, Any] = {
    "features": [1, 8, 8],
    "classes": 10,
    "scale": 0.0625,
    "model": {"name": "mlp", "options": {"hidden": 16}},
}

Sections = Mapping[str, Any]


def changed(base: Sections, changes: Sections) -> dict[str, Any]:
    """A section given as a mapping changes the keys that it names; anything else takes the section's place.

    So does a mapping with a name, such as another method: it has keys of its own.
    """
    found = dict(base)
    for section, values in changes.items():
        before = found.get(section)
        is_part = isinstance(values, Mapping) and "name" not in values
        if is_part and isinstance(before, Mapping):
            values = {**before, **values}
        found[section] = values
    return found


def start_file(folder: Path, task: Sections, starts: int = 1) -> str:
    """Small initial models with their layout, for `task.init`: no program needs to draw them.

    The same task always gets the same models.
    """
    from covey.agent.training.models import build, layout_of

    layout = layout_of(build(Task.model_validate(task), 0))
    path = folder / "start.npz"
    drawn = np.random.default_rng(1).normal(0, 0.1, (starts, layout.size)).astype(np.float32)
    np.savez(path, starts=drawn, layout=json.dumps(layout.to_wire()))
    return str(path)


@dataclass(frozen=True)
class Scenes:
    """The scenarios of a module of tests: the sections that they share, and in each call what differs."""

    sections: Sections

    @classmethod
    def of(cls, name: str, task: Sections, **sections: Any) -> Self:
        return cls({"name": name, "task": task, "strategy": {"name": "fedavg"}, **sections})

    def document(self, method: str | Sections | None = None, **changes: Any) -> dict[str, Any]:
        """As a file has it.

        Args:
            method: its name, or its whole section; None: that of the module.
            changes: see `changed`.
        """
        base = dict(self.sections)
        if method is not None:
            base["strategy"] = {"name": method} if isinstance(method, str) else method
        return changed(base, changes)

    def __call__(self, method: str | Sections | None = None, **changes: Any) -> Scenario:
        return Scenario.model_validate(self.document(method, **changes))

    def written(
        self,
        folder: Path,
        method: str | Sections | None = None,
        *,
        file: str = "scenario.yaml",
        **changes: Any,
    ) -> Path:
        path = folder / file
        path.write_text(yaml.safe_dump(self.document(method, **changes)))
        return path
