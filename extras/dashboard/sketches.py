"""What a run keeps of its agents' models for pictures: a random projection of each reported model, a file per phase.

    sketches/<step>.safetensors     float32: agents (n, size), centres (K, size); facts: round, phase, who, and in which cluster

The projection (`shared.clustering.sketch`) is drawn on the run's seed and keeps distances, so that files of different
rounds can be compared; a model cannot be computed back from it. A file is written before the checkpoint that has the fold,
and a fold that is done again after a kill writes the same bytes. Files of steps that the record does not have are left
from before a kill: `read` passes over them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.coordinator.disk.array_files import open_arrays, save_arrays
from covey.coordinator.record.records import rounds_done
from covey.shared.errors import UserError
from covey.shared.numerics.clustering import sketch
from covey.shared.numerics.vectors import Vector
from covey.shared.storage.files import make_folder
from covey.shared.strategies.base import MODEL, ClientId, Reports, Strategy

FOLDER = "sketches"
Rows = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ModelSketches:
    """The models of one phase: `rows` (n, size) as its `agents` reported them, in the `clusters` in which they are after
    the fold (None: in none), and the clusters' own models after it, `centres` (K, size)."""

    agents: tuple[ClientId, ...]
    clusters: tuple[int | None, ...]
    rows: Rows
    centres: Rows
    phase: str = ""
    rounds: int = 0  # that were over after the phase

    def save(self, folder: Path, step: int) -> None:
        """Write the file of a step below a run's folder. The record has the round and the phase."""
        make_folder(folder / FOLDER)
        path = _file(folder, step)
        arrays = {"agents": self.rows, "centres": self.centres}
        facts = {"agents": list(self.agents), "clusters": list(self.clusters)}
        save_arrays(path, arrays, facts, durable=False)


def sketched(
    strategy: Strategy[Any], state: Any, reports: Reports, *, size: int, seed: int, values: int
) -> ModelSketches | None:
    """Sketches of `size` values of the models among a phase's reports and of the clusters' models in the state after it.

    `values` is the length d of a whole model: shorter vectors are no models. None where there is no model to sketch.
    """
    agents: list[ClientId] = []
    models: list[Vector] = []
    for client, report in reports:
        model = report.vectors.get(MODEL)
        if model is not None and model.size == values:
            agents.append(client)
            models.append(model)
    if not models:
        return None
    for centre in strategy.clusters(state):
        if centre.size == values:
            models.append(centre)
    sketches = sketch(models, size, seed)
    rows = sketches[: len(agents)]
    centres = sketches[len(agents) :]
    assignment = strategy.assignment(state)
    clusters = [assignment.get(client) for client in agents]
    return ModelSketches(tuple(agents), tuple(clusters), rows, centres)


def read(folder: Path, phases: Iterable[Mapping[str, Any]]) -> list[ModelSketches]:
    """The sketches of these phases of the record, in their order, as far as there are any. Raises UserError for a damaged file."""
    found: list[ModelSketches] = []
    for line in phases:
        path = _file(folder, int(line["step"]))
        if path.exists():
            found.append(_read(path, str(line["phase"]), rounds_done(line)))
    return found


def _read(path: Path, phase: str, rounds: int) -> ModelSketches:
    try:
        arrays, facts = open_arrays(path)
        agents: Sequence[str] = facts["agents"]
        clusters: Sequence[int | None] = facts["clusters"]
        rows = arrays["agents"]
        centres = arrays["centres"]
        are_as_many = len(agents) == len(clusters) == len(rows)
        are_tables = rows.ndim == centres.ndim == 2
        if not are_as_many or not are_tables:
            raise ValueError("its parts do not fit together")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: damaged ({error}); remove the file to have the report without this picture of the round"
        ) from None
    return ModelSketches(tuple(agents), tuple(clusters), rows, centres, phase, rounds)


def _file(folder: Path, step: int) -> Path:
    return folder / FOLDER / f"{step}.safetensors"
