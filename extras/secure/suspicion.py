"""Who spoils sums: group testing over rounds (R. Dorfman, The detection of defective members of large populations, 1943).

A sum out of range shows that one of its members lied, and not who. The next rounds sum half of those who may have done it with
others, until one is left. Agents that always lie are never in a good sum; so is nobody named whom another one has replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from covey.shared.strategies.base import ClientId


@dataclass(frozen=True)
class Suspicion:
    """The sums out of range that nothing explains yet, and the good ones since."""

    lost: Sequence[Sequence[ClientId]] = ()  # whose reports were in these sums
    cleared: Sequence[ClientId] = ()  # agents that were in a good sum since

    @property
    def suspects(self) -> set[ClientId]:
        return set(chain(*self.lost)) - set(self.cleared)

    def narrowest(self, clients: Iterable[ClientId]) -> list[ClientId]:
        """The suspects of one lost sum, the fewest of which some are among these clients."""
        here = set(clients) - set(self.cleared)
        return min(
            (sorted(here & set(one)) for one in self.lost if here & set(one)), key=len, default=[]
        )

    def after(
        self, good: Iterable[Sequence[ClientId]], lost: Iterable[Sequence[ClientId]]
    ) -> Suspicion:
        """This with the sums of one more phase."""
        cleared, all_lost = set(chain(self.cleared, *good)), [*self.lost]
        for one in lost:
            if set(one) <= cleared:  # one of them has begun to lie
                cleared -= set(one)
            all_lost.append(list(one))
        open_ones = [one for one in all_lost if not set(one) <= cleared]
        return Suspicion(open_ones, sorted(cleared) if open_ones else ())

    def without(self, clients: Iterable[ClientId]) -> Suspicion:
        """This without the sums that these agents explain."""
        gone = set(clients)
        lost = [one for one in self.lost if not gone & set(one)]
        return Suspicion(lost, sorted({*self.cleared} - gone) if lost else ())

    @property
    def named(self) -> dict[ClientId, int]:
        """The liars that are known, and in how many lost sums each was.

        Each other member of one of these sums was in a good one, and no other agent was in all of them: so an agent that lies
        now and then cannot have another one named.
        """
        found = {}
        for one in self.lost:
            left = set(one) - set(self.cleared)
            if len(left) == 1:
                [liar] = left
                with_it = [set(other) for other in self.lost if liar in other]
                if set.intersection(*with_it) == {liar}:
                    found[liar] = len(with_it)
        return found
