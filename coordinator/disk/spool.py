"""Reports on disk between their arrival and the fold, readable again after a kill.

spool/incoming/<n>          contents that are still arriving
spool/<step>/reports        accepted reports, one after another: see `report_file`
spool/<step>/<digest>.sum   partial sums as aggregators sent them, named by the digest of their content
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import count
from pathlib import Path

from covey.coordinator.disk.report_file import ReportFile
from covey.coordinator.disk.space import Room
from covey.shared.numerics.vectors import Vector
from covey.shared.storage.files import (
    make_folder,
    obstacle,
    sync_files,
    sync_folder,
    write_atomically,
)
from covey.shared.strategies.base import ClientId
from covey.shared.strategies.client_half import Report
from covey.shared.wire.parts import FileSink

REPORTS = "reports"  # the name of a step's file of reports
SUM = ".sum"  # ends the names of partial sums
Clients = Iterable[ClientId]
Held = dict[ClientId, Report]  # reports of one step of which only a sum is here
ClientReport = tuple[ClientId, Report]


class SummedVectors(Mapping[str, Vector]):
    """The vectors of a report that only an aggregator has seen. Their sum with others is here, and none of them alone."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes  # the lengths by name

    def __getitem__(self, name: str) -> Vector:
        if name not in self.sizes:
            raise KeyError(name)
        why = "an aggregator has added this report up, and the fold needs the report itself"
        raise ValueError(why)

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True)
class Circumstances:
    """How a report came about, besides what the strategy reads of it."""

    seconds: float  # of training
    client_state: str = "whole"  # the agent's report on the memory that its work began with
    device: str = "cpu"  # what it computed on
    digest: str = ""  # of the content that came, in hexadecimal digits


SummedReport = tuple[ClientId, Report, Circumstances]  # its vectors are `SummedVectors`


@dataclass
class _Step:
    """The part of one step that is here."""

    file: ReportFile
    # how its reports came about, as far as that is known without reading them
    circumstances: dict[ClientId, Circumstances] = field(default_factory=dict)
    # reports that lie in the file of another step
    elsewhere: dict[ClientId, int] = field(default_factory=dict)
    # reports of which only a sum is here
    summed: Held = field(default_factory=dict)


