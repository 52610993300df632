"""Make a model ready for use on this device: compare it with the one in use, and write its file if it is good enough.

The agent's process decides nothing about arrays and the worker nothing about which model is in use: the worker judges and
writes, and its answer lets the agent's process name the new file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covey.agent.data import Dataset
from covey.agent.kept.model_file import ModelFile, read_model, save_model, task_with_scaling
from covey.agent.kept.verdict import Figures, Verdict, judge
from covey.agent.kept.versions import Version
from covey.agent.policy import Rules
from covey.agent.training.learner import TorchLocal
from covey.agent.training.models import build, layout_of
from covey.shared.client import measure, model_for_use
from covey.shared.errors import CoveyError
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import ClientState, Local, Mixture, Training
from covey.shared.wire.messages import OrderMessage

# what a task asks does not depend on these keys: models that differ in them alone can be compared
NOT_THE_QUESTION = {
    "model",
    "scale",
    "standardise",
    "init",
    "impute",
    "categories",
    "target_scale",
}

Answer = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where kept models lie, and what a new one is compared with."""

    folder: Path
    current: str  # file of the model in use; "" for none
    margin: float  # how much worse a new model may be

    @classmethod
    def of(cls, job: Mapping[str, Any]) -> Place:
        return cls(Path(job["folder"]), job["current"], job["margin"])


@dataclass(frozen=True)
class Candidate:
    """A model that may be taken over."""

    version: Version
    task: Mapping[str, Any]  # as the model's file has it
    mixture: Mixture
    layout: Layout


def keep_of_order(
    order: OrderMessage,
    models: Sequence[Vector],
    local: Local,
    client_state: ClientState,
    *,
    client: str,
    dataset: Dataset,
    place: Place,
    rules: Rules,
) -> Answer | None:
    """Keep the model that an order gives this agent; None if it gives none.

    Args:
        order, models, local, client_state, client: as `model_for_use` takes them.
        dataset: the samples behind `local`.
        place: where kept models lie.
        rules: of this device, for the model in use.
    """
    work = order.work
    if work is None:
        return None
    mixture = model_for_use(order, models, local, client_state, client=client)
    if mixture is None:
        return None
    cluster = order.cluster if work.cluster is None else work.cluster
    version = Version(order.run, work.round, cluster)
    task = task_with_scaling(work.task, work.scaling)
    candidate = Candidate(version, task, mixture, Layout.from_wire(work.layout))
    return keep(candidate, local, dataset, place, rules)


def keep(
    candidate: Candidate, local: Local, dataset: Dataset, place: Place, rules: Rules
) -> Answer | None:
    """Compare a candidate with the model in use, and write its file if it may take over.

    Returns:
        {"version", "accepted", "why"}; None if the very same model is in use already.
    """
    current = _current(place)
    if current is not None and _is_same(candidate, current):
        return None
    new = measure(candidate.mixture, local)
    old = None
    if current is not None:
        old = _figures(current, Task.model_validate(candidate.task), dataset, rules)
    verdict: Verdict = judge(new, old, place.margin)
    version = candidate.version
    if verdict.accepted:
        path = place.folder / version.file
        save_model(path, version, candidate.task, candidate.mixture, candidate.layout)
    return {"version": version.to_json(), "accepted": verdict.accepted, "why": verdict.why}


def _current(place: Place) -> ModelFile | None:
    """The model in use; None if there is none, or its file is damaged."""
    if not place.current:
        return None
    try:
        return read_model(place.folder / place.current)
    except CoveyError:
        return None


def _is_same(candidate: Candidate, current: ModelFile) -> bool:
    """Same version, same task, same values."""
    if not candidate.version.is_same_model(current.version):
        return False
    if Task.model_validate(candidate.task) != current.task:
        return False
    if len(candidate.mixture) != len(current.models):
        return False
    weights = tuple(float(weight) for weight, _ in candidate.mixture)
    if weights != current.weights:
        return False
    for (_, model), named in zip(candidate.mixture, current.models, strict=True):
        if not candidate.layout.fits(named):
            return False
        if not np.array_equal(model, candidate.layout.vector(named)):
            return False
    return True


def _figures(current: ModelFile, task: Task, dataset: Dataset, rules: Rules) -> Figures | None:
    """Figures of the model in use on the same samples; None if it solves another task, or cannot be built here."""
    if _question(current.task) != _question(task):
        return None
    try:
        layout = layout_of(build(current.task, 0, rules.allowed))
        models = [layout.vector(named) for named in current.models]
        local = TorchLocal(
            dataset, current.task, layout, Training(), np.random.default_rng(0), rules=rules
        )
    except (CoveyError, ValueError):
        return None
    mixture = tuple(zip(current.weights, models, strict=True))
    return measure(mixture, local)


def _question(task: Task) -> dict[str, Any]:
    return task.model_dump(mode="json", exclude=NOT_THE_QUESTION)
