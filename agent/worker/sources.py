"""The data of a worker: files of the device, or one agent's share of a simulated fleet's data.

A worker loads the data once and keeps it: the agents of a fleet share one data set.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from covey.agent.data import Dataset, fit
from covey.agent.data.partition import Split, client_dataset, fleet_data
from covey.agent.data_watch import Fingerprint, fingerprint
from covey.shared.scenario.drift import Holders, holders_of
from covey.shared.scenario.load import load_without_files
from covey.shared.scenario.task import Task

SHARES_BYTES = 32 << 20  # of a process, for shares of simulated agents that are kept
ShareKey = tuple[int, str]  # agent, task


class Source(Protocol):
    """The data of one agent."""

    def dataset(self, task: Task, round_: int = 0) -> Dataset:
        """The data in the form of the task, with a test part. Raises DataError if it does not fit.

        Args:
            task: of the run.
            round_: rounds that are complete: the data of a simulated fleet can drift.
        """


@dataclass(frozen=True)
class LocalSource:
    """A file or folder on this device."""

    data: str
    label: str | None = None

    def dataset(self, task: Task, round_: int = 0) -> Dataset:
        # data that has changed on the disk is read again
        files = fingerprint(self.data)
        return _local(self.data, self.label, task.model_dump_json(), files)


@dataclass(frozen=True)
class FleetSource:
    """Agent `index` of the fleet of a scenario file."""

    scenario: str
    data_root: str | None
    index: int = 0

    def dataset(self, task: Task, round_: int = 0) -> Dataset:
        everything, split, shares = _fleet(self.scenario, self.data_root)
        index = _holders(self.scenario, self.data_root).index_in(round_, self.index)
        key = (index, task.model_dump_json())
        share = shares.get(key)
        if share is None:
            share = fit(client_dataset(everything, split, index), task)
            shares.add(key, share)
        return share

    def write_partition(self, out: Path) -> None:
        """Write which samples belong to which agent of the whole fleet, as .npz."""
        _, split, _ = _fleet(self.scenario, self.data_root)
        split.save(out)


def is_simulated(wire: Mapping[str, Any]) -> bool:
    """Whether this is an agent of a simulated fleet. Its own command line decides that, never an order."""
    return "scenario" in wire


def source_of(wire: Mapping[str, Any]) -> LocalSource | FleetSource:
    """The source that a job names.

    Args:
        wire: {"scenario", "data_root", "index"} of a simulated agent, {"data", "label"} of a device.
    """
    if not is_simulated(wire):
        return LocalSource(wire["data"], wire.get("label"))
    return FleetSource(wire["scenario"], wire.get("data_root"), wire.get("index", 0))


def describe(data: Dataset, task: Task) -> dict[str, Any]:
    """The description of the data that leaves the device: counts, and the labels of the training part."""
    from covey.agent.data.check import inspect

    return inspect(data, task).disclosure.to_json()


class _Shares:
    """The newest shares of simulated agents as the task has them, as far as there is room: each is a copy."""

    def __init__(self, room_bytes: int) -> None:
        self._room_bytes = room_bytes
        self._kept: OrderedDict[ShareKey, Dataset] = OrderedDict()  # oldest first
        self._bytes = 0  # of all that are kept

    def get(self, key: ShareKey) -> Dataset | None:
        return self._kept.get(key)

    def add(self, key: ShareKey, share: Dataset) -> None:
        """Keep a share in the place of the oldest ones, unless it alone takes all the room."""
        size = _bytes_of(share)
        if size > self._room_bytes:
            return
        self._kept[key] = share
        self._bytes += size
        while self._bytes > self._room_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= _bytes_of(oldest)


def _bytes_of(share: Dataset) -> int:
    train = share.features.nbytes + share.targets.nbytes
    return train + share.test_features.nbytes + share.test_targets.nbytes


@lru_cache(maxsize=1)
def _local(data: str, label: str | None, task: str, files: Fingerprint | None) -> Dataset:
    from covey.agent.data.check import load_local  # a simulated agent needs none of it

    return load_local(data, label, Task.model_validate_json(task))


@lru_cache(maxsize=1)
def _holders(scenario: str, data_root: str | None) -> Holders:
    """Whose data the agents of a fleet have after a drift."""
    _, split, _ = _fleet(scenario, data_root)
    return holders_of(load_without_files(Path(scenario)), split.truth)


@lru_cache(maxsize=1)
def _fleet(scenario: str, data_root: str | None) -> tuple[Dataset, Split, _Shares]:
    """The data of a fleet, which samples belong to which agent, and the shares that were asked for."""
    everything, split = fleet_data(load_without_files(Path(scenario)), data_root)
    return everything, split, _Shares(SHARES_BYTES)
