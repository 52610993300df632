"""Buffered rounds (`rounds.mode: buffered`): nobody waits for the slowest. Events in, actions out.

Paper. Nguyen et al. 2022, Federated Learning with Buffered Asynchronous Aggregation (FedBuff), algorithm 1: at most
`concurrent` agents are at work, each on an order of its own; the server folds whenever its buffer has m reports. Here
each cluster has a buffer.

    GATHERING -> PLANNING -> STREAMING   Give: orders of single agents; reports fill the buffers
                             STREAMING   a buffer is full -> Close -> FOLDING -> Plan -> PLANNING

Everything but a round of training takes place as in synchronous runs, with one step for all: the phase that forms
clusters, evaluations, statistics. Orders stay open meanwhile, and reports that come wait in the buffers.

The rules, besides those of `rounds`:
- One fold is one round. An order has a step number of its own, and so has a fold.
- A free place goes to the agent that has waited longest; the seed draws the first line.
- An agent rests while its report waits in a buffer: the next order it gets names a newer model.
- A cluster with fewer than m agents folds when all of them have reported. A buffer whose first report has waited for
  `deadline_s` is folded with what it has, and so is the fullest one if nobody is at work and nobody can be.
- An order that is not answered within `deadline_s` frees its place, and its agent is asked whether it is there.
- An agent that left does not take up a place. Its report counts if it returns before the deadline.
- An agent that cannot do its work gets no order before the next fold. If that leaves nobody, the attempt is void.
- A newcomer's entry is folded at once and alone.
- While an evaluation is open nothing is folded. With `trains_on` an agent that is done with it gets its next order meanwhile.
- With the last round all open orders end.

Our deviation. In the paper a client may begin again with the model that it has just trained; here it rests until there
is a newer one. With m = all agents a run is therefore a synchronous one, to the byte.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from typing import Any

from covey.coordinator.engine.events import (
    Ask,
    Buffer,
    Close,
    Event,
    Forget,
    Give,
    Ignored,
    Joined,
    Planned,
    Reported,
)
from covey.coordinator.engine.rounds import RoundEngine
from covey.coordinator.engine.rules import Rules
from covey.coordinator.engine.sampling import cohort_size, invitation_order
from covey.coordinator.engine.stage import Stage
from covey.coordinator.engine.step import Step
from covey.coordinator.engine.step_engine import Actions
from covey.coordinator.engine.stream import Stream, WaitingReport
from covey.shared.strategies.base import ClientId, Phase
from covey.shared.strategies.phase_names import EVALUATE, TRAIN

NOBODY: frozenset[ClientId] = frozenset()


class BufferedEngine(RoundEngine):
    """A `RoundEngine` whose rounds of training are folds of buffers."""

    def __init__(self, rules: Rules, now: float = 0.0) -> None:
        super().__init__(rules, now)
        self.stream = Stream()
        self.trains_on = False  # orders of rounds are given during an evaluation too
        self.now = now  # of the newest event
        self._train = Phase()  # the phase of a round, as the strategy planned it last
        self._folding: list[WaitingReport] = []  # of the buffer that is being folded
        self._cluster: int | None = None  # whose buffer that is; None: an entry, or nothing

    @property
    def wake_at(self) -> float | None:
        earliest = super().wake_at
        if self._link_lost_at is not None or self.stage is Stage.DONE:
            return None
        times = list(self.stream.deadlines())
        if self.stage is Stage.STREAMING:  # nothing is folded in any other
            patience_s = self.rules.deadline_s
            times += self.stream.ends_of_patience(patience_s)
        if earliest is not None:
            times.append(earliest)
        return min(times, default=None)

    def handle(self, event: Event, now: float) -> Actions:
        self.now = now
        return super().handle(event, now)

    def is_at_work(self, client: ClientId, number: int) -> bool:
        """Whether this is the number of the agent's open order."""
        order = self.stream.orders.get(client)
        if order is None:
            return False
        return order.step == number

    def refusal(self, client: ClientId, number: int) -> str:
        if not self.is_at_work(client, number):
            return super().refusal(client, number)
        if client in self.quarantined:
            return f"{client} is in quarantine"
        return ""

    @property
    def folds_a_buffer(self) -> bool:
        """Whether the reports of a cluster's buffer are being folded."""
        return self._cluster is not None

    @property
    def waits_for(self) -> str | None:
        if self.stage is not Stage.STREAMING or self.paused:
            return super().waits_for
        if self.stream.orders or self.presence.trusted:
            return None
        return "no agent is there"

    # -- agents come, go and report ----------------------------------------------------------------

    def _decide(self, event: Event, now: float) -> Actions:
        match event:
            case Joined(client) if client not in self.known:
                self.stream.line_up([client])
            case Forget(client):
                self.stream.forget(client)
        return super()._decide(event, now)

    def _reported(self, event: Event, client: ClientId, number: int, now: float) -> Actions:
        if not self.is_at_work(client, number):
            return super()._reported(event, client, number, now)
        assert isinstance(event, Reported)  # noqa: S101 - nothing else is handled here
        why = self.refusal(client, number)
        if why:
            return [Ignored(event, why)]
        self.stream.came(event, now)
        self.rests.reported(client)
        return self._settle(now)

    def _failed(
        self, event: Event, client: ClientId, number: int, reason: str, now: float
    ) -> Actions:
        if not self.is_at_work(client, number):
            return super()._failed(event, client, number, reason, now)
        self.stream.has_failed(client, reason)
        return self._settle(now)

    def _refused(self, client: ClientId, why: str, now: float) -> Actions:
        number = self._number_of(client)
        if client in self.stream.orders:
            self.stream.has_failed(client, why)
        return self._refused_in(number, client, why, now)

    def _number_of(self, client: ClientId) -> int:
        """The number of the order or step that a refused report of the agent belongs to."""
        order = self.stream.orders.get(client)
        if order is not None:
            return order.step
        step = self.step
        if step is not None and step.was_invited(client):
            return step.number
        if client not in self.refused:
            return self.number
        # it owes no report: the refused one has come again, while others got orders with new numbers
        _, newest = self.refused[client]
        return newest

    def _tick(self, now: float) -> Actions:
        if self._link_lost_at is not None:
            return []
        expired = self._expire(now)
        return expired + super()._tick(now)

    def _expire(self, now: float) -> Actions:
        """Orders that are not answered in time free their places; their agents have left unless they answer."""
        overdue = self.stream.overdue(now)
        rested: Actions = []
        for client in overdue:
            order = self.stream.orders.pop(client)
            if client in self.present:
                rested += self._trouble(client, "silent", order.step)
        self.stream.line_up(overdue)
        silent = [client for client in overdue if client in self.present]
        if not silent:
            return rested
        until = now + self.rules.rollcall_s
        self.presence.leave_at(until, silent)
        return [Ask(tuple(silent)), *rested]

    def _postpone(self, seconds: float) -> None:
        super()._postpone(seconds)
        self.stream.postpone(seconds)

    # -- orders ------------------------------------------------------------------------------------

    def _planned(self, event: Planned, phase: Phase | None, now: float) -> Actions:
        if phase is None or self.round >= self.rules.rounds:
            self.stream.end()
        if phase is None or event.sizes is None:
            return super()._planned(event, phase, now)
        if self.stage is not Stage.PLANNING:
            raise RuntimeError(f"nobody asked for a plan while {self.stage.value}")
        self.stage = Stage.STREAMING
        self._train = phase
        self.stream.sizes = event.sizes
        first_line = invitation_order(
            self.known, self.rules.seed, round_=0, attempt=0, purpose=TRAIN
        )
        self.stream.line_up(first_line)
        return self._stream(now)

    def _gather(self, now: float) -> Actions:
        if self.stage is Stage.STREAMING:
            return self._stream(now)
        return super()._gather(now)

    def _settle(self, now: float) -> Actions:
        actions = super()._settle(now)
        if self._may_train_on():
            actions += self._fill(now)
        return actions

    def _may_train_on(self) -> bool:
        """Whether an evaluation is open between two folds, and agents may train meanwhile."""
        step = self.step
        if not self.trains_on or step is None:
            return False
        if self.stage is not Stage.OPEN or step.phase.name != EVALUATE:
            return False
        if self.paused or self._link_lost_at is not None:
            return False
        is_between = self.round < self.rules.rounds
        return is_between and bool(self.stream.folds)

    def _stream(self, now: float) -> Actions:
        """Fold what is ready; otherwise fill the free places."""
        if self._link_lost_at is not None:
            return []
        if self.stream.entries:
            return self._close_buffer(None, [self.stream.entries.pop(0)], now)
        cluster = self._ready(now)
        if cluster is not None:
            return self._close_cluster(cluster, now)
        if self.paused:
            return []
        given = self._fill(now)
        if given or self._at_work():
            return given
        cluster = self.stream.fullest()
        if cluster is not None:
            return self._close_cluster(cluster, now)
        if self.stream.failed:
            return self._nobody_can(now)
        return []

    def _at_work(self) -> int:
        """Agents that take up places."""
        at_work = self.stream.orders.keys() & self.presence.trusted
        return len(at_work)

    def _ready(self, now: float) -> int | None:
        """The first cluster whose buffer is folded now."""
        rules = self.rules
        enough = rules.buffer or 1
        everybody = self.known - rules.newcomers
        for cluster in sorted(self.stream.buffers):
            is_mature = self.stream.is_mature(
                cluster, enough, len(everybody), now, rules.deadline_s
            )
            if is_mature:
                return cluster
        return None

    def _fill(self, now: float) -> Actions:
        """Orders for the first of the line, as many as places are free."""
        free = self._places() - self._at_work()
        chosen = self._first_of_the_line(free)
        if not chosen:
            return []
        rules = self.rules
        orders: list[tuple[ClientId, int]] = []
        for client in chosen:
            self.number += 1
            deadline = now + rules.deadline_s
            if client not in self._called:
                deadline += rules.first_work_s
            self._called.add(client)
            self.stream.give(client, self.number, now, deadline)
            orders.append((client, self.number))
        return [Give(tuple(orders))]

    def _places(self) -> int:
        """How many agents may be at work at once."""
        rules = self.rules
        if rules.concurrent is not None:
            return rules.concurrent
        everybody = self.known - rules.newcomers
        trusted = everybody - self.quarantined.keys()
        return cohort_size(len(trusted), rules.participation, rules.agents)

    def _first_of_the_line(self, number: int) -> list[ClientId]:
        """The first agents of the line who could begin to work now, at most this many."""
        able = self.presence.trusted
        resting = self.resting
        newcomers = self.rules.newcomers
        evaluated: Set[ClientId] = NOBODY
        if self.step is not None:
            evaluated = self.step.awaited
        chosen: list[ClientId] = []
        for client in self.stream.line:
            if len(chosen) >= number:
                break
            is_free = client in able and client not in evaluated
            if is_free and client not in newcomers and client not in resting:
                chosen.append(client)
        return chosen

    def _nobody_can(self, now: float) -> Actions:
        """Everybody who is there has failed: the attempt is void."""
        reasons = dict(self.stream.failed)
        self.stream.forgive()
        self.number += 1
        step = self._step(self._train, sorted(reasons), now)
        step.reported.clear()
        step.reasons.update(reasons)
        return self._void(step, now)

    # -- folds -------------------------------------------------------------------------------------

    def _close_cluster(self, cluster: int, now: float) -> Actions:
        return self._close_buffer(cluster, self.stream.buffers.pop(cluster), now)

    def _close_buffer(
        self, cluster: int | None, reports: list[WaitingReport], now: float
    ) -> Actions:
        """Fold these reports, in the order of their agents' ids: the order of arrival does not change a sum."""
        by_id = sorted(reports, key=_client)
        reporters: list[ClientId] = []
        steps: list[int] = []
        staleness: list[int] = []
        for report in by_id:
            reporters.append(report.client)
            steps.append(report.step)
            staleness.append(0 if cluster is None else self.stream.staleness(report))
        phase = by_id[0].phase or self._train
        self.number += 1
        self.step = self._step(phase, reporters, now)
        self.stage = Stage.FOLDING
        self._folding = reports
        self._cluster = cluster
        buffer = Buffer(cluster=cluster, steps=tuple(steps), staleness=tuple(staleness))
        close = Close(step=self.number, reporters=tuple(reporters), missing=(), buffer=buffer)
        return [close]

    def _step(self, phase: Phase, clients: list[ClientId], now: float) -> Step:
        """The step of a fold: these agents and no others have reported."""
        return Step(
            number=self.number,
            phase=phase,
            cohort=list(clients),
            spare=[],
            target=len(clients),
            quorum=1,
            opened=now,
            reported=set(clients),
        )

    def _folded(self, now: float) -> Actions:
        rested: Actions = []
        if self._folding:
            for client, why in sorted(self.stream.failed.items()):
                rested += self._trouble(client, "failing", self.number, why)
            if self._cluster is not None:
                self.stream.folded(self._cluster)
            self._put_in_line()
            self.stream.forgive()
        return rested + super()._folded(now)

    def _put_in_line(self) -> None:
        """The fold is over: its agents can be given orders again, in the order in which they reported."""
        clients = [report.client for report in self._folding]
        self._folding = []
        self._cluster = None
        self.stream.line_up(clients)

    def _void(self, step: Step, now: float, failure: str = "") -> Actions:
        self._put_in_line()
        return super()._void(step, now, failure)

    def _set_aside(self, reasons: Mapping[ClientId, str], now: float) -> Actions:
        if not self._folding:
            return super()._set_aside(reasons, now)
        blamed: Actions = []
        for client, why in reasons.items():
            blamed += self._blame(client, why, self.number)
        self._return(reasons.keys())
        for client, why in reasons.items():
            self.stream.has_failed(client, why)
        settled = self._settle(now)
        return blamed + settled

    def _unreadable(self, clients: Collection[ClientId], number: int, now: float) -> Actions:
        """Reports of a buffer that cannot be read are lost: their agents get new orders."""
        if not self._folding:
            return super()._unreadable(clients, number, now)
        self._return(clients)
        self.stream.line_up(clients)
        return self._settle(now)

    def _return(self, lost: Collection[ClientId]) -> None:
        """The fold did not take place: the reports wait again, without those of these agents."""
        kept = [report for report in self._folding if report.client not in lost]
        stream = self.stream
        if self._cluster is None:
            stream.entries = kept + stream.entries
        else:
            stream.buffers[self._cluster] = kept + stream.buffers.get(self._cluster, [])
        self._folding = []
        self._cluster = None
        self.step = None
        self.stage = Stage.STREAMING

    # -- a restart ---------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """As that of a `RoundEngine`, with the orders and the reports that wait."""
        saved = super().snapshot()
        saved["stream"] = self.stream.to_json()
        saved["now"] = self.now
        return saved

    def _restore(self, snapshot: Mapping[str, Any], lost: Collection[int], now: float) -> None:
        """Take up the stream; the time for which no coordinator was there does not count."""
        self.stream = Stream.from_json(snapshot["stream"], lost)
        stopped_at: float = snapshot["now"]
        gap = now - stopped_at
        self.stream.postpone(gap)
        in_order = sorted(self.known)
        self.stream.line_up(in_order)


def _client(report: WaitingReport) -> ClientId:
    return report.client
