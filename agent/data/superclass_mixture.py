"""The rule superclass_mixture: agents that mix two groups of labels, super-class 0 and super-class 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from covey.agent.data.agent_samples import AgentSamples, cut, joined
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
    half = (agents + 1) // 2
    share = np.full(agents, 1 - cfg.major, np.float64)
    share[:half] = cfg.major
    other_share = 1 - share
    truth = np.stack([share, other_share], axis=1)
    pools = _superclass_pools(cfg, targets)
    test_pools = _superclass_pools(cfg, test_targets)
    size = _largest_size(share, pools)
    largest_test_size = _largest_size(share, test_pools)
    test_size = min(size // 5, largest_test_size)
    train = _mixed(share, size, pools, rng)
    return AgentSamples(train, _mixed(share, test_size, test_pools, rng), truth)


def superclass(cfg: SuperclassMixture, targets: Array) -> Indices:
    """0 or 1 for each target (n,), -1 for one that is in neither super-class."""
    in_first = np.isin(targets, cfg.first)
    in_second = np.isin(targets, cfg.second)
    if not cfg.second:  # all other labels
        in_second = np.full(len(targets), True)
    second_or_none = np.where(in_second, 1, -1)
    return np.where(in_first, 0, second_or_none)


def _check_superclasses(cfg: SuperclassMixture, targets: Array) -> None:
    """Raises UserError for labels that do not occur, or are in both super-classes."""
    known = set(np.unique(targets).tolist())
    first = set(cfg.first)
    second = set(cfg.second)
    label_sets = {"first": first, "second": second}
    for key, labels in label_sets.items():
        unknown = sorted(labels - known)
        if unknown:
            raise UserError(
                f"fleet.partition.{key}: labels {unknown} do not occur in the data set, which has "
                f"{sorted(known)}"
            )
    in_both = sorted(first & second)
    if in_both:
        raise UserError(
            f"fleet.partition: labels {in_both} are in both super-classes; leave them in one"
        )


def _superclass_pools(cfg: SuperclassMixture, targets: Array) -> list[Indices]:
    """The samples of super-class 0 and those of super-class 1."""
    of_sample = superclass(cfg, targets)
    return [np.flatnonzero(of_sample == 0), np.flatnonzero(of_sample == 1)]


def _largest_size(share: Float64, pools: Sequence[Indices]) -> int:
    """The largest number of samples that all agents can have alike, so that both pools suffice."""
    pool_sizes = [len(pool) for pool in pools]
    agents = max(len(share), 1)
    # the shares of two agents, one of each half, sum to one: a pool loses about agents * size / 2 samples
    size = 2 * min(pool_sizes) // agents
    while size:
        if np.all(_mixture_counts(share, size).sum(axis=0) <= pool_sizes):
            break
        size -= 1
    return size


def _mixture_counts(share: Float64, size: int) -> Indices:
    """How many samples each agent draws from each super-class, (agents, 2); rows sum to `size`."""
    first = np.round(share * size).astype(np.int64)
    return np.stack([first, size - first], axis=1)


def _mixed(
    share: Float64, size: int, pools: Sequence[Indices], rng: np.random.Generator
) -> list[Indices]:
    """`size` samples for each agent, from both pools by its share; no sample is drawn twice."""
    pieces: list[list[Indices]] = []
    for pool, counts in zip(pools, _mixture_counts(share, size).T, strict=True):
        pieces.append(cut(rng.permutation(pool)[: counts.sum()], counts))
    return joined(pieces)
