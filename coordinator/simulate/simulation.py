"""A run without a network: orders are handed to local clients, their reports to the run, one after another.

It goes through the same `Run` and the same client half as a fleet on a broker does, spool, checkpoint and
codecs included, so its bytes are what a wire run is held against.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from covey.coordinator.engine.events import Joined, Tick
from covey.coordinator.engine.rules import Rules
from covey.coordinator.run.effects import Announce, Done, Effect, SendOrder
from covey.coordinator.run.folder import IN_PROCESS
from covey.coordinator.run.notices import Observer, ignore
from covey.coordinator.run.origin import Origin
from covey.coordinator.run.run import Run
from covey.shared.client import decode_model, execute_order, simulated_noise
from covey.shared.errors import CoveyError
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId, ClientState, Local, Setup
from covey.shared.wire.messages import OrderMessage

LocalFor = Callable[[ClientId, OrderMessage], Local]
Work = list[tuple[ClientId, OrderMessage]]


MAX_IDLE = 100  # ticks in a row; whatever is still to come takes fewer


class GivenUpError(CoveyError):
    """The run was abandoned; the text gives the reason. Deliberately not a subclass of a builtin."""


class Driver(ABC):
    """Has the work of a run's orders done, until the run is over. Time passes only when nothing else happens."""

    def __init__(self, run: Run, observer: Observer = ignore) -> None:
        self.run = run
        self.observer = observer
        self._now = 0.0
        self._idle = 0  # ticks in a row after which nothing had happened

    @abstractmethod
    def answers(self, work: Work) -> list[Effect]:
        """Do the work of these orders, let the run accept the reports, and say what follows."""

    def complete(
        self, clients: Mapping[ClientId, tuple[int, int]], first: Sequence[Effect] = ()
    ) -> Run:
        """Let everybody (train and test samples by id) join and run to the end; `first` are a resume's effects.

        Raises GivenUpError where the run was given up or cannot continue.
        """
        self.run.samples |= clients
        effects = list(first)
        for client in sorted(clients):
            effects += self.run.handle(Joined(client), self._now)
        while True:
            work = self._with_work(effects)
            for effect in effects:
                if isinstance(effect, Announce):
                    self.observer(effect.notice)
                if isinstance(effect, Done):
                    if effect.why:
                        raise GivenUpError(effect.why)
                    return self.run
            effects = self.answers(work) if work else self._wait()

    def _with_work(self, effects: list[Effect]) -> Work:
        """The newest order of each client, where it asks for work."""
        newest = {
            effect.client: effect.order for effect in effects if isinstance(effect, SendOrder)
        }
        return [
            (client, order) for client, order in sorted(newest.items()) if order.work is not None
        ]

    def _advance(self, now: float) -> None:
        """Time passes."""
        self._now = now

    def _wait(self) -> list[Effect]:
        engine = self.run.engine
        if (
            engine.wake_at is None or self._idle == MAX_IDLE
        ):  # nobody comes and nobody comes back here
            raise GivenUpError(f"it cannot continue: {engine.waits_for or engine.stage.value}")
        self._advance(engine.wake_at)
        effects = self.run.handle(Tick(), self._now)
        self._idle = 0 if effects else self._idle + 1
        return effects


class InProcess(Driver):
    """Drives one run with clients in this very process. `local_for` makes a client's data for each order."""

    def __init__(
        self,
        folder: Path,
        scenario: Scenario,
        setup: Setup,
        rules: Rules,
        local_for: LocalFor,
        observer: Observer = ignore,
        origin: Origin | None = None,
        audit_key: bytes | None = None,
        held_back_for: Callable[[ClientId, OrderMessage], Local | None] | None = None,
    ) -> None:
        run = Run.start(folder, scenario, setup, rules, IN_PROCESS, 0.0, audit_key, origin)
        super().__init__(run, observer)
        self.local_for = local_for
        self.held_back_for = held_back_for
        self._client_states: dict[ClientId, ClientState] = {}

    def answers(self, work: Work) -> list[Effect]:
        return [new for client, order in work for new in self._answer(client, order)]

    def _answer(self, client: ClientId, order: OrderMessage) -> list[Effect]:
        assert order.work is not None  # noqa: S101 - the caller has looked
        layout = self.run.setup.layout
        models = [
            decode_model(self.run.orders.content_of(ref.key), layout) for ref in order.work.models
        ]
        client_state = self._client_states.get(client, {})
        noise = simulated_noise(order.work, client)
        report, kept = execute_order(
            order,
            models,
            self.local_for(client, order),
            client_state,
            client=client,
            noise=noise,
            held_back=self.held_back_for(client, order) if self.held_back_for else None,
        )
        effects = self.run.accept(client, report.to_bytes(), self._now)
        if self.run.facts.accepted.get(client) == order.step:
            self._client_states[client] = kept
        return effects
