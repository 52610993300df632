"""The agent's session: any events in any order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from covey.agent.device import events as e
from covey.agent.device.fetching import WorkState
from covey.shared.mqtt.link import Down, Up
from tests.agent.orders import order, rest, status
from tests.agent.sessions import REF, fresh
from tests.night import examples

STEPS = st.integers(1, 4)


class AnyOrder(RuleBasedStateMachine):
    """Any events in any order; the machine keeps the outbox that the actions describe."""

    def __init__(self) -> None:
        super().__init__()
        self.session, self.now = fresh(), 0.0
        self.working: int | None = None
        self.outbox = 0
        self.run = ""
        self.sending = False
        self.is_up = False
        self.kept = 0
        self.done: set[tuple[str, int]] = set()  # accepted
        self.aside: tuple[str, int, int] = ("", 0, 0)  # run, outbox, kept

    def feed(self, event: e.Event) -> None:
        for action in self.session.handle(event, self.now):
            match action:
                case e.StartWork(wanted):
                    assert self.working is None, "one order at a time"
                    assert (wanted.run, wanted.step) not in self.done, (
                        "accepted work is never done again"
                    )
                    assert wanted.step != self.outbox, (
                        "what lies in the outbox is never worked on again"
                    )
                    self.working = wanted.step
                case e.CancelWork():
                    assert self.working is not None
                    self.working = None
                case e.SendReport(step):
                    assert self.is_up
                    assert step == self.outbox != 0
                    assert not self.sending
                    self.sending = True
                case e.StopSending():
                    assert self.sending
                    self.sending = False
                case e.CommitMemory(step):
                    assert step == self.outbox
                    self.outbox, self.kept = 0, step
                    self.done.add((self.run, step))
                case e.DropReport(step):
                    assert step in (self.outbox, self.kept)
                    self.outbox = self.kept = 0
                case e.GoBack(accepted):
                    self.done = {
                        done for done in self.done if done[0] != self.run or done[1] <= accepted
                    }
                    self.outbox, self.kept = (self.kept if self.kept > accepted else 0), 0
                case e.LoseMemory(accepted):
                    assert accepted != self.outbox
                    self.outbox = self.kept = 0
                case e.SwitchRun(run):
                    assert self.working is None
                    left = (self.run, self.outbox, self.kept) if self.run else self.aside
                    back = self.aside if self.aside[0] == run else (run, 0, 0)
                    self.aside, (self.run, self.outbox, self.kept) = left, back
                    self.done = {done for done in self.done if done[0] in (left[0], run)}
                case e.Subscribe() | e.Unsubscribe() | e.PublishStatus():
                    assert self.is_up

    @rule()
    def link_up(self) -> None:
        if not self.is_up:
            self.is_up = True
            self.feed(Up())

    @rule()
    def link_down(self) -> None:
        if self.is_up:
            self.feed(Down("gone"))
            self.is_up = self.sending = False

    @rule(
        step=STEPS,
        accepted=st.integers(0, 4),
        run=st.sampled_from(["run-1", "run-1", "run-2"]),
        again=st.integers(0, 1),
        serial=st.integers(0, 3),
    )
    def ordered(self, step: int, accepted: int, run: str, again: int, serial: int) -> None:
        self.feed(
            e.OrderSeen(
                order(step, REF, run=run, accepted=min(accepted, step), again=again, serial=serial)
            )
        )

    @rule(accepted=st.integers(0, 4), closed=st.integers(0, 4))
    def ordered_to_rest(self, accepted: int, closed: int) -> None:
        self.feed(e.OrderSeen(rest(accepted=accepted, closed=max(closed, accepted - 1))))

    @rule(step=STEPS)
    def fetched(self, step: int) -> None:
        self.feed(e.ModelReady("0", REF.digest))

    @precondition(lambda self: self.working is not None)
    @rule()
    def worked(self) -> None:
        assert self.working is not None
        self.outbox, self.kept, self.working = self.working, 0, None
        self.feed(e.WorkDone(self.outbox))

    @precondition(lambda self: self.sending)
    @rule(whole=st.booleans())
    def sent(self, whole: bool) -> None:
        self.sending = False
        self.feed(e.Sent(self.outbox, whole))

    @rule(
        online=st.booleans(),
        epoch=st.sampled_from(["e1.1", "e2.1"]),
        run=st.sampled_from(["run-1", "run-2"]),
        everything=st.booleans(),
        retained=st.booleans(),
    )
    def coordinator(
        self, online: bool, epoch: str, run: str, everything: bool, retained: bool
    ) -> None:
        delivery = "all" if everything else "participants"
        self.feed(
            e.CoordinatorSeen(status(epoch, run=run, online=online, delivery=delivery), retained)
        )

    @rule(wait=st.floats(0.1, 100))
    def time_passes(self, wait: float) -> None:
        self.now += wait
        self.feed(e.Tick())

    @invariant()
    def a_report_that_waits_has_a_way_out(self) -> None:
        away = "offline" in self.session.waits_for
        if self.outbox and self.is_up and not away:
            assert self.sending or self.session.wake_at is not None

    @invariant()
    def a_model_that_is_awaited_has_a_timer(self) -> None:
        if self.session.state is WorkState.FETCHING and self.is_up:
            assert self.session.wake_at is not None

    @invariant()
    def work_and_status_agree(self) -> None:
        assert (self.session.state is WorkState.WORKING) == (self.working is not None)


AnyOrder.TestCase.settings = settings(
    max_examples=examples(20), stateful_step_count=40, deadline=None
)


TestAnyOrder = AnyOrder.TestCase
