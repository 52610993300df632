"""The cells of a comparison on a Dask cluster.

Cells are independent of each other, so any number of machines can run them at the same time. A machine that is lost
costs the cells that it was running: Dask starts them again on another one.

One cell of a comparison as a task for another machine: a scenario goes there, the run's folder comes back.

The cell runs without a broker, in a temporary folder of the machine that it runs on, so the machines need no common
file system. Each of them needs the same version of Covey, and the data below the same data root.
"""

from __future__ import annotations

import io
import json
import os
import platform
import secrets
import shutil
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from covey.coordinator.record.notices import ignore
from covey.coordinator.run.options import RunOptions
from covey.coordinator.run.result import installed_versions
from covey.extras.compare.grid import Cell
from covey.extras.simulate.driver import simulate
from covey.extras.simulate.workers import WorkerPool
from covey.shared.errors import UserError
from covey.shared.own_code.consent import AllowedCode, consented
from covey.shared.scenario.describe import dump
from covey.shared.scenario.scenario import Scenario
from covey.shared.storage.files import private_folder, write_atomically

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
    workers = scenario.fleet.workers_on(1) if scenario.fleet is not None else 1
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


SCHEME = "dask://"
HERE = "this machine"  # in place of a worker's address
RETRIES = 2  # of a cell whose machine was lost
CONNECT_WITHIN_S = 10
PLACE = "ran_on.json"  # in a cell's folder: the machine that it ran on

Finished = Callable[[CellOutcome, int], None]  # a cell's outcome, and how many are still missing


def run_together(
    machines: str | int,
    cells: Sequence[Cell],
    out: Path,
    *,
    data_root: Path | None,
    allowed: AllowedCode,
    finished: Finished,
) -> dict[str, str]:
    """Run cells at the same time, without a broker, and put their folders below `out`.

    Args:
        machines: dask://host:port of a scheduler, or how many cells this machine runs at once.
        cells: the cells to run.
        out: the comparison's folder.
        data_root: the folder of the named data sets, on each machine.
        allowed: code of the user's own that cells may load where it is installed.
        finished: called with each outcome as it comes.

    Returns:
        Why cells could not be run, by their names; empty if all are finished.

    Raises:
        UserError: the scheduler cannot be reached, has no workers, or a worker has another version.
    """
    with ExitStack() as stack:
        outcomes: Callable[[Sequence[CellTask]], Iterator[CellOutcome]]
        if isinstance(machines, int):
            outcomes = partial(_outcomes_here, jobs=machines)
        else:
            client = stack.enter_context(_client(machines))
            _check_workers(client, machines)
            outcomes = partial(_outcomes, client)
        root = str(data_root.resolve()) if data_root is not None else None
        names = tuple(sorted(allowed.names))
        by_name: dict[str, Cell] = {}
        tasks: list[CellTask] = []
        for cell in cells:
            by_name[cell.name] = cell
            tasks.append(CellTask(cell.name, dump(cell.scenario), root, names))
        failures: dict[str, str] = {}
        missing = len(tasks)
        for outcome in outcomes(tasks):
            missing -= 1
            if outcome.failure:
                failures[outcome.name] = outcome.failure
            else:
                cell = by_name[outcome.name]
                _keep(outcome, out / cell.folder)
            finished(outcome, missing)
    return failures


def failed(failures: Mapping[str, str]) -> UserError:
    """The error that names the cells that could not be run, and why the first of them could not."""
    first, *others = failures
    text = f"cell {first}: {failures[first]}"
    if others:
        text += f" ({len(others)} more cells failed: {', '.join(others)})"
    return UserError(text)


def _outcomes_here(tasks: Sequence[CellTask], jobs: int) -> Iterator[CellOutcome]:
    """The outcomes of tasks that run on this machine, `jobs` at a time, each with worker processes of its own."""
    pool = ThreadPoolExecutor(jobs)
    try:
        for future in as_completed([pool.submit(run_cell, task, HERE) for task in tasks]):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _outcomes(client: Any, tasks: Sequence[CellTask]) -> Iterator[CellOutcome]:
    """The outcomes of tasks in the order in which they end; ends those that run where the caller stops."""
    from distributed import as_completed as ended

    # a scheduler that outlives this command must not answer with the outcome of an earlier one
    mark = secrets.token_hex(8)
    names = {f"covey-cell-{mark}-{task.name}": task.name for task in tasks}
    futures = client.map(_on_a_worker, tasks, key=list(names), pure=False, retries=RETRIES)
    in_order_of_end: Any = ended(futures, loop=client.loop)  # type: ignore[no-untyped-call]
    try:
        for future in in_order_of_end:
            error = future.exception()
            if error is None:
                yield future.result()
            else:
                # a fault of the cluster, such as machines that are lost again and again
                kind = type(error).__name__
                name = names[future.key]
                yield CellOutcome(name, this_place(""), 0.0, failure=f"{kind}: {error}")
    finally:
        client.cancel(futures, force=True)


def _on_a_worker(task: CellTask) -> CellOutcome:
    """Run a cell on the machine that Dask chose."""
    from distributed import get_worker

    return run_cell(task, get_worker().address)


def _place_of_worker(dask_worker: Any) -> CellMachine:
    """The description that a worker gives of its machine; Dask fills in the argument."""
    return this_place(dask_worker.address)


@contextmanager
def _client(address: str) -> Iterator[Any]:
    """A connection to the scheduler at dask://host:port."""
    try:
        from distributed import Client
    except ImportError:
        raise UserError(
            "--executor dask://... needs Dask: pip install '.[dask]' in a clone of Covey, "
            "on this machine and on each worker"
        ) from None
    scheduler = address.removeprefix(SCHEME)
    try:
        client: Any = Client(  # type: ignore[no-untyped-call]
            f"tcp://{scheduler}", timeout=CONNECT_WITHIN_S, set_as_default=False
        )
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"--executor {address}: no Dask scheduler answers there ({reason}); "
            "start one with `dask scheduler`, and a worker with `dask worker HOST:PORT`"
        ) from None
    try:
        yield client
    finally:
        client.close()


def _check_workers(client: Any, address: str) -> None:
    """Raises UserError if there are no workers, or if a worker has another version of Covey."""
    places: dict[str, CellMachine] = client.run(_place_of_worker)
    if not places:
        raise UserError(
            f"--executor {address}: the scheduler has no workers; start one with `dask worker HOST:PORT`"
        )
    own = this_place("").versions["covey"]
    for worker, place in places.items():
        theirs = place.versions.get("covey")
        if theirs != own:
            found = theirs or "no Covey"
            raise UserError(
                f"--executor {address}: the worker {worker} on {place.host} has {found}, this machine has "
                f"Covey {own}; install the same version on both"
            )


def _keep(outcome: CellOutcome, folder: Path) -> None:
    """Put a finished run where its cell belongs: all of it, or nothing."""
    private_folder(folder.parent)
    with tempfile.TemporaryDirectory(prefix=".arriving-", dir=folder.parent) as temporary:
        arrived = Path(temporary) / "run"
        private_folder(arrived)
        unpack(outcome.archive, arrived)
        place = json.dumps(asdict(outcome.place), indent=1)
        write_atomically(arrived / PLACE, place.encode())
        if folder.exists():
            # ours, and unfinished: a run that was stopped on this machine
            shutil.rmtree(folder)
        arrived.rename(folder)


def place_of(folder: Path) -> dict[str, Any] | None:
    """The machine that a cell ran on, as its folder records it; None for this machine."""
    file = folder / PLACE
    if not file.exists():
        return None
    place: dict[str, Any] = json.loads(file.read_text())
    return place
