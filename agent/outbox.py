"""What an agent must not lose: the report that waits for its fate, and the memory of accepted work.

A folder with one small `state.json` and the files that it names. The file is replaced atomically and is the only
truth: report and memory are written first, then named, and what it does not name is swept away. So a process that
is killed at any instant finds either the old state or the new one. Contents are only handed around by path: the
worker writes and reads them, this process never holds them.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from agent.events import Outboxed
from shared.files import held, private_folder, write_atomically


@dataclass(frozen=True)
class State:
    """What `state.json` holds. `memory` and `report` are file names, "" for none."""

    run: str = ""
    accepted: int = 0
    memory: str = ""
    step: int = 0
    report: str = ""
    report_memory: str = ""
    digest: str = ""  # hex, of the report
    size: int = 0  # bytes of the report
    part_bytes: int = 0  # how it is to be cut


class Outbox:
    """The outbox in `folder`, for one process at a time. `durable` also survives a power cut, at the price of fsync.

    Raises UserError where another process has the folder.
    """

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self._folder = folder
        self._durable = durable
        private_folder(folder)
        self._lock = ExitStack()
        self._lock.enter_context(
            held(
                folder,
                f"{folder} is in use by another agent process. Stop that one, or give this one a name (--id) "
                "or a folder (--state) of its own.",
            )
        )
        self.state = self._read()
        self._sweep()

    def close(self) -> None:
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def outboxed(self) -> Outboxed:
        return Outboxed(self.state.run, self.state.accepted, self.state.step)

    @property
    def memory(self) -> Path | None:
        """The memory after the newest accepted work; None before there was any."""
        return self._folder / self.state.memory if self.state.memory else None

    @property
    def report(self) -> Path | None:
        """The report that waits."""
        return self._folder / self.state.report if self.state.report else None

    def places(self, step: int) -> tuple[Path, Path]:
        """Where the worker writes the report and the memory of a step, before `put` names them."""
        name = f"{self.state.run}-{step}"
        return self._folder / f"report-{name}", self._folder / f"memory-{name}"

    def put(self, step: int, digest: bytes, size: int, *, part_bytes: int, with_memory: bool) -> None:
        """The report of `step` is written, and its memory too, if it comes with one."""
        report, memory = self.places(step)
        kept = State(self.state.run, self.state.accepted, self.state.memory)
        self._become(
            replace(
                kept,
                step=step,
                report=report.name,
                report_memory=memory.name if with_memory else "",
                digest=digest.hex(),
                size=size,
                part_bytes=part_bytes,
            )
        )

    def commit(self, step: int) -> None:
        """The report was accepted: its memory is the memory now."""
        if step == self.state.step:
            memory = self.state.report_memory or self.state.memory
            self._become(State(self.state.run, step, memory))

    def drop(self, step: int) -> None:
        """The report is not wanted: the memory stays what it was."""
        if step == self.state.step:
            self._become(State(self.state.run, self.state.accepted, self.state.memory))

    def forget(self, run: str) -> None:
        """Belong to another run, with nothing in hand."""
        self._become(State(run))

    def _become(self, state: State) -> None:
        self.state = state
        write_atomically(self._folder / "state.json", json.dumps(asdict(state)).encode(), durable=self._durable)
        self._sweep()

    def _read(self) -> State:
        path = self._folder / "state.json"
        try:
            state = State(**json.loads(path.read_bytes()))
        except FileNotFoundError:
            return State()
        except (ValueError, TypeError):  # a broken disk; what it said can be had again from the coordinator
            path.replace(path.with_suffix(".broken"))
            return State()
        if any(name and not (self._folder / name).exists() for name in (state.report, state.report_memory)):
            state = State(state.run, state.accepted, state.memory)
        return state if not state.memory or (self._folder / state.memory).exists() else replace(state, memory="")

    def _sweep(self) -> None:
        named = {self.state.memory, self.state.report, self.state.report_memory}
        for path in self._folder.iterdir():
            if path.name.startswith(("report-", "memory-")) and path.name not in named:
                path.unlink(missing_ok=True)
