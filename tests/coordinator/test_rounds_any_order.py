"""The round engine under any events in any order: what must hold whatever happens."""

from __future__ import annotations

import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from covey.coordinator.engine.cohort import cohort_size
from covey.coordinator.engine.events import (
    Action,
    Close,
    Event,
    Failed,
    Finished,
    Folded,
    Forget,
    Ignored,
    Invite,
    Joined,
    Left,
    LinkBack,
    LinkLost,
    Open,
    Paused,
    Planned,
    PlanPhase,
    Reported,
    Resumed,
    Tick,
    Void,
)
from covey.coordinator.engine.rounds import RoundEngine
from covey.coordinator.engine.rules import RoundRules
from covey.coordinator.engine.step import Stage
from covey.shared.strategies.base import Phase, View
from tests.coordinator.engines import check_what_is_kept
from tests.night import examples

FLEET = tuple("abcde")
CLIENTS = st.sampled_from(FLEET)
COHORTS = st.one_of(st.sampled_from(["sample", "all"]), st.sets(CLIENTS, min_size=1).map(tuple))
PHASES = st.builds(
    Phase,
    cohort=COHORTS,
    ends_round=st.sampled_from([True, True, False]),
    quorum=st.sampled_from([0.0, 0.5, 1.0]),
    may_be_empty=st.booleans(),
)
RULES = st.builds(
    RoundRules,
    seed=st.integers(0, 3),
    rounds=st.just(3),
    participation=st.sampled_from([0.2, 0.6, 1.0]),
    agents=st.sampled_from([None, 1, 3]),
    over_select=st.sampled_from([1.0, 1.5]),
    quorum=st.integers(1, 4),
    first_quorum=st.sampled_from([0.0, 0.5, 1.0]),
    deadline_s=st.just(10.0),
    grace_s=st.sampled_from([None, 0.0, 2.0]),
    start_agents=st.integers(1, 5),
    start_wait_s=st.sampled_from([None, 0.0, 7.0]),
    rollcall_s=st.just(3.0),
    absence_s=st.sampled_from([0.0, 2.0]),
    void_limit=st.sampled_from([2, 50]),
    participants=st.one_of(
        st.none(),
        st.tuples(*[st.sets(CLIENTS, min_size=1).map(lambda names: tuple(sorted(names)))] * 3),
    ),
)


