"""Which samples each agent of a simulated fleet holds: the rules that need labels only, one function each.

All draws come from the one generator given.

The rule by_group: each agent is a natural client of the data set, a writer or a person.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from covey.agent.data.dataset import Array, Indices
from covey.agent.data.windows import apart_from
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
    TestRule,
)


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


# -- which samples each agent holds, and how samples are shared out evenly -------------------------


@dataclass(frozen=True)
class AgentSamples:
    """Which samples each agent holds, as indices; agent i is at position i of each list."""

    train: list[Indices]  # into the training part; disjoint
    test: list[Indices]  # into the part that `test_of` names; may overlap
    truth: Array | None = None  # (N,) cluster, if the rule knows it
    turns: Indices | None = None  # (N,) quarter turns of the agent's images
    test_of: str = "test"  # "test" or "train"
    populations: tuple[str, ...] = ()  # the names that `truth` counts


def shared_out(test_targets: Array, agents: int, rng: np.random.Generator) -> list[Indices]:
    """Equal parts of the test samples; with fewer samples than agents some serve twice."""
    order = rng.permutation(len(test_targets))
    return even_parts(np.resize(order, max(len(order), agents)), agents)


def even_parts(samples: Indices, parts: int) -> list[Indices]:
    """Consecutive parts whose sizes differ by one at most."""
    return list(np.array_split(samples, parts))


def cut(samples: Indices, counts: Indices) -> list[Indices]:
    """Consecutive parts of the given sizes, which sum to the number of samples."""
    return np.split(samples, np.cumsum(counts)[:-1])


def joined(pieces: Sequence[Sequence[Indices]]) -> list[Indices]:
    """All pieces of each agent together. `pieces[j][i]` is what agent i has of label, or pool, j."""
    of_agents = zip(*pieces, strict=True)
    return [np.concatenate(own) for own in of_agents]


# -- the rules --------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

MAX_ATTEMPTS = 1000  # at proportions of which the smallest agent has enough

Float64 = npt.NDArray[np.float64]


def rule(
    cfg: Partition, targets: Array, test_targets: Array, agents: int, rng: np.random.Generator
) -> AgentSamples:
    """The partition by any rule that needs labels only.

    Args:
        cfg: the rule and its settings.
        targets: (n,) labels of the training part.
        test_targets: (tests,) labels of the test part.
        agents: N.
        rng: all draws come from it.

    Raises:
        UserError: the rule does not suit the data or the number of agents.
    """
    needs_classes = not isinstance(cfg, Iid | Quantity | Rotation)
    if needs_classes and targets.dtype.kind == "f":
        raise UserError(
            f"fleet.partition {cfg.name}: the targets are values, this rule needs classes; use iid, "
            "quantity or rotation"
        )
    match cfg:
        case Iid():
            train = even_parts(rng.permutation(len(targets)), agents)
            test = shared_out(test_targets, agents, rng)
            return AgentSamples(train, test)
        case Quantity():
            train = _quantity(cfg, len(targets), agents, rng)
            test = shared_out(test_targets, agents, rng)
            return AgentSamples(train, test)
        case Rotation():
            return _rotation(cfg, targets, test_targets, agents, rng)
        case LabelSkew():
            train = _label_skew(cfg, targets, agents, rng)
            return _with_test(cfg.test, train, targets, test_targets, rng)
        case Dirichlet():
            train = _dirichlet(cfg, targets, agents, rng)
            return _with_test(cfg.test, train, targets, test_targets, rng)
        case GroupedLabels():
            return _grouped_labels(cfg, targets, test_targets, agents, rng)
        case ByGroup():
            raise ValueError("by_group needs the groups of the samples")


# -- rotation, and rules by labels ---------------------------------------------------------------------------


def _rotation(
    cfg: Rotation, targets: Array, test_targets: Array, agents: int, rng: np.random.Generator
) -> AgentSamples:
    """Samples are shared out evenly; group g turns its images by g * 360 / groups degrees."""
    group = _blocks(agents, cfg.groups)
    train = even_parts(rng.permutation(len(targets)), agents)
    test = shared_out(test_targets, agents, rng)
    return AgentSamples(train, test, truth=group, turns=group * (4 // cfg.groups))


def _label_skew(
    cfg: LabelSkew, targets: Array, agents: int, rng: np.random.Generator
) -> list[Indices]:
    """Agent i owns label i mod classes and q - 1 others; a label's samples are shared evenly by its owners."""
    labels = np.unique(targets)
    classes = len(labels)
    owned_labels = max(round(cfg.share * classes), 1)
    columns = np.arange(classes)
    owned = np.zeros((agents, classes), bool)
    for agent in range(agents):
        first = agent % classes
        more = rng.choice(np.delete(columns, first), owned_labels - 1, replace=False)
        owned[agent, first] = True
        owned[agent, more] = True
    return _shared_by_owners(targets, labels, owned, rng)


