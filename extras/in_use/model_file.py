"""The file of a kept model: safetensors, with everything that a prediction needs.

The facts in the header are those of a run's `models/cluster-0.safetensors`: the task with its class names, its scale and
the means and deviations that the fleet found. A kept model adds its version, and the weights if it mixes several models or has
other parts: a constant, what nearest samples are found in, and the rows to which trees are fitted when the file is used. These
are samples of the device, which never leave it; `agent lab export` leaves them out.
`agent lab export` and `task.init` therefore accept both kinds of file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.numpy import save_file

from covey.agent.training.weights import Named, read_file
from covey.extras.in_use.kept_versions import Version
from covey.shared.candidate_names import COMPANION, NEAR, NONE, TREES
from covey.shared.errors import UserError
from covey.shared.numerics.vectors import Layout
from covey.shared.scenario.fleet_statistics import resolved
from covey.shared.scenario.task import Task
from covey.shared.storage.files import atomic_replace
from covey.shared.strategies.client_half import Mixture

SINGLE = (1.0,)
PARTS = "parts"  # begins the names of arrays of what is no model
ARRAYS_OF = {
    NONE: ("answer",),
    NEAR: ("memory", "targets"),
    TREES: ("rows", "targets"),
    COMPANION: ("of",),
}


@dataclass(frozen=True)
class MixedPart:
    """Something else than a model that a device mixes with its models."""

    name: str  # of the candidate
    weight: float
    arrays: Named
    model: int = 0  # of the file's, that it reads


@dataclass(frozen=True)
class ModelFile:
    """What a model's file holds."""

    path: Path
    task: Task  # resolved: it has the fleet's statistics that the model was trained with
    weights: tuple[float, ...]  # of the models whose outputs are mixed; (1.0,) for a single one
    models: tuple[Named, ...]  # one per weight
    version: Version | None  # None: a file that a run left in its folder
    parts: tuple[MixedPart, ...] = ()

    @property
    def values(self) -> int:
        """The number of values of one model."""
        return sum(array.size for array in self.models[0].values())


def save_model(
    path: Path,
    version: Version,
    task: Mapping[str, Any],
    *,
    mixture: Mixture,
    layout: Layout,
    parts: Sequence[MixedPart] = (),
) -> None:
    """Write a kept model, whole or not at all.

    Args:
        path: the file.
        version: names the model.
        task: the task as a run's model file has it.
        mixture: one or more models (d,) with their weights.
        layout: of every model.
        parts: what else is mixed.

    Raises:
        OSError: the disk is full, for instance.
    """
    weights: list[float] = []
    arrays: Named = {}
    is_single = len(mixture) == 1 and not parts
    for number, (weight, model) in enumerate(mixture):
        weights.append(float(weight))
        for name, array in layout.named(model).items():
            key = name if is_single else f"{number}/{name}"
            arrays[key] = np.ascontiguousarray(array)
    facts = {"task": dict(task), **version.to_json(), "weights": weights}
    if parts:
        facts["parts"] = [
            {"name": part.name, "weight": part.weight, "model": part.model} for part in parts
        ]
    for part in parts:
        for name, array in part.arrays.items():
            arrays[f"{PARTS}/{part.name}/{name}"] = np.ascontiguousarray(array)
    metadata = {"facts": json.dumps(facts, allow_nan=False)}
    with atomic_replace(path) as temporary:
        save_file(arrays, temporary, metadata=metadata)


def task_with_scaling(task: Mapping[str, Any], scaling: Mapping[str, Any] | None) -> dict[str, Any]:
    """The task as a model's file has it: with the statistics that the fleet found, if it did.

    Raises:
        PublicError: they do not fit the task.
    """
    if scaling is None:
        return dict(task)
    return resolved(Task.model_validate(task), scaling).for_agents()


def read_model(path: Path) -> ModelFile:
    """Read a kept model, or a model that a run left in its folder.

    Raises:
        UserError: the file is missing, damaged, or no such file.
    """
    try:
        facts, arrays = read_file(path)
        task = Task.model_validate(facts["task"])
        weights = list(map(float, facts.get("weights", SINGLE)))
        version = None
        if "run" in facts:
            version = Version.from_json(facts)
        parts = _parts(facts.get("parts", []), arrays)
        models = _models(arrays, len(weights), is_single=len(weights) == 1 and not parts)
    except (SafetensorError, OSError, ValidationError, ValueError, KeyError, TypeError) as error:
        first_line = str(error).splitlines()[0]
        raise UserError(
            f"{path}: expected a model file of a finished run or of --model-dir, such as "
            f"models/cluster-0.safetensors; {first_line}"
        ) from None
    return ModelFile(path, task, tuple(weights), models, version, parts)


def _parts(rows: Any, arrays: Named) -> tuple[MixedPart, ...]:
    """The other parts that are mixed; their arrays are taken out of those of the file. Raises KeyError if one is missing."""
    parts = []
    for one in rows:
        begin = f"{PARTS}/{one['name']}/"
        own = {
            key.removeprefix(begin): arrays.pop(key) for key in [*arrays] if key.startswith(begin)
        }
        for key in ARRAYS_OF[one["name"]]:
            own[key]
        parts.append(MixedPart(str(one["name"]), float(one["weight"]), own, int(one["model"])))
    return tuple(parts)


def _models(arrays: Named, count: int, *, is_single: bool) -> tuple[Named, ...]:
    """The arrays of each model. Raises KeyError for a name without its number."""
    if is_single:
        return (arrays,)
    models: list[Named] = [{} for _ in range(count)]
    for key, array in arrays.items():
        number, _, name = key.partition("/")
        own = models[int(number)]
        own[name] = array
    return tuple(models)