class AnyOrder(RuleBasedStateMachine):
    """Events at random; the answers to `PlanPhase` and `Close` at random moments; the books kept by hand."""

    @initialize(rules=RULES)
    def start(self, rules: RoundRules) -> None:
        self.now = 0.0
        self.engine = RoundEngine(rules, self.now)
        self.rules_ = rules
        self.known: set[str] = set()
        self.asked: PlanPhase | Close | None = None
        self.open: Open | None = None
        self.invited: set[str] = set()
        self.spool: set[str] = set()
        self.least = 0
        self.newest = 0
        self.folded = 0
        self.finished = False
        self.blind = self.paused = False

    # -- what can happen ---------------------------------------------------------------------------

    @rule(client=CLIENTS)
    def join(self, client: str) -> None:
        self.known.add(client)
        self.do(Joined(client))

    @rule(client=CLIENTS)
    def leave(self, client: str) -> None:
        self.do(Left(client))

    @precondition(lambda self: not self.finished)
    @rule(client=CLIENTS)
    def forget(self, client: str) -> None:
        for people in (self.known, self.invited, self.spool):
            people.discard(client)
        self.do(Forget(client))

    @rule(client=CLIENTS, behind=st.sampled_from([0, 0, 0, 0, 1, -1]))
    def report(self, client: str, behind: int) -> None:
        event = Reported(client, self.newest - behind)
        counts = not self.engine.refusal(client, event.step)
        assert counts == (
            self.open is not None
            and behind == 0
            and client in self.invited
            and client not in self.spool
        )
        if counts:
            self.spool.add(client)
        actions = self.do(event)
        assert any(isinstance(action, Ignored) for action in actions) is not counts

    @rule(client=CLIENTS)
    def fail(self, client: str) -> None:
        self.do(Failed(client, self.newest, "diverged"))

    @rule(seconds=st.sampled_from([0.0, 0.4, 1.0, 3.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.tick()

    @precondition(lambda self: self.engine.wake_at is not None)
    @rule()
    def wake(self) -> None:
        self.now = max(self.now, self.engine.wake_at or 0.0)
        self.tick()

    @rule()
    def lose_the_link(self) -> None:
        self.blind = True
        self.do(LinkLost())

    @rule()
    def regain_the_link(self) -> None:
        self.blind = False
        self.do(LinkBack())

    @rule()
    def pause(self) -> None:
        self.paused = True
        self.do(Paused())

    @rule()
    def resume(self) -> None:
        self.paused = False
        self.do(Resumed())

    @precondition(lambda self: self.asked is not None)
    @rule(phase=PHASES)
    def answer(self, phase: Phase) -> None:
        asked, self.asked = self.asked, None
        if isinstance(asked, Close):
            assert self.last is not None
            self.folded += self.last.phase.ends_round
            self.do(Folded())
        elif self.folded >= self.rules_.rounds:
            self.do(Planned(None))
        else:
            self.do(Planned(phase))

    @precondition(lambda self: not self.finished)
    @rule()
    def restart(self) -> None:
        closing = isinstance(self.asked, Close)
        if closing:  # its reports are in the spool still, so it is open again
            self.open = self.last
        self.asked, self.blind = None, False
        saved = json.loads(json.dumps(self.engine.snapshot()))
        reported = self.spool if self.open is not None else set()
        self.engine, actions = RoundEngine.restore(self.rules_, saved, reported, self.now)
        self.check(actions)

    # -- what must hold ----------------------------------------------------------------------------

    last: Open | None = None

    def tick(self) -> None:
        self.do(Tick())
        wake = self.engine.wake_at
        assert wake is None or wake > self.now, "a busy loop"

    def do(self, event: Event) -> list[Action]:
        actions = self.engine.handle(event, self.now)
        if self.finished:
            assert all(isinstance(action, Ignored) for action in actions)
        self.check(actions)
        return actions

    def check(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case PlanPhase(view):
                    assert self.open is None and self.asked is None  # noqa: PT018 - one thought
                    assert not self.paused and not self.blind  # noqa: PT018 - one thought
                    assert view.round == self.folded
                    awake = self.engine.present - self.engine.resting.keys()
                    assert view.present == tuple(sorted(awake))
                    self.asked = action
                case Open():
                    self.check_open(action)
                case Invite(step, client):
                    assert self.open is not None
                    assert step == self.newest
                    assert client in self.known - self.invited
                    self.invited.add(client)
                case Close():
                    self.check_close(action)
                case Void(step, _, cohort):
                    assert self.open is not None
                    assert step == self.newest
                    assert set(cohort) == self.invited
                    self.open = None
                case Finished():
                    assert self.open is None
                    self.finished = True

    def check_open(self, action: Open) -> None:
        assert self.open is None
        assert not self.paused
        assert action.step > self.newest
        assert action.round == self.folded
        assert action.cohort == tuple(sorted(action.cohort))
        assert set(action.cohort) <= self.engine.present
        self.newest, self.open, self.last = action.step, action, action
        self.invited, self.spool = set(action.cohort), set()
        self.least = self.quorum(action)

    def quorum(self, action: Open) -> int:
        """The fewest reports that may be folded, reckoned from the scenario alone."""
        phase, rules = action.phase, self.rules_
        if phase.may_be_empty:
            return 0
        asks_all = phase.cohort == "all" and not phase.ends_round
        of_phase = rules.first_quorum if asks_all else phase.quorum
        share = math.ceil(of_phase * len(action.cohort))
        if not phase.ends_round:
            return max(share, 1)
        match phase.cohort:
            case "all":
                most = len(self.known)
            case "sample" if rules.participants is None:
                most = cohort_size(len(self.known), rules.participation, rules.agents)
            case "sample":
                most = len((rules.participants or ())[action.round])
            case names:
                most = len(names)
        return max(share, min(rules.quorum, most))

    def check_close(self, action: Close) -> None:
        assert self.open is not None
        assert action.step == self.newest
        assert action.reporters == tuple(sorted(self.spool))
        assert set(action.reporters) | set(action.missing) == self.invited
        assert not set(action.reporters) & set(action.missing)
        assert len(action.reporters) >= self.least
        self.asked, self.open = action, None

    @invariant()
    def the_books_agree(self) -> None:
        assert self.engine.present <= self.known == self.engine.known
        assert self.engine.round == self.folded
        assert self.engine.number == self.newest
        assert (self.engine.stage is Stage.OPEN) == (self.open is not None)

    @invariant()
    def what_is_kept_up_to_date_is_what_counting_gives(self) -> None:
        check_what_is_kept(self.engine)

    def teardown(self) -> None:
        """However bad it was: with everybody there and reporting, the run comes to its end."""
        if not hasattr(self, "engine"):
            return
        self.regain_the_link()
        self.resume()
        for client in FLEET:
            self.join(client)
        for _ in range(100):
            if self.finished:
                return
            if self.asked is not None:
                self.answer(Phase())
            for client in sorted(self.invited - self.spool):
                if self.open is not None:
                    self.report(client, 0)
            if self.asked is None and self.engine.wake_at is not None:
                self.wake()
        raise AssertionError(f"stuck while {self.engine.stage.value}")


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=examples(50), stateful_step_count=40, deadline=None)


# -- restarts --------------------------------------------------------------------------------------

EVENTS = st.one_of(
    st.builds(Joined, CLIENTS),
    st.builds(Left, CLIENTS),
    st.builds(Reported, CLIENTS, st.just(0)),  # 0: the newest step
    st.builds(Failed, CLIENTS, st.just(0), st.just("diverged")),
    st.builds(Forget, CLIENTS),
    st.sampled_from([Paused(), Resumed()]),
)


def carried_out(engine: RoundEngine, actions: list[Action], now: float) -> list[Action]:
    """All that follows, with every question answered at once, as the run does it."""
    done: list[Action] = []
    for action in actions:
        done.append(action)
        if isinstance(action, PlanPhase):
            done += carried_out(engine, engine.handle(Planned(the_phase(action.view)), now), now)
        if isinstance(action, Close):
            done += carried_out(engine, engine.handle(Folded(), now), now)
    return done


def the_phase(view: View) -> Phase | None:
    return None if view.round == view.rounds else Phase("train", ["sample", "all"][view.round % 2])  # type: ignore[arg-type]


@settings(deadline=None)
@given(
    before=st.lists(EVENTS, max_size=30),
    after=st.lists(EVENTS, max_size=30),
    quorum=st.integers(1, 3),
)
def test_a_restarted_engine_does_what_the_old_one_would_have_done(
    before: list[Event], after: list[Event], quorum: int
) -> None:
    # a deadline and a roll call far away, since a restart starts them again
    rules = RoundRules(
        rounds=9,
        agents=3,
        quorum=quorum,
        start_agents=3,
        void_limit=1000,
        alike_limit=1000,
        deadline_s=1e9,
        rollcall_s=1e9,
    )
    old, now = RoundEngine(rules), 0.0
    start: list[Event] = [Joined(client) for client in "abc"]
    for event in start + before:
        now += 60.0
        told(old, event, now)
    reported = old.step.reported if old.step is not None else set()
    new, actions = RoundEngine.restore(rules, json.loads(json.dumps(old.snapshot())), reported, now)
    if old.stage is Stage.DONE:
        return
    assert carried_out(new, actions, now) == []
    for event in after:
        now += 60.0
        assert told(new, event, now) == told(old, event, now)


def told(engine: RoundEngine, event: Event, now: float) -> list[Action]:
    match event:
        case Reported(client, _):
            event = Reported(client, engine.number)
        case Failed(client, _, why):
            event = Failed(client, engine.number, why)
    actions = carried_out(engine, engine.handle(event, now), now)
    return actions + carried_out(engine, engine.handle(Tick(), now + 59.0), now + 59.0)
