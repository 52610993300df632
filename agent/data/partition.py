"""Who of a simulated fleet holds which samples.

A partition is stored as `.npz`: agent i owns `train_idx[train_ptr[i]:train_ptr[i+1]]` and tests on
`test_idx[test_ptr[i]:test_ptr[i+1]]`. `test_of` says what `test_idx` points into: the data set's "test"
part or its "train" part (the single pool of a set without a test part); a file without it means "test"
where there is such a part. Optional: `truth` per agent (a cluster, or a mixture), `turns` (quarter turns
of the agent's images), `populations` (names that `truth` counts).

Test sets are "local views": rules that hand out labels give an agent all test samples of every label
that it trains on, so test sets overlap. The rules iid, quantity and rotation share the test samples out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from covey.agent.data.arrays import read_npz
from covey.agent.data.dataset import Array, Dataset, Indices, take
from covey.agent.data.named import load_named
from covey.agent.data.partition_rules import Shares, by_group, rule
from covey.shared.errors import UserError
from covey.shared.files import atomic_replace
from covey.shared.scenario.partition import ByGroup, Partition
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import generator


@dataclass(frozen=True)
class Split:
    """Indices per agent in one array each, with N + 1 pointers. See the module's text for the fields."""

    train_idx: Indices
    train_ptr: Indices
    test_idx: Indices
    test_ptr: Indices
    test_of: str = "test"
    truth: Array | None = None
    turns: Indices | None = None
    populations: tuple[str, ...] = ()

    @property
    def agents(self) -> int:
        return len(self.train_ptr) - 1

    def train(self, agent: int) -> Indices:
        """The agent's training samples, indices into the data set's training part."""
        return self.train_idx[self.train_ptr[agent] : self.train_ptr[agent + 1]]

    def test(self, agent: int) -> Indices:
        """The agent's test samples, indices into the part that `test_of` names."""
        return self.test_idx[self.test_ptr[agent] : self.test_ptr[agent + 1]]

    def save(self, path: Path) -> None:
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
        with (
            atomic_replace(path) as beside,
            beside.open("wb") as file,
        ):  # a coordinator may be reading the old one
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
) -> Split:
    """Splits samples among agents by the rule `cfg`.

    `targets`, `groups`, `populations` (n,) describe the training part, `test_*` the test part; without one,
    `test_share` of the pool is held back first (by_group: of every agent's own samples).
    Raises UserError where the rule does not suit the data or an agent would get no sample.
    """
    tested = test_targets is not None and len(test_targets) > 0
    if isinstance(cfg, ByGroup):
        shares = by_group(
            cfg, targets, groups, test_groups if tested else None, populations, agents, rng
        )
        return _checked(_split(shares))
    if tested and test_targets is not None:
        return _checked(_split(rule(cfg, targets, test_targets, agents, rng)))
    order = rng.permutation(len(targets))
    held = min(max(round(test_share * len(targets)), 1), len(targets) - 1)
    test, train = np.sort(order[:held]), np.sort(order[held:])
    shares = rule(cfg, targets[train], targets[test], agents, rng)
    pooled = replace(
        shares,
        train=[train[own] for own in shares.train],
        test=[test[own] for own in shares.test],
        test_of="train",
    )
    return _checked(_split(pooled))


def load_split(path: str | Path, data: Dataset, agents: int) -> Split:
    """A stored partition, checked against the data set and the number of agents (UserError names the array)."""
    place = Path(path)
    if not place.is_file():
        raise UserError(
            f"fleet.partition: {place} does not exist; a rule or an .npz file is wanted"
        )
    arrays = read_npz(place)
    if missing := {"train_idx", "train_ptr", "test_idx", "test_ptr"} - set(arrays):
        raise UserError(
            f"{place}: no array {', '.join(sorted(missing))}; it holds {', '.join(sorted(arrays))}"
        )
    test_of = (
        str(arrays["test_of"]) if "test_of" in arrays else ("test" if data.has_test else "train")
    )
    if test_of not in {"train", "test"}:
        raise UserError(f"{place}: test_of is {test_of!r}; 'train' or 'test' is wanted")
    sizes = {"train": len(data.targets), "test": len(data.test_targets)}
    split = Split(
        _indices(place, arrays, "train_idx", sizes["train"]),
        _pointers(place, arrays, "train", agents),
        _indices(place, arrays, "test_idx", sizes[test_of]),
        _pointers(place, arrays, "test", agents),
        test_of,
        _per_agent(place, arrays, "truth", agents),
        _per_agent(place, arrays, "turns", agents),
        tuple(map(str, arrays.get("populations", ()))),
    )
    again = np.flatnonzero(np.bincount(split.train_idx) > 1)
    if len(again):
        raise UserError(
            f"{place}: training sample {again[0]} is in train_idx more than once ({len(again)} such samples)"
        )
    return _checked(split)


