"""The partitioning rules, one function each. All draws come from the one generator given."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covey.agent.data.dataset import Array, Indices
from covey.shared.errors import UserError
from covey.shared.scenario.partition import (
    ByGroup,
    Dirichlet,
    GroupedLabels,
    Iid,
    LabelSkew,
    Partition,
    Quantity,
    Rotation,
    SuperclassMixture,
    TestRule,
)

log = logging.getLogger(__name__)

ATTEMPTS = 1000  # of drawing proportions until the smallest agent has enough


@dataclass(frozen=True)
class Shares:
    """Each agent's training and test indices; `test_of` says which part the latter point into."""

    train: list[Indices]
    test: list[Indices]
    truth: Array | None = None
    turns: Indices | None = None
    test_of: str = "test"
    populations: tuple[str, ...] = ()


def rule(
    cfg: Partition, targets: Array, test_targets: Array, agents: int, rng: np.random.Generator
) -> Shares:
    """The shares by any rule that needs labels only. Training shares are disjoint."""
    if not isinstance(cfg, (Iid, Quantity, Rotation)) and targets.dtype.kind == "f":
        raise UserError(
            f"fleet.partition {cfg.name}: the targets are values, this rule needs classes; iid would do"
        )
    match cfg:
        case Iid():
            return Shares(
                _even(rng.permutation(len(targets)), agents),
                _test_shares(test_targets, agents, rng),
            )
        case Rotation():
            return _rotation(cfg, targets, test_targets, agents, rng)
        case LabelSkew():
            return _tested(
                cfg.test, _label_skew(cfg, targets, agents, rng), targets, test_targets, rng
            )
        case Dirichlet():
            return _tested(
                cfg.test, _dirichlet(cfg, targets, agents, rng), targets, test_targets, rng
            )
        case GroupedLabels():
            return _grouped_labels(cfg, targets, test_targets, agents, rng)
        case SuperclassMixture():
            return _superclass_mixture(cfg, targets, test_targets, agents, rng)
        case Quantity():
            return Shares(
                _quantity(cfg, len(targets), agents, rng), _test_shares(test_targets, agents, rng)
            )
        case ByGroup():
            raise ValueError("by_group needs the groups of the samples")


def by_group(
    cfg: ByGroup,
    targets: Array,
    groups: Array | None,
    test_groups: Array | None,
    populations: Array | None,
    agents: int,
    rng: np.random.Generator,
) -> Shares:
    """One agent per natural client, chosen on the seed where there are more than agents.

    The truth is the population. Test samples are the client's own in the test part if every chosen client
    has some there, else `test_share` of its training samples: at random, or (`split: time`) the last ones.
    """
    if groups is None:
        raise UserError(
            "fleet.partition by_group: this data set names no natural clients; use another rule"
        )
    chosen, truth, names = _chosen_groups(cfg, groups, test_groups, populations, agents, rng)
    members = [np.flatnonzero(groups == group) for group in chosen]
    if test_groups is not None and bool(np.isin(chosen, test_groups).all()):
        test = [np.flatnonzero(test_groups == group) for group in chosen]
        return Shares(members, test, truth, populations=names)
    cut = [_held_back(cfg, own, targets, rng) for own in members]
    return Shares(
        [train for train, _ in cut], [test for _, test in cut], truth, None, "train", names
    )


def _chosen_groups(
    cfg: ByGroup,
    groups: Array,
    test_groups: Array | None,
    populations: Array | None,
    agents: int,
    rng: np.random.Generator,
) -> tuple[Array, Array | None, tuple[str, ...]]:
    known, first, counts = np.unique(groups, return_index=True, return_counts=True)
    if test_groups is not None:
        counts = counts + np.array([np.count_nonzero(test_groups == group) for group in known])
    fitting = counts >= max(cfg.min_samples, 2)  # one to train, one to test
    if not cfg.populations:
        picked = _drawn(
            np.flatnonzero(fitting), agents, f"natural clients with {cfg.min_samples} samples", rng
        )
        if populations is None:
            return known[picked], None, ()
        names, truth = np.unique(populations[first[picked]], return_inverse=True)
        return known[picked], truth.astype(np.int64), tuple(map(str, names))
    if populations is None:
        raise UserError(
            "fleet.partition.populations: this data set knows no populations; leave the key out"
        )
    if (total := sum(cfg.populations.values())) != agents:
        raise UserError(
            f"fleet.partition.populations: {total} agents in all, fleet.agents is {agents}"
        )
    of_group = populations[first]
    parts = []
    for name, count in cfg.populations.items():
        if name not in of_group:
            there = ", ".join(sorted(set(map(str, of_group))))
            raise UserError(
                f"fleet.partition.populations: no population {name!r}; the data set has {there}"
            )
        what = f"natural clients of {name} with {cfg.min_samples} samples"
        parts.append(_drawn(np.flatnonzero(fitting & (of_group == name)), count, what, rng))
    truth = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return known[np.concatenate(parts)], truth, tuple(cfg.populations)