def _grouped_labels(
    cfg: GroupedLabels, targets: Array, test_targets: Array, agents: int, rng: np.random.Generator
) -> AgentSamples:
    """Groups of agents own disjoint blocks of labels; the truth is the group."""
    labels = np.unique(targets)
    most_groups = min(len(labels), agents)
    if cfg.groups > most_groups:
        raise UserError(
            f"fleet.partition grouped_labels: {cfg.groups} groups need as many labels and agents; "
            f"the data has {len(labels)} labels, the fleet {agents} agents"
        )
    group_of_agent = _blocks(agents, cfg.groups)
    group_of_label = _blocks(len(labels), cfg.groups)
    owned = group_of_agent[:, None] == group_of_label
    train = _shared_by_owners(targets, labels, owned, rng)
    return replace(_with_test(cfg.test, train, targets, test_targets, rng), truth=group_of_agent)


def _shared_by_owners(
    targets: Array, labels: Array, owned: npt.NDArray[np.bool_], rng: np.random.Generator
) -> list[Indices]:
    """Each label's samples in equal parts to its owners. `owned` (agents, labels)."""
    parts: list[list[Indices]] = [[] for _ in owned]
    for column, label in enumerate(labels):
        is_owner = owned[:, column]
        owners = np.flatnonzero(is_owner)
        has_label = targets == label
        samples = _shuffled(has_label, rng)
        if not len(owners):
            continue
        for owner, part in zip(owners, even_parts(samples, len(owners)), strict=True):
            parts[owner].append(part)
    return [np.concatenate(part) for part in parts]


# -- dirichlet and quantity ----------------------------------------------------------------------------------


def _dirichlet(
    cfg: Dirichlet, targets: Array, agents: int, rng: np.random.Generator
) -> list[Indices]:
    """Each class is cut by proportions from Dir(alpha), drawn again until no agent has fewer than min_samples."""
    _check_enough(cfg.name, len(targets), agents, cfg.min_samples)
    labels, sizes = np.unique(targets, return_counts=True)
    counts = _dirichlet_counts(cfg, sizes, agents, rng)
    pieces: list[list[Indices]] = []
    for label, counts_of_label in zip(labels, counts, strict=True):
        has_label = targets == label
        pieces.append(cut(_shuffled(has_label, rng), counts_of_label))
    return _topped_up([rng.permutation(own) for own in joined(pieces)], cfg.min_samples)


def _dirichlet_counts(
    cfg: Dirichlet, sizes: Array, agents: int, rng: np.random.Generator
) -> Indices:
    """Samples of each class (classes, agents) of the first draw that gives every agent enough, or of the last."""
    for _ in range(MAX_ATTEMPTS):
        counts = _drawn_counts(cfg, sizes, agents, rng)
        samples_of_agents = counts.sum(axis=0)
        if samples_of_agents.min() >= cfg.min_samples:
            return counts
    log.warning(
        "dirichlet: in %d draws some agent always had fewer than %d samples: topping up",
        MAX_ATTEMPTS,
        cfg.min_samples,
    )
    return counts


def _drawn_counts(cfg: Dirichlet, sizes: Array, agents: int, rng: np.random.Generator) -> Indices:
    """Samples of each class (classes, agents); an agent that holds n / N samples gets no more."""
    whole_counts = _unbiased_counts
    if cfg.version == 1:
        whole_counts = _counts_rounded_down
    full = sizes.sum() / agents
    alphas = np.full(agents, cfg.alpha)
    counts = np.zeros((len(sizes), agents), np.int64)
    for row, size in enumerate(sizes):
        hungry = counts.sum(axis=0) < full
        proportions = rng.dirichlet(alphas) * hungry
        if proportions.sum() <= 0:  # a tiny alpha may put everything on agents that are full
            proportions = hungry.astype(np.float64)
        counts[row] = whole_counts(proportions, int(size), rng)
    return counts


