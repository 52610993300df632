"""Reports on disk between their arrival and the fold: one file each, readable again after a kill.

spool/incoming/<n>             contents that are still arriving
spool/<step>/<client>.safetensors   accepted reports: vectors as float32, everything else as facts
spool/<step>/<digest>.sum   partial sums as aggregators sent them, named by the digest of their content
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from covey.coordinator.run.array_files import check_seal, open_arrays, save_arrays
from covey.coordinator.run.disk_space import Room
from covey.coordinator.run.sum_files import SumFiles
from covey.shared.files import make_folder, sync_files, sync_folder
from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import ClientId, Report
from covey.shared.wire.parts import FileSink

_SUFFIX = ".safetensors"
Clients = Iterable[ClientId]
Key = tuple[int, ClientId]  # a step and a client
Held = dict[ClientId, Report]  # reports of one step of which only a sum is here
ClientReport = tuple[ClientId, Report]


@dataclass(frozen=True)
class Circumstances:
    """How a report came about, besides what the strategy reads of it."""

    seconds: float  # of training
    client_state: str = "whole"  # the agent's report on the memory that its work began with
    device: str = "cpu"  # what it computed on


SummedReport = tuple[ClientId, Report, Circumstances]  # its vectors are `SummedVectors`


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
        # of reports, by step and client
        self._known: dict[Key, Circumstances] = {}
        self._sum_files = SumFiles(folder, self._room)
        # reports of which only a sum is here, by step and client
        self._summed: dict[int, Held] = {}
        self._unsynced: list[Path] | None = None  # reports of a batch; None outside of one
        self.kept: set[int] = set()  # steps whose reports `drop` leaves: they wait in a buffer

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Wait for the disk once, at the end of the block, and not after each report.

        Only then may an agent learn that its report is accepted.
        """
        self._unsynced = []
        try:
            yield
        finally:
            unsynced = self._unsynced
            self._unsynced = None
            self._room.write(lambda: sync_files(unsynced))

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
        """Write a checked report; a second one for the same step replaces the first."""
        circumstances = Circumstances(seconds, client_state, device)
        self._make_folder(step)
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
        at_once = self.durable and self._unsynced is None
        self._room.write(
            lambda: save_arrays(path, vectors, facts, durable=at_once, sealed=True),
        )
        if self.durable and self._unsynced is not None:
            self._unsynced.append(path)
        self._known[step, client] = circumstances

    # -- partial sums ------------------------------------------------------------------------------

    def keep_sum(self, step: int, content: bytes, content_digest: bytes) -> None:
        """Write a partial sum under its digest; after this it will be there after a kill, or a power cut while `durable`."""
        self._make_folder(step)
        self._sum_files.keep(step, content, content_digest, durable=self.durable)

    def hold(self, step: int, reports: Iterable[SummedReport]) -> None:
        """Remember the reports of a partial sum as if they were here, but for their vectors."""
        held = self._summed.setdefault(step, {})
        known = self._known
        for client, report, circumstances in reports:
            key = (step, client)
            held[client] = report
            known[key] = circumstances

    def _held(self, step: int) -> Held:
        """Reports of a step of which only a sum is here."""
        return self._summed.get(step, {})

    def summed(self, step: int) -> Sequence[ClientId]:
        """Clients with an accepted report of which only a sum is here, ascending."""
        held = self._held(step)
        return sorted(held)

    def sums(self, step: int) -> dict[bytes, bytes]:
        """The partial sums of a step by their digests. A damaged one is removed and named in `damaged`."""
        files = self._sum_files
        sums = files.contents(step)
        self.damaged += files.damaged
        files.damaged.clear()
        return sums

    def drop_sums(self, step: int) -> None:
        """Forget the partial sums of a step, and the reports in them."""
        self._sum_files.drop(step)
        held = self._summed.pop(step, {})
        known = self._known
        for client in held:
            key = (step, client)
            known.pop(key, None)

    # -- single reports ----------------------------------------------------------------------------

    def _make_folder(self, step: int) -> None:
        """The folder of a step, once there is room for it."""
        folder = self._folder(step)
        self._room.write(lambda: self._make(folder))

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
        summed = self.summed(step)
        clients.extend(summed)
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

    def readable(
        self, step: int, clients: Clients
    ) -> tuple[list[ClientReport], dict[ClientId, str]]:
        """The reports of these clients in the order given, and those that cannot be opened any more with the reason.

        Vectors are memory-mapped.
        """
        found: list[ClientReport] = []
        reasons: dict[ClientId, str] = {}
        held = self._held(step)
        for client in clients:
            if client in held:
                reasons[client] = "an aggregator sent its sum with others"
                continue
            try:
                report, _ = self._read(step, client)
            except (OSError, ValueError, KeyError) as error:
                reasons[client] = str(error)
                continue
            entry = (client, report)
            found.append(entry)
        return found, reasons

    def reports(self, step: int, clients: Clients) -> list[ClientReport]:
        """The reports of these clients in the order given; vectors are memory-mapped."""
        found: list[ClientReport] = []
        for client in clients:
            report, _ = self._read(step, client)
            entry = (client, report)
            found.append(entry)
        return found

    def circumstances(self, step: int, client: ClientId) -> Circumstances:
        """How a report came about. The file is read only if an earlier process wrote it."""
        key = (step, client)
        known = self._known.get(key)
        if known is not None:
            return known
        _, circumstances = self._read(step, client)
        self._known[key] = circumstances
        return circumstances

    def seconds(self, step: int, clients: Clients) -> Mapping[ClientId, float]:
        """How long each of these clients trained."""
        found: dict[ClientId, float] = {}
        for client in clients:
            circumstances = self.circumstances(step, client)
            found[client] = circumstances.seconds
        return found

    def client_states(self, step: int, clients: Clients) -> dict[ClientId, str]:
        """Those of these clients whose work began with another memory than it should have: "lost" or "ahead"."""
        not_whole: dict[ClientId, str] = {}
        for client in clients:
            circumstances = self.circumstances(step, client)
            state = circumstances.client_state
            if state != "whole":
                not_whole[client] = state
        return not_whole

    def devices(self, step: int, clients: Clients) -> dict[ClientId, str]:
        """What kind of device each of these clients computed on."""
        found: dict[ClientId, str] = {}
        for client in clients:
            circumstances = self.circumstances(step, client)
            found[client] = circumstances.device
        return found

    def discard(self, step: int, client: ClientId) -> None:
        """Forget one report. A map that is still open stays readable."""
        path = self._file(step, client)
        path.unlink(missing_ok=True)
        key = (step, client)
        self._known.pop(key, None)
        held = self._held(step)
        held.pop(client, None)

    def gather(self, step: int, reports: Iterable[tuple[ClientId, int]]) -> None:
        """Let the reports of several steps (client, step) be those of one. They stay where they are, too."""
        self._make_folder(step)
        for client, order in reports:
            report = self._file(order, client)
            path = self._file(step, client)
            # of an attempt before a kill
            path.unlink(missing_ok=True)
            with suppress(FileNotFoundError):  # then it is not readable either
                path.hardlink_to(report)

    def drop(self, newest: int) -> None:
        """Forget every step up to `newest` but those of `kept`. Maps that are still open stay readable."""
        for folder in self.folder.iterdir():
            name = folder.name
            if not name.isdigit():
                continue
            step = int(name)
            if self._is_dropped(step, newest):
                shutil.rmtree(folder)
        known = self._known
        dropped: list[Key] = []
        for key in known:
            step, _ = key
            is_over = self._is_dropped(step, newest)
            if is_over:
                dropped.append(key)
        for key in dropped:
            del known[key]
        steps = list(self._summed)
        for step in steps:
            is_over = self._is_dropped(step, newest)
            if is_over:
                del self._summed[step]

    def _is_dropped(self, step: int, newest: int) -> bool:
        if step > newest:
            return False
        return step not in self.kept

    def _folder(self, step: int) -> Path:
        return self.folder / str(step)

    def _file(self, step: int, client: ClientId) -> Path:
        name = client + _SUFFIX
        return self._folder(step) / name

    def _read(self, step: int, client: ClientId) -> tuple[Report, Circumstances]:
        """The report, and what else was kept with it."""
        held = self._held(step)
        summed = held.get(client)
        if summed is not None:
            key = (step, client)
            known = self._known[key]
            return summed, known
        path = self._file(step, client)
        arrays, facts = open_arrays(path)
        vectors: dict[str, Vector] = {}
        for name, array in arrays.items():
            vector = array.view(np.float32)
            vectors[name] = vector
        seconds = facts.pop("seconds")
        client_state = facts.pop("client_state")
        device = facts.pop("device", "cpu")  # missing in reports of an earlier version
        circumstances = Circumstances(seconds, client_state, device)
        report = Report(vectors=vectors, **facts)
        return report, circumstances
