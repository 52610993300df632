"""The data of a worker: files of the device, or one agent's share of a simulated fleet's data.

A worker loads the data once and keeps it: the agents of a fleet share one data set.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from cachetools import LRUCache

from covey.agent.data import Dataset, fit
from covey.agent.data.cells import LEAVES_OUT
from covey.agent.data.dataset import (
    Key,
    Outputs,
    Rows,
    SharedTests,
    kept_arrays,
    sets_of,
    shared_tests,
)
from covey.agent.data.partition import SampleSplit, client_dataset, fleet_data
from covey.agent.data_place import Fingerprint, fingerprint
from covey.agent.worker.without_data import Blank
from covey.shared import extras
from covey.shared.own_code.consent import framework_of
from covey.shared.scenario.load import load_without_files
from covey.shared.scenario.simulated_agents import Holders, holders_of
from covey.shared.scenario.task import Task
from covey.shared.wire.jobs import DataSource, DeviceData, FleetShare

SHARES_BYTES = 32 << 20  # of a process, for shares of simulated agents that are kept
ShareKey = tuple[int, str]  # agent, task


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
        return _share(source, task, round_)
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


def _share(source: FleetShare, task: Task, round_: int) -> Dataset:
    fleet = _fleet(source.scenario, source.data_root)
    index = _holders(source.scenario, source.data_root).index_in(round_, source.index)
    key = (index, task.model_dump_json())
    share = fleet.shares.get(key)
    if share is None:
        own = fit(client_dataset(fleet.data, fleet.split, index), task)
        share = replace(own, shared_tests=fleet.shared_tests(index))
        with suppress(ValueError):  # it alone is larger than all the room
            fleet.shares[key] = share
    return share


def write_partition(source: FleetShare, out: Path) -> None:
    """Write which samples belong to which agent of the whole fleet, as .npz."""
    _fleet(source.scenario, source.data_root).split.save(out)


def _bytes_of(share: Dataset) -> int:
    train = share.features.nbytes + share.targets.nbytes
    return train + share.test_features.nbytes + share.test_targets.nbytes


@dataclass(frozen=True)
class _Fleet:
    """The data of a fleet, and what was made of it so far."""

    data: Dataset
    split: SampleSplit  # which samples belong to which agent
    sets: Rows | None  # see `sets_of`
    shares: LRUCache[ShareKey, Dataset]  # as the task has them: each is a copy
    outputs: LRUCache[Key, Outputs]

    def shared_tests(self, index: int) -> SharedTests | None:
        """The test rows that an agent has in common with others."""
        if self.sets is None:
            return None
        own = slice(*self.split.test_ptr[index : index + 2])
        return shared_tests(self.sets[own], self.split.test_idx[own], self.outputs)


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


@lru_cache(maxsize=1)
def _holders(scenario: Path, data_root: Path | None) -> Holders:
    """Whose data the agents of a fleet have after a drift."""
    truth = _fleet(scenario, data_root).split.truth
    return holders_of(load_without_files(scenario), truth)


@lru_cache(maxsize=1)
def _fleet(scenario: Path, data_root: Path | None) -> _Fleet:
    data, split = fleet_data(
        load_without_files(scenario), None if data_root is None else str(data_root)
    )
    sets = None if split.turns is not None else sets_of(split.test_idx, split.test_ptr)
    return _Fleet(data, split, sets, LRUCache(SHARES_BYTES, _bytes_of), kept_arrays())
