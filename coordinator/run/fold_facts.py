"""What the run remembers of a fold besides the method's state: who trained, what was measured, on which devices."""

from __future__ import annotations

from collections.abc import Mapping

from covey.coordinator.run import early_stop, records
from covey.coordinator.run.fold_trial import Outcome
from covey.coordinator.run.run_state import RunState
from covey.shared.scenario import simulated_agents
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId, Phase, Reports
from covey.shared.strategies.phase_names import EVALUATE, TRAIN


def note_outcome(
    facts: RunState,
    scenario: Scenario,
    phase: Phase,
    round_: int,
    reports: Reports,
    outcome: Outcome,
    devices: Mapping[ClientId, str],
) -> None:
    """Add a fold to the run's memory.

    Args:
        facts: the run's memory; changed in place.
        scenario: of the run.
        phase: that was folded.
        round_: how many rounds were complete before it.
        reports: that were folded.
        outcome: of the fold.
        devices: what each reporter computed on.
    """
    facts.scaling = outcome.scaling or facts.scaling
    if phase.name == EVALUATE:
        facts.evaluated = round_
        facts.evaluation |= outcome.evaluation
        newcomers = simulated_agents.newcomers(scenario)
        early_stop.note(scenario, facts.history, round_, outcome.evaluation, newcomers)
        facts.evaluated_in |= dict.fromkeys(outcome.evaluation, round_)
    if phase.name == TRAIN:
        trained = [client for client, _ in reports]
        facts.trained |= dict.fromkeys(trained, round_)
    for client, report in reports:
        numbers = report.numbers
        if "track" in numbers:  # of any phase that trains
            facts.tracked[client] = records.best_so_far(facts.tracked.get(client), numbers)
    for client, device in devices.items():
        is_same = facts.devices.get(client, device) == device
        facts.devices[client] = device if is_same else records.MIXED
