"""The delivery of an agent's report: from the outbox to the coordinator's disk. Pure: time is an argument.

An agent has at most one report in hand. `TRANSITIONS` lists everything that can happen to it. A report is sent when it
is made, whenever its order arrives, soon after every connection and roll call, and on a doubling timer, until the
coordinator has accepted it or closed its step. It is not sent while the coordinator is known to be offline.

An accepted report is kept until its step is closed: a coordinator that restarts from an older backup asks for it again.
Each run has a report, and a count of accepted steps, of its own. The delivery remembers the previous run as well.
"""

from __future__ import annotations

import random
from enum import Enum

from covey.agent.device.events import (
    Actions,
    CommitMemory,
    DropReport,
    GoBack,
    LoseMemory,
    Outboxed,
    SendReport,
    StopSending,
    SwitchRun,
)
from covey.shared.wire.messages import OrderMessage

NUDGE_S = 1.0  # after `Up` or a roll call, wait this long for the order before sending unasked
RETRY_S = 2.0  # first wait for the coordinator's answer; doubles
RETRY_LIMIT_S = 60.0
# of reports that a coordinator reads, checks and stores at least, also if those of other agents come first
ANSWERED_BYTES_PER_S = 1_000_000
MAX_DOUBLINGS = 16


class ReportState(Enum):
    """What the agent does with the report in hand."""

    NONE = "no report"
    WAITING = "in the outbox"
    SENDING = "being sent"
    SENDING_AGAIN = "being sent, and asked for once more meanwhile"
    KEPT = "accepted, kept until its step is closed"


class Cause(Enum):
    """What can happen to a report."""

    MADE = "the worker wrote it"
    SEND = "its sending begins"
    ASKED_AGAIN = "the coordinator restarted and asks for it while it is being sent"
    SENT = "its sending ended, whole or not"
    INTERRUPTED = "the link was lost, or the order settles the report"
    ACCEPTED = "the coordinator has it on disk"
    RECALLED = "the coordinator lost it after accepting it"
    DISCARDED = "no longer needed, or its file is damaged"


NONE, WAITING, SENDING, SENDING_AGAIN, KEPT = ReportState
# what becomes of a report: state -> cause -> next state; a pair that is missing cannot happen
TRANSITIONS = {
    NONE: {Cause.MADE: WAITING},
    WAITING: {Cause.SEND: SENDING, Cause.ACCEPTED: KEPT, Cause.DISCARDED: NONE},
    SENDING: {Cause.ASKED_AGAIN: SENDING_AGAIN, Cause.SENT: WAITING, Cause.INTERRUPTED: WAITING},
    SENDING_AGAIN: {
        Cause.ASKED_AGAIN: SENDING_AGAIN,
        Cause.SENT: WAITING,
        Cause.INTERRUPTED: WAITING,
    },
    KEPT: {Cause.MADE: WAITING, Cause.RECALLED: WAITING, Cause.DISCARDED: NONE},
}
IN_TRANSIT = frozenset({SENDING, SENDING_AGAIN})
UNDECIDED = frozenset({WAITING, SENDING, SENDING_AGAIN})  # neither accepted nor discarded