def _drawn(candidates: Indices, count: int, what: str, rng: np.random.Generator) -> Indices:
    if len(candidates) < count:
        raise UserError(
            f"fleet.partition by_group: {count} agents are wanted, there are {len(candidates)} {what}"
        )
    return np.sort(rng.permutation(candidates)[:count])


def _held_back(
    cfg: ByGroup, own: Indices, targets: Array, rng: np.random.Generator
) -> tuple[Indices, Indices]:
    """(train, test) of one natural client, at least one sample each.

    In time order the end of each activity is held back: the end of a whole recording session would often
    be an activity that training never saw.
    """
    if len(own) < 2:  # its test samples are elsewhere, where others have none
        return own, own[:0]
    if cfg.split == "random":
        held = min(max(round(cfg.test_share * len(own)), 1), len(own) - 1)
        order = rng.permutation(own)
        return np.sort(order[held:]), np.sort(order[:held])
    by_class = targets.dtype.kind != "f"
    runs = [own[targets[own] == label] for label in np.unique(targets[own])] if by_class else [own]
    cuts = [len(run) - round(cfg.test_share * len(run)) for run in runs]
    if all(cut == len(run) for cut, run in zip(cuts, runs, strict=True)):
        return own[:-1], own[-1:]  # too few of every class to hold one back
    pairs = list(zip(runs, cuts, strict=True))
    return np.sort(np.concatenate([r[:c] for r, c in pairs])), np.sort(
        np.concatenate([r[c:] for r, c in pairs])
    )


