"""Reports on disk between their arrival and the fold: one file each, readable again after a kill.

spool/incoming/<n>             contents that are still arriving
spool/<step>/<client>.safetensors   accepted reports: vectors as float32, everything else as facts
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from covey.coordinator.run.array_files import check_seal, open_arrays, save_arrays
from covey.coordinator.run.disk_space import Room
from covey.shared.files import make_folder, sync_folder
from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import ClientId, Report
from covey.shared.wire.parts import FileSink

_SUFFIX = ".safetensors"
Clients = Iterable[ClientId]
ClientReport = tuple[ClientId, Report]


class Spool:
    """The reports of the open step. A report that `keep` returned from will be there after a kill.

    While `durable`, also after a power cut; a simulation, which can train again, does not wait for the disk.
    """

    def __init__(self, folder: Path, room: Room | None = None) -> None:
        self.folder = folder
        self._room = room or Room(folder)
        self.durable = True
        self.damaged: list[str] = []  # what `sound` has found, for a person
        self._incoming = folder / "incoming"
        if self._incoming.exists():
            shutil.rmtree(self._incoming)  # half a content is of no use after a restart
        make_folder(self._incoming, durable=False)
        self._numbers = count()

    def new_sink(self, size: int) -> FileSink:
        """Where a content of `size` bytes can arrive."""
        number = next(self._numbers)
        path = self._incoming / str(number)
        return FileSink(path, size)

    def keep(
        self,
        step: int,
        client: ClientId,
        report: Report,
        seconds: float,
        client_state: str = "whole",
        device: str = "cpu",
    ) -> None:
        """Write a checked report; a second one for the same step replaces the first.

        `client_state` is the agent's report on the memory that its work began with, `device` what it computed on.
        """
        folder = self._folder(step)
        self._room.write(lambda: self._make(folder))
        facts = {
            "examples": report.examples,
            "numbers": dict(report.numbers),
            "steps": report.steps,
            "loss": report.loss,
            "bases": dict(report.bases),
            "seconds": seconds,
            "client_state": client_state,
            "device": device,
        }
        path = self._file(step, client)
        vectors = report.vectors
        durable = self.durable
        self._room.write(
            lambda: save_arrays(path, vectors, facts, durable=durable, sealed=True),
        )

    def _make(self, folder: Path) -> None:
        if folder.exists():
            return
        make_folder(folder, durable=self.durable)
        if self.durable:
            sync_folder(self.folder.parent)

    def who(self, step: int) -> list[ClientId]:
        """Clients with an accepted report for this step, ascending."""
        folder = self._folder(step)
        clients: list[ClientId] = []
        for path in folder.glob("[!.]*" + _SUFFIX):
            client = path.name.removesuffix(_SUFFIX)
            clients.append(client)
        return sorted(clients)

    def sound(self, step: int) -> list[ClientId]:
        """`who`, after every report of the step was read and compared with its seal: for a new process.

        One that is damaged is removed and named in `damaged`, so that its agent is asked again.
        """
        for client in self.who(step):
            path = self._file(step, client)
            try:
                check_seal(path)
            except (OSError, ValueError) as error:
                path.unlink(missing_ok=True)
                damage = f"{path}: the report is damaged ({error})"
                self.damaged.append(f"{damage}; {client} is asked for it again")
        return self.who(step)

    def unreadable(self, step: int, clients: Clients) -> dict[ClientId, str]:
        """Which of these reports cannot be opened any more, and why."""
        reasons: dict[ClientId, str] = {}
        for client in clients:
            try:
                self._read(step, client)
            except (OSError, ValueError, KeyError) as error:
                reasons[client] = str(error)
        return reasons

    def reports(self, step: int, clients: Clients) -> list[ClientReport]:
        """The reports of these clients in the order given; vectors are memory-mapped."""
        found: list[ClientReport] = []
        for client in clients:
            report, _ = self._read(step, client)
            entry = (client, report)
            found.append(entry)
        return found

    def seconds(self, step: int, clients: Clients) -> Mapping[ClientId, float]:
        """How long each of these clients trained."""
        return self._others("seconds", step, clients)

    def client_states(self, step: int, clients: Clients) -> dict[ClientId, str]:
        """Those of these clients whose work began with another memory than it should have: "lost" or "ahead"."""
        states = self._others("client_state", step, clients)
        not_whole: dict[ClientId, str] = {}
        for client, state in states.items():
            if state != "whole":
                not_whole[client] = str(state)
        return not_whole

    def devices(self, step: int, clients: Clients) -> dict[ClientId, str]:
        """What kind of device each of these clients computed on."""
        devices = self._others("device", step, clients)
        return {client: str(device) for client, device in devices.items()}

    def discard(self, step: int, client: ClientId) -> None:
        """Forget one report. A map that is still open stays readable."""
        path = self._file(step, client)
        path.unlink(missing_ok=True)

    def drop(self, newest: int) -> None:
        """Forget every step up to `newest`. Maps that are still open stay readable."""
        for folder in self.folder.iterdir():
            name = folder.name
            if name.isdigit() and int(name) <= newest:
                shutil.rmtree(folder)

    def _folder(self, step: int) -> Path:
        return self.folder / str(step)

    def _file(self, step: int, client: ClientId) -> Path:
        name = client + _SUFFIX
        return self._folder(step) / name

    def _others(self, name: str, step: int, clients: Clients) -> dict[ClientId, Any]:
        """What was kept with each of these reports under a name."""
        found: dict[ClientId, Any] = {}
        for client in clients:
            _, others = self._read(step, client)
            found[client] = others[name]
        return found

    def _read(self, step: int, client: ClientId) -> tuple[Report, dict[str, Any]]:
        """The report, and what else was kept with it."""
        path = self._file(step, client)
        arrays, facts = open_arrays(path)
        vectors: dict[str, Vector] = {}
        for name, array in arrays.items():
            vectors[name] = array.view(np.float32)
        others = {
            "seconds": facts.pop("seconds"),
            "client_state": facts.pop("client_state"),
            "device": facts.pop("device", "cpu"),  # missing in reports of an earlier version
        }
        report = Report(vectors=vectors, **facts)
        return report, others
