"""A driver that computes reports ahead and delivers each when it is due."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from covey.coordinator.run.effects import Effect
from covey.coordinator.simulate.simulation import Driver, Work
from covey.shared.strategies.base import ClientId
from covey.shared.wire.messages import OrderMessage


class AnsweringDriver(Driver):
    """Splits an agent's answer in two: a subclass computes reports, and delivers them."""

    @abstractmethod
    def prepare(self, work: Work) -> None:
        """Compute these reports, if that is worth while before they are due."""

    @abstractmethod
    def deliver(self, client: ClientId, order: OrderMessage) -> Sequence[Effect]:
        """Let the run accept the report of this order, and return what follows."""

    @property
    def lookahead(self) -> int:
        """How many reports are computed together with one that is due."""
        return 0
