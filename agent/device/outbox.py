"""What an agent must not lose: the report that waits for an answer, and the memory of accepted work.

The outbox is a folder with a small `state.json` and the files that it names; `format.json` names their format. Report and memory are written first. Then
a line is added to `state.json` that names them: the last whole line is the state. Files that it does not name are removed.
So a process that is killed at any instant finds either the old state or the new one. Contents are only handed around by path: the worker writes and
reads them, this process never holds them.

- An accepted report stays until its step is closed, and so does the memory from before it: a coordinator that lost the
  report (a power cut, a restored backup) can ask for it again.
- The state of one other run is kept aside: an agent that returns to that run finds its memory there.
- Every report has a digest, which a new process compares. A damaged file is reported and set aside.
- Changes that are held (`holds`) are one line, of `flush`. While work is done its report brings a line soon: what was accepted
  and dropped meanwhile waits for that one. The files of the state on disk stay until then, so a kill repeats a question at most.
- A full disk only delays the new line of `state.json`. The old files stay until it is there, so a kill costs only work.
- The first line of a process, and one after `MOST_BYTES`, replaces the file.

`State` is what `state.json` holds of one run of an agent. It is pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from covey.agent.device.events import Outboxed
from covey.shared.errors import UserError
from covey.shared.programs.version import version
from covey.shared.storage.files import (
    append,
    discard,
    folder_lock,
    obstacle,
    private_folder,
    sync_folder,
    write_atomically,
)
from covey.shared.wire.format import FORMAT, NONE, begun_with_other
from covey.shared.wire.messages import DIGEST_BYTES
from covey.shared.wire.parts import split

MOST_BYTES = 1 << 16  # of lines that are not the last one


class Outbox:
    """The outbox in a folder, for one process at a time.

    Args:
        folder: created if it does not exist; other users cannot read it.
        durable: whether the state survives a power cut too, which costs an fsync for each write.
        agent: whose it is; "": nobody asks.

    Attributes:
        state: of the current run; always what `state.json` holds, or will hold once `unwritten` is empty.
        damaged: files that were found damaged at the start, in sentences for a person.
        unwritten: why the state could not be written; "" if it was. Call `flush` until it succeeds.
        holds: changes wait for `flush`.

    Raises:
        UserError: another process uses the folder, it is another agent's, or another version of Covey wrote it in a form of its
            own.
    """

    def __init__(self, folder: Path, *, durable: bool = True, agent: str = "") -> None:
        self._folder = folder
        self._agent = agent
        self._durable = durable
        self.damaged: list[str] = []
        self.unwritten = ""
        self.holds = False
        self._is_changed = False  # since the newest line
        private_folder(folder, durable=durable)
        self._lock = ExitStack()
        self._lock.enter_context(
            folder_lock(
                folder,
                f"{folder} is in use by another agent process. Stop that one, or give this one a name (--id) "
                "or a folder (--state) of its own.",
            )
        )
        try:
            self.state, self._aside = self._read()
        except UserError:
            self.close()
            raise
        self._note_format()
        self._bytes = MOST_BYTES  # of `state.json`, as far as a line may follow
        self._on_disk = {path.name for path in self._contents()}  # that may be there, but for:
        self._at_work: set[str] = set()  # those that a worker may be writing now
        self._synced: set[str] = set()  # names that survive a power cut
        self._sweep()

    def __repr__(self) -> str:
        state = self.state
        report = f"report of step {state.step}" if state.step else "no report"
        return f"<Outbox {self._folder}: run {state.run!r}, accepted {state.accepted}, {report}>"

    def close(self) -> None:
        """Let another process use the folder."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def outboxed(self) -> Outboxed:
        """The state that a session starts from, including the run that is kept aside."""
        aside = self._aside.outboxed if self._aside is not None else None
        return replace(self.state.outboxed, aside=aside)

    @property
    def memory(self) -> Path | None:
        """The file of the memory after the newest accepted work; None before the first."""
        return self._folder / self.state.memory if self.state.memory else None

    @property
    def report(self) -> Path | None:
        """The file of the report in hand; None for none."""
        return self._folder / self.state.report if self.state.report else None

    def report_parts(self, topic: str, step: int) -> Iterator[tuple[str, bytes]]:
        """The messages of the report in hand, with one part in memory at a time."""
        path, state = self.report, self.state
        assert path is not None  # noqa: S101 - the caller has looked
        with path.open("rb") as file:
            parts = split(
                file,
                digest=bytes.fromhex(state.digest),
                size=state.size,
                part_bytes=state.part_bytes,
                about=step,
            )
            for part in parts:
                yield topic, part.to_bytes()

    def places(self, step: int) -> tuple[Path, Path]:
        """The files to which the worker writes the report and the memory of a step, before `put` names them."""
        name = f"{self.state.run}-{step}"
        self._on_disk |= self._at_work
        self._at_work = {f"report-{name}", f"memory-{name}"}
        return self._folder / f"report-{name}", self._folder / f"memory-{name}"

    def put(
        self,
        step: int,
        digest: bytes,
        size: int,
        *,
        work: bytes,
        part_bytes: int,
        with_memory: bool,
        memory_digest: bytes = b"",
    ) -> None:
        """Take the report of `step`, which the worker has written, and the memory if it has written one.

        Args:
            step: whose report it is.
            digest: of the report's file.
            size: bytes of the report.
            work: digest of the work that it came from.
            part_bytes: size of the parts to send it in.
            with_memory: whether the worker has written a new memory.
            memory_digest: the seal of that memory's file.
        """
        report, memory = self.places(step)
        self._on_disk |= self._at_work
        self._at_work = set()
        self._become(
            replace(
                self.state.without_report,
                step=step,
                report=report.name,
                report_memory=memory.name if with_memory else "",
                report_memory_digest=memory_digest.hex() if with_memory else "",
                digest=digest.hex(),
                work=work.hex(),
                size=size,
                part_bytes=part_bytes,
            )
        )

    def commit(self, step: int, confirmed: int = 0) -> None:
        """The report was accepted: its memory becomes the memory. The report and the memory before stay until `drop`."""
        if step == self.state.step:
            self._become(self.state.committed(confirmed))

    def drop(self, step: int) -> None:
        """Remove the report. The memory stays as it is."""
        if step == self.state.step:
            self._become(self.state.without_report)

    def go_back(self, accepted: int) -> None:
        """The coordinator lost what it accepted after the step `accepted`: see `State.went_back`."""
        self._become(self.state.went_back(accepted))

    def lose(self, accepted: int, confirmed: int) -> None:
        """The coordinator accepted work that this folder does not know: the memory is older, or lost."""
        self._become(self.state.overtaken(accepted, confirmed))

    def switch(self, run: str) -> None:
        """Switch to another run: the one aside, or a new one with an empty state. Keep this one aside."""
        aside = self._aside
        if self.state.run:
            self._aside = self.state
        if aside is not None and aside.run == run:
            self._become(aside)
        else:
            self._become(State(run))

    def set_memory_aside(self) -> str:
        """The memory is damaged: keep the file for a person, and continue without. Returns a sentence about it."""
        why = "the memory of this agent's earlier work is damaged; it starts with an empty one"
        sentence = self._put_away(self.state.memory, why)
        self._become(self.state.without_memory)
        return sentence

    def set_report_aside(self) -> str:
        """The report is damaged: keep the file for a person, and forget the report. Returns a sentence about it."""
        why = "the report that waited to be sent is damaged; the work is done again"
        report = self.state.report
        sentence = self._put_away(report, why)
        self._become(self.state.checked({report}))
        return sentence

    def report_is_whole(self) -> bool:
        """Whether the report still has the content that was put. Reads the whole file."""
        report = self.report
        return report is not None and _has_digest(report, self.state.digest)

    def _become(self, state: State) -> None:
        self.state = state
        self._is_changed = True
        if not self.holds:
            self.flush()

    def flush(self) -> str:
        """Add a line to `state.json` if the state has changed, and remove the files that it no longer names.

        Returns what stands in the way of it; "" if everything is written now.
        """
        if not self._is_changed:
            return ""
        tree = self.state.to_json()
        if self._aside is not None:
            tree["aside"] = self._aside.to_json()
        try:
            self._write(_sealed(tree))
        except OSError as error:
            self._bytes = MOST_BYTES
            self.unwritten = obstacle(error, self._folder)
            if not self.unwritten:
                raise
            return self.unwritten
        self.unwritten = ""
        self._is_changed = False
        self._sweep()
        return ""

    def _write(self, content: bytes) -> None:
        if self._bytes < MOST_BYTES:
            if self._durable and not self._files <= self._synced:
                sync_folder(self._folder)  # the line names files that are new
            append(self._path, content, durable=self._durable)
            self._bytes += len(content)
            return
        write_atomically(self._path, content, durable=self._durable)
        self._bytes = len(content)

    @property
    def _files(self) -> set[str]:
        """All files that the state and the one aside name."""
        return self.state.files | (set() if self._aside is None else self._aside.files)

    @property
    def _path(self) -> Path:
        return self._folder / "state.json"

    def _read(self) -> tuple[State, State | None]:
        """The state and the one aside, without files that are missing or damaged."""
        number, wrote, owner = self._wrote()
        if self._agent and owner not in ("", self._agent):
            raise UserError(
                f"{self._folder}: this is the state of agent {owner}, and {self._agent} is started with it. Give each agent a "
                f"folder of its own (--state); if {self._agent} is the new name of {owner}, remove {self._format} first"
            )
        if number > FORMAT:
            raise self._other_format(number, wrote)
        if NONE < number < FORMAT:
            self._set_aside(number, wrote)
            return State(), None
        is_whole = False
        try:
            tree = _newest(self._path.read_bytes())
            is_whole = True
            tree_aside = tree.pop("aside", None)
            state = State.of_json(tree)
            aside = State.of_json(tree_aside) if tree_aside is not None else None
        except FileNotFoundError:
            return State(), None
        except (ValueError, TypeError, AttributeError):
            if is_whole:  # no disk did this
                raise self._other_format(number, wrote) from None
            if not self._path.exists():  # the very first write was cut off: nothing is lost
                return State(), None
            # a broken disk: the coordinator still knows what it accepted
            broken = self._path.with_suffix(".broken")
            self._path.replace(broken)
            self.damaged.append(f"{self._path}: the file is damaged; it is kept as {broken.name}")
            return State(), None
        state = self._without_damage(state)
        if aside is not None:
            aside = self._without_damage(aside)
        return state, aside

    def _wrote(self) -> tuple[int, str, str]:
        """The format of the folder, the version that it is of, and the agent whose it is; `NONE` if nothing is known."""
        try:
            tree = json.loads(self._format.read_bytes())
            return int(tree["format"]), str(tree["covey"]), str(tree.get("agent", ""))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return NONE, "", ""

    def _note_format(self) -> None:
        """Name the format in a file of its own: an agent from before the number calls a state with another key damaged."""
        mine = {"format": FORMAT, "covey": version(), "agent": self._agent or self._wrote()[2]}
        if self._wrote() == tuple(mine.values()):
            return
        try:
            write_atomically(self._format, json.dumps(mine).encode(), durable=self._durable)
        except OSError as error:
            if not obstacle(error, self._folder):
                raise

    def _set_aside(self, number: int, wrote: str) -> None:
        """Keep a state from before this agent was upgraded, for the way back, and begin with an empty one: no coordinator of this
        format continues a run of an older one, so nothing in it counts."""
        aside = self._folder / f"format-{number}"
        private_folder(aside, durable=self._durable)
        for path in [*self._contents(), self._path, self._format]:  # the last one names them
            if path.exists():
                path.replace(aside / path.name)
        self.damaged.append(
            f"{self._folder}: this agent was upgraded from Covey {wrote} (format {number}); what it had for an earlier run is kept "
            f"in {aside.name}"
        )

    @property
    def _format(self) -> Path:
        return self._folder / "format.json"

    def _other_format(self, number: int, wrote: str) -> UserError:
        """The state is whole, and this version cannot read it: it may hold a report that still counts elsewhere."""
        begun = begun_with_other(f"{self._folder}: this agent's memory", number, wrote)
        return UserError(
            f"{begun}. Start the agent with that version, or give this one an empty folder (--state)"
        )

    def _without_damage(self, state: State) -> State:
        """The state without files that are missing or damaged."""
        gone: set[str] = set()
        for name in sorted(state.files):
            path = self._folder / name
            if not path.exists():
                gone.add(name)
                self.damaged.append(f"{path}: the file is missing")
        is_there = state.report != "" and state.report not in gone
        if is_there and not _has_digest(self._folder / state.report, state.digest):
            gone.add(state.report)
            why = "the report that waited to be sent is damaged; the work is done again if it is still needed"
            self.damaged.append(self._put_away(state.report, why))
        return state.checked(gone)

    def _put_away(self, name: str, why: str) -> str:
        path = self._folder / name
        away = path.with_name(f"{name}.damaged")
        if name and path.exists():
            path.replace(away)
        return f"{path}: {why} (the file is kept as {away.name})"

    def _sweep(self) -> None:
        """Remove the files that neither state names."""
        self._synced = self._files
        for name in self._on_disk - self._synced:
            discard(self._folder / name)
        self._on_disk = set(self._synced)

    def _contents(self) -> Iterator[Path]:
        """Reports and memories, except damaged ones that are kept for a person."""
        for path in list(self._folder.iterdir()):
            is_content = path.name.startswith(("report-", "memory-"))
            if is_content and path.suffix != ".damaged":
                yield path


