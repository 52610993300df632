"""How long a round waits and how many agents it invites, from what earlier steps showed. Pure: durations are arguments.

A deadline follows from the durations of earlier work of the same phase by the same agents, see `rules.DeadlineRule`.

Over-selection invites n / (1 - d) agents for n reports, with the share d of invited agents that dropped out of earlier steps.
When enough reports come early, it is unknown what became of the others: slightly fewer of them count as drop-outs than the
share so far suggests (`UNDECIDED`), so that it falls slowly if agents drop out less.

A step that a restart interrupted teaches nothing: the times of its reports are lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from covey.coordinator.engine.members import Members
from covey.coordinator.engine.rules import RoundRules
from covey.coordinator.engine.step import Step
from covey.shared.strategies.base import ClientId

DECIMALS = 3  # of a duration: milliseconds are enough, and keep the checkpoint small
KNOWN_SHARE = 0.5  # of the invited agents: with fewer, the first deadline holds
NEWEST_STEPS = 20  # whose drop-outs count
UNDECIDED = 0.9  # of the share so far, for agents that a step did not wait for
MAX_DROP_OUT = 0.5  # so that a round invites at most twice as many agents as it needs

DropOuts = tuple[float, float]  # of a step: invited agents, and how many of them dropped out


class AgentTiming:
    """What the steps of a run have shown about the time and the reliability of its agents.

    Args:
        members: the agents, with the durations of their work.
        rules: of the run; without a rule for deadlines all are the same.
        drop_outs: of earlier steps, as a checkpoint has them.
    """

    def __init__(
        self, members: Members, rules: RoundRules, drop_outs: Iterable[Sequence[float]] = ()
    ) -> None:
        self.rule = rules.deadline
        self.over_selects = rules.auto_over_select
        self._members = members
        self._drop_outs: deque[DropOuts] = deque(maxlen=NEWEST_STEPS)  # of the newest steps
        self._drop_outs += [(invited, dropped) for invited, dropped in drop_outs]

    def __repr__(self) -> str:
        return f"<AgentTiming: {self.rule}, drop-out {self.drop_out:.2f}>"

    def deadline_s(self, phase: str, invited: Collection[ClientId], first_s: float) -> float:
        """How long a step may take, in seconds.

        Args:
            phase: the step's.
            invited: its agents.
            first_s: the answer as long as too little is known.
        """
        if self.rule is None:
            return first_s
        finished: list[float] = []
        unfinished = 0
        known = 0
        for client in invited:
            member = self._members.get(client)
            durations = None if member is None else member.durations.get(phase)
            if not durations:
                continue
            known += 1
            for seconds in durations:
                if seconds is None:
                    unfinished += 1
                else:
                    finished.append(seconds)
        if known < (KNOWN_SHARE * len(invited)):
            return first_s
        deadline = self.rule.deadline_s(finished, unfinished)
        if deadline is None:
            return first_s
        return deadline

    @property
    def drop_out(self) -> float:
        """The share of invited agents that dropped out of the newest steps, at most `MAX_DROP_OUT`."""
        if not self._drop_outs:
            return 0.0
        invited, dropped = map(sum, zip(*self._drop_outs, strict=True))
        if invited == 0:
            return 0.0
        return min(dropped / invited, MAX_DROP_OUT)

    def over_select(self, stated: float) -> float:
        """Invited agents for each report that a round needs; `stated` is the answer without over-selection."""
        if not self.over_selects:
            return stated
        share_of_reports = 1.0 - self.drop_out
        return 1.0 / share_of_reports

    def learn(self, step: Step) -> None:
        """A step is over: remember how long its agents took, and who dropped out."""
        if step.was_resumed:
            return
        if self.rule is not None:
            self._learn_durations(step)
        was_sampled = step.phase.cohort == "sample"
        if self.over_selects and was_sampled:
            self._learn_drop_outs(step)

    def _learn_durations(self, step: Step) -> None:
        phase = step.phase.name
        for client in step.awaited - step.took.keys():
            self._members[client].took(phase, None)
        for client, seconds in step.took.items():
            self._members[client].took(phase, round(seconds, DECIMALS))

    def _learn_drop_outs(self, step: Step) -> None:
        invited = len(step.cohort)
        dropped = float(invited - len(step.reported))
        if step.has_target:
            at_work = len(step.awaited)
            known = dropped - at_work
            dropped = known + min(max((UNDECIDED * self.drop_out * invited) - known, 0.0), at_work)
        self._drop_outs.append((float(invited), dropped))

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint keeps, the durations of all agents included; empty where nothing was learned."""
        if self.rule is None and not self.over_selects:
            return {}
        durations: dict[str, dict[ClientId, list[float | None]]] = {}
        for member in self._members:
            for phase, seconds in member.durations.items():
                durations.setdefault(phase, {})[member.id] = list(seconds)
        return {"durations": durations, "drop_outs": [list(counts) for counts in self._drop_outs]}