class Delivery:
    """The report in hand and the accepted steps of one run.

    Args:
        found: what the outbox holds at the start.
        jitter: spreads the retries of many agents over time.
    """

    def __init__(self, found: Outboxed, jitter: random.Random) -> None:
        self._jitter = jitter
        self.is_up = False  # the link is connected
        self.coordinator_offline = False  # the coordinator is known to be offline
        self.run = ""  # the run that the steps below belong to; "" before the first order
        # newest accepted step of the run; only a coordinator that lost it lowers it
        self.accepted = 0
        self.state = NONE
        self.step = 0  # step of the report in hand; 0 exactly while the state is NONE
        self._work = b""  # digest of the work that the report in hand came from
        self._confirmed = 0  # `again` of the order that reported `accepted`
        self._previous = found.aside  # the run before this one, as it was left
        self._newest_again = 0  # `again` of the newest order: the coordinator's restarts so far
        self._answered_again = 0  # `again` of the newest order that a sending answered
        self._sent_from = 0.0  # when the latest sending began
        self._retries = 0  # sendings of this report that were not answered, at most MAX_DOUBLINGS
        self._retry_at: float | None = None  # when to send next; None while a sending is under way
        self._restore(found)

    def __repr__(self) -> str:
        return (
            f"<Delivery of run {self.run!r}: report of step {self.step} {self.state.value}, "
            f"accepted up to step {self.accepted}>"
        )

    @property
    def undecided(self) -> int:
        """Step of the report that the coordinator has neither accepted nor closed; 0 for none."""
        return self.step if self.state in UNDECIDED else 0

    @property
    def wake_at(self) -> float | None:
        return self._retry_at

    # what the link and the coordinator's status mean for the report

    def link_up(self, now: float) -> None:
        self.is_up = True
        self._retries = 0
        self.nudge(now)

    def link_lost(self) -> Actions:
        self.is_up = False
        return self._interrupt()

    def nudge(self, now: float) -> None:
        """Send soon. The order that is about to arrive asks for the report earlier, or settles it."""
        if self.state is WAITING:
            self._retries = 0
            self._retry_at = now + NUDGE_S

    def tick(self, now: float) -> Actions:
        if self._retry_at is None or now < self._retry_at:
            return []
        return self._send(now)

    # what an order means for the report

    def is_outdated(self, order: OrderMessage) -> bool:
        """Whether the order knows of less accepted work than we do. A coordinator that restarted may: it lost something."""
        knows_less = order.run == self.run and order.accepted < self.accepted
        return knows_less and order.again <= self._confirmed

    def is_open(self, order: OrderMessage) -> bool:
        """Whether the order asks for work on a step that is neither accepted nor closed."""
        newest_settled = max(order.accepted, order.closed, self.accepted)
        return order.work is not None and order.step > newest_settled

    def switch_run(self, run: str, now: float) -> Actions:
        """Take up the report and the accepted steps of another run. Leave those of this run aside."""
        actions = self._interrupt()
        previous = self._previous
        if self.run:
            self._previous = self._outboxed()
        if previous is not None and previous.run == run:
            self._restore(previous)
        else:
            self._restore(Outboxed(run))
        self.nudge(now)  # a report of the run that is back may still wait
        return [*actions, SwitchRun(run)]

    def reconcile(self, order: OrderMessage) -> Actions:
        """Compare an order with the report in hand: accept, recall or discard it."""
        self._newest_again = order.again
        actions = self._compare_accepted(order)
        if self.state in UNDECIDED:
            actions += self._settle(order)
        if self.state is KEPT:
            actions += self._settle_kept(order)
        return actions

    def answer(self, order: OrderMessage, now: float) -> Actions:
        """Send the report if the order asks for it. Otherwise the timer decides."""
        asks_again = order.again > self._answered_again
        if asks_again and self.state in IN_TRANSIT:
            self._change(Cause.ASKED_AGAIN)
        if order.step == self.step or asks_again:
            return self._send(now)
        return []

    def _compare_accepted(self, order: OrderMessage) -> Actions:
        """If the coordinator and we disagree about accepted work, one of us has lost something."""
        if order.accepted > self.accepted and order.accepted != self.undecided:
            return self._lose_memory(order)
        asks_for_work = order.work is not None and order.closed < order.step
        if order.accepted < self.accepted and asks_for_work:
            return self._go_back(order)
        return []

    def _lose_memory(self, order: OrderMessage) -> Actions:
        """The coordinator accepted a step that our disk does not know: the disk is older."""
        actions = self._discard()
        self._confirm(order)
        return [*actions, LoseMemory(order.accepted, order.again)]

    def _go_back(self, order: OrderMessage) -> Actions:
        """The coordinator lost accepted work: send the kept report again, or work with the memory from before it."""
        actions: Actions = []
        if self.state is KEPT and self._answers(order):
            self._change(Cause.RECALLED)
        else:
            actions = self._discard()
        self._confirm(order)
        return [*actions, GoBack(order.accepted)]

    def _settle(self, order: OrderMessage) -> Actions:
        step = self.step
        if order.accepted == step:
            actions = self._interrupt()
            self._change(Cause.ACCEPTED)
            self._confirm(order)
            return [*actions, CommitMemory(step, order.again)]
        is_over = step <= max(order.accepted, order.closed) or order.step > step
        if is_over or (order.step == step and not self._answers(order)):
            return [*self._discard(), DropReport(step)]
        return []

    def _answers(self, order: OrderMessage) -> bool:
        """Whether the report in hand came from the work of this order. Its step may ask for other models by now."""
        return (
            order.step == self.step and order.work is not None and order.work.digest == self._work
        )

    def _settle_kept(self, order: OrderMessage) -> Actions:
        """A step that is closed, or followed by another step, is never asked for again."""
        step = self.step
        newest_finished = max(order.closed, order.step - 1, order.accepted - 1)
        if step > newest_finished:
            return []
        return [*self._discard(), DropReport(step)]

    def _confirm(self, order: OrderMessage) -> None:
        self.accepted = order.accepted
        self._confirmed = order.again

    # what the shell reports

    def made(self, step: int, work: bytes, now: float) -> Actions:
        """The report of `step` lies in the outbox; `work` is the digest of the work that it came from."""
        self._change(Cause.MADE)
        self.step = step
        self._work = work
        self._retries = 0
        return self._send(now)

    def sent(self, step: int, whole: bool, now: float, size: int = 0) -> Actions:
        """A sending ended. Wait for the coordinator's answer, or send once more if it asked meanwhile.

        Args:
            step: whose report was sent.
            whole: whether the broker acknowledged every part.
            now: the time.
            size: bytes of the report.
        """
        if self.state not in IN_TRANSIT or step != self.step:
            return []
        asked_again = self.state is SENDING_AGAIN
        self._change(Cause.SENT)
        if asked_again:
            return self._send(now)
        doubled = min(RETRY_S * 2**self._retries, RETRY_LIMIT_S)
        wait = doubled * self._jitter.uniform(0.75, 1.25)
        if (
            whole
        ):  # a report that took a minute to send, or to read, is not sent again after two seconds
            reading_s = size // ANSWERED_BYTES_PER_S
            wait = max(wait, now - self._sent_from, reading_s)
        self._retry_at = now + wait
        self._retries = min(self._retries + 1, MAX_DOUBLINGS)
        return []

    def damaged(self) -> Actions:
        """The file of the report does not hold what the worker wrote."""
        return self._discard()

    def _send(self, now: float) -> Actions:
        self._retry_at = None
        if self.state is not WAITING or not self.is_up or self.coordinator_offline:
            return []
        self._change(Cause.SEND)
        self._sent_from = now
        self._answered_again = self._newest_again
        return [SendReport(self.step)]

    def _interrupt(self) -> Actions:
        self._retry_at = None
        if self.state not in IN_TRANSIT:
            return []
        self._change(Cause.INTERRUPTED)
        return [StopSending()]

    def _discard(self) -> Actions:
        actions = self._interrupt()
        if self.state is not NONE:
            self._change(Cause.DISCARDED)
            self.step = 0
        return actions

    def _change(self, cause: Cause) -> None:
        self.state = TRANSITIONS[self.state][cause]

    def _restore(self, found: Outboxed) -> None:
        self.run = found.run
        self.accepted = found.accepted
        self._confirmed = found.confirmed
        self.step = found.step or found.kept
        self._work = found.work
        self.state = NONE
        if found.step:
            self.state = WAITING
        elif found.kept:
            self.state = KEPT

    def _outboxed(self) -> Outboxed:
        kept = self.step if self.state is KEPT else 0
        work = self._work if self.step else b""
        return Outboxed(self.run, self.accepted, self.undecided, kept, work, self._confirmed)
