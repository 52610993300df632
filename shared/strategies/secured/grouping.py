"""Who sums with whom: the groups of a phase, how many of them must report, and how large their integers are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import floor

from covey.shared.privacy.settings import ClientPrivacy, SecureSettings
from covey.shared.secure.messages import Member
from covey.shared.secure.parameters import Group, Scale, group_of, groups, noised_scale, plain_scale
from covey.shared.secure.primitives import hashed
from covey.shared.strategies.base import EVALUATE, ClientId, Phase, Terms
from covey.shared.strategies.secured.progress import Progress


@dataclass(frozen=True)
class Grouping:
    """The rules by which a run makes groups."""

    settings: SecureSettings
    noise: ClientPrivacy | None  # that agents add to their updates
    home: Callable[[ClientId], int]  # the broker where an agent is enrolled

    def drawn(
        self,
        members: Mapping[ClientId, Member],
        clients: Sequence[ClientId],
        cluster: str,
        progress: Progress,
    ) -> Iterator[list[ClientId]]:
        """Groups of agents of a cluster who do the same work; they may be too small."""
        for together in self._by_broker(self._invited(clients, cluster, progress)):
            mixed = sorted(together, key=lambda one: hashed("draw", members[one].box.key))
            yield from groups(mixed, self.settings.group)

    def size(self, members: int, honest: int) -> Group | None:
        """The numbers of a group, in which the sum has the noise of that number of honest agents; None for too few members."""
        settings = self.settings
        threshold = settings.threshold or 0
        if self.noise is not None and honest:
            threshold = max(threshold, honest + floor(settings.colluders * members))
        try:
            return group_of(members, settings.colluders, threshold, settings.least)
        except ValueError:
            return None

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
    ) -> Sequence[ClientId]:
        """Agents of a cluster without those whom an answer binds; where the others are too few, and in turn, the members to
        whom it binds them, if all are here."""
        standing = {} if progress.evaluates else progress.standing.get(cluster)
        if not standing:
            return clients
        free = sorted(set(clients) - set(standing["bound"]))
        again = standing["members"] if set(standing["members"]) <= set(clients) else ()
        is_for_others = self.size(len(free), 0) and not (
            again and (progress.round + progress.voids) % 2
        )
        return free if is_for_others else again

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
