"""A run whose clients are objects in this very process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from covey.agent.policy import NO_CODE_RULES, OwnersRules
from covey.agent.worker.participant import SimulatedParticipant
from covey.agent.worker.perform import worked
from covey.agent.worker.without_data import WithoutData
from covey.coordinator.engine.rules import RoundRules
from covey.coordinator.record.notices import Observer, ignore
from covey.coordinator.run.folder import IN_PROCESS, Origin
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.virtual_clock import Driver
from covey.coordinator.simulate.virtual_clock import Work as Timed
from covey.shared.errors import UserError
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.scenario.base import base_vector
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId, Setup
from covey.shared.strategies.client_half import ClientState, Local
from covey.shared.wire.codec import decode_model
from covey.shared.wire.jobs import DataSource, DeviceData
from covey.shared.wire.messages import OrderMessage, ReportContent, Work, is_base
from covey.shared.work.at_hand import AtHand

LocalFor = Callable[[ClientId, OrderMessage], Local]  # makes a client's data for each order
AT_HAND = DeviceData(data="at hand")
HeldBackFor = Callable[[ClientId, OrderMessage], Local | None]


def decode_named(key: str, content: bytes, layout: Layout) -> Vector:
    """The vector that an order names by a key: as `decode_model`, and (d,) of a base, which is a file as it is."""
    return base_vector(content, layout) if is_base(key) else decode_model(content, layout)


@dataclass(frozen=True, kw_only=True)
class Client(SimulatedParticipant):
    """Who does the work of an order with data at hand. A fault of the program is no failure of the work."""

    given: AtHand
    source: DataSource = AT_HAND
    rules: OwnersRules = NO_CODE_RULES

    def at_hand(self, *_: object) -> AtHand:
        return self.given

    def without_data(self, *_: object, rows: int = 0) -> AtHand:
        return AtHand(cast(Local, WithoutData(self.given.local, tries=False)))

    def stated_samples(self, work: Work) -> tuple[int, int] | None:
        """Those of the data at hand, which no file has."""
        return None

    def public(self, error: Exception) -> str:
        if not isinstance(error, UserError):
            raise error
        return super().public(error)


def done(
    run: Run, who: SimulatedParticipant, order: OrderMessage, memory: ClientState | None = None
) -> tuple[ReportContent, ClientState]:
    """The report on an order of a run, and the memory after it."""
    assert order.work is not None
    models = [
        decode_named(ref.key, run.orders.content_of(ref.key), run.setup.whole)
        for ref in order.work.models
    ]
    found = worked(order, models, memory or {}, who)
    return found.content, found.memory


def report_on(
    run: Run, client: ClientId, order: OrderMessage, local: Local, memory: ClientState | None = None
) -> tuple[ReportContent, ClientState]:
    """The same for a client with this data."""
    return done(run, Client(client=client, given=AtHand(local)), order, memory)


class LocalClients:
    """Clients that compute a report when it is due."""

    ahead = 0

    def __init__(self, local_for: LocalFor, held_back_for: HeldBackFor | None = None) -> None:
        self.local_for = local_for
        self.held_back_for = held_back_for
        self.memories: dict[ClientId, ClientState] = {}
        self._kept: dict[ClientId, ClientState] = {}  # that came with the newest report

    def compute(self, run: Run, work: Timed) -> None:
        """Nothing before a report is due."""

    def report(self, run: Run, client: ClientId, order: OrderMessage) -> bytes:
        """Train on this client's data."""
        # a coordinator that was killed may have accepted the last report, and the client not know of it
        self.settle(run, client, run.members.accepted(client))
        return self.work(run, client, order).to_bytes()

    def work(self, run: Run, client: ClientId, order: OrderMessage) -> ReportContent:
        """The client's half of this order."""
        report, self._kept[client] = done(
            run, self.client(run, client, order), order, self.memories.get(client)
        )
        return report

    def client(self, run: Run, client: ClientId, order: OrderMessage) -> Client:
        """Who does this work."""
        held_back = self.held_back_for(client, order) if self.held_back_for else None
        given = AtHand(self.local_for(client, order), held_back)
        return Client(client=client, given=given, secure=run.folder / "agents" / client / "secure")

    def settle(self, run: Run, client: ClientId, step: int) -> None:
        """Keep the memory of accepted work."""
        kept = self._kept.pop(client, None)
        if kept is not None and run.members.accepted(client) == step:
            self.memories[client] = kept


def secure_folder(place: Path, scenario: Scenario, client: ClientId) -> Any:
    """The folder of a simulated agent's secure sums, if the scenario has them."""
    if scenario.privacy is None or scenario.privacy.secure is None:
        return None
    from covey.extras.secure.secure_folder import SecureFolder
    from covey.extras.secure.simulated import simulated_identity

    return SecureFolder(place, simulated_identity(scenario.seed, client), simulated=True)


def local_driver(
    folder: Path,
    scenario: Scenario,
    setup: Setup,
    rules: RoundRules,
    local_for: LocalFor,
    observer: Observer = ignore,
    origin: Origin | None = None,
    audit_key: bytes | None = None,
    held_back_for: HeldBackFor | None = None,
) -> Driver[LocalClients]:
    """A new run with such clients, ready to be completed."""
    run = Run.start(
        folder,
        scenario,
        setup,
        rules=rules,
        run=IN_PROCESS,
        now=0.0,
        audit_key=audit_key,
        origin=origin,
    )
    return Driver(run, LocalClients(local_for, held_back_for), observer)
