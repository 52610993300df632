"""The rule superclass_mixture: agents that mix two groups of labels, super-class 0 and super-class 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from covey.agent.data.agent_samples import AgentSamples
from covey.agent.data.dataset import Array, Indices
from covey.shared.errors import UserError
from covey.shared.scenario.partition import SuperclassMixture

Float64 = npt.NDArray[np.float64]


def superclass_mixture(
    cfg: SuperclassMixture,
    targets: Array,
    test_targets: Array,
    agents: int,
    rng: np.random.Generator,
) -> AgentSamples:
    """The first half of the agents draws `major` of its samples from super-class 0, the others 1 - major."""
    _check_superclasses(cfg, targets)
    first_half = np.arange(agents) < (agents + 1) // 2
    share = np.where(first_half, cfg.major, 1 - cfg.major)
    truth = np.stack([share, 1 - share], axis=1)
    pools = _superclass_pools(cfg, targets)
    test_pools = _superclass_pools(cfg, test_targets)
    size = _largest_size(share, pools)
    test_size = min(size // 5, _largest_size(share, test_pools))
    train = _mixed(share, size, pools, rng)
    test = _mixed(share, test_size, test_pools, rng)
    return AgentSamples(train, test, truth)


def superclass(cfg: SuperclassMixture, targets: Array) -> Indices:
    """0 or 1 for each target (n,), -1 for one that is in neither super-class."""
    in_first = np.isin(targets, cfg.first)
    in_second = np.isin(targets, cfg.second)
    if not cfg.second:  # all other labels
        in_second = np.full(len(targets), True)
    return np.where(in_first, 0, np.where(in_second, 1, -1))


def _check_superclasses(cfg: SuperclassMixture, targets: Array) -> None:
    """Raises UserError for labels that do not occur, or are in both super-classes."""
    known = {int(label) for label in np.unique(targets)}
    for key, labels in (("first", cfg.first), ("second", cfg.second)):
        unknown = sorted(set(labels) - known)
        if unknown:
            raise UserError(
                f"fleet.partition.{key}: labels {unknown} do not occur in the data set, which has "
                f"{sorted(known)}"
            )
    in_both = sorted(set(cfg.first) & set(cfg.second))
    if in_both:
        raise UserError(
            f"fleet.partition: labels {in_both} are in both super-classes; leave them in one"
        )


def _superclass_pools(cfg: SuperclassMixture, targets: Array) -> list[Indices]:
    """The samples of super-class 0 and those of super-class 1."""
    of_sample = superclass(cfg, targets)
    return [np.flatnonzero(of_sample == number) for number in range(2)]


def _largest_size(share: Float64, pools: Sequence[Indices]) -> int:
    """The largest number of samples that all agents can have alike, so that both pools suffice."""
    pool_sizes = np.array([len(pool) for pool in pools])
    agents = max(len(share), 1)
    size = 2 * int(pool_sizes.min()) // agents
    while size:
        needed = _mixture_counts(share, size).sum(axis=0)
        if (needed <= pool_sizes).all():
            break
        size -= 1
    return size


def _mixture_counts(share: Float64, size: int) -> Indices:
    """How many samples each agent draws from each super-class, (agents, 2); rows sum to `size`."""
    first = np.round(share * size).astype(np.int64)
    return np.stack([first, size - first], axis=1)


def _mixed(
    share: Float64,
    size: int,
    pools: Sequence[Indices],
    rng: np.random.Generator,
) -> list[Indices]:
    """`size` samples for each agent, from both pools by its share; no sample is drawn twice."""
    parts: list[list[Indices]] = [[] for _ in share]
    counts_of_pools = _mixture_counts(share, size).T
    for pool, counts in zip(pools, counts_of_pools, strict=True):
        drawn = rng.permutation(pool)[: counts.sum()]
        ends = np.cumsum(counts)[:-1]
        for part, piece in zip(parts, np.split(drawn, ends), strict=True):
            part.append(piece)
    return [np.concatenate(part) for part in parts]
