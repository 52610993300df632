"""A companion of the model: an extra with phases of its own before the last round, and with a candidate for the judge of a device.

It is a method around any method, as secure sums are: it plans its phases and those of the method, and the last model of an order
of the last evaluation makes its candidate. `evaluation.deliver.companion` names it, in a scenario and in orders; extras bring
companions as `COMPANIONS` in their `__init__`, by name the module and the object in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from covey.shared import extras
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import Strategy
from covey.shared.strategies.client_half import DataSplit, Job, Local

KEY = "evaluation.deliver.companion"


class Arrayed(Protocol):
    """What a companion answers with, as a device keeps it."""

    def answers(self, local: Local, split: DataSplit) -> npt.NDArray[np.float64]:
        """The answers (n, outputs) on a part of the data, as `figures.answers` gives them."""

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All that is kept of it, by name; `of` is the companion's, in UTF-8."""


class Companion(Protocol):
    """What an extra brings."""

    def refuses(self, scenario: Any) -> str:
        """Why it cannot take part in a run of this scenario, as a sentence; empty: it can."""

    def around(self, method: Strategy[Any], task: Task) -> Strategy[Any]:
        """The method with what the companion does before its last round. Its facts have the phases of both."""

    def maker(self, job: Job, task: Task) -> Callable[[int | None], Arrayed]:
        """What an order of the last evaluation brings, by the fold of the device's samples that it answers; None: for use."""

    def kept(self, arrays: Mapping[str, npt.NDArray[Any]]) -> Arrayed:
        """The inverse of `Arrayed.arrays`."""


def companion_in(evaluation: Mapping[str, Any]) -> str:
    """The companion that the section `evaluation` of an order names; empty: none."""
    deliver = evaluation.get("deliver")
    name = deliver.get("companion") if isinstance(deliver, Mapping) else None
    return name if isinstance(name, str) else ""


def companion(name: str) -> Companion:
    """The companion of this name. Raises MissingExtraError if no extra that is installed brings it."""
    found: Companion | None = extras.find("COMPANIONS", name, f"{KEY}: {name}")
    if found is None:
        known = ", ".join(extras.brought("COMPANIONS")) or "none"
        raise extras.MissingExtraError(f"{KEY}: no extra brings {name!r:.60}; there are: {known}")
    return found


def accompanied(method: Strategy[Any], name: str, task: Task) -> Strategy[Any]:
    """The method with a companion; empty: as it is."""
    return companion(name).around(method, task) if name else method


def brought(
    job: Job, evaluation: Mapping[str, Any], task: Task
) -> Callable[[int | None], Arrayed] | None:
    """The candidate that the companion brings which an order names, by fold as `Companion.maker` has it; None without one."""
    name = companion_in(evaluation)
    return companion(name).maker(job, task) if name else None