def _counts_rounded_down(proportions: Float64, size: int, rng: np.random.Generator) -> Indices:
    """Version 1, the public suite's: every cut is rounded down, and the last agent gets the rest.

    The cumulative sum before the last agent is 0.999... for any share of it, however small. Rounded down, that leaves it a
    sample of nearly every class.
    """
    exact_ends = np.cumsum(proportions / proportions.sum()) * size
    ends = exact_ends.astype(np.int64)
    ends[-1] = size
    return np.diff(ends, prepend=0)


def _unbiased_counts(proportions: Float64, size: int, rng: np.random.Generator) -> Indices:
    """Version 2: all cuts are shifted by one random offset (systematic sampling), so that every agent expects p * size.

    An agent's count is its share rounded down or up, and an agent without a share gets nothing, also the last one.
    """
    sums = np.cumsum(proportions)
    exact_ends = sums / sums[-1] * size
    ends = np.floor(exact_ends + rng.random()).astype(np.int64)
    ends = np.minimum(ends, size)  # an offset of nearly 1 may round up to 1
    counts: Indices = np.diff(ends, prepend=0)
    return counts


def _quantity(cfg: Quantity, n: int, agents: int, rng: np.random.Generator) -> list[Indices]:
    """Shares of all n samples by proportions from Dir(alpha)."""
    _check_enough(cfg.name, n, agents, cfg.min_samples)
    exact_ends = np.cumsum(rng.dirichlet(np.full(agents, cfg.alpha))) * n
    ends = exact_ends.astype(np.int64)
    return _topped_up(np.split(rng.permutation(n), ends[:-1]), cfg.min_samples)


def _topped_up(parts: Sequence[Indices], min_samples: int) -> list[Indices]:
    """The smallest agents take from the largest until none has fewer than `min_samples`."""
    result = list(parts)
    sizes = np.array([len(part) for part in result])
    for agent in np.argsort(sizes, kind="stable"):
        while sizes[agent] < min_samples:
            richest = int(np.argmax(sizes))
            count = min(min_samples - sizes[agent], sizes[richest] - min_samples)
            samples = result[richest]
            given = samples[:count]
            result[richest] = samples[count:]
            result[agent] = np.concatenate([result[agent], given])
            sizes[richest] -= count
            sizes[agent] += count
    return result


# -- test parts, and what the rules share --------------------------------------------------------------------


def _with_test(
    test_rule: TestRule,
    train: list[Indices],
    targets: Array,
    test_targets: Array,
    rng: np.random.Generator,
) -> AgentSamples:
    """Test samples by the agent's labels: all of them ("view"), or as large a share as it has in training."""
    if test_rule == "view":
        test = [_rows_with_labels_of(targets[own], test_targets) for own in train]
        return AgentSamples(train, test)
    pieces: list[list[Indices]] = []
    for label in np.unique(targets):
        has_label = targets == label
        counts = [np.count_nonzero(has_label[own]) for own in train]
        samples = _shuffled(test_targets == label, rng)
        # where each agent's share of the training samples ends, on the scale of the test samples
        sums = np.cumsum(counts)
        pieces.append(np.split(samples, (sums * len(samples) // sums[-1])[:-1]))
    test = [np.sort(own) for own in joined(pieces)]
    return AgentSamples(train, test)


def _shuffled(condition: npt.NDArray[np.bool_], rng: np.random.Generator) -> Indices:
    """The samples for which a condition (n,) holds, in random order."""
    return rng.permutation(np.flatnonzero(condition))


def _rows_with_labels_of(own_targets: Array, test_targets: Array) -> Indices:
    """Test samples whose label occurs among the agent's."""
    has_own_label = np.isin(test_targets, np.unique(own_targets))
    return np.flatnonzero(has_own_label)


def _blocks(count: int, groups: int) -> Indices:
    """The group of each of `count` things, in near-equal consecutive blocks."""
    blocks = even_parts(np.arange(count), groups)
    return np.repeat(np.arange(groups), [len(block) for block in blocks])


def _check_enough(name: str, n: int, agents: int, min_samples: int) -> None:
    """Raises UserError if the data cannot give every agent `min_samples`."""
    needed = agents * min_samples
    if n < needed:
        raise UserError(
            f"fleet.partition {name}: {agents} agents with {min_samples} samples each need {needed}, "
            f"the data has {n}; lower fleet.agents or min_samples"
        )
