"""The round engine: events in, actions out; no I/O, no clock, no arrays.

    GATHERING  until enough agents are there          -> Plan      -> PLANNING
    PLANNING   until the strategy has named a phase   -> Open      -> OPEN, or Finished -> DONE
    OPEN       reports come, agents come and go       -> Close     -> FOLDING, or Void -> GATHERING
    FOLDING    until the reports have been folded     -> Plan      -> PLANNING

The rules of a step:
- A phase closes when its target of reports is reached, when all agents alive have reported, when the
  grace period after the quorum is over, or at the deadline. Without a quorum it is void and drawn again.
- A vanished agent's slot is refilled during the first half of the deadline, where an agent is free.
- An agent that is silent until a step closes is asked whether it is there. It has left if it does not answer within
  `rollcall_s`: an agent that cannot announce its end costs one deadline, not one per round. One that answers and stays silent
  rests for some rounds, and so does one that cannot do its work (`members`).
- A client whose reports were refused in `quarantine_after` steps is not invited any more until it is released. While a
  step is open, a refused report leaves its slot vacant as a failed one does.
- A report that cannot be read when its step is closed opens the step again, with a deadline of its own.
- With a rule for deadlines, or over-selection by drop-outs, both follow from earlier steps (`timing`).
- A step that invites an agent for the first time has `first_work_s` more: its training process starts then. An agent that
  never answers has this allowance once, like all others.
- A run is given up after `void_limit` void attempts in a row, or after `alike_limit` that failed for the same reason.

The others:
- A step number names one attempt at one phase and is never used twice. `round` counts folded rounds.
- An agent that left counts as present for `absence_s` more: a lost session that comes back costs nothing.
  One that is not heard because it floods the coordinator is gone at once.
- While the link is down no agent leaves and no time passes. After it came back, and after a restart,
  agents have `rollcall_s` to answer, and a large fleet longer; until then those who were there count as present. A fleet
  that starts again with the coordinator has `start_wait_s`, as at its first start.
- A client that the operator has forgotten is not known any more, and its report of an open step does not count.
- Newcomers of the rules take part in nothing before the last round was folded; from then on they are agents like others.
- An agent whose work came to nothing several times in a row rests for some rounds (`members`). After the last round no agent rests.
- Rounds may be buffered: then they are folds of single agents' reports (`pace`), between which nothing else is open.
- What a peer does wrong is an `Ignored` action; what we do wrong is an exception.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import replace
from itertools import islice
from typing import Any, Self

from covey.coordinator.engine import events
from covey.coordinator.engine.attempts import Attempts
from covey.coordinator.engine.cohort import Cohort, CohortPool, cohort_size, invitation_order
from covey.coordinator.engine.members import Kind, Members, Trouble
from covey.coordinator.engine.pace import Pace
from covey.coordinator.engine.rules import RoundRules
from covey.coordinator.engine.step import Stage, Step
from covey.coordinator.engine.timing import AgentTiming
from covey.shared.programs.timers import earliest
from covey.shared.sentences import counted
from covey.shared.strategies.base import ClientId, Phase, View
from covey.shared.strategies.phase_names import EVALUATE, TRAIN
from covey.shared.wire.roll_call import extra_s

Actions = list[events.Action]

NEVER_REFUSED = (0, 0)
NEW: Mapping[str, Any] = {"round": 0, "number": 0, "attempt": 0, "started": False, "paused": False}
NOTHING: Mapping[str, Any] = {}
ASK_AGAIN_S = 1.0  # after a plan for which too few agents were there


class RoundEngine:
    """Feed it events with the time they happened; carry out the actions it returns, in order.

    Args:
        rules: of the run.
        now: the time.
        members: the agents; None: a run without any yet.
        saved: what `snapshot` returned, of the engine itself.
        step: the open step of that snapshot.
        pace: of that snapshot.
    """

    def __init__(
        self,
        rules: RoundRules,
        now: float = 0.0,
        members: Members | None = None,
        *,
        saved: Mapping[str, Any] = NEW,
        step: Step | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.rules = rules
        self.members = members = members or Members()
        self.stage = Stage.GATHERING if step is None else Stage.OPEN
        self.round: int = saved["round"]  # rounds folded; it only grows
        self.number: int = saved["number"]  # of the newest step; never reused
        self.step = step  # there is one while OPEN or FOLDING, and only then
        self.pace = pace or Pace()  # orders and reports of buffered rounds
        self.attempts = Attempts(rules, saved["attempt"])  # at the coming phase
        drop_outs = saved.get("timing", {}).get("drop_outs", ())
        self.timing = AgentTiming(members, rules, drop_outs)
        self._not_before: float | None = None  # no plan is asked for before this time
        self.now = now  # of the newest event
        self.paused: bool = saved["paused"]  # by the operator: no phase opens
        self.started: bool = saved["started"]  # a plan was asked for, with `start_agents` or later
        self._link_lost_at: float | None = None  # while the link is down no time passes
        self._start_is_overdue = False  # the time to wait for a full start is over
        self._gather_until: float | None = None  # then the start is overdue
        if rules.start_wait_s is not None:
            self._gather_until = now + rules.start_wait_s

    def __repr__(self) -> str:
        agents = f"{len(self.present)} of {len(self.known)} agents present"
        rounds = f"round {self.round} of {self.rules.rounds}"
        return f"<RoundEngine {self.stage.value}: {rounds}, step {self.number}, {agents}>"

    @property
    def attempt(self) -> int:
        """Void attempts at the coming phase: each draws another cohort."""
        return self.attempts.number

    @property
    def known(self) -> set[ClientId]:
        """All agents ever seen and not forgotten."""
        return self.members.known

    @property
    def present(self) -> set[ClientId]:
        """Some of the known: who can be invited."""
        return self.members.present

    @property
    def quarantined(self) -> Mapping[ClientId, str]:
        """Why each of some agents is not invited any more."""
        return self.members.quarantined

    @property
    def expected(self) -> int:
        """How many agents may answer a roll call: the known ones, before the start as many as it waits for."""
        return max(len(self.known), self.rules.start_agents)

    @property
    def wake_at(self) -> float | None:
        """Call `handle(Tick(), now)` at this time; None: only an event can change anything."""
        if self._link_lost_at is not None or self.stage is Stage.DONE:
            return None
        times: list[float | None] = [
            self.members.rollcall_until,
            self.members.next_leaves_at,
            self._not_before,
            self._gather_until,
        ]
        step = self.step
        if step is not None and self.stage is Stage.OPEN:
            times += [step.deadline, step.grace_end(self.rules)]
        times += self.pace.deadlines()
        if self.stage is Stage.STREAMING:  # no buffer is folded in any other
            times += self.pace.ends_of_patience(self.rules.deadline_s)
        return earliest(*times)

    def handle(self, event: events.Event, now: float) -> Actions:
        """What follows from the event. The caller carries the actions out in order.

        An action that is answered by an event (`Plan`, `Close`) is the last one.
        """
        self.now = now
        if self._link_lost_at is not None and not isinstance(event, events.LinkBack):
            now = self._link_lost_at  # no time passes
        actions = self._decide(event, now)
        if self._may_train_on():
            actions += self._fill(now)
        return actions

    def _decide(self, event: events.Event, now: float) -> Actions:
        match event:
            case events.Joined(client):
                return self._joined(client, now)
            case events.Left(client, at_once):
                return self._left(client, now, at_once=at_once)
            case events.Reported():
                return self._reported(event, now)
            case events.ReportedTogether(clients, step):
                return self._reported_together(clients, step, now)
            case events.Unreadable(clients, step):
                return self._unreadable(clients, step, now)
            case events.Failed():
                return self._failed(event, now)
            case events.VoteRefused(client, why):
                return self._refused(client, why, now)
            case events.SetAside(reasons):
                return self._set_aside(reasons, now)
            case events.FoldFailed(why):
                return self._void(self._folding_step(), now, why)
            case events.Release(client):
                return self._release(event, client, now)
            case events.Forget(client):
                return self._forget(event, client, now)
            case events.Planned(phase, sizes):
                return self._planned(phase, sizes, now)
            case events.Folded(accused):
                return [*self._accused(accused), *self._folded(now)]
            case events.Tick():
                return self._tick(now)
            case events.LinkLost():
                return self._link_lost(now)
            case events.LinkBack():
                return self._link_back(now)
            case events.Paused() | events.Resumed():
                self.paused = isinstance(event, events.Paused)
                return self._gather(now)

    # -- who is there ------------------------------------------------------------------------------

    def _joined(self, client: ClientId, now: float) -> Actions:
        if self.rules.is_buffered and client not in self.known:
            self.pace.line_up([client])
        self.members.join(client)
        if self.step is not None:
            self.step.came(client)
        return self._settle(now)

    def _left(self, client: ClientId, now: float, *, at_once: bool) -> Actions:
        if self._link_lost_at is not None:
            return []
        absence_s = 0.0 if at_once else self.rules.absence_s
        if absence_s > 0 and client in self.present:
            self.members.leave_at(now + absence_s, [client])
            return []
        self.members.leave(client)
        self._gone([client])
        return self._settle(now)

    def _gone(self, clients: Collection[ClientId]) -> None:
        """The open step does not wait for these agents any more."""
        if self.step is not None:
            for client in clients:
                self.step.went(client)

    def _link_lost(self, now: float) -> Actions:
        # only the first loss counts: later ones are handled at the time of the first
        self._link_lost_at = now
        return []

    def _link_back(self, now: float) -> Actions:
        """Continue where the link was lost, and let all agents answer a roll call."""
        if self._link_lost_at is not None:
            self._postpone(now - self._link_lost_at)
        self._link_lost_at = None
        # a large fleet spreads its answers
        self.members.call_roll(now + self.rules.rollcall_s + extra_s(self.expected))
        return self._settle(now)

    def _postpone(self, seconds: float) -> None:
        """Everything that has a time happens later by the time for which the link was lost."""
        if self._gather_until is not None:
            self._gather_until += seconds
        if self._not_before is not None:
            self._not_before += seconds
        if self.step is not None:
            self.step.postpone(seconds)
        self.pace.postpone(seconds)

    def _tick(self, now: float) -> Actions:
        if self._link_lost_at is not None:
            return []
        expired = self._expire(now)
        self._gone(self.members.end_absences(now))
        if _is_past(self._gather_until, now):
            self._gather_until = None
            self._start_is_overdue = True
        if _is_past(self._not_before, now):
            self._not_before = None
        return expired + self._settle(now)

    def _expire(self, now: float) -> Actions:
        """Orders that are not answered in time free their places; their agents have left unless they answer."""
        overdue = self.pace.overdue(now)
        silent = [client for client in overdue if client in self.present]
        rested: Actions = []
        for client in overdue:
            order = self.pace.orders.pop(client)
            if client in silent:
                rested += self._trouble(client, "silent", order.step)
        self.pace.line_up(overdue)
        if not silent:
            return rested
        self.members.leave_at(now + self.rules.rollcall_s, silent)
        return [events.Ask(tuple(silent)), *rested]

    def _release(self, event: events.Event, client: ClientId, now: float) -> Actions:
        if client not in self.members.barred:
            return [events.Ignored(event, f"{client} is not in quarantine")]
        self.members.unbar(client)
        if self.step is not None:
            self.step.free.offer(client)
        return [events.Released(client), *self._settle(now)]

    def _forget(self, event: events.Event, client: ClientId, now: float) -> Actions:
        if client not in self.known:
            return [events.Ignored(event, f"{client} is not known")]
        self.members.forget(client)
        self.pace.forget(client)
        if self.step is not None:
            self.step.forget(client)
        return [events.Forgotten(client), *self._settle(now)]

    # -- before a phase ----------------------------------------------------------------------------

    def _gather(self, now: float) -> Actions:
        """From GATHERING to PLANNING as soon as enough agents are there; while STREAMING the next fold, or orders."""
        if self.stage is Stage.STREAMING:
            return self._stream(now)
        if not self._may_plan() or self._not_before is not None:
            return []
        if len(self.members.trusted) < self._least:
            return []
        self.started = True
        self.stage = Stage.PLANNING
        return [events.PlanPhase(self._view())]

    def _may_plan(self) -> bool:
        if self.paused or self._link_lost_at is not None:
            return False
        return self.stage is Stage.GATHERING

    def _view(self) -> View:
        pool = self._pool()
        present = tuple(sorted(pool.admitted(pool.awake)))
        return View(self.round, self.rules.rounds, self.attempt, present)

    def give_up(self) -> None:
        """The run is over: the operator's patience is."""
        self.stage = Stage.DONE

    def end_rounds(self) -> View:
        """No round comes after those that were folded: from now on newcomers of the rules are agents like others."""
        self.rules = replace(self.rules, rounds=self.round)
        return self._view()

    def _pool(self) -> CohortPool:
        return CohortPool(
            rules=self.rules,
            round=self.round,
            attempt=self.attempt,
            members=self.members,
            resting=self.resting.keys(),
        )

    @property
    def resting(self) -> Mapping[ClientId, Trouble]:
        """The agents that are not invited for some rounds; none where a round could not take place without them."""
        if self.round >= self.rules.rounds:
            return {}
        resting = {
            client: one for client, one in self.members.troubles().items() if one.until > self.round
        }
        if resting and len(self._awake(resting.keys())) < self.rules.quorum:
            return {}
        return resting

    def _awake(self, resting: Set[ClientId]) -> set[ClientId]:
        return self.members.trusted - self.rules.newcomers - resting

    @property
    def _least(self) -> int:
        """How many agents a phase waits for: the first one for a full start, as long as there is time."""
        if self.started or self._start_is_overdue:
            return self.rules.quorum
        return max(self.rules.quorum, self.rules.start_agents)

    @property
    def waits_for(self) -> str:
        """Why no phase opens, in words; empty while one is open or nothing is missing."""
        if self.stage is Stage.STREAMING and not self.paused:
            is_alone = not self.pace.orders and not self.members.trusted
            return "no agent is online" if is_alone else ""
        if not self._may_plan():
            return ""
        rules = self.rules
        there = len(self.members.trusted)
        apart = len(self.present) - there
        others = ""
        if apart:
            others = f" ({apart} more are in quarantine)"
        if there < self._least > rules.quorum:
            return f"{there} of {self._least} agents are online{others}"
        if there < rules.quorum:
            return f"{counted(there, 'agent')} online{others}, rounds.quorum is {rules.quorum}"
        if self._not_before is not None:  # a plan found too few of them, or an attempt was void
            return "agents that the next phase needs are away or do not report"
        return ""

    def _planned(self, phase: Phase | None, sizes: Mapping[int, int] | None, now: float) -> Actions:
        if self.stage is not Stage.PLANNING:
            raise RuntimeError(f"no plan was asked for while {self.stage.value}")
        if phase is None or self.round >= self.rules.rounds:
            self.pace.end()
        if phase is None:
            self.stage = Stage.DONE
            return [events.Finished()]
        if sizes is not None:
            return self._begin_stream(phase, sizes, now)
        cohort = None
        if not self.paused:
            over_select = self.timing.over_select(self.rules.over_select)
            cohort = self._pool().draw(phase, over_select)
        if cohort is None:
            # the agents that the phase needs are away, or the operator was quicker: ask again later
            self.stage = Stage.GATHERING
            self._not_before = now + ASK_AGAIN_S
            return []
        return self._open(phase, cohort, over_select, now)

    # -- the opening -------------------------------------------------------------------------------

    def _open(self, phase: Phase, cohort: Cohort, over_select: float, now: float) -> Actions:
        """Open a step for this cohort, and whatever follows from that at once."""
        self.number += 1
        allowance_s = 0.0
        invited = [self.members[client] for client in cohort.invited]
        if not all(member.called for member in invited):
            allowance_s = self.rules.first_work_s
        for member in invited:
            member.called = True
        limit_s = self.timing.deadline_s(phase.name, cohort.invited, self.rules.deadline_s)
        self.step = Step(
            number=self.number,
            phase=phase,
            cohort=dict.fromkeys(cohort.invited, now),
            spare=cohort.spare,
            target=cohort.target,
            quorum=cohort.quorum,
            opened=now,
            deadline=now + limit_s + allowance_s,
            allowance_s=allowance_s,
            over_select=over_select,
            adapted_s=None if self.rules.deadline is None else limit_s,
            suspects=self.members.suspects,
        )
        self.step.look_around(self.present)
        self.stage = Stage.OPEN
        opened = events.Open(
            step=self.number,
            round=self.round,
            attempt=self.attempt,
            phase=phase,
            cohort=tuple(sorted(cohort.invited)),
        )
        return [opened, *self._settle(now)]

    # -- reports -----------------------------------------------------------------------------------

    def _reported(self, event: events.Reported, now: float) -> Actions:
        client = event.client
        why = self.refusal(client, event.step)
        if why:
            return [events.Ignored(event, why)]
        if self.pace.is_at_work(client, event.step):
            self.pace.came(event, now)
        else:
            self._open_step().report_came(client, now)
        self.members.reported(client)
        return self._settle(now)

    def _reported_together(self, clients: Collection[ClientId], number: int, now: float) -> Actions:
        """Count all of them before the step may close: their sum cannot be divided."""
        for client in clients:
            why = self.refusal(client, number)
            if why:
                raise ValueError(why)
        step = self._open_step()
        for client in clients:
            step.report_came(client, now)
            self.members.reported(client)
        return self._settle(now)

    def _unreadable(self, clients: Collection[ClientId], number: int, now: float) -> Actions:
        """The step is open again, without these reports: their agents have them still.

        Reports of a buffer are lost: their agents get new orders.
        """
        step = self._folding_step()
        if step.number != number:
            raise RuntimeError(f"step {number} is not being folded")
        if self.pace.lot is not None:
            self._stream_again(clients)
            self.pace.line_up(clients)
            return self._settle(now)
        self.stage = Stage.OPEN
        step.deadline = max(step.deadline, now + (step.adapted_s or self.rules.deadline_s))
        step.reports_lost(clients, self.present)
        return self._settle(now)

    def _stream_again(self, without: Collection[ClientId]) -> None:
        """The fold of a buffer did not take place: its reports wait again, but for those of these agents."""
        self.pace.return_lot(without)
        self.step = None
        self.stage = Stage.STREAMING

    def _failed(self, event: events.Failed, now: float) -> Actions:
        client = event.client
        if self.pace.is_at_work(client, event.step):
            self.pace.has_failed(client, event.why)
            return self._settle(now)
        why = self.refusal(client, event.step)
        if why:
            return [events.Ignored(event, why)]
        self._open_step().has_failed(client, event.why)
        return self._settle(now)

    def _trouble(self, client: ClientId, kind: Kind, number: int, why: str = "") -> Actions:
        """Count work that came to nothing; the agent may rest from now on.

        One that has not answered the roll call yet may still be on its way to the broker: it is not silent.
        """
        if kind == "silent" and client in self.members.unconfirmed:
            return []
        trouble = self.members.note_trouble(client, kind, number, self.round, why)
        if trouble is None or self.round >= self.rules.rounds:
            return []
        return [events.Rested(client, kind, trouble.times, trouble.until, trouble.words)]

    def _refused(self, client: ClientId, why: str, now: float) -> Actions:
        """Count it against the client, once per step or order, and let another take its slot."""
        number = self._number_of(client)
        if client in self.pace.orders:
            self.pace.has_failed(client, why)
        step = self.step
        if step is not None and self.stage is Stage.OPEN and step.owes_report(client):
            step.has_failed(client)
        return self._blame(client, why, number) + self._settle(now)

    def _accused(self, accused: Mapping[ClientId, str]) -> Actions:
        """These clients are not invited any more, however often they were refused."""
        barred = sorted(accused.keys() & self.members.known - self.members.barred)
        for client in barred:
            self.members.bar(client, accused[client])
        refused = {client: self.members.of(client).refused or NEVER_REFUSED for client in barred}
        return [events.Quarantined(one, refused[one][0], accused[one]) for one in barred]

    def _number_of(self, client: ClientId) -> int:
        """The number of the order or step that a refused report of the agent belongs to."""
        if not self.rules.is_buffered:
            return self.number
        order = self.pace.orders.get(client)
        if order is not None:
            return order.step
        step = self.step
        if step is not None and client in step.cohort:
            return step.number
        # it owes no report: the refused one has come again, while others got orders with new numbers
        member = self.members.get(client)
        return self.number if member is None or member.refused is None else member.refused[1]

    def _blame(self, client: ClientId, why: str, number: int) -> Actions:
        """Count a report of the step with this number against the client: once per step."""
        member = self.members.of(client)
        if member.quarantine is not None:
            return []
        count, last = member.refused or NEVER_REFUSED
        if count and last == number:
            return []
        count += 1
        member.refused = (count, number)
        limit = self.rules.quarantine_after
        if limit is None or count < limit:
            return []
        self.members.bar(client, why)
        return [events.Quarantined(client, count, why)]

    def _set_aside(self, reasons: Mapping[ClientId, str], now: float) -> Actions:
        """The step is open again without these reports: it closes, takes spare clients, or is void."""
        step = self._folding_step()
        blamed: Actions = []
        for client, why in reasons.items():
            blamed += self._blame(client, why, self.number)
        if self.pace.lot is None:
            step.set_aside(reasons.keys())
            self.stage = Stage.OPEN
        else:
            self._stream_again(reasons.keys())
            for client, why in reasons.items():
                self.pace.has_failed(client, why)
        return blamed + self._settle(now)

    def _folding_step(self) -> Step:
        step = self.step
        if step is None or self.stage is not Stage.FOLDING:
            raise RuntimeError(f"nothing was to be folded while {self.stage.value}")
        return step

    def refusal(self, client: ClientId, number: int) -> str:
        """Why a report cannot count; empty where it can."""
        if self.pace.is_at_work(client, number):
            return f"{client} is in quarantine" if client in self.members.barred else ""
        step = self.step
        if step is None or self.stage is not Stage.OPEN:
            return f"report is for step {number}, none is open"
        if number != step.number:
            return f"report is for step {number}, open is {step.number}"
        if client in self.members.barred:
            return f"{client} is in quarantine"
        if client not in step.cohort:
            return f"{client} was not invited to step {number}"
        if client in step.reported:
            return f"{client} has reported step {number} before"
        return ""

    def _settle(self, now: float) -> Actions:
        """Refill what is vacant, and close the step if nothing more is to be waited for."""
        step = self.step
        if step is None or self.stage is not Stage.OPEN:
            return self._gather(now)
        trusted = self.members.trusted
        if not step.is_over(self.rules, trusted, now):
            invited = step.refill(trusted, now)
            return [events.Invite(step.number, client) for client in invited]
        actions = self._ask(step, now)
        if step.has_quorum:
            for client, why in sorted(step.reasons.items()):
                actions += self._trouble(client, "failing", step.number, why)
            actions.append(self._close(step))
        else:
            actions += self._void(step, now)
        return actions

    def _ask(self, step: Step, now: float) -> Actions:
        """Those who were silent until the step closed leave, unless they answer within `rollcall_s`."""
        if step.has_target or not step.awaited or not step.is_late(self.rules, now):
            return []
        silent = sorted(step.awaited)
        self.members.leave_at(now + self.rules.rollcall_s, silent)
        asked: Actions = [events.Ask(tuple(silent))]
        if self.members.trusted <= step.awaited:
            return asked  # no agent reported: none of them is to blame
        for client in silent:
            asked += self._trouble(client, "silent", step.number)
        return asked

    def _close(self, step: Step) -> events.Close:
        self.stage = Stage.FOLDING
        missing = sorted(step.cohort.keys() - step.reported)
        return events.Close(step.number, tuple(sorted(step.reported)), tuple(missing))

    def _void(self, step: Step, now: float, failure: str = "") -> Actions:
        self.pace.give_up_lot()
        self.timing.learn(step)
        self.step = None
        self.stage = Stage.GATHERING
        why, given_up = self.attempts.failed(step, failure)
        self._not_before = now + self.attempts.pause_s
        void = events.Void(step.number, why, tuple(sorted(step.cohort)))
        if not given_up:
            return [void]
        self.stage = Stage.DONE
        return [void, events.Finished(given_up)]

    def _folded(self, now: float) -> Actions:
        step = self._folding_step()
        rested: Actions = []
        if self.pace.lot is not None:
            for client, why in sorted(self.pace.failed.items()):
                rested += self._trouble(client, "failing", self.number, why)
            self.pace.folded()
        self.timing.learn(step)
        if step.phase.ends_round:
            self.round += 1
        self.attempts.succeeded()
        self.step = None
        self.stage = Stage.GATHERING
        return rested + self._gather(now)

    def _open_step(self) -> Step:
        if self.step is None:
            raise RuntimeError("no step is open")
        return self.step

    # -- buffered rounds ---------------------------------------------------------------------------

    def _begin_stream(self, phase: Phase, sizes: Mapping[int, int], now: float) -> Actions:
        """Between this plan and the next one, agents work on orders of their own."""
        self.stage = Stage.STREAMING
        self.pace.phase = phase
        self.pace.sizes = sizes
        first_line = invitation_order(
            self.known, self.rules.seed, round_=0, attempt=0, purpose=TRAIN
        )
        self.pace.line_up(first_line)
        return self._stream(now)

    def _stream(self, now: float) -> Actions:
        """Fold what is ready; otherwise fill the free places."""
        if self._link_lost_at is not None:
            return []
        pace = self.pace
        rules = self.rules
        agents = len(self.known - rules.newcomers)
        if pace.next_lot(rules.buffer or 1, agents, now, rules.deadline_s) is not None:
            return self._close_lot(now)
        if self.paused:
            return []
        given = self._fill(now)
        if given or self._at_work():
            return given
        if pace.fullest_lot() is not None:
            return self._close_lot(now)
        if not pace.failed:
            return []
        # all agents that are online have failed: the attempt is void
        self.number += 1
        step = Step.of(self.number, pace.phase, sorted(pace.failed), now)
        step.reported.clear()
        step.failed.update(pace.failed)
        pace.forgive()
        return self._void(step, now)

    def _close_lot(self, now: float) -> Actions:
        """Fold the reports that were taken out of a buffer."""
        self.number += 1
        close = self.pace.close(self.number)
        self.step = Step.of(self.number, self.pace.phase_of_lot, close.reporters, now)
        self.stage = Stage.FOLDING
        return [close]

    def _may_train_on(self) -> bool:
        """Whether an evaluation is open between two folds, and agents may train meanwhile."""
        step = self.step
        if not self.pace.trains_on or step is None:
            return False
        if self.stage is not Stage.OPEN or step.phase.name != EVALUATE:
            return False
        if self.paused or self._link_lost_at is not None:
            return False
        return self.round < self.rules.rounds and bool(self.pace.folds)

    def _at_work(self) -> int:
        """Agents that take up places."""
        return len(self.pace.orders.keys() & self.members.trusted)

    def _fill(self, now: float) -> Actions:
        """Orders for the first of the line who could begin to work now, as many as places are free."""
        rules = self.rules
        able = self.members.trusted
        apart = [rules.newcomers, self.resting.keys()]
        if self.step is not None:
            apart.append(self.step.awaited)
        could_begin = (
            client
            for client in self.pace.line
            if client in able and not any(client in others for others in apart)
        )
        orders: list[tuple[ClientId, int]] = []
        for client in list(islice(could_begin, max(self._places() - self._at_work(), 0))):
            self.number += 1
            deadline = now + rules.deadline_s
            if not self.members[client].called:
                deadline += rules.first_work_s
            self.members[client].called = True
            self.pace.give(client, self.number, now, deadline)
            orders.append((client, self.number))
        return [events.Give(tuple(orders))] if orders else []

    def _places(self) -> int:
        """How many agents may be at work at once."""
        rules = self.rules
        if rules.concurrent is not None:
            return rules.concurrent
        trusted = self.known - rules.newcomers - self.members.barred
        return cohort_size(len(trusted), rules.participation, rules.agents)

    # -- a restart ---------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """All that a restarted coordinator needs, as JSON-able data. Reports are in the spool, not here.

        A step that was being folded is open again after a restart: its reports are still there.
        """
        saved: dict[str, Any] = {
            "round": self.round,
            "number": self.number,
            "attempt": self.attempt,
            "step": None if self.step is None else self.step.to_json(),
            "started": self.started,
            "paused": self.paused,
            "timing": self.timing.to_json(),
            **self.members.engine_json(),
        }
        if self.rules.is_buffered:
            saved["stream"] = self.pace.to_json()
            saved["now"] = self.now
        return saved

    @classmethod
    def restore(
        cls,
        rules: RoundRules,
        snapshot: Mapping[str, Any],
        reported: Collection[ClientId],
        now: float,
        lost: Collection[int] = (),
        *,
        run: Mapping[str, Any] = NOTHING,
    ) -> tuple[Self, Actions]:
        """The engine as it was, and what follows at once. The deadline of an open step starts again.

        Args:
            rules: of the run.
            snapshot: what `snapshot` returned.
            reported: agents whose reports of the open step are in the spool.
            now: the time.
            lost: buffered rounds: orders whose reports waited and are not in the spool any more.
            run: the run's part of the checkpoint, with what it knows of the agents.
        """
        members = Members.from_json(snapshot, run)
        step = pace = None
        if snapshot["step"] is not None:
            step = Step.from_json(snapshot["step"], reported, now, rules=rules, members=members)
        if rules.is_buffered:
            pace = Pace.from_json(snapshot["stream"], lost)
            pace.postpone(now - snapshot["now"])  # no coordinator was there
            pace.line_up(sorted(members.known))
        engine = cls(rules, now, members, saved=snapshot, step=step, pace=pace)
        if engine._gather_until is not None:
            members.call_roll(engine._gather_until)
        return engine, engine.handle(events.LinkBack(), now)


def _is_past(until: float | None, now: float) -> bool:
    return until is not None and now >= until