def _newest(content: bytes) -> dict[str, Any]:
    """The last whole line of `state.json`. A line without an end was cut off while it was added: the one before it holds.

    Raises:
        ValueError: it is damaged.
    """
    *lines, _ = content.split(b"\n")
    tree: dict[str, Any] = json.loads(lines[-1] if lines else b"")
    if tree.pop("seal", None) != _seal_of(tree):
        raise ValueError("the content does not match its seal")
    return tree


def _sealed(tree: dict[str, Any]) -> bytes:
    """The line of a state."""
    content = json.dumps(tree, sort_keys=True)
    return f'{content[:-1]}, "seal": "{_digest(content)}"}}\n'.encode()


def _seal_of(tree: dict[str, Any]) -> str:
    """A digest that finds a damaged state: a changed number of a step would make the agent drop reports."""
    return _digest(json.dumps(tree, sort_keys=True))


def _digest(content: str) -> str:
    return hashlib.blake2b(content.encode(), digest_size=DIGEST_BYTES).hexdigest()


def _has_digest(path: Path, digest: str) -> bool:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES))
    return found.hexdigest() == digest


LOST = "lost"  # the memory of accepted work is gone
AHEAD = "ahead"  # the memory belongs to work that the coordinator has forgotten


@dataclass(frozen=True)
class State:
    """What `state.json` holds of one run. `memory`, `before`, `report` and `report_memory` are file names, "" for none.

    If `step` equals `accepted`, the report was accepted and is kept in case the coordinator asks for it again:
    `memory` came with it, and `before` is the memory that its work began with. Otherwise the report waits for an answer.
    """

    run: str = ""
    accepted: int = 0  # newest accepted step of the run
    memory: str = ""  # after the newest accepted work
    step: int = 0  # step of the report in hand; 0 for none
    report: str = ""
    report_memory: str = ""  # becomes `memory` if the report is accepted
    digest: str = ""  # hex, of the report
    work: str = ""  # hex, of the work that the report came from
    size: int = 0  # bytes of the report
    part_bytes: int = 0  # size of the parts that the report is sent in
    memory_digest: str = ""  # seal of the file `memory` in hex; "" if unknown
    report_memory_digest: str = ""  # seal of the file `report_memory` in hex
    before: str = ""  # the memory before the accepted report; only while the report is kept
    before_digest: str = ""  # seal of the file `before` in hex
    before_accepted: int = 0  # newest accepted step before that of the kept report
    confirmed: int = 0  # `again` of the order that reported `accepted`
    lost: str = ""  # LOST or AHEAD until two accepted steps mention it; "" for a memory in order
    told: bool = False  # one did, but may be accepted with another report, from before the loss

    @property
    def kept(self) -> bool:
        """Whether the report in hand was accepted."""
        return self.step > 0 and self.step == self.accepted

    @property
    def files(self) -> set[str]:
        """The names of all files that belong to this state."""
        return {self.memory, self.before, self.report, self.report_memory} - {""}

    @property
    def outboxed(self) -> Outboxed:
        """The part of the state that the session has to know."""
        known = Outboxed(self.run, self.accepted, confirmed=self.confirmed)
        if not self.report:
            return known
        known = replace(known, work=bytes.fromhex(self.work))
        if self.kept:
            return replace(known, kept=self.step)
        return replace(known, step=self.step)

    @property
    def without_report(self) -> State:
        """The same state with the memory alone."""
        return State(
            self.run,
            self.accepted,
            self.memory,
            memory_digest=self.memory_digest,
            confirmed=self.confirmed,
            lost=self.lost,
            told=self.told,
        )

    @property
    def without_memory(self) -> State:
        """The same state after its memory was lost."""
        return replace(self, memory="", memory_digest="", lost=LOST, told=False)

    def committed(self, confirmed: int) -> State:
        """The report in hand was accepted: the memory that came with it becomes the memory.

        Args:
            confirmed: `again` of the order that reported it.
        """
        accepted = replace(
            self,
            accepted=self.step,
            confirmed=confirmed,
            before=self.memory,
            before_digest=self.memory_digest,
            before_accepted=self.accepted,
            report_memory="",
            report_memory_digest="",
            lost="" if self.told else self.lost,
            told=self.lost != "" and not self.told,
        )
        if not self.report_memory:
            return accepted
        return replace(accepted, memory=self.report_memory, memory_digest=self.report_memory_digest)

    def went_back(self, accepted: int) -> State:
        """The coordinator lost what it accepted after the step `accepted`.

        A kept report waits again, with the memory from before it. If the coordinator lost more than that, the memory
        belongs to later work, and the next report mentions it.
        """
        state = self._recalled(accepted) if self.kept else self
        if self.kept and accepted >= self.before_accepted:
            return state
        lost = AHEAD if state.memory else state.lost
        return replace(state.without_report, accepted=accepted, lost=lost, told=False)

    def _recalled(self, accepted: int) -> State:
        before = replace(
            self,
            accepted=accepted,
            memory=self.before,
            memory_digest=self.before_digest,
            before="",
            before_digest="",
            before_accepted=0,
            told=False,
        )
        if not self.report:  # its file was damaged: the work is done again
            return replace(before, step=0)
        if self.memory == self.before:  # the work left the memory as it was
            return before
        return replace(before, report_memory=self.memory, report_memory_digest=self.memory_digest)

    def overtaken(self, accepted: int, confirmed: int) -> State:
        """The coordinator accepted work that this state does not know: the memory is older, or lost."""
        state = self.without_report
        return replace(state, accepted=accepted, confirmed=confirmed, lost=LOST, told=False)

    def checked(self, gone: set[str]) -> State:
        """The state after some of its files turned out to be missing or damaged.

        Args:
            gone: their names.
        """
        state = self
        if state.kept and state.report in gone:
            state = replace(state, report="")
        elif state.report in gone or state.report_memory in gone:
            state = state.without_report
        if state.memory and state.memory in gone:
            state = state.without_memory
        if state.before in gone:
            state = replace(state, before="", before_digest="")
        return state

    def to_json(self) -> dict[str, Any]:
        """All fields by name. Their values are numbers and texts, so none has to be copied."""
        return dict(vars(self))

    @classmethod
    def of_json(cls, tree: dict[str, Any]) -> Self:
        """The state in a JSON object. Raises TypeError for an unknown key or a value of another type."""
        state = cls(**tree)
        for field in fields(cls):
            value = getattr(state, field.name)
            if type(value) is not type(field.default):
                raise TypeError(f"{field.name} is {value!r}")
        return state
