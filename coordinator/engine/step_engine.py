"""One step of the round engine, from its opening to its fold: reports, failures, refusals, vacant slots, its end.

The rules:
- A phase closes when its target of reports is reached, when all agents alive have reported, when the
  grace period after the quorum is over, or at the deadline. Without a quorum it is void and drawn again.
- A vanished agent's slot is refilled during the first half of the deadline, where an agent is free.
- An agent that is silent until a step closes is asked whether it is there. It has left if it does not answer within
  `rollcall_s`: an agent that cannot announce its end costs one deadline, not one per round. One that answers and stays silent
  rests for some rounds, and so does one that cannot do its work (`rests`).
- A client whose reports were refused in `quarantine_after` steps is not invited any more until it is released. While a
  step is open, a refused report leaves its slot vacant as a failed one does.
- A report that cannot be read when its step is closed opens the step again, with a deadline of its own.
- With a rule for deadlines, or over-selection by drop-outs, both follow from earlier steps (`timing`).
- A step that invites an agent for the first time has `first_work_s` more: its training process starts then. An agent that
  never answers has this allowance once, like all others.
- A run is given up after `void_limit` void attempts in a row, or after `alike_limit` that failed for the same reason.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

from covey.coordinator.engine import events
from covey.coordinator.engine.attempts import Attempts
from covey.coordinator.engine.cohort import Cohort
from covey.coordinator.engine.pace import Pace
from covey.coordinator.engine.presence import Presence
from covey.coordinator.engine.rests import Kind, Rests
from covey.coordinator.engine.rules import Rules
from covey.coordinator.engine.step import Stage, Step
from covey.coordinator.engine.timing import Timing
from covey.shared.strategies.base import ClientId, Phase

Actions = list[events.Action]

NEVER_REFUSED = (0, 0)


class StepEngine(ABC):
    """What a round engine does with its step. Its subclass calls `_open` for a phase, and `_settle` after each change.

    Args:
        rules: of the run.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.stage = Stage.GATHERING
        self.round = 0  # rounds folded; it only grows
        self.number = 0  # of the newest step; never reused
        self.step: Step | None = None  # there is one while OPEN or FOLDING, and only then
        self.pace = Pace()  # orders and reports of buffered rounds
        self.attempts = Attempts(rules)  # at the coming phase
        # steps with a refused report, and the last of these steps, by client
        self.refused: dict[ClientId, tuple[int, int]] = {}
        self.quarantined: dict[ClientId, str] = {}  # known; why each is not invited any more
        self.presence = Presence(self.quarantined.keys())
        self.rests = Rests()  # agents whose newest work came to nothing
        self.timing = Timing(rules.deadline, over_selects=rules.auto_over_select)
        # those invited since the start of this process: their training processes have started before
        self._called: set[ClientId] = set()
        self._not_before: float | None = None  # no plan is asked for before this time

    @property
    def attempt(self) -> int:
        """Void attempts at the coming phase: each draws another cohort."""
        return self.attempts.number

    @property
    def known(self) -> set[ClientId]:
        """All agents ever seen and not forgotten."""
        return self.presence.known

    @property
    def present(self) -> set[ClientId]:
        """Some of the known: who can be invited."""
        return self.presence.present

    @abstractmethod
    def _gather(self, now: float) -> Actions:
        """The actions that follow as long as no step is open."""

    # -- the opening -------------------------------------------------------------------------------

    def _open(self, phase: Phase, cohort: Cohort, over_select: float, now: float) -> Actions:
        """Open a step for this cohort, and whatever follows from that at once."""
        self.number += 1
        allowance_s = 0.0
        if not self._called.issuperset(cohort.invited):
            allowance_s = self.rules.first_work_s
        self._called |= set(cohort.invited)
        limit_s = self.timing.deadline_s(phase.name, cohort.invited, self.rules.deadline_s)
        self.step = Step(
            number=self.number,
            phase=phase,
            cohort=cohort.invited,
            spare=cohort.spare,
            target=cohort.target,
            quorum=cohort.quorum,
            opened=now,
            deadline=now + limit_s + allowance_s,
            allowance_s=allowance_s,
            over_select=over_select,
            adapted_s=None if self.rules.deadline is None else limit_s,
            suspects=self.rests.suspects,
        )
        self.step.look_around(self.present)
        self.stage = Stage.OPEN
        invited = sorted(cohort.invited)
        opened = events.Open(
            step=self.number,
            round=self.round,
            attempt=self.attempt,
            phase=phase,
            cohort=tuple(invited),
        )
        settled = self._settle(now)
        return [opened, *settled]

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
        self.rests.reported(client)
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
            self.rests.reported(client)
        return self._settle(now)

    def _unreadable(self, clients: Collection[ClientId], number: int, now: float) -> Actions:
        """The step is open again, without these reports: their agents have them still.

        Reports of a buffer are lost: their agents get new orders.
        """
        step = self._open_step()
        is_folded = self.stage is Stage.FOLDING
        if not is_folded or step.number != number:
            raise RuntimeError(f"step {number} is not being folded")
        if self.pace.lot is not None:
            self._stream_again(clients)
            self.pace.line_up(clients)
            return self._settle(now)
        self.stage = Stage.OPEN
        limit_s = step.adapted_s or self.rules.deadline_s
        step.deadline = max(step.deadline, now + limit_s)
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
        """Count work that came to nothing; the agent may rest from now on."""
        trouble = self.rests.note(client, kind, number, self.round, why)
        if trouble is None or self.round >= self.rules.rounds:
            return []
        return [events.Rested(client, kind, trouble.times, trouble.until, trouble.words)]

    def _refused(self, client: ClientId, why: str, now: float) -> Actions:
        """Count it against the client, once per step or order, and let another take its slot."""
        number = self._number_of(client)
        if client in self.pace.orders:
            self.pace.has_failed(client, why)
        step = self.step
        if step is not None and self.stage is Stage.OPEN:
            owes_report = step.was_invited(client) and client not in step.reported
            if owes_report:
                step.has_failed(client)
        blamed = self._blame(client, why, number)
        settled = self._settle(now)
        return blamed + settled

    def _number_of(self, client: ClientId) -> int:
        """The number of the order or step that a refused report of the agent belongs to."""
        if not self.rules.is_buffered:
            return self.number
        order = self.pace.orders.get(client)
        if order is not None:
            return order.step
        step = self.step
        if step is not None and step.was_invited(client):
            return step.number
        # it owes no report: the refused one has come again, while others got orders with new numbers
        _, newest = self.refused.get(client, (0, self.number))
        return newest

    def _blame(self, client: ClientId, why: str, number: int) -> Actions:
        """Count a report of the step with this number against the client: once per step."""
        if client in self.quarantined:
            return []
        count, last = self.refused.get(client, NEVER_REFUSED)
        if count and last == number:
            return []
        count += 1
        self.refused[client] = (count, number)
        limit = self.rules.quarantine_after
        if limit is None or count < limit:
            return []
        self.quarantined[client] = why
        self.presence.bar(client)
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
        settled = self._settle(now)
        return blamed + settled

    def _folding_step(self) -> Step:
        step = self.step
        if step is None or self.stage is not Stage.FOLDING:
            stage = self.stage.value
            raise RuntimeError(f"nothing was to be folded while {stage}")
        return step

    def refusal(self, client: ClientId, number: int) -> str:
        """Why a report cannot count; empty where it can."""
        if self.pace.is_at_work(client, number):
            return f"{client} is in quarantine" if client in self.quarantined else ""
        step = self.step
        if step is None or self.stage is not Stage.OPEN:
            return f"report is for step {number}, none is open"
        if number != step.number:
            return f"report is for step {number}, open is {step.number}"
        if client in self.quarantined:
            return f"{client} is in quarantine"
        if not step.was_invited(client):
            return f"{client} was not invited to step {number}"
        if client in step.reported:
            return f"{client} has reported step {number} before"
        return ""

    def _settle(self, now: float) -> Actions:
        """Refill what is vacant, and close the step if nothing more is to be waited for."""
        step = self.step
        if step is None or self.stage is not Stage.OPEN:
            return self._gather(now)
        actions: Actions = []
        if not self._is_over(step, now):
            actions += self._refill(step, now)
        if not self._is_over(step, now):
            return actions
        actions += self._ask(step, now)
        if step.has_quorum:
            for client, why in sorted(step.reasons.items()):
                actions += self._trouble(client, "failing", step.number, why)
            actions.append(self._close(step))
        else:
            actions += self._void(step, now)
        return actions

    def _ask(self, step: Step, now: float) -> Actions:
        """Those who were silent until the step closed leave, unless they answer within `rollcall_s`."""
        if step.has_target:
            return []
        if not step.is_late(self.rules, now):
            return []
        if not step.awaited:
            return []
        silent = sorted(step.awaited)
        until = now + self.rules.rollcall_s
        self.presence.leave_at(until, silent)
        asked: Actions = [events.Ask(tuple(silent))]
        if self.presence.trusted <= step.awaited:
            return asked  # no agent reported: none of them is to blame
        for client in silent:
            asked += self._trouble(client, "silent", step.number)
        return asked

    def _is_over(self, step: Step, now: float) -> bool:
        if step.has_target:
            return True
        if step.is_late(self.rules, now):
            return True
        if step.awaited:
            return False
        return self._candidate(step, now) is None

    def _candidate(self, step: Step, now: float) -> ClientId | None:
        """Who takes the next vacant slot, in the order of invitation; None where no agent can."""
        if not self.rules.refill:
            return None
        if not step.may_refill(now):
            return None
        return step.next_free(self.presence.trusted)

    def _refill(self, step: Step, now: float) -> Actions:
        actions: Actions = []
        for _ in range(step.vacancies()):
            client = self._candidate(step, now)
            if client is None:
                break
            step.invite(client, now)
            actions.append(events.Invite(step.number, client))
        return actions

    def _close(self, step: Step) -> events.Close:
        self.stage = Stage.FOLDING
        reporters = sorted(step.reported)
        missing = sorted(set(step.cohort) - step.reported)
        return events.Close(step=step.number, reporters=tuple(reporters), missing=tuple(missing))

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
