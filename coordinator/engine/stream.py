"""Buffered rounds: who works on which order, and which reports wait for a fold. Pure: time is an argument.

An agent is in one of four places: at work (`orders`), resting because its report waits in a buffer, out until the next
fold because it could not do its work, or in line for an order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from covey.coordinator.engine.events import ANY, Reported
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
class Stream:
    """The state of buffered rounds between two events."""

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

    def resting(self) -> set[ClientId]:
        """Agents whose reports wait."""
        return {report.client for report in self.waiting()}

    def waiting(self) -> Iterator[WaitingReport]:
        """All reports that wait."""
        yield from self.entries
        for buffer in self.buffers.values():
            yield from buffer

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

    def folded(self, cluster: int) -> None:
        """The model of a cluster has changed."""
        self.folds[cluster] = self.folds.get(cluster, 0) + 1

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

    def deadlines(self) -> Iterator[float]:
        """When orders are due."""
        for order in self.orders.values():
            yield order.deadline

    def ends_of_patience(self, patience_s: float) -> Iterator[float]:
        """When buffers have waited long enough."""
        for buffer in self.buffers.values():
            if buffer:
                first = buffer[0]
                yield first.came + patience_s

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

    def is_mature(
        self, cluster: int, enough: int, everybody: int, now: float, patience_s: float
    ) -> bool:
        """Whether a cluster's buffer is folded now.

        Args:
            cluster: the number of the cluster.
            enough: m, the reports of a full buffer. A smaller cluster needs the reports of all its agents.
            everybody: agents that may work for a cluster of unknown size.
            now: the time.
            patience_s: a buffer whose first report has waited for so long is folded with what it has.
        """
        buffer = self.buffers.get(cluster, [])
        if not buffer:
            return False
        at_least_one = max(self.sizes.get(cluster, everybody), 1)
        needed = min(enough, at_least_one)
        if len(buffer) >= needed:
            return True
        patient_until = buffer[0].came + patience_s
        return now >= patient_until

    def fullest(self) -> int | None:
        """The cluster with the most reports, ties to the lowest; None where no report waits."""
        best: int | None = None
        most = 0
        for cluster in sorted(self.buffers):
            number = len(self.buffers[cluster])
            if number > most:
                best = cluster
                most = number
        return best

    # -- a restart ---------------------------------------------------------------------------------

    def to_json(self) -> Json:
        """What a checkpoint keeps."""
        orders = {client: dict(vars(order)) for client, order in self.orders.items()}
        buffers: Json = {}
        for cluster, buffer in self.buffers.items():
            name = str(cluster)
            buffers[name] = [asdict(report) for report in buffer]
        entries = [asdict(report) for report in self.entries]
        return {
            "orders": orders,
            "buffers": buffers,
            "entries": entries,
            "line": list(self.line),
            "failed": self.failed,
            "folds": self.folds,
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any], lost: Collection[int]) -> Stream:
        """The stream as it was, without the reports of these steps, which the spool has no more."""
        stream = cls()
        stream.line = dict.fromkeys(saved["line"])
        stream.failed = dict(saved["failed"])
        stream.folds = _folds(saved["folds"])
        orders = saved["orders"]
        for client, fields in orders.items():
            order = OpenOrder(**fields)
            order.folds = _folds(order.folds)
            if order.step not in lost:
                stream.orders[client] = order
        stream.entries = _reports(saved["entries"], lost)
        buffers = saved["buffers"]
        for cluster, buffer in buffers.items():
            number = int(cluster)
            stream.buffers[number] = _reports(buffer, lost, number)
        return stream


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


def _reports(
    saved: Iterable[Mapping[str, Any]], lost: Collection[int], cluster: int = 0
) -> list[WaitingReport]:
    """The reports of a checkpoint; an older one does not have the cluster that each began with."""
    reports: list[WaitingReport] = []
    for fields in saved:
        report = WaitingReport(**{"began_with": cluster, **fields})
        phase = fields["phase"]
        if phase is not None:
            report.phase = phase_from_json(phase)
        if report.step not in lost:
            reports.append(report)
    return reports
