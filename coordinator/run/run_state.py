"""What a run remembers besides its agents, the engine's step and the strategy's state: `RunState` is a part of its checkpoint.

Which phase comes next: the run's own ones first, then what the strategy asks for. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Literal

from covey.coordinator.checks import SUMMED
from covey.coordinator.disk.spool import Circumstances
from covey.coordinator.engine.members import COLUMNS, Members
from covey.coordinator.engine.rounds import RoundEngine
from covey.coordinator.fold.folding import FoldOutcome
from covey.coordinator.record import records
from covey.coordinator.record.store import ENDS
from covey.coordinator.run import early_stop
from covey.shared.candidate_names import DELIVERED, REFITS
from covey.shared.disclosures import SUMS
from covey.shared.scenario import simulated_agents
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId, Phase, Reports, View
from covey.shared.strategies.phase_names import EVALUATE, MOMENTS, TRAIN

Json = dict[str, Any]
Figures = dict[str, float]
Clusters = Mapping[ClientId, int]  # of agents


@dataclass
class RunState:
    """The run's own memory. It survives a restart of the coordinator, and grows with each fold."""

    run: str  # names the run towards agents; never changes

    # Restarts, and losses of accepted reports. It only grows: agents that see a higher number send their report again,
    # because parts of it may have been lost in transit. Orders call it `again`.
    incarnation: int = 0

    # The number of folded rounds at the newest evaluation; -1 before the first. At most `engine.round`.
    evaluated: int = -1

    # Wall time of earlier sessions; the present one is added when the checkpoint is written.
    seconds: float = 0.0

    # Means and deviations per channel, and other statistics that the task asks for, once the fleet has found them; None
    # before, or if it asks for none.
    scaling: Json | None = None

    # The finished run that this one continues, and its rounds; empty where it continues none.
    origin: Json = field(default_factory=dict)

    # Of each evaluation between rounds: the number of complete rounds, its figure, and the mean (`early_stop`).
    history: list[list[float]] = field(default_factory=list)

    # What was known of the fleet's weights after each phase of the last evaluation, newest last: see `judge`.
    fleets: list[Json] = field(default_factory=list)

    # Totals of values and bytes sent, as the run's counter had them when the checkpoint was written.
    traffic: dict[str, int] = field(default_factory=dict)

    # The median norm of the newest steps, by name of the vector: what a report of a small cohort is compared with.
    usual: Figures = field(default_factory=dict)

    # Why the method ended the rounds before their number was reached; empty where it has not.
    stopped: str = ""

    # The virtual time of a simulation with durations (s); None without.
    clock: float | None = None

    # Buffered rounds: whether agents get orders during an evaluation. It holds for the whole run.
    trains_on: bool = False

    # The privacy account, as the extra `private` keeps it; empty without a `privacy` section.
    ledger: dict[str, Json] = field(default_factory=dict)

    @property
    def fleet(self) -> Json | None:
        """What the newest order of the last evaluation states of the fleet; None before there is anything."""
        stated = self.fleets[:REFITS]
        return stated[-1] if stated else None

    def to_json(self) -> Json:
        """The attributes as a checkpoint names them."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> RunState:
        """The state as a checkpoint has it, next to its agents and to where files end. Raises TypeError for other keys."""
        others = {*COLUMNS, *ENDS}
        return cls(**{key: value for key, value in saved.items() if key not in others})


def note_outcome(
    facts: RunState,
    members: Members,
    scenario: Scenario,
    *,
    phase: Phase,
    round_: int,
    reports: Reports,
    outcome: FoldOutcome,
    circumstances: Mapping[ClientId, Circumstances],
) -> None:
    """Add a fold to the run's memory.

    Args:
        facts: the run's memory; changed in place.
        members: its agents; changed in place.
        scenario: of the run.
        phase: that was folded.
        round_: how many rounds were complete before it.
        reports: that were folded.
        outcome: of the fold.
        circumstances: of the reports.
    """
    facts.scaling = outcome.scaling or facts.scaling
    weighs_again = phase.is_evaluation and facts.evaluated == round_  # with the fleet's weights
    if phase.is_evaluation:
        facts.evaluated = round_
        if not weighs_again:
            facts.fleets = []
            newcomers = simulated_agents.newcomers(scenario)
            value = early_stop.value_after(scenario, outcome.evaluation, newcomers, outcome.means)
            mean = early_stop.mean_of(
                {one: own for one, own in outcome.evaluation.items() if one not in newcomers},
                early_stop.measure_of(scenario),
            )
            early_stop.note(scenario, facts.history, round_, value, mean)
        if outcome.fleet is not None:
            facts.fleets.append(outcome.fleet)
        elif facts.fleets:  # nobody has reported
            facts.fleets.append(facts.fleets[-1])
        for client, figures in outcome.evaluation.items():
            member = members.of(client)
            member.evaluation, member.evaluated_in = figures, round_
    for client, report in reports:
        member = members.of(client)
        sums = report.numbers if phase.name == MOMENTS else report.numbers.get(SUMS)
        if sums is not None:
            member.sums = {name: sums[name] for name in SUMMED if name in sums}
        if phase.name == TRAIN:
            member.trained = round_
        if "track" in report.numbers:  # of any phase that trains
            member.tracked = best_so_far(member.tracked, report.numbers)
    if weighs_again:
        return  # nothing was computed
    for client, one in circumstances.items():
        member = members.of(client)
        is_same = member.device in (None, one.device)
        member.device = one.device if is_same else records.MIXED


def best_so_far(best: dict[str, float] | None, numbers: Mapping[str, Any]) -> dict[str, float]:
    """The best and the newest test figures of an agent right after its local training."""
    newest: dict[str, float] = dict(numbers["track"])
    if best is None or not best["n"]:
        return newest
    if not newest["n"]:
        return best
    if "diverged" in newest:
        return best
    if "diverged" in best:
        return newest
    if "accuracy" in newest:
        is_better = newest["accuracy"] > best["accuracy"]
    else:
        is_better = newest["mse"] <= best["mse"]
    return newest if is_better else best


def next_phase(
    scenario: Scenario, state: Any, facts: RunState, *, engine: RoundEngine, view: View
) -> Phase | None:
    """The next phase; None where the run is complete.

    Args:
        state: the strategy's.
        facts: the run's memory.
        engine: knows the agents, and those of them that take part in nothing before the last round.
        view: what it shows of the run: rounds, and who is present.
    """
    if scenario.task.asks_fleet_for and facts.scaling is None:
        return Phase(MOMENTS, "all", ends_round=False)
    phase: Phase | None
    sums = scenario.sums
    if sums is not None and sums.is_evaluating(state):
        return _evaluation(scenario, state, view)
    if view.round < view.rounds:
        phase = scenario.method.plan(state, view)
    else:
        phase = _entry(scenario, state, view, engine.rules.newcomers)
    is_trained = view.round > max(facts.evaluated, 0)
    if (phase is None or _evaluation_is_due(scenario, view)) and is_trained:
        return _evaluation(scenario, state, view)
    if phase is None and 0 < len(facts.fleets) <= REFITS:
        return _evaluation(scenario, state, view, _judges(engine.members, facts.evaluated))
    return phase


def _evaluation(
    scenario: Scenario,
    state: Any,
    view: View,
    agents: tuple[ClientId, ...] | Literal["all"] = "all",
) -> Phase:
    """The next phase of an evaluation; under secure sums of all agents, which have to be the same ones again."""
    if scenario.sums is None:
        return Phase(EVALUATE, agents, ends_round=False, may_be_empty=True)
    return scenario.sums.plan_evaluation(state, view)


def _judges(members: Members, evaluated: int) -> tuple[ClientId, ...]:
    """The agents that have answered the last evaluation: these get the fleet's weights."""
    judges = [
        one.id
        for one in members
        if one.evaluation and DELIVERED in one.evaluation and one.evaluated_in == evaluated
    ]
    return tuple(sorted(judges))


def _evaluation_is_due(scenario: Scenario, view: View) -> bool:
    """Between rounds, every `evaluation.every` of them; the last evaluation comes after all rounds."""
    every = scenario.evaluation.every
    between_rounds = 0 < view.round < view.rounds
    if every == 0 or not between_rounds:
        return False
    return view.round % every == 0


def _entry(scenario: Scenario, state: Any, view: View, newcomers: Set[ClientId]) -> Phase | None:
    """After the last round: what the strategy needs from newcomers before it can serve them, and nothing else."""
    if not newcomers:
        return None
    phase = scenario.method.plan(state, view)
    if phase is None or phase.ends_round:
        return None
    if isinstance(phase.cohort, str):  # all agents, or a sample
        return None
    if newcomers.isdisjoint(phase.cohort):
        return None
    return phase
