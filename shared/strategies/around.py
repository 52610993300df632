"""A method around a method: phases of its own between those of the method inside, in whose place a run has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import ConfigDict, SkipValidation

from covey.shared.numerics.split import Split
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.strategies.base import (
    Buffering,
    ClientId,
    Facts,
    Order,
    PrivacyFacet,
    Settings,
    Strategy,
)


@dataclass(frozen=True)
class Outer:
    """The state of such a method."""

    inner: Any  # of the method inside


S = TypeVar("S", bound=Outer)


class Around(Strategy[S]):
    """A method around another one, which answers what others ask, from the state inside.

    A subclass has the phases: it writes `init`, `plan`, `order`, `model`, `terms`, `for_terms`, `fold` and `shown`; also `work`,
    `personal` and `serves`, where devices have it too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    method: SkipValidation[Strategy[Any]]  # pydantic would make another one of the base class

    @property
    def facts(self) -> Facts:  # type: ignore[override]  # of the class elsewhere, and here of the method
        return self.method.facts

    @property
    def name(self) -> str:
        return self.method.name

    @property
    def starts(self) -> int:
        return self.method.starts

    @property
    def buffer(self) -> Buffering:
        return self.method.buffer

    @property
    def privacy(self) -> PrivacyFacet:
        return self.method.privacy

    @property
    def projection_head(self) -> int:
        return self.method.projection_head

    def split(self, layout: Layout) -> Split | None:
        return self.method.split(layout)

    def refuses(self, settings: Settings) -> str:
        return self.method.refuses(settings)

    def continued(self, state: S, fresh: S) -> S:
        return replace(fresh, inner=self.method.continued(state.inner, fresh.inner))

    def serve(self, state: S, client: ClientId) -> Order:
        return self.method.serve(state.inner, client)

    def clusters(self, state: S) -> tuple[Vector, ...]:
        return self.method.clusters(state.inner)

    def assignment(self, state: S) -> Mapping[ClientId, int]:
        return self.method.assignment(state.inner)

    def stop_reason(self, state: S) -> str:
        return self.method.stop_reason(state.inner)

    def accused(self, state: S) -> Mapping[ClientId, str]:
        return self.method.accused(state.inner)

    def failure(self, state: S) -> str:
        return self.method.failure(state.inner)

    def forget(self, state: S, client: ClientId) -> S:
        return replace(state, inner=self.method.forget(state.inner, client))
