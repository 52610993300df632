"""A run without a broker on a virtual clock: every order takes a time of its own, and reports arrive in that order.

The times are log-normal and drawn on the seed (`fleet.durations`), so that synchronous and buffered rounds can be
compared in virtual seconds: the same scenario gives the same seconds on every machine. Without durations every order takes
no time at all. Evaluations, statistics and the exchanges of secure sums never do. Otherwise time passes only when nothing else happens.

Reports are computed many together where workers are free, and delivered one by one when they are due. Run, spool, checkpoint,
codecs and the clients' half are those of a run over a broker, so its bytes are what a wire run is held against.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from covey.coordinator.engine.events import Failed, Joined, Tick
from covey.coordinator.record.notices import Observer, ignore
from covey.coordinator.run.effects import Announce, Effect, RunOver, SendOrder
from covey.coordinator.run.run import Run
from covey.shared.errors import CoveyError, DecodeError
from covey.shared.scenario.fleet import Durations
from covey.shared.seeds import generator
from covey.shared.strategies import phase_names
from covey.shared.strategies.base import ClientId
from covey.shared.wire.messages import OrderMessage

Work = list[tuple[ClientId, OrderMessage]]
Place = tuple[
    int, int
]  # among reports that are due at the same time: step, and place in its cohort
Arrival = tuple[float, Place, ClientId, int]  # when a report is due, whose it is, and of which step
MAX_IDLE = 100  # ticks in a row; whatever is still to come takes fewer


class GivenUpError(CoveyError):
    """The run was abandoned; the text gives the reason. Deliberately not a subclass of a builtin."""


class Clients(Protocol):
    """Those who do the work of orders."""

    @property
    def ahead(self) -> int:
        """How many reports are computed before they are due."""

    def compute(self, run: Run, work: Work) -> None:
        """Begin with these reports, if that is worth while before they are due."""

    def report(self, run: Run, client: ClientId, order: OrderMessage) -> bytes:
        """The report of this order."""

    def settle(self, run: Run, client: ClientId, step: int) -> None:
        """The report of this step is over: keep the memory that came with it if the run has accepted it, and nothing else."""


def duration_s(durations: Durations | None, seed: int, client: ClientId, step: int) -> float:
    """The time from an order to its report, in virtual seconds."""
    if durations is None:
        return 0.0
    stream = generator(seed, "duration", client, step)
    return durations.median_s * math.exp(durations.sigma * float(stream.standard_normal()))


C = TypeVar("C", bound=Clients)


class Driver(Generic[C]):
    """Has the work of a run's orders done, until the run is over. A resumed run continues where its clock has stopped."""

    def __init__(self, run: Run, clients: C, observer: Observer = ignore) -> None:
        self.run = run
        self.clients = clients
        self.observer = observer
        fleet = run.scenario.fleet
        self._durations = None if fleet is None else fleet.durations
        self._shows_clock = self._durations is not None or run.engine.rules.is_buffered
        self._arrivals: list[Arrival] = []  # a heap of reports that are due, the next one first
        self._orders: dict[tuple[ClientId, int], OrderMessage] = {}  # theirs, by agent and step
        self._computed: set[tuple[ClientId, int]] = set()  # those whose report is computed
        self._idle = 0  # ticks in a row after which nothing had happened
        self._advance(run.facts.clock or 0.0)
        run.simulate(evaluates_busy=True)

    def __repr__(self) -> str:
        return f"<Driver at {self.now:.3f} s: {self.run!r}>"

    def complete(
        self, samples: Mapping[ClientId, tuple[int, int]], first: Sequence[Effect] = ()
    ) -> Run:
        """Let all agents (train and test samples by id) join and run to the end; `first` are a resume's effects.

        Raises GivenUpError where the run was given up or cannot continue.
        """
        self.run.members.note_samples(samples)
        joined = [
            effect
            for client in sorted(samples)
            for effect in self.run.handle(Joined(client), self.now)
        ]
        effects: Sequence[Effect] = [*first, *joined]
        while True:
            work = self._take(effects)
            for effect in effects:
                if isinstance(effect, Announce):
                    self.observer(effect.notice)
                if isinstance(effect, RunOver):
                    if effect.why:
                        raise GivenUpError(effect.why)
                    return self.run
            effects = self._answers(work) if work else self._wait()

    def _take(self, effects: Sequence[Effect]) -> Work:
        """The work of the newest order of each client. Work that takes time is scheduled; the rest is returned."""
        newest = {
            effect.client: effect.order for effect in effects if isinstance(effect, SendOrder)
        }
        work = [
            (client, order) for client, order in sorted(newest.items()) if order.work is not None
        ]
        at_once = [(client, order) for client, order in work if _takes_no_time(order)]
        step = self.run.engine.step
        places: dict[ClientId, int] = {}
        if step is not None and len(at_once) < len(work):
            # as invited: over-selection must not prefer the first names
            places = {client: place for place, client in enumerate(step.cohort)}
        for client, order in work:
            if not _takes_no_time(order):
                self._schedule(client, order, (order.step, places.get(client, 0)))
        return at_once

    def _schedule(self, client: ClientId, order: OrderMessage, place: Place) -> None:
        """The report of a new order is due after its time; an order that is known is sent again, no more."""
        key = (client, order.step)
        if key in self._orders:
            return
        self._orders[key] = order
        pace, opened = self.run.engine.pace, self.now
        if pace.is_at_work(client, order.step):
            opened = pace.orders[client].opened  # before now if the run was interrupted meanwhile
            place = (order.step, 0)  # those who have reported work again after the others
        takes = duration_s(self._durations, self.run.scenario.seed, client, order.step)
        heapq.heappush(self._arrivals, (opened + takes, place, client, order.step))

    def _answers(self, work: Work) -> list[Effect]:
        """Reports that take no time."""
        self.clients.compute(self.run, work)
        return [effect for client, order in work for effect in self.deliver(client, order)]

    def _wait(self) -> Sequence[Effect]:
        """The next thing that happens: a report arrives, or the engine is due."""
        self._drop_those_that_are_over()
        wake_at = self.run.engine.wake_at
        if not self._arrivals or (wake_at is not None and wake_at < self._arrivals[0][0]):
            return self._tick()
        self._compute_next()
        due, _, client, step = heapq.heappop(self._arrivals)
        self._idle = 0
        self._advance(max(due, self.now))
        self._computed.discard((client, step))
        return self.deliver(client, self._orders.pop((client, step)))

    def _tick(self) -> Sequence[Effect]:
        wake_at = self.run.engine.wake_at
        if wake_at is None or self._idle == MAX_IDLE:
            # no agent joins or returns here
            why = self.run.engine.waits_for or self.run.engine.stage.value
            raise GivenUpError(f"it cannot continue: {why}")
        self._advance(wake_at)
        effects = self.run.handle(Tick(), self.now)
        self._idle = 0 if effects else self._idle + 1
        return effects

    def _advance(self, now: float) -> None:
        """Time passes."""
        self.now = now
        if self._shows_clock:
            self.run.clock_shows(now)

    def _drop_those_that_are_over(self) -> None:
        """Reports that are not awaited any more are not computed, or not delivered."""
        while self._arrivals:
            _, _, client, step = self._arrivals[0]
            if not self.run.engine.refusal(client, step):
                return
            heapq.heappop(self._arrivals)
            del self._orders[client, step]
            self._computed.discard((client, step))
            self.clients.settle(self.run, client, step)

    def _compute_next(self) -> None:
        """Compute the next report, and with it those that are due at the same time or soon."""
        due, _, client, step = self._arrivals[0]
        number = self.clients.ahead + 1
        if (client, step) not in self._computed:
            number = max(number, sum(1 for arrival in self._arrivals if arrival[0] <= due))
        elif len(self._computed) >= number:
            return
        work: Work = []
        for _, _, client, step in heapq.nsmallest(number, self._arrivals):
            key = (client, step)
            if key not in self._computed and not self.run.engine.refusal(client, step):
                self._computed.add(key)
                work.append((client, self._orders[key]))
        self.clients.compute(self.run, work)

    def deliver(self, client: ClientId, order: OrderMessage) -> Sequence[Effect]:
        """Let the run accept the report of this order, and return what follows."""
        try:
            # no name for the content: the run drops the last reference to it
            effects = self.run.accept(
                client, self.clients.report(self.run, client, order), self.now
            )
        except DecodeError as error:
            effects = self.refused(client, order, error)
        self.clients.settle(self.run, client, order.step)
        return effects

    def refused(self, client: ClientId, order: OrderMessage, error: DecodeError) -> list[Effect]:
        """A refused report is failed work: the agent would send the same one again. Returns the effects of that."""
        self.run.audit.blame("refuse", client, str(error))
        # without the details, so that a run in which all fail is given up with their common reason
        why = f"its report is refused ({error.reason}); if training diverges, choose a smaller training.lr"
        return self.run.handle(Failed(client, order.step, why), self.now)


def _takes_no_time(order: OrderMessage) -> bool:
    without = (*phase_names.OF_THE_RUN, *phase_names.EXCHANGES)
    return order.work is not None and order.work.phase in without
