"""The cells of a comparison on a Dask cluster.

Cells are independent of each other, so any number of machines can run them at the same time. A machine that is lost
costs the cells that it was running: Dask starts them again on another one.
"""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from covey.coordinator.cluster.cell_task import (
    CellMachine,
    CellOutcome,
    CellTask,
    run_cell,
    this_place,
    unpack,
)
from covey.coordinator.compare.grid import Cell
from covey.shared.errors import UserError
from covey.shared.own_code.consent import AllowedCode
from covey.shared.scenario.describe import dump
from covey.shared.storage.files import private_folder, write_atomically

SCHEME = "dask://"
RETRIES = 2  # of a cell whose machine was lost
CONNECT_WITHIN_S = 10
PLACE = "ran_on.json"  # in a cell's folder: the machine that it ran on

Finished = Callable[[CellOutcome, int], None]  # a cell's outcome, and how many are still missing


def run_on_dask(
    address: str,
    cells: Sequence[Cell],
    out: Path,
    *,
    data_root: Path | None,
    allowed: AllowedCode,
    finished: Finished,
) -> dict[str, str]:
    """Run cells on the machines of a cluster, and put their folders below `out`.

    Args:
        address: of the scheduler, dask://host:port.
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
    with _client(address) as client:
        _check_workers(client, address)
        root = str(data_root.resolve()) if data_root is not None else None
        names = tuple(sorted(allowed.names))
        by_name: dict[str, Cell] = {}
        tasks: list[CellTask] = []
        for cell in cells:
            by_name[cell.name] = cell
            tasks.append(CellTask(cell.name, dump(cell.scenario), root, names))
        failures: dict[str, str] = {}
        missing = len(tasks)
        for outcome in _outcomes(client, tasks):
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
        names = ", ".join(others)
        text += f" ({len(others)} more cells failed: {names})"
    return UserError(text)


def _outcomes(client: Any, tasks: Sequence[CellTask]) -> Iterator[CellOutcome]:
    """The outcomes of tasks in the order in which they end; ends those that run where the caller stops."""
    from distributed import as_completed

    # a scheduler that outlives this command must not answer with the outcome of an earlier one
    mark = secrets.token_hex(8)
    names = {f"covey-cell-{mark}-{task.name}": task.name for task in tasks}
    futures = client.map(_on_a_worker, tasks, key=list(names), pure=False, retries=RETRIES)
    in_order_of_end: Any = as_completed(futures, loop=client.loop)  # type: ignore[no-untyped-call]
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
