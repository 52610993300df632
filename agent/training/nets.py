"""The module of the newest order, kept for the next one: building it takes longer than a small training."""

from __future__ import annotations

from typing import NamedTuple

import torch

from covey.agent.training.architectures import BUILT_IN
from covey.agent.training.flat_module import FlatModule
from covey.agent.training.models import build
from covey.shared.consent import AllowedCode
from covey.shared.numerics.vectors import Layout
from covey.shared.scenario.task import Task


class _Key(NamedTuple):
    """All that a built-in model depends on. Its options may hold lists, so they are text."""

    model: str
    features: tuple[int, ...]
    outputs: int
    layout: str
    device: str


class Nets:
    """Builds modules, and keeps one. Every training and every prediction loads the whole state of a module first.

    A module of the user's own code may keep a state that no vector holds, so it is built for each order.
    """

    def __init__(self) -> None:
        self._key: _Key | None = None  # of `_kept`
        self._kept: FlatModule | None = None  # None before the first built-in model

    def __repr__(self) -> str:
        return f"<Nets: {self._kept!r}>"

    def net(
        self, task: Task, layout: Layout, device: torch.device, allowed: AllowedCode
    ) -> FlatModule:
        """The task's module on the device. Its values are undefined.

        Args:
            task: names the model.
            layout: of the coordinator's model.
            device: where the module computes.
            allowed: the user's own code that may be imported.

        Raises:
            PublicError: the model cannot be built here, or has another layout.
        """
        key = _key(task, layout, device)
        if self._kept is not None and key == self._key:
            return self._kept
        self._kept = None  # first: two large modules may not fit into memory
        net = FlatModule(build(task, 0, allowed, values=layout.size).to(device), layout, device)
        if task.model.name in BUILT_IN:
            self._key = key
            self._kept = net
        return net


def _key(task: Task, layout: Layout, device: torch.device) -> _Key:
    model = task.model.model_dump_json()
    return _Key(model, task.features, task.outputs, layout.digest, str(device))
