"""The pace of a run: rounds take place in step, or buffered (`rounds.mode: buffered`). Pure: time is an argument.

In step, a round is a step of all agents that were drawn for it. There is nothing here to decide: no order of a single agent
is open, and no report waits.

Buffered, the slowest is not waited for. Paper: Nguyen et al. 2022, Federated Learning with Buffered Asynchronous Aggregation
(FedBuff), algorithm 1: at most `concurrent` agents are at work, each on an order of its own; the server folds whenever its
buffer has m reports. Here each cluster has a buffer.

    GATHERING -> PLANNING -> STREAMING   Give: orders of single agents; reports fill the buffers
                             STREAMING   a buffer is full -> Close -> FOLDING -> Plan -> PLANNING

Everything but a round of training takes place as in synchronous runs, with one step for all: the phase that forms
clusters, evaluations, statistics. Orders stay open meanwhile, and reports that come wait in the buffers.

The rules, besides those of `rounds`:
- One fold is one round. An order has a step number of its own, and so has a fold.
- A free place goes to the agent that has waited longest; the seed draws the first line.
- An agent rests while its report waits in a buffer: the next order it gets names a newer model.
- A cluster with fewer than m agents folds when all of them have reported. A buffer whose first report has waited for
  `deadline_s` is folded with what it has, and so is the fullest one if no agent is at work or can be.
- An order that is not answered within `deadline_s` frees its place, and its agent is asked whether it is there.
- An agent that left does not take up a place. Its report counts if it returns before the deadline.
- An agent that cannot do its work gets no order before the next fold. If that leaves no agent, the attempt is void.
- A newcomer's entry is folded at once and alone.
- While an evaluation is open nothing is folded. With `trains_on` an agent that is done with it gets its next order meanwhile.
- With the last round all open orders end.

Our deviation. In the paper a client may begin again with the model that it has just trained; here it rests until there
is a newer one. With m = all agents a run is therefore a synchronous one, to the byte.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from covey.coordinator.engine.events import ANY, Buffer, Close, Reported
from covey.coordinator.engine.step import phase_from_json
from covey.shared.strategies.base import ClientId, Phase

Json = dict[str, Any]
Folds = dict[int, int]  # by cluster: how many times its model was folded


@dataclass
class OpenOrder:
    """The order of one agent. Times are those of the engine, in seconds."""

    step: int  # never used for another order or step
    opened: float
    deadline: float
    folds: Folds  # when the order was made; a cluster without a fold is missing


@dataclass
class WaitingReport:
    """A report that lies in the spool until its buffer is folded."""

    client: ClientId
    step: int
    since: int  # folds of the model that it began with, when its order was made
    came: float
    began_with: int = 0  # the cluster of that model; ANY: all folds make it older
    phase: Phase | None = None  # of an entry; None: a report of a round


@dataclass
class Lot:
    """Reports that are folded together."""

    cluster: int | None  # whose buffer it was; None: a newcomer's entry, which belongs to none
    reports: list[WaitingReport]  # in the order of their arrival


@dataclass
class Pace:
    """What buffered rounds keep between two events. In step, all of it is empty at any time.

    An agent is in one of four places: at work (`orders`), resting because its report waits in a buffer, out until the next
    fold because it could not do its work, or in line for an order.
    """

    # at work; an agent that has left keeps its order until the deadline, and its report counts if it returns
    orders: dict[ClientId, OpenOrder] = field(default_factory=dict)

    # reports of rounds that wait, by cluster, in the order of their arrival
    buffers: dict[int, list[WaitingReport]] = field(default_factory=dict)

    # reports of newcomers, which are folded one by one, before everything else
    entries: list[WaitingReport] = field(default_factory=list)

    # who could be given an order, first come first served; a dict for its order
    line: dict[ClientId, None] = field(default_factory=dict)

    # who could not do the newest order, and why; these are in line again after the next fold
    failed: dict[ClientId, str] = field(default_factory=dict)

    folds: Folds = field(default_factory=dict)

    # the agents of each cluster, as far as the method knows them; empty for methods without clusters
    sizes: Mapping[int, int] = field(default_factory=dict)

    trains_on: bool = False  # orders of rounds are given during an evaluation too
    phase: Phase = field(default_factory=Phase)  # of a round, as the strategy planned it last
    lot: Lot | None = None  # what is being folded

    def is_at_work(self, client: ClientId, number: int) -> bool:
        """Whether this is the number of the agent's open order."""
        order = self.orders.get(client)
        return order is not None and order.step == number

    def resting(self) -> set[ClientId]:
        """Agents whose reports wait."""
        return {report.client for report in self.waiting()}

    def waiting(self) -> Iterator[WaitingReport]:
        """All reports that wait."""
        yield from self.entries
        for buffer in self.buffers.values():
            yield from buffer

    def numbers(self) -> set[int]:
        """Of open orders, and of those whose reports wait."""
        at_work = {order.step for order in self.orders.values()}
        return at_work | {report.step for report in self.waiting()}

    def line_up(self, clients: Iterable[ClientId]) -> None:
        """These agents go to the end of the line, unless they are elsewhere."""
        elsewhere = self.resting()
        elsewhere.update(self.orders)
        elsewhere.update(self.failed)
        for client in clients:
            if client not in elsewhere:
                self.line.setdefault(client)

    def give(self, client: ClientId, step: int, now: float, deadline: float) -> None:
        """An agent of the line begins to work."""
        del self.line[client]
        order = OpenOrder(step=step, opened=now, deadline=deadline, folds=dict(self.folds))
        self.orders[client] = order

    def came(self, event: Reported, now: float) -> None:
        """The report of an agent at work is there: of an entry if it has a phase, for a cluster's buffer otherwise."""
        order = self.orders.pop(event.client)
        began_with = event.cluster if event.began_with is None else event.began_with
        report = WaitingReport(
            client=event.client,
            step=order.step,
            since=_count(order.folds, began_with),
            came=now,
            began_with=began_with,
            phase=event.phase,
        )
        if event.phase is not None:
            self.entries.append(report)
            return
        self.buffers.setdefault(event.cluster, []).append(report)

    def staleness(self, report: WaitingReport) -> int:
        """s: how many times the model that a report began with was folded since its order."""
        return _count(self.folds, report.began_with) - report.since

    def has_failed(self, client: ClientId, why: str) -> None:
        """An agent cannot do its work: it gets no other order before the next fold."""
        self.orders.pop(client, None)
        self.line.pop(client, None)
        self.failed[client] = why

    def next_lot(self, enough: int, agents: int, now: float, patience_s: float) -> Lot | None:
        """Take out what is folded now: an entry, or the first buffer that is ready; None where nothing is.

        Args:
            enough: m, the reports of a full buffer. A smaller cluster needs the reports of all its agents.
            agents: those that may work for a cluster of unknown size.
            now: the time.
            patience_s: a buffer whose first report has waited for so long is folded with what it has.
        """
        if self.entries:
            self.lot = Lot(None, [self.entries.pop(0)])
            return self.lot
        for cluster, buffer in sorted(self.buffers.items()):
            needed = min(enough, max(self.sizes.get(cluster, agents), 1))
            if buffer and (len(buffer) >= needed or now >= buffer[0].came + patience_s):
                return self._lot_of(cluster)
        return None

    def fullest_lot(self) -> Lot | None:
        """Take out the buffer with the most reports, ties to the lowest cluster; None where no report waits."""
        fullest = max(sorted(self.buffers), key=lambda one: len(self.buffers[one]), default=None)
        if fullest is None or not self.buffers[fullest]:
            return None
        return self._lot_of(fullest)

    def _lot_of(self, cluster: int) -> Lot:
        self.lot = Lot(cluster, self.buffers.pop(cluster))
        return self.lot

    @property
    def phase_of_lot(self) -> Phase:
        """The phase that the fold of the lot is."""
        assert self.lot is not None  # noqa: S101 - the caller has just taken it
        return min(self.lot.reports, key=lambda report: report.client).phase or self.phase

    def close(self, number: int) -> Close:
        """The fold of the lot in the order of its agents' ids: the order of arrival does not change a sum."""
        assert self.lot is not None  # noqa: S101 - the caller has just taken it
        cluster = self.lot.cluster
        reports = sorted(self.lot.reports, key=lambda report: report.client)
        buffer = Buffer(
            cluster=cluster,
            steps=tuple(report.step for report in reports),
            staleness=tuple(0 if cluster is None else self.staleness(report) for report in reports),
        )
        reporters = tuple(report.client for report in reports)
        return Close(step=number, reporters=reporters, missing=(), buffer=buffer)

    def folded(self) -> None:
        """The lot is in the state: its agents, and those who failed, can be given orders again."""
        assert self.lot is not None  # noqa: S101 - the caller has looked
        if self.lot.cluster is not None:
            self.folds[self.lot.cluster] = self.folds.get(self.lot.cluster, 0) + 1
        self.give_up_lot()
        self.forgive()

    def give_up_lot(self) -> None:
        """The lot is over: its agents go to the end of the line, in the order in which they reported."""
        if self.lot is not None:
            clients = [report.client for report in self.lot.reports]
            self.lot = None
            self.line_up(clients)

    def return_lot(self, without: Collection[ClientId]) -> None:
        """The fold did not take place: the reports wait again, but for those of these agents."""
        assert self.lot is not None  # noqa: S101 - the caller has looked
        kept = [report for report in self.lot.reports if report.client not in without]
        cluster = self.lot.cluster
        self.lot = None
        if cluster is None:
            self.entries = kept + self.entries
        else:
            self.buffers[cluster] = kept + self.buffers.get(cluster, [])

    def forgive(self) -> None:
        """Those who failed are in line again."""
        clients = sorted(self.failed)
        self.failed.clear()
        self.line_up(clients)

    def forget(self, client: ClientId) -> None:
        """Nothing of this agent counts any more."""
        self.orders.pop(client, None)
        self.line.pop(client, None)
        self.failed.pop(client, None)
        self.entries = _without(client, self.entries)
        for cluster, buffer in self.buffers.items():
            self.buffers[cluster] = _without(client, buffer)

    def overdue(self, now: float) -> list[ClientId]:
        """Agents whose orders have passed their deadlines."""
        return [client for client, order in self.orders.items() if now >= order.deadline]

    def deadlines(self) -> list[float]:
        """When orders are due."""
        return [order.deadline for order in self.orders.values()]

    def ends_of_patience(self, patience_s: float) -> list[float]:
        """When buffers have waited long enough."""
        return [buffer[0].came + patience_s for buffer in self.buffers.values() if buffer]

    def postpone(self, seconds: float) -> None:
        """No time has passed for so long."""
        for order in self.orders.values():
            order.opened += seconds
            order.deadline += seconds
        for report in self.waiting():
            report.came += seconds

    def end(self) -> None:
        """No round comes any more: open orders are void, and reports that wait are not needed."""
        self.orders.clear()
        self.buffers.clear()
        self.entries.clear()
        self.failed.clear()

    # -- a restart ---------------------------------------------------------------------------------

    def to_json(self) -> Json:
        """What a checkpoint keeps."""
        orders = {client: dict(vars(order)) for client, order in self.orders.items()}
        buffers: Json = {}
        for cluster, buffer in self.buffers.items():
            name = str(cluster)
            buffers[name] = [asdict(report) for report in buffer]
        return {
            "orders": orders,
            "buffers": buffers,
            "entries": [asdict(report) for report in self.entries],
            "line": list(self.line),
            "failed": self.failed,
            "folds": self.folds,
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any], lost: Collection[int]) -> Pace:
        """The pace as it was, without the reports of these steps, which the spool has no more."""
        pace = cls()
        pace.line = dict.fromkeys(saved["line"])
        pace.failed = dict(saved["failed"])
        pace.folds = _folds(saved["folds"])
        for client, fields in saved["orders"].items():
            order = OpenOrder(**fields)
            order.folds = _folds(order.folds)
            if order.step not in lost:
                pace.orders[client] = order
        pace.entries = _reports(saved["entries"], lost)
        for cluster, buffer in saved["buffers"].items():
            number = int(cluster)
            pace.buffers[number] = _reports(buffer, lost)
        return pace


def _count(folds: Folds, cluster: int) -> int:
    """How many times a cluster's model was folded; of ANY: all folds."""
    if cluster == ANY:
        return sum(folds.values())
    return folds.get(cluster, 0)


def _without(client: ClientId, reports: Iterable[WaitingReport]) -> list[WaitingReport]:
    """The reports of all others."""
    return [report for report in reports if report.client != client]


def _folds(saved: Mapping[Any, int]) -> Folds:
    """JSON has texts for keys."""
    return {int(cluster): number for cluster, number in saved.items()}


def _reports(saved: Iterable[Mapping[str, Any]], lost: Collection[int]) -> list[WaitingReport]:
    """The reports of a checkpoint."""
    reports: list[WaitingReport] = []
    for fields in saved:
        report = WaitingReport(**fields)
        phase = fields["phase"]
        if phase is not None:
            report.phase = phase_from_json(phase)
        if report.step not in lost:
            reports.append(report)
    return reports
