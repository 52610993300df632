"""Who of a simulated fleet holds which samples.

A partition is stored as `.npz`: agent i owns `train_idx[train_ptr[i]:train_ptr[i+1]]` and tests on
`test_idx[test_ptr[i]:test_ptr[i+1]]`. `test_of` names the part that `test_idx` points into: the data set's "test"
part or its "train" part (the single pool of a set without a test part); a file without it means "test"
if the set has such a part. Optional: `truth` per agent (a cluster), `turns` (quarter turns
of the agent's images), `populations` (names that `truth` counts).

Test sets are "local views": rules that hand out labels give an agent all test samples of every label
that it trains on, so test sets overlap. The rules iid, quantity and rotation share the test samples out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from covey.agent.data.arrays import read_npz
from covey.agent.data.dataset import Array, Dataset, Indices, held_out, take
from covey.agent.data.named import load_named
from covey.agent.data.partition_rules import AgentSamples, NaturalClients, by_group, rule
from covey.shared.errors import UserError
from covey.shared.scenario.fleet import Fleet
from covey.shared.scenario.partition import ByGroup, Partition
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import generator
from covey.shared.storage.files import atomic_replace

REQUIRED_ARRAYS = frozenset({"train_idx", "train_ptr", "test_idx", "test_ptr"})


@dataclass(frozen=True)
class SampleSplit:
    """Who holds which samples: indices of all agents in one array each, with N + 1 pointers."""

    train_idx: Indices  # into the training part; each sample at most once
    train_ptr: Indices  # (N + 1,), rising from 0 to len(train_idx)
    test_idx: Indices  # into the part that `test_of` names; may repeat
    test_ptr: Indices  # (N + 1,), rising from 0 to len(test_idx)
    test_of: str = "test"  # "test" or "train"
    truth: Array | None = None  # (N,) cluster of each agent
    turns: Indices | None = None  # (N,) quarter turns of each agent's images
    populations: tuple[str, ...] = ()  # the names that `truth` counts

    @property
    def agents(self) -> int:
        """N, the number of agents."""
        return len(self.train_ptr) - 1

    def train(self, agent: int) -> Indices:
        """The agent's training samples, indices into the data set's training part."""
        return self.train_idx[self.train_ptr[agent] : self.train_ptr[agent + 1]]

    def test(self, agent: int) -> Indices:
        """The agent's test samples, indices into the part that `test_of` names."""
        return self.test_idx[self.test_ptr[agent] : self.test_ptr[agent + 1]]

    def save(self, path: Path) -> None:
        """Write the partition as .npz, see the module's text. Replaces an older file at once."""
        arrays: dict[str, Array] = {
            "train_idx": self.train_idx,
            "train_ptr": self.train_ptr,
            "test_idx": self.test_idx,
            "test_ptr": self.test_ptr,
            "test_of": np.array(self.test_of),
        }
        if self.truth is not None:
            arrays["truth"] = self.truth
        if self.turns is not None:
            arrays["turns"] = self.turns
        if self.populations:
            arrays["populations"] = np.array(self.populations)
        # a coordinator may be reading the old file
        with atomic_replace(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # the stubs fear an array named allow_pickle


def partition(
    cfg: Partition,
    targets: Array,
    agents: int,
    rng: np.random.Generator,
    *,
    groups: Array | None = None,
    test_targets: Array | None = None,
    test_groups: Array | None = None,
    populations: Array | None = None,
    test_share: float = 0.2,
    overlap: int | None = None,
) -> SampleSplit:
    """Split samples among agents by a rule.

    Args:
        cfg: the rule and its settings.
        targets: (n,) labels of the training part.
        agents: N.
        rng: all draws come from it.
        groups: (n,) the natural client of each training sample.
        test_targets: (tests,) labels of the test part; None or empty for a data set without one.
        test_groups: (tests,) the natural client of each test sample.
        populations: (n,) the known population of each training sample.
        test_share: without a test part, the share of the pool that is held out first (by_group: of every agent's own
            samples).
        overlap: of windows: how many before a window share rows with it.

    Raises:
        UserError: the rule does not suit the data, or an agent would get no sample.
    """
    has_test = test_targets is not None and len(test_targets) > 0
    if isinstance(cfg, ByGroup):
        if groups is None:
            raise UserError(
                "fleet.partition by_group: this data set names no natural clients; use another rule"
            )
        if not has_test:
            test_groups = None
        clients = NaturalClients(groups, test_groups, populations, overlap)
        samples = by_group(cfg, targets, clients, agents=agents, rng=rng, test_share=test_share)
    elif has_test and test_targets is not None:
        samples = rule(cfg, targets, test_targets, agents, rng)
    elif overlap:
        raise UserError(
            f"fleet.partition {cfg.name}: the samples are windows that overlap, and this rule would test on rows that "
            "were trained on; use by_group with split: time, or windows that do not overlap"
        )
    else:
        samples = _from_one_pool(cfg, targets, agents, rng, test_share)
    split = _joined(samples)
    _check_everyone_trains(split)
    return split


def _from_one_pool(
    cfg: Partition, targets: Array, agents: int, rng: np.random.Generator, test_share: float
) -> AgentSamples:
    """Hold out a test part of the pool first, then split both parts by the rule."""
    order = rng.permutation(len(targets))
    held = held_out(len(targets), test_share)
    test = np.sort(order[:held])
    train = np.sort(order[held:])
    samples = rule(cfg, targets[train], targets[test], agents, rng)
    return replace(
        samples,
        train=[train[own] for own in samples.train],
        test=[test[own] for own in samples.test],
        test_of="train",
    )


def load_split(path: str | Path, data: Dataset, agents: int) -> SampleSplit:
    """A stored partition, checked against the data set and the number of agents.

    Raises:
        UserError: the file does not exist, or an array is missing or does not fit; the text names it.
        DataError: the file is no .npz file.
    """
    place = Path(path)
    if not place.is_file():
        raise UserError(
            f"fleet.partition: {place} does not exist; give the path of an .npz file, or a rule"
        )
    arrays = read_npz(place)
    missing = sorted(REQUIRED_ARRAYS - set(arrays))
    if missing:
        raise UserError(
            f"{place}: no array {', '.join(missing)}; it holds {', '.join(sorted(arrays))}"
        )
    test_of = "test" if data.has_test else "train"
    if "test_of" in arrays:
        test_of = str(arrays["test_of"])
    sizes = {"train": len(data.targets), "test": len(data.test_targets)}
    if test_of not in sizes:
        raise UserError(f"{place}: test_of is {test_of!r}; expected 'train' or 'test'")
    populations = [str(name) for name in arrays.get("populations", ())]
    split = SampleSplit(
        train_idx=_indices(place, arrays, "train_idx", sizes["train"]),
        train_ptr=_pointers(place, arrays, "train", agents),
        test_idx=_indices(place, arrays, "test_idx", sizes[test_of]),
        test_ptr=_pointers(place, arrays, "test", agents),
        test_of=test_of,
        truth=_per_agent(place, arrays, "truth", agents),
        turns=_per_agent(place, arrays, "turns", agents),
        populations=tuple(populations),
    )
    shared = np.flatnonzero(np.bincount(split.train_idx) > 1)
    if len(shared):
        raise UserError(
            f"{place}: training sample {shared[0]} is in train_idx more than once ({len(shared)} "
            "such samples); give each to one agent"
        )
    _check_everyone_trains(split)
    return split


def fleet_data(
    scenario: Scenario, data_root: str | Path | None = None
) -> tuple[Dataset, SampleSplit]:
    """A simulated fleet's data set and who holds what, both determined by the scenario and its seed.

    Raises:
        UserError: the scenario has no fleet, or its partition does not suit the data.
        DataError: the data set is not on this machine, or damaged.
    """
    fleet = scenario.fleet
    if fleet is None:
        raise UserError(
            "the scenario has no fleet, so that nothing can be simulated; add a section 'fleet'"
        )
    data = load_named(fleet.data, data_root, scenario.task)
    if isinstance(fleet.partition, str):
        if fleet.limit is not None:
            raise UserError(
                "fleet.limit and a stored fleet.partition exclude each other, because its indices "
                "need all samples; remove one of the two"
            )
        return data, load_split(fleet.partition, data, fleet.agents)
    if fleet.limit is not None:
        data = limited(data, fleet.limit, generator(scenario.seed, "limit"))
    return data, divided(data, fleet.partition, fleet, scenario.seed)


def divided(data: Dataset, rule: Partition, fleet: Fleet, seed: int) -> SampleSplit:
    """Who of a fleet holds which of these samples, by a rule and the scenario's seed. Raises UserError."""
    return partition(
        rule,
        data.targets,
        fleet.agents,
        generator(seed, "partition"),
        groups=data.groups,
        test_targets=data.test_targets,
        test_groups=data.test_groups,
        populations=data.populations,
        test_share=fleet.test_share,
        overlap=data.overlap,
    )


def limited(data: Dataset, limit: int, rng: np.random.Generator) -> Dataset:
    """`limit` training samples at random, in their old order, and the same share of the test part."""
    n = len(data.targets)
    tests = len(data.test_targets)
    if limit >= n:
        return data
    order = rng.permutation(n)
    test_order = rng.permutation(tests)
    test_limit = max(tests * limit // n, min(tests, 1))  # a test part keeps one sample at least
    kept = np.sort(order[:limit])
    kept_test = np.sort(test_order[:test_limit])
    test_groups = data.test_groups
    if test_groups is not None:
        test_groups = test_groups[kept_test]
    return replace(
        take(data, kept),
        test_features=data.test_features[kept_test],
        test_targets=data.test_targets[kept_test],
        test_groups=test_groups,
    )


def client_dataset(data: Dataset, split: SampleSplit, index: int) -> Dataset:
    """What agent `index` holds: its own training and test samples, its images turned. Raises UserError."""
    train = split.train(index)
    test = split.test(index)
    features = data.features[train]
    if split.test_of == "test":
        test_features = data.test_features[test]
        test_targets = data.test_targets[test]
    else:
        test_features = data.features[test]
        test_targets = data.targets[test]
    columns = data.columns
    if columns is not None and columns.moments is not None:
        columns = replace(columns, moments=columns.moments[train])
    turns = 0 if split.turns is None else int(split.turns[index])
    if turns % 4:
        features = _turned(features, turns, data.source)
        test_features = _turned(test_features, turns, data.source)
    return replace(
        data,
        features=features,
        targets=data.targets[train],
        test_features=test_features,
        test_targets=test_targets,
        columns=columns,
        groups=None,
        test_groups=None,
        populations=None,
        source=f"{data.source}, agent {index}",
    )


def _turned(images: Array, turns: int, source: str) -> Array:
    """Images (n, ..., height, width) turned by quarter turns, counter-clockwise."""
    height_changes = bool(turns % 2) and images.shape[-1] != images.shape[-2]
    if images.ndim < 3 or height_changes:
        raise UserError(
            f"{source}: samples of shape {images.shape[1:]} cannot be turned; the rule rotation "
            "needs square images"
        )
    return np.ascontiguousarray(np.rot90(images, turns, axes=(-2, -1)))


def _joined(samples: AgentSamples) -> SampleSplit:
    """The lists of all agents, one after the other."""
    train_idx, train_ptr = _concatenated(samples.train)
    test_idx, test_ptr = _concatenated(samples.test)
    return SampleSplit(
        train_idx,
        train_ptr,
        test_idx,
        test_ptr,
        samples.test_of,
        samples.truth,
        samples.turns,
        samples.populations,
    )


def _concatenated(parts: Sequence[Indices]) -> tuple[Indices, Indices]:
    """All parts in one array, and where each begins, with the end of the last."""
    indices = [np.asarray(part, np.int64) for part in parts]
    sizes = [len(part) for part in parts]
    return np.concatenate(indices), np.cumsum([0, *sizes], dtype=np.int64)


def _check_everyone_trains(split: SampleSplit) -> None:
    """Raises UserError if an agent has no training sample."""
    empty = np.flatnonzero(np.diff(split.train_ptr) == 0)
    if len(empty):
        raise UserError(
            f"fleet.partition: agent {empty[0]} of {split.agents} gets no training sample "
            f"({len(empty)} such agents); use fewer agents, more data, or another rule"
        )


def _indices(path: Path, arrays: Mapping[str, Array], name: str, size: int) -> Indices:
    """The stored indices into a part of `size` samples, int64. Raises UserError."""
    array = arrays[name]
    if array.ndim != 1 or array.dtype.kind not in "ui":
        raise UserError(
            f"{path}: {name} is {array.dtype} of shape {array.shape}; expected a flat array of "
            "integers"
        )
    if len(array):
        smallest = int(array.min())
        largest = int(array.max())
        if smallest < 0 or largest >= size:
            raise UserError(
                f"{path}: {name} has values from {smallest} to {largest}; the data set has samples "
                f"0 to {size - 1}"
            )
    return array.astype(np.int64)


def _pointers(path: Path, arrays: Mapping[str, Array], part: str, agents: int) -> Indices:
    """The stored pointers (agents + 1,) of a part, int64. Raises UserError."""
    name = f"{part}_ptr"
    pointers = arrays[name]
    size = len(arrays[f"{part}_idx"])
    if pointers.shape != (agents + 1,):
        raise UserError(
            f"{path}: {name} has shape {pointers.shape}; {agents} agents need ({agents + 1},)"
        )
    steps = np.diff(pointers.astype(np.int64))
    rises = pointers.dtype.kind in "ui" and bool((steps >= 0).all())
    if not rises or pointers[0] != 0 or pointers[-1] != size:
        raise UserError(f"{path}: {name} must rise from 0 to {size}, the length of {part}_idx")
    return pointers.astype(np.int64)


def _per_agent(path: Path, arrays: Mapping[str, Array], name: str, agents: int) -> Array | None:
    """A stored array with one entry per agent; None if the file has none. Raises UserError."""
    array = arrays.get(name)
    if array is None:
        return None
    if array.shape != (agents,):
        raise UserError(
            f"{path}: {name} has shape {array.shape}; expected one entry for each of {agents} agents"
        )
    return array