def _rotation(
    cfg: Rotation, targets: Array, test_targets: Array, agents: int, rng: np.random.Generator
) -> Shares:
    group = _blocks(agents, cfg.groups)
    train = _even(rng.permutation(len(targets)), agents)
    return Shares(train, _test_shares(test_targets, agents, rng), group, group * (4 // cfg.groups))


def _label_skew(
    cfg: LabelSkew, targets: Array, agents: int, rng: np.random.Generator
) -> list[Indices]:
    """Agent i owns label i mod classes and q - 1 others; a label's samples are shared evenly by its owners."""
    labels = np.unique(targets)
    each = max(round(cfg.share * len(labels)), 1)
    owned = np.zeros((agents, len(labels)), bool)
    for agent in range(agents):
        first = agent % len(labels)
        others = np.delete(np.arange(len(labels)), first)
        owned[agent, [first, *rng.choice(others, each - 1, replace=False)]] = True
    return _shared_by_owners(targets, labels, owned, rng)


def _grouped_labels(
    cfg: GroupedLabels, targets: Array, test_targets: Array, agents: int, rng: np.random.Generator
) -> Shares:
    labels = np.unique(targets)
    if cfg.groups > min(len(labels), agents):
        raise UserError(
            f"fleet.partition grouped_labels: {cfg.groups} groups need as many labels and agents, "
            f"there are {len(labels)} labels and {agents} agents"
        )
    group = _blocks(agents, cfg.groups)
    owned = group[:, None] == _blocks(len(labels), cfg.groups)[None, :]
    shares = _tested(
        cfg.test, _shared_by_owners(targets, labels, owned, rng), targets, test_targets, rng
    )
    return Shares(shares.train, shares.test, group)


def _shared_by_owners(
    targets: Array, labels: Array, owned: npt.NDArray[np.bool_], rng: np.random.Generator
) -> list[Indices]:
    parts: list[list[Indices]] = [[] for _ in owned]
    for column, label in enumerate(labels):
        owners = np.flatnonzero(owned[:, column])
        samples = rng.permutation(np.flatnonzero(targets == label))
        for owner, share in zip(owners, _even(samples, max(len(owners), 1)), strict=False):
            parts[owner].append(share)
    return [np.concatenate(part) for part in parts]


def _dirichlet(
    cfg: Dirichlet, targets: Array, agents: int, rng: np.random.Generator
) -> list[Indices]:
    """Each class is cut by proportions from Dir(alpha); drawn again until nobody has fewer than min_samples."""
    _enough(cfg.name, len(targets), agents, cfg.min_samples)
    labels, sizes = np.unique(targets, return_counts=True)
    for _ in range(ATTEMPTS):
        counts = _dirichlet_counts(cfg, sizes, agents, rng)
        if counts.sum(axis=0).min() >= cfg.min_samples:
            break
    else:
        log.warning(
            "dirichlet: nobody below %d samples not met in %d draws: topping up",
            cfg.min_samples,
            ATTEMPTS,
        )
    cut = [
        np.split(rng.permutation(np.flatnonzero(targets == label)), np.cumsum(row)[:-1])
        for label, row in zip(labels, counts, strict=True)
    ]
    parts = [rng.permutation(np.concatenate(pieces)) for pieces in zip(*cut, strict=True)]
    return _topped_up(parts, cfg.min_samples)


def _dirichlet_counts(
    cfg: Dirichlet, sizes: Array, agents: int, rng: np.random.Generator
) -> Indices:
    """Samples of each class (classes, agents); an agent that holds n / N samples gets no more."""
    cut = _whole_shares if cfg.version == 1 else _unbiased_shares
    counts = np.zeros((len(sizes), agents), np.int64)
    for row, size in zip(counts, sizes, strict=True):
        hungry = counts.sum(axis=0) < sizes.sum() / agents
        p = rng.dirichlet(np.full(agents, cfg.alpha)) * hungry
        if p.sum() <= 0:  # a tiny alpha may put everything on agents that are full
            p = hungry.astype(np.float64)
        row[:] = cut(p, int(size), rng)
    return counts


def _whole_shares(p: npt.NDArray[np.float64], size: int, rng: np.random.Generator) -> Indices:
    """Version 1, the public suite's: every cut is rounded down, and the last agent gets the rest.

    The cumulative sum before the last agent is 0.999... for any share of it, however small. Rounded down, that leaves it a
    sample of nearly every class.
    """
    ends = (np.cumsum(p / p.sum()) * size).astype(np.int64)
    ends[-1] = size
    return np.diff(ends, prepend=0)


def _unbiased_shares(p: npt.NDArray[np.float64], size: int, rng: np.random.Generator) -> Indices:
    """Version 2: all cuts are shifted by one random offset (systematic sampling), so that every agent expects p * size.

    An agent's count is its share rounded down or up, and an agent without a share gets nothing, also the last one.
    """
    sums = np.cumsum(p)
    ends = np.floor(sums / sums[-1] * size + rng.random()).astype(np.int64)
    ends = np.minimum(ends, size)  # an offset of nearly 1 may round up to 1
    counts: Indices = np.diff(ends, prepend=0)
    return counts


def _quantity(cfg: Quantity, n: int, agents: int, rng: np.random.Generator) -> list[Indices]:
    _enough(cfg.name, n, agents, cfg.min_samples)
    cuts = (np.cumsum(rng.dirichlet(np.full(agents, cfg.alpha))) * n).astype(np.int64)[:-1]
    return _topped_up(np.split(rng.permutation(n), cuts), cfg.min_samples)


def _topped_up(parts: Sequence[Indices], least: int) -> list[Indices]:
    """The smallest take from the largest until nobody has fewer than `least`."""
    result = list(parts)
    for agent in np.argsort([len(part) for part in result], kind="stable"):
        while (lacking := least - len(result[agent])) > 0:
            richest = int(np.argmax([len(part) for part in result]))
            given = min(lacking, len(result[richest]) - least)
            result[agent] = np.concatenate([result[agent], result[richest][:given]])
            result[richest] = result[richest][given:]
    return result


def _superclass_mixture(
    cfg: SuperclassMixture,
    targets: Array,
    test_targets: Array,
    agents: int,
    rng: np.random.Generator,
) -> Shares:
    """The first half of the agents draws `major` of its samples from super-class 0, the others 1 - major."""
    there = {int(label) for label in np.unique(targets)}
    for key, labels in (("first", cfg.first), ("second", cfg.second)):
        if strange := sorted(set(labels) - there):
            raise UserError(f"fleet.partition.{key}: labels {strange} do not occur in the data set")
    if both := sorted(set(cfg.first) & set(cfg.second)):
        raise UserError(f"fleet.partition: labels {both} are in both super-classes")
    share = np.where(np.arange(agents) < (agents + 1) // 2, cfg.major, 1 - cfg.major)
    truth = np.stack([share, 1 - share], axis=1)
    pools, test_pools = (
        [np.flatnonzero(superclass(cfg, some) == k) for k in range(2)]
        for some in (targets, test_targets)
    )
    each = _largest_even(share, pools)
    tests = min(each // 5, _largest_even(share, test_pools))
    return Shares(_mixed(share, each, pools, rng), _mixed(share, tests, test_pools, rng), truth)


def superclass(cfg: SuperclassMixture, targets: Array) -> Indices:
    """0 or 1 for each target, -1 for one that is in neither super-class."""
    second = np.isin(targets, cfg.second) if cfg.second else np.full(len(targets), True)
    return np.where(np.isin(targets, cfg.first), 0, np.where(second, 1, -1))


def _largest_even(share: npt.NDArray[np.float64], pools: Sequence[Indices]) -> int:
    """The largest equal size of all agents for which both pools suffice."""
    each = 2 * min(map(len, pools)) // max(len(share), 1)
    while each and any(
        drawn > len(pool)
        for drawn, pool in zip(_drawn_from(share, each).sum(axis=0), pools, strict=True)
    ):
        each -= 1
    return each


def _drawn_from(share: npt.NDArray[np.float64], each: int) -> Indices:
    first = np.round(share * each).astype(np.int64)
    return np.stack([first, each - first], axis=1)


def _mixed(
    share: npt.NDArray[np.float64], each: int, pools: Sequence[Indices], rng: np.random.Generator
) -> list[Indices]:
    columns = [
        np.split(rng.permutation(pool)[: counts.sum()], np.cumsum(counts)[:-1])
        for pool, counts in zip(pools, _drawn_from(share, each).T, strict=True)
    ]
    return [np.concatenate(pair) for pair in zip(*columns, strict=True)]


def _tested(
    how: TestRule,
    train: list[Indices],
    targets: Array,
    test_targets: Array,
    rng: np.random.Generator,
) -> Shares:
    """Every agent tests on all test samples of every label that it trains on, or on its share of each label's."""
    if how == "view":
        return Shares(
            train, [np.flatnonzero(np.isin(test_targets, np.unique(targets[own]))) for own in train]
        )
    parts: list[list[Indices]] = [[] for _ in train]
    for label in np.unique(targets):
        counts = np.array([np.count_nonzero(targets[own] == label) for own in train])
        samples = rng.permutation(np.flatnonzero(test_targets == label))
        cuts = np.cumsum(counts)[:-1] * len(samples) // counts.sum()
        for part, share in zip(parts, np.split(samples, cuts), strict=True):
            part.append(share)
    return Shares(train, [np.sort(np.concatenate(part)) for part in parts])


def _test_shares(test_targets: Array, agents: int, rng: np.random.Generator) -> list[Indices]:
    """Equal parts of the test samples; with fewer samples than agents some serve twice."""
    order = rng.permutation(len(test_targets))
    return _even(np.resize(order, max(len(order), agents)), agents)


def _even(samples: Indices, parts: int) -> list[Indices]:
    return list(np.array_split(samples, parts))


def _blocks(count: int, groups: int) -> Indices:
    """The group of each of `count` things, in near-equal consecutive blocks."""
    return np.repeat(
        np.arange(groups), [len(part) for part in np.array_split(np.arange(count), groups)]
    )


def _enough(name: str, n: int, agents: int, least: int) -> None:
    if n < agents * least:
        raise UserError(
            f"fleet.partition {name}: {agents} agents with {least} samples each need {agents * least}, there are {n}"
        )
