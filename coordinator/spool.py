"""Reports on disk between their arrival and the fold: one file each, readable again after a kill.

spool/incoming/<n>             contents that are still arriving
spool/<step>/<client>.safetensors   accepted reports: vectors as float32, everything else as facts
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import cast

import numpy as np

from coordinator.disk import open_arrays, save_arrays
from shared.parts import FileSink
from shared.strategy import ClientId, Report
from shared.vectors import Vector

_SUFFIX = ".safetensors"


class Spool:
    """The reports of the open step. A report that `keep` returned from will be there after a kill.

    While `durable`, also after a power cut; a simulation, which can train again, does not wait for the disk.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.durable = True
        self._incoming = folder / "incoming"
        shutil.rmtree(self._incoming, ignore_errors=True)  # half a content is of no use after a restart
        self._incoming.mkdir(parents=True)
        self._numbers = count()

    def new_sink(self, size: int) -> FileSink:
        """Where a content of `size` bytes can arrive."""
        return FileSink(self._incoming / str(next(self._numbers)), size)

    def keep(self, step: int, client: ClientId, report: Report, seconds: float) -> None:
        """Write a checked report; a second one for the same step replaces the first."""
        folder = self.folder / str(step)
        folder.mkdir(exist_ok=True)
        facts = {
            "examples": report.examples,
            "numbers": dict(report.numbers),
            "steps": report.steps,
            "loss": report.loss,
            "bases": dict(report.bases),
            "seconds": seconds,
        }
        save_arrays(folder / (client + _SUFFIX), report.vectors, facts, durable=self.durable)

    def who(self, step: int) -> list[ClientId]:
        """Clients with an accepted report for this step, ascending."""
        return sorted(path.name.removesuffix(_SUFFIX) for path in (self.folder / str(step)).glob("[!.]*" + _SUFFIX))

    def reports(self, step: int, clients: Iterable[ClientId]) -> list[tuple[ClientId, Report]]:
        """The reports of these clients in the order given; vectors are memory-mapped."""
        return [(client, self._read(step, client)[0]) for client in clients]

    def seconds(self, step: int, clients: Iterable[ClientId]) -> Mapping[ClientId, float]:
        """How long each of these clients trained."""
        return {client: self._read(step, client)[1] for client in clients}

    def discard(self, step: int, client: ClientId) -> None:
        """Forget one report. A map that is still open stays readable."""
        (self.folder / str(step) / (client + _SUFFIX)).unlink(missing_ok=True)

    def drop(self, newest: int) -> None:
        """Forget every step up to `newest`. Maps that are still open stay readable."""
        for folder in self.folder.iterdir():
            if folder.name.isdigit() and int(folder.name) <= newest:
                shutil.rmtree(folder)

    def _read(self, step: int, client: ClientId) -> tuple[Report, float]:
        arrays, facts = open_arrays(self.folder / str(step) / (client + _SUFFIX))
        vectors = {name: cast(Vector, array.view(np.float32)) for name, array in arrays.items()}
        seconds = facts.pop("seconds")
        return Report(vectors=vectors, **facts), seconds
