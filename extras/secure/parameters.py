"""How many members, shares and colluders a group may have, and how large its integers are.

With n members of whom c may work for the coordinator, two disjoint sets of members could answer two questions unless
2 t > n + c for the threshold t of shares. That is the bound behind every promise of extras/secure/protocol.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

LARGEST_GROUP = 512
USUAL_GROUP = 128
FEWEST = 3  # shares, and members of a sum
MODULUS = 2**32
_HALF = MODULUS // 2  # integers from -_HALF to _HALF - 1 have an unambiguous sum
_MOST_LEVELS = 2**24
CERTAIN_TAIL = 12.0  # standard deviations at which noise is cut
_LEVELS_UNDER_NOISE = 64.0  # per square root of the vector's length
_FEWEST_UNITS = (
    16.0  # of an agent's noise: enough to make sums of discrete Gaussians as good as one
)


@dataclass(frozen=True)
class Group:
    """The numbers of a group's sum."""

    members: int  # n
    threshold: int  # t: shares that rebuild a secret
    colluders: int  # c: members that may work for the coordinator
    least: int  # members that a sum must have

    @property
    def honest(self) -> int:
        """Members without whom the sum cannot be read and who work for nobody else."""
        return self.threshold - self.colluders

    @property
    def may_vanish(self) -> int:
        """Members that may be gone without harm to the sum."""
        return self.members - self.threshold

    @property
    def fault(self) -> str | None:
        """Why these numbers would not protect a member, or None."""
        if not FEWEST <= self.threshold <= self.least <= self.members <= LARGEST_GROUP:
            return (
                f"expected {FEWEST} <= threshold {self.threshold} <= least {self.least} <= members {self.members}"
                f" <= {LARGEST_GROUP}"
            )
        if self.colluders < 0 or 2 * self.threshold <= self.members + self.colluders:
            return (
                f"threshold {self.threshold} of {self.members} members protects against fewer than"
                f" {self.colluders} colluders; it must be above (members + colluders) / 2"
            )
        return None

    def void_chance(self, gone: float) -> float:
        """The probability that too few members are left, if each is gone with the probability `gone`."""
        n = self.members
        return sum(
            math.comb(n, k) * gone**k * (1.0 - gone) ** (n - k)
            for k in range(self.may_vanish + 1, n + 1)
        )


def group_of(
    members: int, share: float = 0.2, threshold: int | None = None, least: int | None = None
) -> Group:
    """The numbers of a group.

    Args:
        members: of the group.
        share: of members that may work for the coordinator.
        threshold: None: the smallest that protects.
        least: None: the threshold.

    Raises:
        ValueError: no threshold protects so few members, or the given numbers do not.
    """
    colluders = math.floor(share * members)
    smallest = max(FEWEST, (members + colluders) // 2 + 1)
    chosen = max(smallest, threshold or 0)
    group = Group(members, chosen, colluders, max(chosen, least or 0))
    if group.fault:
        raise ValueError(group.fault)
    return group


def groups(agents: Sequence[str], count: int) -> list[list[str]]:
    """Agents in their order, cut into groups whose sizes differ by at most one."""
    ends = [len(agents) * number // count for number in range(count + 1)]
    return [list(agents[start:end]) for start, end in pairwise(ends)]


@dataclass(frozen=True)
class Scale:
    """From updates to integers: what each unit of a sum is worth, and how much noise an agent adds.

    Without noise an update counts with its number of examples, at most `cap`, and two further slots of the vector carry
    the weight and whether the update was shortened. With noise all updates count alike and there are no further slots.
    """

    clip: float  # Euclidean norm to which an update is shortened
    cap: int  # the largest weight; 1 under noise
    levels: int  # L: the integer of a value of `clip` in an update of the largest weight
    deviation: float = 0.0  # sigma_1: of an agent's noise, in units

    @property
    def is_noised(self) -> bool:
        return self.deviation > 0.0

    @property
    def tail(self) -> int:
        """The largest noise."""
        return math.ceil(CERTAIN_TAIL * self.deviation)

    @property
    def slots(self) -> int:
        """Further integers after those of the update."""
        return 0 if self.is_noised else 2

    @property
    def unit(self) -> float:
        """The change of the model, times weight, that one unit of the sum is worth."""
        return self.cap * self.clip / self.levels

    def fault(self, members: int) -> str | None:
        """Why sums of that number of members could be ambiguous or carry too little noise, or None."""
        if not (0.0 < self.clip < math.inf and self.cap >= 1 and self.levels >= 1):
            return "clip, cap and levels must be positive"
        if not 0.0 <= self.deviation < _HALF:
            return "the noise must be below 2**31 units and not negative"
        if members * (self.levels + self.tail) >= _HALF:
            return f"{members} members times {self.levels + self.tail} units could exceed 2**31"
        if members * self.cap >= _HALF:
            return f"{members} members times weight {self.cap} could exceed 2**31"
        if self.is_noised and self.cap != 1:
            return "under noise all weights are 1"
        if self.is_noised and self.deviation < _FEWEST_UNITS:
            return (
                f"noise of {self.deviation:.3g} units is too coarse, at least {_FEWEST_UNITS:.0f}"
            )
        return None


def plain_scale(members: int, clip: float, cap: int) -> Scale:
    """The finest scale without noise whose sums cannot overflow."""
    return Scale(clip, cap, min(_MOST_LEVELS, (_HALF - 1) // members))


def noised_scale(honest: int, length: int, clip: float, multiplier: float) -> Scale:
    """The scale with discrete Gaussian noise.

    The noise of that number of agents together has a deviation of `multiplier` times the longest update,
    rounding included. Source: P. Kairouz, Z. Liu, T. Steinke, The distributed discrete Gaussian mechanism for federated
    learning with secure aggregation, ICML 2021.

    Args:
        honest: agents whose noise counts: the threshold of each group minus its colluders, or fewer.
        length: of an update.
        clip: the norm of the longest update.
        multiplier: of the noise, above 0.
    """
    root = math.sqrt(length)
    fewest = max(_LEVELS_UNDER_NOISE * root, _FEWEST_UNITS * math.sqrt(honest) / multiplier)
    levels = 1 << math.ceil(math.log2(fewest))
    return Scale(clip, 1, levels, least_deviation(honest, length, levels, multiplier))


def least_deviation(honest: int, length: int, levels: int, multiplier: float) -> float:
    """The deviation of each agent's noise, in units, with which that number of agents reaches the multiplier."""
    return multiplier * (levels + math.sqrt(length) / 2.0) / math.sqrt(honest)


def rho_of(epsilon: float, delta: float) -> float:
    """The rho of zero-concentrated differential privacy that implies (epsilon, delta).

    Source: M. Bun, T. Steinke, Concentrated differential privacy, TCC 2016, proposition 1.3.
    """
    tail = math.log(1.0 / delta)
    return (math.sqrt(tail + epsilon) - math.sqrt(tail)) ** 2
