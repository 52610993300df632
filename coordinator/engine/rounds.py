"""The round engine: events in, actions out; no I/O, no clock, no arrays.

    GATHERING  until enough agents are there          -> Plan      -> PLANNING
    PLANNING   until the strategy has named a phase   -> Open      -> OPEN, or Finished -> DONE
    OPEN       reports come, agents come and go       -> Close     -> FOLDING, or Void -> GATHERING
    FOLDING    until the reports have been folded     -> Plan      -> PLANNING

The rules:
- A step number names one attempt at one phase and is never used twice. `round` counts folded rounds.
- A phase closes when its target of reports is reached, when everybody alive has reported, when the
  grace period after the quorum is over, or at the deadline. Without a quorum it is void and drawn anew.
- A vanished agent's slot is refilled during the first half of the deadline, where somebody is free.
- An agent that let the time of a step pass is asked whether it is there, and has left where it does not answer within
  `rollcall_s`: an agent that can no longer say goodbye costs one deadline, not one per round.
- An agent that left counts as present for `absence_s` more: a lost session that comes back costs nothing.
- While the link is down nobody leaves and no time passes. After it came back, and after a restart,
  agents have `rollcall_s` to answer; until then those who were there count as present. A fleet that starts
  again with the coordinator has `start_wait_s`, as at its first start.
- A client whose reports were refused in `quarantine_after` steps is not invited any more until it is released; while a
  step is open, a refused report leaves its slot vacant as a failed one does.
- Newcomers of the rules take part in nothing before the last round was folded; from then on they are agents like others.
- A report that cannot be read when its step is closed opens the step again, with a deadline of its own.
- What a peer does wrong is an `Ignored` action; what we do wrong is an exception.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from covey.coordinator.engine.events import (
    Action,
    Ask,
    Close,
    Event,
    Failed,
    Finished,
    Folded,
    FoldFailed,
    Ignored,
    Invite,
    Joined,
    Left,
    LinkBack,
    LinkLost,
    Open,
    Paused,
    Plan,
    Planned,
    Quarantined,
    Refused,
    Release,
    Released,
    Reported,
    Resumed,
    SetAside,
    Tick,
    Unreadable,
    Void,
)
from covey.coordinator.engine.sampling import cohort_size, invitation_order
from covey.shared.errors import UserError
from covey.shared.strategies.base import ClientId, Expected, Phase, View


@dataclass(frozen=True)
class Rules:
    """What a scenario's `rounds` section says, with the agents' names filled in."""

    seed: int = 0
    rounds: int = 1
    participation: float = 1.0
    agents: int | None = None
    over_select: float = 1.0
    refill: bool = True
    quorum: int = 1
    deadline_s: float = 600.0
    grace_s: float | None = None  # after the quorum is there
    patience_s: float | None = None  # after the newest report, once the quorum is there
    start_agents: int = 1
    start_wait_s: float | None = None  # None: wait for ever
    rollcall_s: float = 10.0
    absence_s: float = 0.0
    void_limit: int = 20
    participants: tuple[tuple[ClientId, ...], ...] | None = None
    newcomers: frozenset[ClientId] = frozenset()
    quarantine_after: int | None = None  # steps with a refused report; None: never

    def __post_init__(self) -> None:
        if self.participants is not None and len(self.participants) < self.rounds:
            raise UserError(
                f"rounds.participants lists the agents of {len(self.participants)} rounds, but the run has "
                f"{self.rounds}: add the missing lists, or lower rounds.count"
            )


class Stage(Enum):
    GATHERING = "gathering"
    PLANNING = "planning"
    OPEN = "open"
    FOLDING = "folding"
    DONE = "finished"


@dataclass
class Step:
    """The open step: who was invited, who answered, and when it must end."""

    number: int
    phase: Phase
    cohort: list[ClientId]
    spare: list[ClientId]  # who could be invited instead, in order
    target: int  # this many reports are enough
    quorum: int  # fewer are void
    opened: float = 0.0
    deadline: float = math.inf
    quorum_at: float | None = None
    latest: float | None = None  # when the newest report came
    reported: set[ClientId] = field(default_factory=set)
    failed: set[ClientId] = field(default_factory=set)


class RoundEngine:
    """Feed it events with the time they happened; carry out the actions it returns, in order."""

    def __init__(self, rules: Rules, now: float = 0.0) -> None:
        self.rules = rules
        self.stage = Stage.GATHERING
        self.round = 0  # rounds folded
        self.number = 0  # the newest step, never reused
        self.attempt = 0  # void attempts at the coming phase: each draws another cohort
        self.step: Step | None = None
        self.known: set[ClientId] = set()  # everybody ever seen; present is a subset
        self.present: set[ClientId] = set()
        self.leaving: dict[ClientId, float] = {}  # present, but gone for good at this time
        self.unconfirmed: set[ClientId] = (
            set()
        )  # present before the lights went out, not yet seen again
        self.refused: dict[
            ClientId, tuple[int, int]
        ] = {}  # steps with a refused report, and the last of these
        self.quarantined: dict[ClientId, str] = {}  # why each of these is not invited any more
        self.paused = False
        self.started = False
        self._link_lost_at: float | None = None
        self._voids = 0  # of these attempts, those since the start of this process
        self._waited = False  # the time to wait for a full start is over
        self._gather_until: float | None = (
            None if rules.start_wait_s is None else now + rules.start_wait_s
        )
        self._rollcall_until: float | None = None
        self._not_before: float | None = (
            None  # back-off after a void step, or a plan for which too few were there
        )

    @property
    def wake_at(self) -> float | None:
        """Call `handle(Tick(), now)` at this time; None: only an event can change anything."""
        if self._link_lost_at is not None or self.stage is Stage.DONE:
            return None
        times = [self._rollcall_until, self._not_before, self._gather_until, *self.leaving.values()]
        if self.stage is Stage.OPEN and self.step is not None:
            times += [self.step.deadline, self._grace_end(self.step)]
        return min((time for time in times if time is not None), default=None)

    def handle(self, event: Event, now: float) -> list[Action]:
        """What follows from the event. The caller carries the actions out in order."""
        if self._link_lost_at is not None and not isinstance(event, LinkBack):
            now = self._link_lost_at  # no time passes
        match event:
            case Joined(client):
                return self._joined(client, now)
            case Left(client):
                return self._left(client, now)
            case Reported(client, step):
                return self._reported(event, client, step, now)
            case Unreadable(clients, step):
                return self._unreadable(clients, step, now)
            case Failed(client, step, _):
                return self._failed(event, client, step, now)
            case Refused(client, why):
                return self._refused(client, why, now)
            case SetAside(reasons):
                return self._set_aside(reasons, now)
            case FoldFailed(why):
                return self._void(self._folding_step(), now, why)
            case Release(client):
                return self._release(event, client, now)
            case Planned(phase):
                return self._planned(phase, now)
            case Folded():
                return self._folded(now)
            case Tick():
                return self._tick(now)
            case LinkLost() | LinkBack():
                return self._link(isinstance(event, LinkLost), now)
            case Paused() | Resumed():
                self.paused = isinstance(event, Paused)
                return self._gather(now)

    # -- who is there ------------------------------------------------------------------------------

    def _joined(self, client: ClientId, now: float) -> list[Action]:
        self.known.add(client)
        self.present.add(client)
        self.unconfirmed.discard(client)
        self.leaving.pop(client, None)
        return self._settle(now)

    def _left(self, client: ClientId, now: float) -> list[Action]:
        if self._link_lost_at is not None:
            return []
        if self.rules.absence_s > 0 and client in self.present:
            self.leaving.setdefault(client, now + self.rules.absence_s)
            return []
        self._go(client)
        return self._settle(now)

    def _go(self, client: ClientId) -> None:
        self.present.discard(client)
        self.unconfirmed.discard(client)
        self.leaving.pop(client, None)

    def _link(self, lost: bool, now: float) -> list[Action]:
        if lost:
            self._link_lost_at = (
                now  # the first loss: later ones are handled at the time of the first
            )
            return []
        if self._link_lost_at is not None:
            self._postpone(now - self._link_lost_at)
        self._link_lost_at = None
        self.unconfirmed = set(self.present)
        self.leaving.clear()  # the roll call tells
        until = now + self.rules.rollcall_s
        self._rollcall_until = max(until, self._rollcall_until or until)
        return self._settle(now)

    def _postpone(self, away: float) -> None:
        """Everything that has a time happens so much later."""
        self._gather_until = None if self._gather_until is None else self._gather_until + away
        self._not_before = None if self._not_before is None else self._not_before + away
        if self.step is not None:
            self.step.opened += away
            self.step.deadline += away
            self.step.quorum_at = (
                None if self.step.quorum_at is None else self.step.quorum_at + away
            )
            self.step.latest = None if self.step.latest is None else self.step.latest + away

    def _tick(self, now: float) -> list[Action]:
        if self._link_lost_at is not None:
            return []
        if self._rollcall_until is not None and now >= self._rollcall_until:
            self._rollcall_until = None
            self.present -= self.unconfirmed
            self.unconfirmed.clear()
        for client in [client for client, until in self.leaving.items() if now >= until]:
            self._go(client)
        if self._gather_until is not None and now >= self._gather_until:
            self._gather_until, self._waited = None, True
        if self._not_before is not None and now >= self._not_before:
            self._not_before = None
        return self._settle(now)

    # -- before a phase ----------------------------------------------------------------------------

    def _gather(self, now: float) -> list[Action]:
        """From GATHERING to PLANNING as soon as enough agents are there."""
        if self.stage is not Stage.GATHERING or self.paused or self._link_lost_at is not None:
            return []
        if not self._enough_to_start() or self._not_before is not None:
            return []
        self.started = True
        self.stage = Stage.PLANNING
        return [Plan(self._view())]

    def _view(self) -> View:
        return View(
            self.round, self.rules.rounds, self.attempt, tuple(sorted(self._admitted(self.present)))
        )

    def end_rounds(self) -> View:
        """No round comes after those that were folded: from now on newcomers of the rules are agents like others."""
        self.rules = replace(self.rules, rounds=self.round)
        return self._view()

    def _enough_to_start(self) -> bool:
        there = len(self._trusted(self.present))
        if there < self.rules.quorum:
            return False
        return self.started or self._waited or there >= self.rules.start_agents

    @property
    def waits_for(self) -> str | None:
        """Why no phase opens, in words; None while one is open or nothing is missing."""
        if self.stage is not Stage.GATHERING or self.paused or self._link_lost_at is not None:
            return None
        there, rules = len(self._trusted(self.present)), self.rules
        apart = len(self.present) - there
        others = f" ({apart} more are in quarantine)" if apart else ""
        if there < rules.quorum:
            return f"{there} agents are there{others}, rounds.quorum wants {rules.quorum}"
        if not self._enough_to_start():
            return f"{there} of {rules.start_agents} agents are there{others}"
        # a plan found too few of them, or an attempt was void
        return (
            "agents that the next phase needs are away or do not report"
            if self._not_before is not None
            else None
        )

    def _admitted(self, clients: set[ClientId]) -> set[ClientId]:
        """Those of them who may be invited yet."""
        trusted = self._trusted(clients)
        return trusted if self.round >= self.rules.rounds else trusted - self.rules.newcomers

    def _trusted(self, clients: set[ClientId]) -> set[ClientId]:
        return clients - self.quarantined.keys()

    def _planned(self, phase: Phase | None, now: float) -> list[Action]:
        if self.stage is not Stage.PLANNING:
            raise RuntimeError(f"nobody asked for a plan while {self.stage.value}")
        if phase is None:
            self.stage = Stage.DONE
            return [Finished()]
        step = None if self.paused else self._draw(phase)
        if (
            step is None
        ):  # those whom it needs are away, or the operator was quicker: ask again later
            self.stage = Stage.GATHERING
            self._not_before = now + 1.0
            return []
        step.opened, step.deadline = now, now + self.rules.deadline_s
        self.number, self.step, self.stage = step.number, step, Stage.OPEN
        opened = Open(step.number, self.round, self.attempt, phase, tuple(sorted(step.cohort)))
        return [opened, *self._settle(now)]

    def _draw(self, phase: Phase) -> Step | None:
        """The cohort of a phase among those present; None where too few of it are there."""
        spare: list[ClientId] = []
        if phase.cohort == "sample" and self.rules.participants is None:
            known = self._admitted(self.known)
            order = invitation_order(
                known, self.rules.seed, self.round, self.attempt, phase.draw or phase.name
            )
            there = [client for client in order if client in self.present]
            most = cohort_size(len(known), self.rules.participation, self.rules.agents)
            invited = math.ceil(most * self.rules.over_select - 1e-9)
            cohort, spare = there[:invited], there[invited:]
        else:
            wanted = self._wanted(phase)
            most = len(wanted)
            cohort = sorted(wanted & self.present)
        quorum = self._quorum(phase, most, len(cohort))
        if len(cohort) < quorum:
            return None
        return Step(self.number + 1, phase, cohort, spare, most, quorum)

    def _quorum(self, phase: Phase, most: int, invited: int) -> int:
        """The run's quorum binds what is drawn for a round or ends it, as far as `most` reports can meet it."""
        if phase.may_be_empty:
            return 0
        run = min(self.rules.quorum, most) if phase.ends_round or phase.cohort == "sample" else 1
        return max(math.ceil(phase.quorum * invited - 1e-9), run, 1)

    def _wanted(self, phase: Phase) -> set[ClientId]:
        if phase.cohort == "all":
            return self._admitted(self.known)
        if phase.cohort == "sample":
            assert self.rules.participants is not None  # noqa: S101 - the caller has seen to it
            return self._admitted(set(self.rules.participants[self.round]))
        return self._trusted(set(phase.cohort))

    # -- while a phase is open -----------------------------------------------------------------------

    def _reported(self, event: Event, client: ClientId, number: int, now: float) -> list[Action]:
        why = self.refusal(client, number)
        if why:
            return [Ignored(event, why)]
        step = self._open_step()
        step.reported.add(client)
        step.failed.discard(client)
        step.latest = now
        if step.quorum_at is None and len(step.reported) >= step.quorum:
            step.quorum_at = now
        return self._settle(now)

    def _unreadable(self, clients: Collection[ClientId], number: int, now: float) -> list[Action]:
        """The step is open again, without these reports: their agents have them still."""
        step = self._open_step()
        if self.stage is not Stage.FOLDING or step.number != number:
            raise RuntimeError(f"step {number} is not being folded")
        self.stage = Stage.OPEN
        step.reported -= set(clients)
        step.deadline = max(step.deadline, now + self.rules.deadline_s)
        if len(step.reported) < step.quorum:
            step.quorum_at = None
        return self._settle(now)

    def _failed(self, event: Event, client: ClientId, number: int, now: float) -> list[Action]:
        why = self.refusal(client, number)
        if why:
            return [Ignored(event, why)]
        self._open_step().failed.add(client)
        return self._settle(now)

    def _refused(self, client: ClientId, why: str, now: float) -> list[Action]:
        """Count it against the client, once per step, and let another take its slot."""
        step = self.step if self.stage is Stage.OPEN else None
        if step is not None and client in step.cohort and client not in step.reported:
            step.failed.add(client)
        return [*self._blame(client, why), *self._settle(now)]

    def _blame(self, client: ClientId, why: str) -> list[Action]:
        count, last = self.refused.get(client, (0, 0))
        if client in self.quarantined or (count and last == self.number):
            return []
        self.refused[client] = (count + 1, self.number)
        limit = self.rules.quarantine_after
        if limit is None or count + 1 < limit:
            return []
        self.quarantined[client] = why
        return [Quarantined(client, count + 1, why)]

    def _set_aside(self, reasons: Mapping[ClientId, str], now: float) -> list[Action]:
        """The step is open again without these reports: it closes, takes spare clients, or is void."""
        step = self._folding_step()
        step.reported.difference_update(reasons)
        step.failed.update(reasons)
        blame = [action for client, why in reasons.items() for action in self._blame(client, why)]
        self.stage = Stage.OPEN
        return [*blame, *self._settle(now)]

    def _folding_step(self) -> Step:
        if self.stage is not Stage.FOLDING or self.step is None:
            raise RuntimeError(f"nothing was to be folded while {self.stage.value}")
        return self.step

    def _release(self, event: Event, client: ClientId, now: float) -> list[Action]:
        if client not in self.quarantined:
            return [Ignored(event, f"{client} is not in quarantine")]
        del self.quarantined[client]
        self.refused.pop(client, None)
        return [Released(client), *self._settle(now)]

    def refusal(self, client: ClientId, number: int) -> str:
        """Why a report cannot count; empty where it can."""
        if self.stage is not Stage.OPEN or self.step is None:
            return f"report is for step {number}, none is open"
        if number != self.step.number:
            return f"report is for step {number}, open is {self.step.number}"
        if client in self.quarantined:
            return f"{client} is in quarantine"
        if client not in self.step.cohort:
            return f"{client} was not invited to step {number}"
        if client in self.step.reported:
            return f"{client} has reported step {number} before"
        return ""

    def _settle(self, now: float) -> list[Action]:
        """Refill what is vacant, and close the step if nothing more is to be waited for."""
        if self.stage is not Stage.OPEN or self.step is None:
            return self._gather(now)
        step = self.step
        invites: list[Action] = [] if self._is_over(step, now) else self._refill(step, now)
        if not self._is_over(step, now):
            return invites
        asked = self._ask(step, now)
        if len(step.reported) >= step.quorum:
            return [*invites, *asked, self._close(step)]
        return [*invites, *asked, *self._void(step, now)]

    def _ask(self, step: Step, now: float) -> list[Action]:
        """Those who let the time of the step pass leave, unless they answer within `rollcall_s`."""
        if not self._is_late(step, now) or len(step.reported) >= step.target:
            return []
        silent = sorted((set(step.cohort) & self.present) - step.reported - step.failed)
        for client in silent:
            self.leaving.setdefault(client, now + self.rules.rollcall_s)
        return [Ask(tuple(silent))] if silent else []

    def _is_over(self, step: Step, now: float) -> bool:
        waiting = (set(step.cohort) & self.present) - step.reported - step.failed
        enough = len(step.reported) >= step.target
        return enough or self._is_late(step, now) or not (waiting or self._candidates(step, now))

    def _is_late(self, step: Step, now: float) -> bool:
        grace = self._grace_end(step)
        return now >= step.deadline or (grace is not None and now >= grace)

    def _grace_end(self, step: Step) -> float | None:
        """When the rest is waited for no longer; None before the quorum is there, or without such a rule."""
        if step.quorum_at is None:
            return None
        ends = []
        if self.rules.grace_s is not None:
            ends.append(step.quorum_at + self.rules.grace_s)
        if self.rules.patience_s is not None and step.latest is not None:
            ends.append(step.latest + self.rules.patience_s)
        return min(ends, default=None)

    def _candidates(self, step: Step, now: float) -> list[ClientId]:
        """Who could take a vacant slot now: a late invitation that cannot end in time helps nobody."""
        in_time = now < step.opened + (step.deadline - step.opened) / 2
        if not self.rules.refill or not in_time:
            return []
        free = self._trusted(self.present)
        return [client for client in step.spare if client in free and client not in step.cohort]

    def _refill(self, step: Step, now: float) -> list[Action]:
        alive = [
            client for client in step.cohort if client in self.present or client in step.reported
        ]
        useful = len(alive) - len(step.failed.intersection(alive))
        wanted = math.ceil(step.target * self.rules.over_select - 1e-9) - useful
        invited = self._candidates(step, now)[: max(wanted, 0)]
        step.cohort += invited
        return [Invite(step.number, client) for client in invited]

    def _close(self, step: Step) -> Close:
        self.stage = Stage.FOLDING
        missing = sorted(set(step.cohort) - step.reported)
        return Close(step.number, tuple(sorted(step.reported)), tuple(missing))

    def _void(self, step: Step, now: float, failure: str = "") -> list[Action]:
        self.step, self.stage = None, Stage.GATHERING
        self.attempt += 1
        self._voids += 1
        self._not_before = now + min(0.5 * 2 ** min(self._voids - 1, 6), 30.0)
        few = f"{len(step.reported)} reports of {len(step.cohort)} invited, the quorum is {step.quorum}"
        why = failure or few
        void = Void(step.number, why, tuple(sorted(step.cohort)))
        if self._voids >= self.rules.void_limit:
            self.stage = Stage.DONE
            return [void, Finished(f"{self._voids} attempts in a row came to nothing: {why}")]
        return [void]

    def _folded(self, now: float) -> list[Action]:
        if self.stage is not Stage.FOLDING or self.step is None:
            raise RuntimeError(f"nothing was to be folded while {self.stage.value}")
        self.round += self.step.phase.ends_round
        self.attempt = self._voids = 0
        self.step, self.stage = None, Stage.GATHERING
        return self._gather(now)

    def _open_step(self) -> Step:
        if self.step is None:
            raise RuntimeError("no step is open")
        return self.step

    # -- a restart ---------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """All that a restarted coordinator needs, as JSON-able data. Reports are in the spool, not here.

        A step that was being folded is open again after a restart: its reports are still there.
        """
        step = None
        if self.step is not None:
            step = {
                "number": self.step.number,
                "phase": asdict(self.step.phase),
                "cohort": self.step.cohort,
                "spare": self.step.spare,
                "target": self.step.target,
                "quorum": self.step.quorum,
                "failed": sorted(self.step.failed),
            }
        people: dict[str, Any] = {"known": sorted(self.known), "present": sorted(self.present)}
        flags = {"started": self.started, "paused": self.paused}
        people |= {"refused": dict(self.refused), "quarantined": dict(self.quarantined)}
        return {
            "round": self.round,
            "number": self.number,
            "attempt": self.attempt,
            "step": step,
            **people,
            **flags,
        }

    @classmethod
    def restore(
        cls, rules: Rules, snapshot: Mapping[str, Any], reported: Collection[ClientId], now: float
    ) -> tuple[RoundEngine, list[Action]]:
        """The engine as it was, and what follows at once. The deadline of an open step starts again."""
        engine = cls(rules, now)
        engine.round, engine.number, engine.attempt = (
            snapshot["round"],
            snapshot["number"],
            snapshot["attempt"],
        )
        engine.known, engine.present = set(snapshot["known"]), set(snapshot["present"])
        engine.refused = {
            client: (count, last) for client, (count, last) in snapshot.get("refused", {}).items()
        }
        engine.quarantined = dict(snapshot.get("quarantined", {}))
        engine.started, engine.paused = snapshot["started"], snapshot["paused"]
        if snapshot["step"] is not None:
            engine.step = _restored_step(snapshot["step"], reported, now, now + rules.deadline_s)
            engine.stage = Stage.OPEN
        engine._rollcall_until = engine._gather_until
        return engine, engine.handle(LinkBack(), now)


def _restored_step(
    saved: Mapping[str, Any], reported: Collection[ClientId], now: float, deadline: float
) -> Step:
    cohort: Sequence[ClientId] = saved["cohort"]
    phase = dict(saved["phase"])
    phase["numbers"] = {name: Expected(**one) for name, one in phase["numbers"].items()}
    if not isinstance(phase["cohort"], str):
        phase["cohort"] = tuple(phase["cohort"])
    step = Step(
        number=saved["number"],
        phase=Phase(**phase),
        cohort=list(cohort),
        spare=list(saved["spare"]),
        target=saved["target"],
        quorum=saved["quorum"],
        opened=now,
        deadline=deadline,
        reported=set(reported) & set(cohort),
    )
    step.failed = set(saved["failed"]) - step.reported
    step.quorum_at = now if step.reported and len(step.reported) >= step.quorum else None
    step.latest = now if step.reported else None
    return step
