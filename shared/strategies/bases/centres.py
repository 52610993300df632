"""What FeSEM and FeSEM-MA share: K-means over the latest models of all clients, invited in a round or not.

A warm-up of all clients comes first, so that K-means has something to cluster. A newcomer trains from the mean of the centres
and joins the centre that is nearest to its model, which counts from the next M-step on.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, TypeVar

from covey.shared.numerics.clustering import Labels, Matrix
from covey.shared.numerics.vectors import Vector, mean
from covey.shared.strategies.base import (
    ENTRY,
    MODEL,
    ClientId,
    Facts,
    Phase,
    Reports,
    Shown,
    without,
)
from covey.shared.strategies.bases.cut import WHOLE_CARD_ASKED, Gated, Numbered, Tested, shift_facts
from covey.shared.strategies.bases.hard import joined
from covey.shared.strategies.client_half import Card, GradientCorrection
from covey.shared.strategies.phase_names import WARMUP

MEAN_OF_CENTRES = "mean"  # key of the model that newcomers start from


@dataclass(frozen=True)
class Centred(Tested):
    """The centres W~_k are `models`; r_i, the centre of client i, is `assign`."""

    count: int = 0  # K
    seed: int = 0
    stored: dict[ClientId, Vector] = field(default_factory=dict)  # W_i: the latest model (d,)
    spread: float = 0.0  # J, the mean distance to the own centre, after the last E-step
    reseeded: int = 0  # empty clusters that got a client in the last E-step


C = TypeVar("C", bound=Centred)


class MultiCentre(Numbered, Gated[C], Generic[C]):
    """A method writes what it keeps of reports (`keep`) and how it compares models with centres (`nearest_centres`)."""

    facts: ClassVar[Facts] = Facts(
        individual=True, keeps=True, phases=(ENTRY,), numbers={WARMUP: WHOLE_CARD_ASKED}
    )

    squares: ClassVar[bool] = True

    @abstractmethod
    def keep(self, state: C, reports: Reports) -> C:
        """The state with the reported models. They may be memory-mapped and are not copied."""

    @abstractmethod
    def nearest_centres(self, state: C, clients: Sequence[ClientId]) -> tuple[Labels, Matrix]:
        """The nearest centre of each client's latest model (n,), ties to the lowest, and the distances to them (n,)."""

    def after_tests(self, state: C, cards: Collection[Card]) -> C:
        return replace(state, count=self.count(state.chances, cards))

    def clustering_phase(self, state: C) -> Phase:
        return Phase(WARMUP, "all", self.entry_sizes(state), ends_round=False)

    def entry_sizes(self, state: C) -> Mapping[str, int]:
        return {MODEL: state.start.size}

    def model(self, state: C, key: str) -> Vector:
        if key == MEAN_OF_CENTRES:
            return mean([(centre, 1.0) for centre in state.models])
        return super().model(state, key)

    def shown(self, state: C) -> Shown:
        if not state.models:
            return Shown()
        facts = {**super().shown(state).notes, "J": state.spread, "reseeded": state.reseeded}
        if self.gate == "cards":
            facts |= shift_facts(state, self.gate)
        return Shown(facts)

    def assign_newcomers(self, state: C, reports: Reports) -> C:
        if not reports:
            return state
        state = self.keep(state, reports)
        clients = [client for client, _ in reports]
        labels, _ = self.nearest_centres(state, clients)
        return joined(state, dict(zip(clients, labels.tolist(), strict=True)))

    def forget(self, state: C, client: ClientId) -> C:
        return replace(super().forget(state, client), stored=without(state.stored, client))


def pull(start: Vector, mu: float | None) -> GradientCorrection:
    """The proximal term of strength mu, which pulls towards the model (d,) that training starts from; None or 0: none."""
    return GradientCorrection(start, mu) if mu else GradientCorrection()