class Spool:
    """The reports of the open step. A report that `keep` returned from will be there after a kill, and after `sync` also
    after a power cut, unless `durable` is false: a simulation can train again, and does not wait for the disk.
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
        self._steps: dict[int, _Step] = {}
        self._unsynced: set[Path] = set()  # files with reports and sums
        self.kept: set[int] = set()  # steps whose reports `drop` leaves: they wait in a buffer

    def sync(self) -> None:
        """Wait for the disk, once for all reports since the last time. Only then may their agents learn of it."""
        if self.durable:
            self._room.write(lambda: sync_files(self._unsynced))
        self._unsynced.clear()

    def new_sink(self, size: int) -> FileSink:
        """Where a content of `size` bytes can arrive."""
        return FileSink(self._incoming / str(next(self._numbers)), size)

    def keep(
        self, step: int, client: ClientId, report: Report, circumstances: Circumstances
    ) -> None:
        """Write a checked report; a second one for the same step replaces the first."""
        facts = {
            "examples": report.examples,
            "numbers": dict(report.numbers),
            "steps": report.steps,
            "loss": report.loss,
            "bases": dict(report.bases),
            **vars(circumstances),
        }
        kept = self._step(step)
        file = kept.file
        if file.is_empty:
            self._make_folder(step)
        self._room.write(lambda: file.append(client, report.vectors, facts))
        self._unsynced.add(file.path)
        kept.elsewhere.pop(client, None)
        kept.circumstances[client] = circumstances

    # -- partial sums ------------------------------------------------------------------------------

    def keep_sum(self, step: int, content: bytes, content_digest: bytes) -> None:
        """Write a partial sum under its digest. What holds for `keep` holds for it."""
        self._make_folder(step)
        path = self._folder(step) / f"{content_digest.hex()}{SUM}"
        self._room.write(lambda: write_atomically(path, content, durable=False))
        self._unsynced.add(path)

    def hold(self, step: int, reports: Iterable[SummedReport]) -> None:
        """Remember the reports of a partial sum as if they were here, but for their vectors."""
        kept = self._step(step)
        for client, report, circumstances in reports:
            kept.summed[client] = report
            kept.circumstances[client] = circumstances

    def summed(self, step: int) -> Sequence[ClientId]:
        """Clients with an accepted report of which only a sum is here, ascending."""
        return sorted(self._step(step).summed)

    def sum_files(self, step: int) -> list[Path]:
        """The files of the partial sums of a step. Who reads one compares it with its name."""
        return sorted(self._folder(step).glob(f"[!.]*{SUM}"))

    def drop_sums(self, step: int) -> None:
        """Forget the partial sums of a step, and the reports in them."""
        self._remove_sums(step)
        kept = self._step(step)
        for client in kept.summed:
            kept.circumstances.pop(client, None)
        kept.summed = {}

    def _remove_sums(self, step: int) -> None:
        for path in self.sum_files(step):
            path.unlink()

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
        kept = self._step(step)
        return sorted({*kept.file.clients, *kept.elsewhere, *kept.summed})

    def sound(self, step: int) -> list[ClientId]:
        """`who`, after every report of the step was read and compared with its checksum: for a new process.

        One that is damaged is removed and named in `damaged`, so that its agent is asked again.

        Raises:
            OSError: reports cannot be read for the time being, as where a process has no descriptor left.
        """
        file = self._step(step).file
        self.damaged += file.damage
        file.damage.clear()
        for client in sorted(file.clients):
            try:
                file.vectors(client)
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and obstacle(error, self._room.folder):
                    raise
                self.damaged.append(f"{error}; {client} is asked for it again")
                file.remove(client)
        return self.who(step)

    def readable(
        self, step: int, clients: Clients
    ) -> tuple[list[ClientReport], dict[ClientId, str]]:
        """The reports of these clients in the order given, and those that cannot be opened any more with the reason.

        Vectors are memory-mapped.
        """
        found: list[ClientReport] = []
        reasons: dict[ClientId, str] = {}
        summed = self._step(step).summed
        for client in clients:
            if client in summed:
                reasons[client] = "an aggregator sent its sum with others"
                continue
            try:
                report, _ = self._read(step, client)
            except (OSError, ValueError, KeyError) as error:
                reasons[client] = str(error)
                continue
            found.append((client, report))
        return found, reasons

    def reports(self, step: int, clients: Clients) -> list[ClientReport]:
        """The reports of these clients in the order given; vectors are memory-mapped."""
        return [(client, self._read(step, client)[0]) for client in clients]

    def values(self, step: int, clients: Clients) -> int:
        """The number of values in the vectors of these clients' reports, which are not read."""
        kept = self._step(step)
        total = 0
        for client in clients:
            if client in kept.summed:
                vectors = kept.summed[client].vectors
                assert isinstance(vectors, SummedVectors)  # noqa: S101 - only reports of sums are held
                total += sum(vectors.sizes.values())
            else:
                written_in = kept.elsewhere.get(client)
                there = kept if written_in is None else self._step(written_in)
                total += there.file.entry(client).size
        return total

    def circumstances(self, step: int, clients: Clients) -> dict[ClientId, Circumstances]:
        """How the reports of these clients came about. The file is read only if an earlier process wrote it."""
        known = self._step(step).circumstances
        for client in clients:
            if client not in known:
                _, known[client] = self._read(step, client)
        return {client: known[client] for client in clients}

    def discard(self, step: int, client: ClientId) -> None:
        """Forget one report. A map that is still open stays readable."""
        kept = self._step(step)
        if client in kept.elsewhere:
            del kept.elsewhere[client]
        else:
            self._room.write(lambda: kept.file.remove(client))
        kept.circumstances.pop(client, None)
        if kept.summed.pop(client, None) is not None:
            self._remove_sums(step)  # a resume would count it again: no report leaves a sum

    def gather(self, step: int, reports: Iterable[tuple[ClientId, int]]) -> None:
        """Let the reports of several steps (client, step) be those of one. They stay where they are.

        A kill undoes this: who folds them then gathers them again.
        """
        kept = self._step(step)
        kept.elsewhere = {}
        for client, order in reports:
            if client in self.who(order):
                kept.elsewhere[client] = order

    def drop(self, newest: int) -> None:
        """Forget every step up to `newest` but those of `kept`. Maps that are still open stay readable."""
        for folder in self.folder.iterdir():
            if folder.name.isdigit() and self._is_dropped(int(folder.name), newest):
                shutil.rmtree(folder)
        for step in list(self._steps):
            if self._is_dropped(step, newest):
                del self._steps[step]

    def _is_dropped(self, step: int, newest: int) -> bool:
        return step <= newest and step not in self.kept

    def _folder(self, step: int) -> Path:
        return self.folder / str(step)

    def _step(self, number: int) -> _Step:
        """One step, with its reports that an earlier process has left."""
        known = self._steps.get(number)
        if known is not None:
            return known
        step = _Step(ReportFile(self._folder(number) / REPORTS))
        self._steps[number] = step
        return step

    def _read(self, step: int, client: ClientId) -> tuple[Report, Circumstances]:
        """The report, and what else was kept with it. A lack of descriptors is waited out."""
        kept = self._step(step)
        summed = kept.summed.get(client)
        if summed is not None:
            return summed, kept.circumstances[client]
        written_in = kept.elsewhere.get(client, step)
        file = self._step(written_in).file
        entry = file.entry(client)
        vectors = self._room.write(partial(file.vectors, client))
        facts = entry.facts()
        about = {one.name: facts.pop(one.name) for one in fields(Circumstances)}
        return Report(vectors=vectors, **facts), Circumstances(**about)


class SpooledVectors(Mapping[str, Vector]):
    """The vectors of a report in the spool, which is opened when one of them is read."""

    def __init__(self, spool: Spool, step: int, client: ClientId, sizes: Mapping[str, int]) -> None:
        self._spool = spool
        self._step = step
        self._client = client
        self.sizes = sizes  # the lengths by name

    def __getitem__(self, name: str) -> Vector:
        [(_, report)] = self._spool.reports(self._step, [self._client])
        return report.vectors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)
