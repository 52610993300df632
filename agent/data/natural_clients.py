"""The rule by_group: each agent is a natural client of the data set, a writer or a person."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covey.agent.data.dataset import Array, Indices
from covey.agent.data.partition_rules import AgentSamples
from covey.agent.data.windows import apart_from
from covey.shared.errors import UserError
from covey.shared.scenario.partition import ByGroup


@dataclass(frozen=True)
class NaturalClients:
    """What a data set knows of the natural clients (writers, people) of its samples."""

    groups: Array  # (n,) the client of each training sample
    test_groups: Array | None  # (tests,) the client of each test sample
    populations: Array | None  # (n,) the known population of each training sample
    overlap: int | None = None  # of windows: how many before a window share rows with it


@dataclass(frozen=True)
class _Chosen:
    """The natural clients that become agents."""

    groups: Array  # (N,)
    truth: Array | None = None  # (N,) index into `populations`
    populations: tuple[str, ...] = ()


def by_group(
    cfg: ByGroup,
    targets: Array,
    clients: NaturalClients,
    *,
    agents: int,
    rng: np.random.Generator,
    test_share: float,
) -> AgentSamples:
    """One agent per natural client, chosen on the seed if there are more of them than agents.

    The truth is the population. Test samples are the client's own in the test part, none for a client that has none there. If no
    chosen client has any, they are `test_share` of its training samples: at random, or (`split: time`) the last ones. Windows
    that share rows with a tested one are in neither part.

    Raises:
        UserError: there are too few clients, the data set lacks the populations that the rule names, or samples are
            windows that overlap and would be held back at random.
    """
    chosen = _chosen_clients(cfg, clients, agents, rng)
    train = _rows_of_each(clients.groups, chosen.groups)
    test_of = "test"
    test_groups = clients.test_groups
    if test_groups is not None and bool(np.isin(chosen.groups, test_groups).any()):
        test = _rows_of_each(test_groups, chosen.groups)
    else:
        test_of = "train"
        if clients.overlap and cfg.split == "random":
            raise UserError(
                "fleet.partition by_group: the samples are windows that overlap, and a random choice would test on rows "
                "that were trained on; set split: time"
            )
        pairs = [_held_back(cfg, own, targets, rng, test_share) for own in train]
        train = [kept for kept, _ in pairs]
        test = [held for _, held in pairs]
        if clients.overlap:
            apart = apart_from(np.concatenate(test), clients.groups, clients.overlap)
            train = [own[apart[own]] for own in train]
    return AgentSamples(train, test, chosen.truth, test_of=test_of, populations=chosen.populations)


def _chosen_clients(
    cfg: ByGroup, clients: NaturalClients, agents: int, rng: np.random.Generator
) -> _Chosen:
    """As many clients with enough samples as there are agents: of any population, or by the rule's numbers of each."""
    groups, first_rows, counts = np.unique(clients.groups, return_index=True, return_counts=True)
    if clients.test_groups is not None:
        counts = counts + _samples_of_each(clients.test_groups, groups)
    min_samples = _min_samples(cfg)
    has_enough = counts >= min_samples
    population_of = None  # (clients,): that of a client's first sample
    if clients.populations is not None:
        population_of = clients.populations[first_rows]
    if cfg.populations:
        return _chosen_of_each_population(
            cfg, groups, has_enough, population_of=population_of, agents=agents, rng=rng
        )
    what = f"natural clients with {min_samples} or more samples"
    picked = _drawn(np.flatnonzero(has_enough), agents, what, rng)
    if population_of is None:
        return _Chosen(groups[picked])
    names, truth = np.unique(population_of[picked], return_inverse=True)
    return _Chosen(groups[picked], truth.astype(np.int64), tuple(str(name) for name in names))


def _chosen_of_each_population(
    cfg: ByGroup,
    groups: Array,
    has_enough: npt.NDArray[np.bool_],
    *,
    population_of: Array | None,
    agents: int,
    rng: np.random.Generator,
) -> _Chosen:
    """The numbers of clients that `fleet.partition.populations` gives, population after population."""
    if population_of is None:
        raise UserError(
            "fleet.partition.populations: this data set knows no populations; leave the key out"
        )
    total = sum(cfg.populations.values())
    if total != agents:
        raise UserError(
            f"fleet.partition.populations: {total} agents in all, fleet.agents is {agents}; make "
            "the two equal"
        )
    picked_of_each: list[Indices] = []
    for name, count in cfg.populations.items():
        if name not in population_of:
            known = sorted({str(population) for population in population_of})
            raise UserError(
                f"fleet.partition.populations: no population {name!r}; the data set has "
                f"{', '.join(known)}"
            )
        candidates = np.flatnonzero(has_enough & (population_of == name))
        what = f"natural clients of {name} with {_min_samples(cfg)} or more samples"
        picked_of_each.append(_drawn(candidates, count, what, rng))
    picked = np.concatenate(picked_of_each)
    sizes = [len(one) for one in picked_of_each]
    truth = np.repeat(np.arange(len(sizes)), sizes)
    return _Chosen(groups[picked], truth, tuple(cfg.populations))


def _min_samples(cfg: ByGroup) -> int:
    return max(cfg.min_samples, 2)  # one to train, one to test


def _samples_of_each(of_sample: Array, groups: Array) -> Indices:
    """How many samples each group has, (groups,)."""
    return np.array([np.count_nonzero(of_sample == group) for group in groups])


def _rows_of_each(of_sample: Array, groups: Array) -> list[Indices]:
    """The samples of each group."""
    return [np.flatnonzero(of_sample == group) for group in groups]


def _drawn(candidates: Indices, count: int, what: str, rng: np.random.Generator) -> Indices:
    """`count` candidates at random, in ascending order."""
    if len(candidates) < count:
        raise UserError(
            f"fleet.partition by_group: {count} agents need {count} {what}, the data set has "
            f"{len(candidates)}; lower fleet.agents or min_samples"
        )
    return np.sort(rng.permutation(candidates)[:count])


def _held_back(
    cfg: ByGroup, own: Indices, targets: Array, rng: np.random.Generator, test_share: float
) -> tuple[Indices, Indices]:
    """(train, test) of one natural client, at least one sample each."""
    if len(own) < 2:  # nothing is left to test on
        return own, own[:0]
    if cfg.split == "time":
        return _held_back_in_time(own, targets, test_share)
    held = round(test_share * len(own))
    held = min(max(held, 1), len(own) - 1)
    order = rng.permutation(own)
    return np.sort(order[held:]), np.sort(order[:held])


def _held_back_in_time(own: Indices, targets: Array, test_share: float) -> tuple[Indices, Indices]:
    """The end of each activity is held back: the end of a whole recording would often be an activity unseen in training."""
    runs = [own]
    has_classes = targets.dtype.kind != "f" and targets.ndim == 1
    if has_classes:
        labels = targets[own]
        runs = [own[labels == label] for label in np.unique(labels)]
    kept: list[Indices] = []
    held: list[Indices] = []
    for run in runs:
        cut = len(run) - round(test_share * len(run))
        kept.append(run[:cut])
        held.append(run[cut:])
    train = np.sort(np.concatenate(kept))
    test = np.sort(np.concatenate(held))
    if not len(test):  # too few samples of every class to hold one back
        return own[:-1], own[-1:]
    return train, test
