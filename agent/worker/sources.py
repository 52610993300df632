"""The data of a worker: files of the device, or one agent's share of a simulated fleet's data (`fleet_share`).

A worker loads the data once and keeps it.
"""

from __future__ import annotations

from functools import lru_cache

from covey.agent.data.cells import LEAVES_OUT
from covey.agent.data.dataset import Dataset
from covey.agent.data_place import Fingerprint, fingerprint
from covey.agent.worker.without_data import Blank
from covey.shared import extras
from covey.shared.own_code.consent import framework_of
from covey.shared.scenario.task import Task
from covey.shared.wire.jobs import DataSource, DeviceData, FleetShare


def dataset(
    source: DataSource | Blank, task: Task, round_: int = 0, *, leaves_out: bool = False
) -> Dataset:
    """The data of an agent in the form of the task, with a test part. Raises DataError if it does not fit.

    Args:
        source: where it comes from.
        task: of the run.
        round_: rounds that are complete: the data of a simulated fleet can drift.
        leaves_out: of a table on the device, rows that do not fit, rather than refuse it.
    """
    if isinstance(source, FleetShare):
        from covey.agent.worker.fleet_share import (
            share,  # here, because no device has a fleet's data
        )

        return share(source, task, round_)
    if framework_of(task.model.name) == "flower":
        light = extras.part("light", "client_data", "task.model")
        own: Dataset = light.client_data("" if isinstance(source, Blank) else source.data, task)
        return own
    if isinstance(source, Blank):
        return source.dataset(task)
    # data that has changed on the disk is read again
    files = fingerprint(source.data)
    return _local(source.data, source.label, task.model_dump_json(), files, leaves_out=leaves_out)


def stated_counts(source: DeviceData, task: Task) -> tuple[int, int]:
    """The samples for training and for tests that a status states where the owner demands anything: they follow from no cell.

    Raises:
        DataError: data of this form does not fit the task.
    """
    if framework_of(task.model.name) == "flower":
        return 1, 1  # a client loads its own data, of whose form nothing is known here
    return _form(source.data, source.label, task.model_dump_json(), fingerprint(source.data))


@lru_cache(maxsize=1)
def _local(
    data: str, label: str | None, task: str, files: Fingerprint | None, *, leaves_out: bool
) -> Dataset:
    from covey.agent.data.check import load_local  # a simulated agent needs none of it

    before = LEAVES_OUT.set(leaves_out)
    try:
        return load_local(data, label, Task.model_validate_json(task))
    finally:
        LEAVES_OUT.reset(before)


@lru_cache(maxsize=1)
def _form(data: str, label: str | None, task: str, files: Fingerprint | None) -> tuple[int, int]:
    from covey.agent.data.form import form_counts

    before = LEAVES_OUT.set(True)
    try:
        return form_counts(data, label, Task.model_validate_json(task))
    finally:
        LEAVES_OUT.reset(before)
