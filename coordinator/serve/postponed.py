"""Orders that can wait. After a restart every agent gets its order again: those with work at once, the others bit by bit.

Thousands of orders take a broker and a fleet many seconds. Reports and statuses that arrive meanwhile must not wait for
all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from covey.coordinator.run.effects import Effect, SendOrder
from covey.shared.strategies.base import ClientId

ORDERS_AT_ONCE = 100  # that are published before the next item is looked at


class PostponedOrders:
    """The agents whose orders are still to be published. Their orders are made when their turn comes."""

    def __init__(self) -> None:
        # in the order of their turns
        self._agents: dict[ClientId, None] = {}

    def __repr__(self) -> str:
        return f"<PostponedOrders: {len(self._agents)} agents>"

    def __len__(self) -> int:
        return len(self._agents)

    def keep_idle(
        self, effects: Sequence[Effect], accepted: Callable[[ClientId], int]
    ) -> list[Effect]:
        """Postpone the orders without work, and return all other effects.

        The agent whose report was accepted last has the first turn: it sends that report again if it does not learn of it.

        Args:
            effects: with the orders.
            accepted: the newest accepted step of an agent.
        """
        urgent: list[Effect] = []
        idle: list[ClientId] = []
        for effect in effects:
            if isinstance(effect, SendOrder) and not effect.order.step:
                idle.append(effect.client)
            else:
                urgent.append(effect)
        idle.sort(key=lambda client: accepted(client), reverse=True)
        for client in idle:
            self._agents[client] = None
        return urgent

    def take(self) -> list[ClientId]:
        """The agents whose turn it is now."""
        turn = list(self._agents)[:ORDERS_AT_ONCE]
        for client in turn:
            del self._agents[client]
        return turn

    def drop(self, client: ClientId) -> None:
        """The agent has its newest order, or is forgotten."""
        self._agents.pop(client, None)
