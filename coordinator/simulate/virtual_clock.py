"""A virtual clock for runs without a broker: every order takes a time of its own, and reports arrive in that order.

The times are log-normal and drawn on the seed (`fleet.durations`), so that synchronous and buffered rounds can be
compared in virtual seconds: the same scenario gives the same seconds on every machine. Evaluations and statistics take no
time. Training is computed when its report is due, several orders at once where workers are free.
"""

from __future__ import annotations

import heapq
import math

from covey.coordinator.run.effects import Effect
from covey.coordinator.simulate.answering import AnsweringDriver
from covey.coordinator.simulate.simulation import Work
from covey.shared.scenario.fleet import Durations
from covey.shared.seeds import generator
from covey.shared.strategies import phase_names
from covey.shared.strategies.base import ClientId
from covey.shared.wire.messages import OrderMessage

Arrival = tuple[float, ClientId, int]  # when a report is due, whose it is, and of which step


def duration_s(durations: Durations | None, seed: int, client: ClientId, step: int) -> float:
    """The time from an order to its report, in virtual seconds."""
    if durations is None:
        return 0.0
    stream = generator(seed, "duration", client)
    if durations.per == "order":
        stream = generator(seed, "duration", client, step)
    deviation = float(stream.standard_normal())
    logarithm = durations.sigma * deviation
    return durations.median_s * math.exp(logarithm)


class TimedDriver(AnsweringDriver):
    """A driver on whose clock orders take time. A subclass does the work."""

    _heap: list[Arrival]  # reports that are due, the next one first
    _due: dict[tuple[ClientId, int], OrderMessage]  # their orders, by agent and step

    def start_clock(self) -> None:
        """Begin where the run's checkpoint has stopped."""
        self._heap = []
        self._due = {}
        self._advance(self.run.facts.clock or 0.0)
        self.run.orders.evaluates_busy = True
        self.run.orders.own.durable = False

    def _advance(self, now: float) -> None:
        super()._advance(now)
        self.run.facts.clock = now

    def answers(self, work: Work) -> list[Effect]:
        at_once: Work = []
        for client, order in work:
            assert order.work is not None  # noqa: S101 - the driver has looked
            takes_time = order.work.phase not in phase_names.OF_THE_RUN
            if takes_time:
                self._schedule(client, order)
                continue
            asked = (client, order)
            at_once.append(asked)
        self.prepare(at_once)
        effects: list[Effect] = []
        for client, order in at_once:
            effects.extend(self.deliver(client, order))
        return effects

    def _schedule(self, client: ClientId, order: OrderMessage) -> None:
        """The report of a new order is due after its time; an order that is known is sent again, no more."""
        key = (client, order.step)
        if key in self._due:
            return
        scenario = self.run.scenario
        fleet = scenario.fleet
        durations = None
        if fleet is not None:
            durations = fleet.durations
        takes = duration_s(durations, scenario.seed, client, order.step)
        due = self._opened(client, order.step) + takes
        arrival = (due, client, order.step)
        self._due[key] = order
        heapq.heappush(self._heap, arrival)

    def _opened(self, client: ClientId, step: int) -> float:
        """When an order was made: before now only if the run was interrupted meanwhile."""
        pace = self.run.engine.pace
        return pace.orders[client].opened if pace.is_at_work(client, step) else self._now

    def _wait(self) -> list[Effect]:
        """The next thing that happens: a report arrives, or the engine is due."""
        self._drop_those_that_are_over()
        if not self._heap:
            return super()._wait()
        due, client, step = self._heap[0]
        wake_at = self.run.engine.wake_at
        if wake_at is not None and wake_at < due:
            return super()._wait()
        heapq.heappop(self._heap)
        self._idle = 0
        self._advance(max(due, self._now))
        self._prepare_next(client, step)
        order = self._due.pop((client, step))
        return list(self.deliver(client, order))

    def _drop_those_that_are_over(self) -> None:
        """Reports that nobody waits for any more are not computed."""
        while self._heap:
            _, client, step = self._heap[0]
            if not self.run.engine.refusal(client, step):
                return
            heapq.heappop(self._heap)
            del self._due[client, step]

    def _prepare_next(self, client: ClientId, step: int) -> None:
        """Compute this report, and with it those that are due next."""
        work: Work = []
        key = (client, step)
        order = self._due[key]
        asked = (client, order)
        work.append(asked)
        soon = heapq.nsmallest(self.lookahead, self._heap)
        for _, other, number in soon:
            is_over = self.run.engine.refusal(other, number)
            if is_over:
                continue
            key = (other, number)
            order = self._due[key]
            asked = (other, order)
            work.append(asked)
        self.prepare(work)
