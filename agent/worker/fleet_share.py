"""The data of a simulated fleet, and each agent's share of it. A worker loads it once, and its agents share it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from cachetools import LRUCache

from covey.agent.data.dataset import (
    Dataset,
    Key,
    Outputs,
    Rows,
    SharedTests,
    kept_arrays,
    sets_of,
    shared_tests,
)
from covey.agent.data.fit import fit
from covey.agent.data.partition import SampleSplit, client_dataset, fleet_data
from covey.shared.scenario.load import load_without_files
from covey.shared.scenario.simulated_agents import Holders, holders_of
from covey.shared.scenario.task import Task
from covey.shared.wire.jobs import FleetShare

SHARES_BYTES = 32 << 20  # of a process, for shares of simulated agents that are kept
ShareKey = tuple[int, str]  # agent, task


def share(source: FleetShare, task: Task, round_: int) -> Dataset:
    """The data of one agent in the form of the task, with this many rounds complete. Raises DataError if it does not fit."""
    fleet = _fleet(source.scenario, source.data_root)
    index = _holders(source.scenario, source.data_root).index_in(round_, source.index)
    key = (index, task.model_dump_json())
    found = fleet.shares.get(key)
    if found is None:
        own = fit(client_dataset(fleet.data, fleet.split, index), task)
        found = replace(own, shared_tests=fleet.shared_tests(index))
        with suppress(ValueError):  # it alone is larger than all the room
            fleet.shares[key] = found
    return found


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
