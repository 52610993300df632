"""What an agent must not lose: the report that waits for an answer, and the memory of accepted work.

The outbox is a folder with a small `state.json` and the files that it names. Report and memory are written first. Then
`state.json` is replaced atomically and names them. Files that it does not name are removed. So a process that is killed
at any instant finds either the old state or the new one. Contents are only handed around by path: the worker writes and
reads them, this process never holds them.

- An accepted report stays until its step is closed, and so does the memory from before it: a coordinator that lost the
  report (a power cut, a restored backup) can ask for it again.
- The state of one other run is kept aside: an agent that returns to that run finds its memory there.
- Every report has a digest, which a new process compares. A damaged file is reported and set aside.
- A full disk only delays the replacement of `state.json`. The old files stay until it succeeds, so a kill costs only work.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from covey.agent.device.events import Outboxed
from covey.shared.files import folder_lock, is_full, private_folder, sync_folder, write_atomically
from covey.shared.wire.messages import DIGEST_BYTES

LOST = "lost"  # the memory of accepted work is gone
AHEAD = "ahead"  # the memory belongs to work that the coordinator has forgotten


@dataclass(frozen=True)
class State:
    """What `state.json` holds of one run. `memory`, `before`, `report` and `report_memory` are file names, "" for none.

    Where `step` equals `accepted`, the report was accepted and is kept in case the coordinator asks for it again:
    `memory` came with it, and `before` is the memory that its work began with. Otherwise the report waits for an answer.
    """

    run: str = ""
    accepted: int = 0  # newest accepted step of the run
    memory: str = ""  # after the newest accepted work
    step: int = 0  # step of the report in hand; 0 for none
    report: str = ""
    report_memory: str = ""  # becomes `memory` if the report is accepted
    digest: str = ""  # hex, of the report
    size: int = 0  # bytes of the report
    part_bytes: int = 0  # size of the parts that the report is sent in
    memory_digest: str = ""  # hex, of the file `memory`; "" if unknown
    report_memory_digest: str = ""  # hex, of the file `report_memory`
    before: str = ""  # the memory before the accepted report; only while the report is kept
    before_digest: str = ""  # hex, of the file `before`
    confirmed: int = 0  # `again` of the order that reported `accepted`
    lost: str = ""  # LOST or AHEAD until the next report mentions it; "" for a memory in order

    @property
    def kept(self) -> bool:
        """Was the report in hand accepted?"""
        return self.step > 0 and self.step == self.accepted

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
        )

    @property
    def files(self) -> set[str]:
        """The names of all files that belong to this state."""
        return {self.memory, self.before, self.report, self.report_memory} - {""}

    @property
    def outboxed(self) -> Outboxed:
        """The part of the state that the session has to know."""
        has_report = bool(self.report)
        return Outboxed(
            self.run,
            self.accepted,
            step=self.step if has_report and not self.kept else 0,
            kept=self.step if has_report and self.kept else 0,
            confirmed=self.confirmed,
        )


class Outbox:
    """The outbox in a folder, for one process at a time.

    Args:
        folder: created if it does not exist; other users cannot read it.
        durable: whether the state survives a power cut too, which costs an fsync for each write.

    Attributes:
        state: of the current run; always what `state.json` holds, or will hold once `unwritten` is False.
        damaged: files that were found damaged at the start, in sentences for a person.
        unwritten: the disk was full. Call `flush` until it succeeds.

    Raises:
        UserError: another process uses the folder.
    """

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self._folder = folder
        self._durable = durable
        self.damaged: list[str] = []
        self.unwritten = False
        private_folder(folder)
        if durable:
            sync_folder(folder.parent)
        self._lock = ExitStack()
        self._lock.enter_context(
            folder_lock(
                folder,
                f"{folder} is in use by another agent process. Stop that one, or give this one a name (--id) "
                "or a folder (--state) of its own.",
            )
        )
        self.state, self._aside = self._read()
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
        """What a session has to know at its start, including the run that is kept aside."""
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

    def places(self, step: int) -> tuple[Path, Path]:
        """The files to which the worker writes the report and the memory of a step, before `put` names them."""
        name = f"{self.state.run}-{step}"
        return self._folder / f"report-{name}", self._folder / f"memory-{name}"

    def put(
        self,
        step: int,
        digest: bytes,
        size: int,
        *,
        part_bytes: int,
        with_memory: bool,
        memory_digest: bytes = b"",
    ) -> None:
        """Take the report of `step`, which the worker has written, and the memory if it has written one.

        Args:
            step: whose report it is.
            digest: of the report's file.
            size: bytes of the report.
            part_bytes: size of the parts to send it in.
            with_memory: whether the worker has written a new memory.
            memory_digest: of that memory's file.
        """
        report, memory = self.places(step)
        self._become(
            replace(
                self.state.without_report,
                step=step,
                report=report.name,
                report_memory=memory.name if with_memory else "",
                report_memory_digest=memory_digest.hex() if with_memory else "",
                digest=digest.hex(),
                size=size,
                part_bytes=part_bytes,
            )
        )

    def commit(self, step: int, confirmed: int = 0) -> None:
        """The report was accepted: its memory becomes the memory. The report and the memory before stay until `drop`."""
        state = self.state
        if step != state.step:
            return
        brings_memory = bool(state.report_memory)
        self._become(
            replace(
                state,
                accepted=step,
                confirmed=confirmed,
                memory=state.report_memory if brings_memory else state.memory,
                memory_digest=state.report_memory_digest if brings_memory else state.memory_digest,
                before=state.memory,
                before_digest=state.memory_digest,
                report_memory="",
                report_memory_digest="",
                lost="",
            )
        )

    def drop(self, step: int) -> None:
        """Remove the report. The memory stays as it is."""
        if step == self.state.step:
            self._become(self.state.without_report)

    def go_back(self, accepted: int) -> None:
        """The coordinator lost what it accepted after the step `accepted`.

        A kept report waits again, with the memory from before it. If the coordinator lost more than that, the memory
        belongs to later work, and the next report mentions it.
        """
        state = self.state
        if not state.kept:
            self._become(
                replace(
                    self.state.without_report,
                    accepted=accepted,
                    lost=AHEAD if state.memory else state.lost,
                )
            )
            return
        rewound = replace(
            state,
            accepted=accepted,
            memory=state.before,
            memory_digest=state.before_digest,
            report_memory=state.memory if state.memory != state.before else "",
            report_memory_digest=state.memory_digest if state.memory != state.before else "",
            before="",
            before_digest="",
        )
        if not state.report:  # it was damaged: the work is done again
            rewound = replace(rewound, step=0, report_memory="", report_memory_digest="")
        self._become(rewound)

    def lose(self, accepted: int, confirmed: int) -> None:
        """The coordinator accepted work that this folder does not know: the memory is older, or lost."""
        self._become(
            replace(self.state.without_report, accepted=accepted, confirmed=confirmed, lost=LOST)
        )

    def switch(self, run: str) -> None:
        """Switch to another run: the one aside, or a new one with an empty state. Keep this one aside."""
        before, aside = self.state, self._aside
        self._aside = before if before.run else aside
        self._become(aside if aside is not None and aside.run == run else State(run))

    def set_memory_aside(self) -> str:
        """The memory is damaged: keep the file for a person, and continue with an empty one. Returns a sentence about it."""
        name = self.state.memory
        said = self._put_away(
            name, "the memory of this agent's earlier work is damaged; it starts with an empty one"
        )
        self._become(replace(self.state, memory="", memory_digest="", lost=LOST))
        return said

    def set_report_aside(self) -> str:
        """The report is damaged: keep the file for a person, and forget the report. Returns a sentence about it."""
        said = self._put_away(
            self.state.report,
            "the report that waited to be sent is damaged; the work is done again",
        )
        self._become(
            replace(self.state, report="") if self.state.kept else self.state.without_report
        )
        return said

    def report_is_whole(self) -> bool:
        """Does the report still have the content that was put? Reads the whole file."""
        report = self.report
        return report is not None and _has_digest(report, self.state.digest)

    def flush(self) -> bool:
        """Write the state if a full disk has prevented it. True if everything is written now."""
        if self.unwritten:
            self._become(self.state)
        return not self.unwritten

    def _become(self, state: State) -> None:
        self.state = state
        tree = asdict(state)
        if self._aside is not None:
            tree["aside"] = asdict(self._aside)
        try:
            write_atomically(
                self._folder / "state.json", json.dumps(tree).encode(), durable=self._durable
            )
        except OSError as error:
            if not is_full(error):
                raise
            self.unwritten = True
            return
        self.unwritten = False
        self._sweep()

    def _read(self) -> tuple[State, State | None]:
        path = self._folder / "state.json"
        try:
            tree: dict[str, Any] = json.loads(path.read_bytes())
            aside = tree.pop("aside", None)
            states = (_state(tree), None if aside is None else _state(aside))
        except FileNotFoundError:
            return State(), None
        except (
            ValueError,
            TypeError,
            AttributeError,
        ):  # a broken disk; what it said is known to the coordinator
            path.replace(path.with_suffix(".broken"))
            self.damaged.append(
                f"{path}: the file is damaged; it is kept as {path.with_suffix('.broken').name}"
            )
            return State(), None
        return self._found(states[0]), None if states[1] is None else self._found(states[1])

    def _found(self, state: State) -> State:
        """The state without files that are missing or damaged."""
        gone = [name for name in sorted(state.files) if not (self._folder / name).exists()]
        self.damaged += [f"{self._folder / name}: the file is gone" for name in gone]
        report = self._folder / state.report
        if state.report and state.report not in gone and not _has_digest(report, state.digest):
            why = "the report that waited to be sent is damaged; the work is done again if it is still needed"
            self.damaged.append(self._put_away(state.report, why))
            gone.append(state.report)
        if state.kept and state.report in gone:
            state = replace(state, report="")
        elif state.report in gone or state.report_memory in gone:
            state = state.without_report
        if state.memory and state.memory in gone:
            state = replace(state, memory="", memory_digest="", lost=LOST)
        return replace(state, before="", before_digest="") if state.before in gone else state

    def _put_away(self, name: str, why: str) -> str:
        path = self._folder / name
        away = path.with_name(f"{name}.damaged")
        if path.exists():
            path.replace(away)
        return f"{path}: {why} (the file is kept as {away.name})"

    def _sweep(self) -> None:
        named = self.state.files | (self._aside.files if self._aside is not None else set())
        for path in self._leftovers():
            if path.name not in named:
                path.unlink(missing_ok=True)

    def _leftovers(self) -> Iterator[Path]:
        for path in self._folder.iterdir():
            if path.name.startswith(("report-", "memory-")) and not path.name.endswith(".damaged"):
                yield path


def _state(tree: dict[str, Any]) -> State:
    """Check the keys and the types of a state. Raises TypeError if one is wrong."""
    state = State(**tree)
    for field in fields(State):
        value, default = getattr(state, field.name), field.default
        if type(value) is not type(default):
            raise TypeError(f"{field.name} is {value!r}")
    return state


def _has_digest(path: Path, digest: str) -> bool:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES))
    return found.hexdigest() == digest
