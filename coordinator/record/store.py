"""Everything that a run keeps on its disk, behind one door: reports, checkpoint, record, audit log.

A run writes into files at once, and all of it survives a power cut when `commit` returns: with one wait for the disk for
all that came together. Nothing that follows from it may leave the process before.

`commit` has the order of writing, so that a kill between any two lines loses nothing: reports are on the disk before a
checkpoint that counts them, and a fold is in the checkpoint before its reports leave the spool.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.disk.space import Room
from covey.coordinator.disk.spool import Spool
from covey.coordinator.disk.versions import BEST, ModelVersion, save_version
from covey.coordinator.record import records
from covey.coordinator.record.audit_trail import FILE as AUDIT_FILE
from covey.coordinator.record.audit_trail import Trail, head_of
from covey.coordinator.record.notices import Record
from covey.shared.storage.files import discard, write_atomically

if TYPE_CHECKING:
    from covey.extras.dashboard.sketches import ModelSketches

Json = dict[str, Any]


class Saved(Protocol):
    """What a checkpoint holds."""

    state: Any  # the strategy's; a checkpoint gives it back with its arrays mapped from files

    def snapshot(self) -> Json:
        """All else, as JSON; the run's own part under "run"."""


@dataclass(frozen=True)
class Ends:
    """How far the files that grow belong to a checkpoint: a resume cuts off what follows."""

    lines: int = 0  # of rounds.jsonl
    audit: Json = field(default_factory=dict)  # the newest line of the audit log: sequence, hash

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Self:
        """The ends as the run's part of a checkpoint names them."""
        return cls(**{key: value for key, value in saved.items() if key in ENDS})

    def to_json(self) -> Json:
        return dict(vars(self))


ENDS = {one.name for one in fields(Ends)}


class Store:
    """The files of one run.

    Args:
        folder: of the run.
        run: its name.
        ends: of the files that grow, as the checkpoint has them.
        audit_key: of the audit log.
    """

    def __init__(
        self, folder: Path, run: str, ends: Ends | None = None, *, audit_key: bytes | None = None
    ) -> None:
        ends = ends or Ends()
        self.folder = folder
        self.room = room = Room(folder)
        self.reports = Spool(folder / "spool", room)
        self.checkpoint = Checkpoint(folder / "checkpoint", room)
        self.audit = Trail(folder, run, key=audit_key, head=head_of(ends.audit))
        self.rounds = records.round_lines(folder, ends.lines, room)
        self._is_due = False  # a checkpoint: something has changed that must be in the next one
        self._steps_over: list[int] = []  # leave the spool once the checkpoint has their end
        self._useless: list[Path] = []  # files that the next checkpoint does not need

    def __repr__(self) -> str:
        return f"<Store {self.folder}: {self.reports!r}, {self.rounds.count} lines>"

    @property
    def durable(self) -> bool:
        """Whether reports and orders survive a power cut. A simulation can train again, and does not wait for that."""
        return self.reports.durable

    @durable.setter
    def durable(self, durable: bool) -> None:
        self.reports.durable = durable

    @staticmethod
    def cleared(folder: Path) -> None:
        """Remove what an attempt that ended before its first checkpoint may have left."""
        (folder / AUDIT_FILE).unlink(missing_ok=True)

    # -- what a run writes -------------------------------------------------------------------------

    def changed(self) -> None:
        """The next commit writes a checkpoint."""
        self._is_due = True

    def note(self, event: str, **about: Any) -> None:
        """A line of the audit log about what the coordinator itself has done."""
        self.audit.hold()
        self.audit.note(event, **about)

    def line(self, record: Record) -> None:
        """A line of the record."""
        self.rounds.add(record)

    def sketches(self, found: ModelSketches, step: int) -> None:
        """For pictures of a fold. They come before its checkpoint, so that a kill leaves none out."""
        self.room.write(lambda: found.save(self.folder, step))

    def best(self, version: ModelVersion) -> None:
        """The models of the best evaluation so far."""
        self.room.write(lambda: save_version(self.folder, BEST, version))

    def order_file(self, path: Path, content: bytes) -> None:
        """A file that an agent's own order consists of, or names."""
        if path in self._useless:  # the models of a fold can be those of an earlier state
            self._useless.remove(path)
        self.room.write(lambda: write_atomically(path, content, durable=self.durable))

    def step_over(self, step: int) -> None:
        """The reports of a step leave, once a checkpoint is past it."""
        self._steps_over.append(step)

    def useless(self, path: Path) -> None:
        """A file of an order that is over leaves with the next checkpoint."""
        self._useless.append(path)

    def commit(self, run: Saved) -> None:
        """All that was written survives a power cut after this, with a checkpoint if one is due."""
        self.reports.sync()
        if self.audit.holds:
            self.audit.release()
        self.rounds.flush()
        if self._is_due:
            self._save(run)

    def _save(self, run: Saved) -> None:
        self.room.write(self.audit.sync)
        saved = run.snapshot()
        saved["run"] |= self._ends().to_json()
        run.state = self.checkpoint.save(saved, run.state)
        self._is_due = False
        self.checkpoint_written()

    def checkpoint_written(self) -> None:
        """Remove what the newest checkpoint does not need."""
        for step in self._steps_over:
            self.reports.drop(step)
        self._steps_over.clear()
        for path in self._useless:
            discard(path)
        self._useless.clear()

    def _ends(self) -> Ends:
        return Ends(self.rounds.count, asdict(self.audit.head))