def fleet_data(scenario: Scenario, data_root: str | Path | None = None) -> tuple[Dataset, Split]:
    """A simulated fleet's data set and who owns what, both settled by the scenario and its seed."""
    fleet = scenario.fleet
    if fleet is None:
        raise UserError(
            "the scenario has no fleet: there is nothing to simulate; add a section 'fleet'"
        )
    data = load_named(fleet.data, data_root)
    if isinstance(fleet.partition, str):
        if fleet.limit is not None:
            raise UserError(
                "fleet.limit and a stored fleet.partition exclude each other: its indices need all samples"
            )
        return data, load_split(fleet.partition, data, fleet.agents)
    if fleet.limit is not None:
        data = limited(data, fleet.limit, generator(scenario.seed, "limit"))
    split = partition(
        fleet.partition,
        data.targets,
        fleet.agents,
        generator(scenario.seed, "partition"),
        groups=data.groups,
        test_targets=data.test_targets,
        test_groups=data.test_groups,
        populations=data.populations,
        test_share=fleet.test_share,
    )
    return data, split


def limited(data: Dataset, limit: int, rng: np.random.Generator) -> Dataset:
    """`limit` training samples at random, in their old order, and the same share of the test part."""
    n, tests = len(data.targets), len(data.test_targets)
    if limit >= n:
        return data
    keep = np.sort(rng.permutation(n)[:limit])
    keep_test = np.sort(rng.permutation(tests)[: max(tests * limit // n, min(tests, 1))])
    return replace(
        take(data, keep),
        test_features=data.test_features[keep_test],
        test_targets=data.test_targets[keep_test],
        test_groups=None if data.test_groups is None else data.test_groups[keep_test],
    )


def client_dataset(data: Dataset, split: Split, index: int) -> Dataset:
    """What agent `index` holds: its own samples, its own test part, its images turned."""
    train, test = split.train(index), split.test(index)
    from_test = split.test_of == "test"
    features = data.features[train]
    test_features = (data.test_features if from_test else data.features)[test]
    if split.turns is not None and (turns := int(split.turns[index])) % 4:
        features, test_features = (
            _turned(part, turns, data.source) for part in (features, test_features)
        )
    return replace(
        data,
        features=features,
        targets=data.targets[train],
        test_features=test_features,
        test_targets=(data.test_targets if from_test else data.targets)[test],
        groups=None,
        test_groups=None,
        populations=None,
        source=f"{data.source}, agent {index}",
    )


def _turned(images: Array, turns: int, source: str) -> Array:
    if images.ndim < 3 or (turns % 2 and images.shape[-1] != images.shape[-2]):
        raise UserError(
            f"{source}: samples of shape {images.shape[1:]} cannot be turned; square images are wanted"
        )
    return np.ascontiguousarray(np.rot90(images, turns, axes=(-2, -1)))


def _split(shares: Shares) -> Split:
    return Split(
        _joined(shares.train),
        _ends(shares.train),
        _joined(shares.test),
        _ends(shares.test),
        shares.test_of,
        shares.truth,
        shares.turns,
        shares.populations,
    )


def _checked(split: Split) -> Split:
    empty = np.flatnonzero(np.diff(split.train_ptr) == 0)
    if len(empty):
        raise UserError(
            f"fleet.partition: agent {empty[0]} of {split.agents} gets no training sample ({len(empty)} such agents); "
            "take fewer agents, more data, or another rule"
        )
    return split


def _joined(parts: Sequence[Indices]) -> Indices:
    return np.concatenate([np.asarray(part, np.int64) for part in parts])


def _ends(parts: Sequence[Indices]) -> Indices:
    return np.cumsum([0, *map(len, parts)], dtype=np.int64)


def _indices(path: Path, arrays: dict[str, Array], name: str, size: int) -> Indices:
    array = arrays[name]
    if array.ndim != 1 or array.dtype.kind not in "ui":
        raise UserError(
            f"{path}: {name} is {array.dtype} of shape {array.shape}; a flat array of integers is wanted"
        )
    if len(array) and not (int(array.min()) >= 0 and int(array.max()) < size):
        raise UserError(
            f"{path}: {name} runs from {array.min()} to {array.max()}; the data set has 0 to {size - 1}"
        )
    return array.astype(np.int64)


def _pointers(path: Path, arrays: dict[str, Array], part: str, agents: int) -> Indices:
    pointers, size = arrays[f"{part}_ptr"], len(arrays[f"{part}_idx"])
    if pointers.shape != (agents + 1,):
        raise UserError(
            f"{path}: {part}_ptr has shape {pointers.shape}; {agents} agents need ({agents + 1},)"
        )
    rising = pointers.dtype.kind in "ui" and bool((np.diff(pointers.astype(np.int64)) >= 0).all())
    if not rising or pointers[0] != 0 or pointers[-1] != size:
        raise UserError(f"{path}: {part}_ptr must rise from 0 to {size}, the length of {part}_idx")
    return pointers.astype(np.int64)


def _per_agent(path: Path, arrays: dict[str, Array], name: str, agents: int) -> Array | None:
    array = arrays.get(name)
    if array is not None and (array.ndim == 0 or len(array) != agents):
        raise UserError(
            f"{path}: {name} has shape {array.shape}; one entry for each of {agents} agents is wanted"
        )
    return array
