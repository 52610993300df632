"""A run whose clients are objects in this very process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from covey.agent.kept.secure_folder import SecureFolder
from covey.coordinator.engine.rules import RoundRules
from covey.coordinator.record.notices import Observer, ignore
from covey.coordinator.run.folder import IN_PROCESS
from covey.coordinator.run.origin import Origin
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.virtual_clock import Driver, Work
from covey.shared.scenario.scenario import Scenario
from covey.shared.secure.simulated import simulated_identity
from covey.shared.strategies.base import ClientId, ClientState, Local, Setup
from covey.shared.wire.messages import OrderMessage, ReportContent
from covey.shared.work.client import decode_named, execute_order, simulated_noise

LocalFor = Callable[[ClientId, OrderMessage], Local]  # makes a client's data for each order
HeldBackFor = Callable[[ClientId, OrderMessage], Local | None]


class LocalClients:
    """Clients that compute a report when it is due."""

    ahead = 0

    def __init__(self, local_for: LocalFor, held_back_for: HeldBackFor | None = None) -> None:
        self.local_for = local_for
        self.held_back_for = held_back_for
        self.memories: dict[ClientId, ClientState] = {}
        self._kept: dict[ClientId, ClientState] = {}  # that came with the newest report

    def compute(self, run: Run, work: Work) -> None:
        """Nothing before a report is due."""

    def report(self, run: Run, client: ClientId, order: OrderMessage) -> bytes:
        """Train on this client's data."""
        # a coordinator that was killed may have accepted the last report, and the client not know of it
        self.settle(run, client, run.members.accepted(client))
        return self.work(run, client, order).to_bytes()

    def work(self, run: Run, client: ClientId, order: OrderMessage) -> ReportContent:
        """The client's half of this order."""
        assert order.work is not None  # the driver has looked
        layout = run.setup.whole
        report, self._kept[client] = execute_order(
            order,
            [
                decode_named(ref.key, run.orders.content_of(ref.key), layout)
                for ref in order.work.models
            ],
            self.local_for(client, order),
            self.memories.get(client, {}),
            client=client,
            noise=simulated_noise(order.work, client),
            held_back=self.held_back_for(client, order) if self.held_back_for else None,
            secure=self._secure(run, client),
        )
        return report

    def _secure(self, run: Run, client: ClientId) -> SecureFolder | None:
        """Keys for secure sums, if the scenario has them."""
        return secure_folder(run.folder / "agents" / client / "secure", run.scenario, client)

    def settle(self, run: Run, client: ClientId, step: int) -> None:
        """Keep the memory of accepted work."""
        kept = self._kept.pop(client, None)
        if kept is not None and run.members.accepted(client) == step:
            self.memories[client] = kept


def secure_folder(place: Path, scenario: Scenario, client: ClientId) -> SecureFolder | None:
    """The folder of a simulated agent's secure sums, if the scenario has them."""
    if scenario.privacy is None or scenario.privacy.secure is None:
        return None
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
