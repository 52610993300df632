"""A buffered run once more: the events of its record in their order, with reports that are computed again.

The engine decides from events and their times alone, so it gives the same orders; the same orders on the same data give
the same reports. The models of a replay are therefore those of the run, byte for byte, on the same kind of machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from covey.coordinator.engine.events import Reported
from covey.coordinator.engine.stage import Stage
from covey.coordinator.run.effects import Announce, Effect, SendOrder
from covey.coordinator.run.event_log import Arrival, Restarted
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.answering import AnsweringDriver
from covey.coordinator.simulate.simulation import GivenUpError, Work
from covey.shared.strategies.base import ClientId
from covey.shared.wire.messages import OrderMessage

Key = tuple[ClientId, int]  # an agent, and the number of its order


class ReplayDriver(AnsweringDriver):
    """Feeds a run with recorded events. A subclass does the work."""

    def replay(
        self, clients: Mapping[ClientId, tuple[int, int]], arrivals: Sequence[Arrival]
    ) -> Run:
        """The run after all these events.

        Args:
            clients: training and test samples of all agents.
            arrivals: the record of the run.

        Raises:
            GivenUpError: the record ends before the run does: it was stopped, or given up.
        """
        self._orders: dict[Key, OrderMessage] = {}
        self._arrivals = arrivals
        self.run.samples |= clients
        for place, arrival in enumerate(arrivals):
            if isinstance(arrival.event, Restarted):
                self._hand_in(arrival.event.reported)
            self._advance(arrival.at)
            self._take_note(self._play(place, arrival))
        engine = self.run.engine
        if engine.stage is not Stage.DONE:
            raise GivenUpError(f"the record ends after round {engine.round}, before the run does")
        return self.run

    def answers(self, work: Work) -> list[Effect]:
        """Nothing: here the record decides when an agent answers."""
        return []

    def _play(self, place: int, arrival: Arrival) -> Sequence[Effect]:
        """One event, as it happened."""
        match arrival.event:
            case Restarted() as restarted:
                return self._restart(restarted)
            case Reported(client, step) as event:
                order = self._orders.pop((client, step), None)
                is_ignored = bool(self.run.engine.refusal(client, step))
                if order is None or is_ignored:
                    return self.run.handle(event, self._now)
                work = self._next(place)
                work.append((client, order))
                self.prepare(work)
                return self.deliver(client, order)
            case event:
                return self.run.handle(event, self._now)

    def _next(self, place: int) -> Work:
        """Further reports that are due soon, and can be computed by now."""
        work: Work = []
        start = place + 1
        end = start + self.lookahead
        for arrival in self._arrivals[start:end]:
            event = arrival.event
            if not isinstance(event, Reported):
                continue
            order = self._orders.get((event.client, event.step))
            if order is None:
                continue
            asked = (event.client, order)
            work.append(asked)
        return work

    @property
    def _open_step(self) -> int:
        step = self.run.engine.step
        return 0 if step is None else step.number

    def _hand_in(self, reported: Sequence[ClientId]) -> None:
        """Reports of the open step that came after the last checkpoint: before the restart, so no deadline is over."""
        number = self._open_step
        for client in reported:
            order = self._orders.pop((client, number), None)
            is_known = bool(self.run.engine.refusal(client, number))
            if order is None or is_known:
                continue
            self.prepare([(client, order)])
            self._take_note(self.deliver(client, order))

    def _restart(self, restarted: Restarted) -> Sequence[Effect]:
        """The run from its checkpoint, with the reports that its spool had."""
        before, number = self.run, self._open_step
        for client in set(before.spool.who(number)) - set(restarted.reported):
            before.spool.discard(number, client)
        self.run, first = Run.resume(
            before.folder,
            before.scenario,
            before.setup,
            before.engine.rules,
            self._now,
            lost=restarted.lost,
        )
        self.run.samples |= before.samples
        desired = self.run.desired()
        return [*first, *desired]

    def _take_note(self, effects: Sequence[Effect]) -> None:
        """Keep the orders until their reports come."""
        for effect in effects:
            if isinstance(effect, Announce):
                self.observer(effect.notice)
            if isinstance(effect, SendOrder) and effect.order.work is not None:
                key = (effect.client, effect.order.step)
                self._orders[key] = effect.order
