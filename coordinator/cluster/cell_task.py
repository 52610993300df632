"""One cell of a comparison as a task for another machine: a scenario goes there, the run's folder comes back.

The cell runs without a broker, in a temporary folder of the machine that it runs on, so the machines need no common
file system. Each of them needs the same version of Covey, and the data below the same data root.
"""

from __future__ import annotations

import io
import os
import platform
import tarfile
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from covey.coordinator.processes.workers import WorkerPool
from covey.coordinator.record.notices import ignore
from covey.coordinator.run.options import RunOptions
from covey.coordinator.run.result import installed_versions
from covey.coordinator.simulate.driver import simulate
from covey.shared.errors import UserError
from covey.shared.own_code.consent import AllowedCode, consented
from covey.shared.scenario.scenario import Scenario

# A finished run needs none of these: they are what agents remember, and reports that were folded.
WORKING_FILES = ("agents", "outgoing", "spool")
PACKAGES = ("covey", "torch", "numpy")


@dataclass(frozen=True)
class CellTask:
    """The order for one cell. It is plain data: no code travels with it."""

    name: str  # the cell's
    scenario: str  # YAML
    data_root: str | None  # of the named data sets, on the machine that runs the cell
    allowed: tuple[
        str, ...
    ]  # code of the user's own, by name: it is imported only where it is installed


@dataclass(frozen=True)
class CellMachine:
    """The machine that a cell ran on."""

    worker: str  # its address in the cluster
    host: str
    system: str
    cores: int
    versions: dict[
        str, str
    ]  # of the packages that decide the bytes of a model, as far as they are installed


@dataclass(frozen=True)
class CellOutcome:
    """What a machine sends back: the folder of the run, or why there is none."""

    name: str
    place: CellMachine
    seconds: float
    archive: bytes = b""  # the run's folder as a tar file
    failure: str = ""  # in words for the user; empty if the cell is finished

    def text(self) -> str:
        """The outcome in a few words."""
        ended = "failed" if self.failure else "finished"
        return f"{self.name}: {ended} on {self.place.host} after {self.seconds:.0f} s"

    def to_json(self) -> dict[str, Any]:
        """The outcome as `--json` prints it."""
        return {
            "event": "cell",
            "cell": self.name,
            "host": self.place.host,
            "worker": self.place.worker,
            "seconds": self.seconds,
            "failure": self.failure,
        }


def this_place(worker: str) -> CellMachine:
    """A description of the machine that runs this."""
    return CellMachine(
        worker=worker,
        host=platform.node(),
        system=f"{platform.system()} {platform.machine()}",
        cores=os.cpu_count() or 1,
        versions=installed_versions(PACKAGES),
    )


def run_cell(task: CellTask, worker: str) -> CellOutcome:
    """Run one cell to its end.

    Args:
        task: the cell.
        worker: the address of this machine in the cluster, for the record.
    """
    place = this_place(worker)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="covey-cell-") as temporary:
        folder = Path(temporary) / "run"
        failure = ""
        archive = b""
        try:
            _run(task, folder)
        except UserError as error:
            failure = str(error)
        else:
            archive = packed(folder)
    return CellOutcome(task.name, place, time.monotonic() - begin, archive, failure)


def _run(task: CellTask, folder: Path) -> None:
    scenario = Scenario.model_validate(yaml.safe_load(task.scenario))
    data_root = Path(task.data_root) if task.data_root is not None else None
    allowed = AllowedCode.parse(task.allowed)
    options = RunOptions(folder, data_root=data_root, allowed=allowed)
    # the cluster runs one cell per thread, so a cell takes one core unless its scenario asks for more
    workers = 1
    if scenario.fleet is not None and scenario.fleet.workers:
        workers = scenario.fleet.workers
    with consented(allowed):
        pool = _pools.of(workers, allowed)
        try:
            simulate(scenario, options, pool, ignore)
        except BaseException:
            _pools.close()  # perhaps in the middle of a job
            raise


class _Pools(threading.local):
    """The worker processes of each thread. The next cell uses them again: importing torch takes seconds."""

    _key: tuple[int, AllowedCode] | None = None
    _open: ExitStack | None = None
    _pool: WorkerPool | None = None  # as the key asks for

    def of(self, workers: int, allowed: AllowedCode) -> WorkerPool:
        """A pool of this many workers that may load this code."""
        key = (workers, allowed)
        if self._pool is None or self._key != key:
            self.close()
            self._open = ExitStack()
            folder = self._open.enter_context(tempfile.TemporaryDirectory(prefix="covey-workers-"))
            self._pool = self._open.enter_context(WorkerPool(workers, Path(folder) / "workers.log"))
            self._key = key
        return self._pool

    def close(self) -> None:
        """End the workers. They also end by themselves when this process ends."""
        if self._open is not None:
            self._open.close()
        self._open = None
        self._pool = None


_pools = _Pools()


def packed(folder: Path) -> bytes:
    """The folder of a finished run as a compressed tar file, without its working files."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for path in sorted(folder.iterdir()):
            if path.name not in WORKING_FILES:
                archive.add(path, arcname=path.name)
    return content.getvalue()


def unpack(content: bytes, folder: Path) -> None:
    """Write the files of `packed` to a folder that exists.

    Raises:
        tarfile.TarError: this is no such file, or it names files outside of the folder.
    """
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        archive.extractall(folder, filter="data")
