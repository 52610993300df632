"""Who sums with whom: the groups of a phase, how many of them must report, and how large their integers are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import floor

from covey.extras.secure.parameters import (
    FEWEST,
    Group,
    Scale,
    group_of,
    groups,
    noised_scale,
    plain_scale,
)
from covey.extras.secure.primitives import hashed
from covey.extras.secure.progress import Progress
from covey.extras.secure.suspicion import Suspicion
from covey.shared.privacy.settings import ClientPrivacy, SecureSettings
from covey.shared.strategies.base import EVALUATE, ClientId, Phase, Terms


@dataclass(frozen=True)
class Grouping:
    """The rules by which a run makes groups."""

    settings: SecureSettings
    noise: ClientPrivacy | None  # that agents add to their updates
    home: Callable[[ClientId], int]  # the broker where an agent is enrolled

    demands: Mapping[ClientId, int] = field(default_factory=dict)  # members that an owner requires

    def drawn(
        self, clients: Sequence[ClientId], cluster: str, progress: Progress
    ) -> Iterator[tuple[list[ClientId], int]]:
        """Groups of agents of a cluster who do the same work, and the fewest who must report; they may be too small.

        They are the same from round to round while all goes well: sums of other members would show who is in one alone.
        """
        invited, is_bound = self._invited(clients, cluster, progress)
        if is_bound:
            yield sorted(invited), len(invited)
            return
        for together in self._by_broker(invited):
            whole = self.size(len(together), 0)
            most = whole.least if whole else 0  # no group of these has more
            own = {one: self.demands.get(one, 0) for one in together}
            within = replace(self, demands={one: own[one] for one in own if own[one] <= most})
            known = Suspicion() if progress.evaluates else progress.suspicion
            tests = within._tests(together, known, progress.round)  # noqa: SLF001 - of its own class
            for chosen in tests or within._blocks(together):  # noqa: SLF001
                yield sorted(chosen), within._fewest(chosen)  # noqa: SLF001

    def size(self, members: int, honest: int, least: int = 0) -> Group | None:
        """The numbers of a group, in which the sum has the noise of that number of honest agents; None for too few members."""
        settings = self.settings
        threshold = settings.threshold or 0
        if self.noise is not None and honest:
            threshold = max(threshold, honest + floor(settings.colluders * members))
        try:
            return group_of(members, settings.colluders, threshold, max(least, settings.least or 0))
        except ValueError:
            return None

    def _fewest(self, clients: Iterable[ClientId]) -> int:
        """The fewest members of a group with these agents."""
        settings = self.settings
        demands = (self.demands.get(one, 0) for one in clients)
        return max(FEWEST, settings.least or 0, settings.threshold or 0, *demands)

    def _blocks(self, clients: Sequence[ClientId]) -> list[list[ClientId]]:
        """Two groups at least, so that one that is spoiled leaves a sum of the others, which moves the model.

        Who demands more is with others who do. Under noise each group bears all of it: there are no more than must be.
        """
        mixed = sorted(
            clients, key=lambda one: (-self.demands.get(one, 0), hashed("draw", one.encode()))
        )
        count = self._count(mixed)
        if count < 2 and self.noise is None:
            half = max(-(-len(mixed) // 2), self._fewest(mixed[:1]))
            others = mixed[half:]
            return [mixed[:half], others] if len(others) >= self._fewest(others) else [mixed]
        return groups(mixed, count)

    def _count(self, clients: Sequence[ClientId]) -> int:
        """The fewest groups that agents are cut into."""
        return max(-(-len(clients) // self.settings.group), 1)

    def _tests(
        self, clients: Sequence[ClientId], known: Suspicion, round: int
    ) -> list[list[ClientId]]:
        """Groups that show whether the liar is in one half of the suspects; none where nobody is suspected, or too few are here.

        The others are in a group without any suspect, if they are enough: whatever the test shows, their sum moves the model.
        """
        suspects = known.suspects & set(clients)
        narrow = known.narrowest(clients)
        half = narrow[: -(-len(narrow) // 2)]
        rest = sorted(suspects - set(half))
        lost = [one for members in known.lost for one in members]
        sure = sorted(
            set(clients) - suspects,
            key=lambda one: (lost.count(one), hashed("pad", b"%d" % round, one.encode())),
        )
        fewest = self._fewest(half)
        for wanted in (fewest + 1, fewest):
            pads = max(wanted - len(half), 0)
            safe = sure[pads:]
            if half and len(safe) >= self._fewest(safe):
                apart = [rest] if len(rest) >= self._fewest(rest) else []
                return [[*half, *sure[:pads]], *groups(safe, self._count(safe)), *apart]
        pads = max(len(clients) // 2 - len(half), 0)
        halves = [[*half, *sure[:pads]], [*rest, *sure[pads:]]]
        return halves if half and all(len(one) >= self._fewest(one) for one in halves) else []

    def scale(self, terms: Terms, own: Phase, honest: int) -> Scale:
        """The same for all groups and attempts of a round, so that a vector counts in each of them.

        Figures have no noise, and one of their integers is one unit.
        """
        settings = self.settings
        if own.name == EVALUATE:
            return plain_scale(settings.group, settings.clip, 1)
        if self.noise is not None and self.noise.noise_multiplier:
            length = sum(own.sizes.values())
            return noised_scale(honest, length, settings.clip, self.noise.noise_multiplier)
        heaviest = (
            1
            if self.noise is not None
            else min((int(term.weight) for term in terms), default=settings.cap)
        )
        return plain_scale(settings.group, settings.clip, heaviest)

    def _invited(
        self, clients: Sequence[ClientId], cluster: str, progress: Progress
    ) -> tuple[Sequence[ClientId], bool]:
        """Agents of a cluster without those whom an answer binds; where the others are too few, and in turn, the members to
        whom it binds them, if all are here, and whether it is these."""
        standing = {} if progress.evaluates else progress.standing.get(cluster)
        if not standing:
            return clients, False
        free = sorted(set(clients) - set(standing["bound"]))
        again = standing["members"] if set(standing["members"]) <= set(clients) else ()
        is_for_others = self.size(len(free), 0) and not (
            again and (progress.round + progress.voids) % 2
        )
        return (free, False) if is_for_others or not again else (again, True)

    def _by_broker(self, clients: Sequence[ClientId]) -> list[list[ClientId]]:
        """Agents by their brokers, so that one that is gone costs its own groups; those that are too few there together."""
        by_home: dict[int, list[ClientId]] = {}
        for client in clients:
            by_home.setdefault(self.home(client), []).append(client)
        enough = [own for _, own in sorted(by_home.items()) if self.size(len(own), 0)]
        others = sorted(set(clients) - set(chain(*enough)))
        if enough and others and not self.size(len(others), 0):
            return [*enough[:-1], sorted(enough[-1] + others)]
        return [*enough, others] if others else enough
