"""What a run knows about its agents' data, figures and reports, for the list of odd devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from covey.coordinator.doctor.devices import excluded, reports_of
from covey.coordinator.doctor.examine import Facts, examine
from covey.coordinator.doctor.odd import Odd, read_odd
from covey.coordinator.fold.means import by_mode
from covey.coordinator.run.run import Run
from covey.shared.candidate_names import DELIVERED, USES


def of_reports(run: Run) -> Facts:
    """The newest evaluation of each agent, and what the sums of its data have shown. Under secure sums there is neither."""
    evaluation = {agent: by_mode(numbers) for agent, numbers in run.members.evaluation.items()}
    weights = {
        agent: modes[DELIVERED][USES]
        for agent, modes in evaluation.items()
        if USES in modes.get(DELIVERED, {})
    }
    return Facts(evaluation=evaluation, weights=weights, known=read_odd(run.facts.odd))


def at_the_end(run: Run, left_out: Mapping[str, str]) -> list[Odd]:
    """The list of a run whose agents have no statuses.

    Args:
        run: that is over.
        left_out: agents whose data does not fit, with the reason.
    """
    known = [excluded(agent, why) for agent, why in sorted(left_out.items())]
    rows: dict[str, dict[str, Any]] = {}
    for one in run.members:
        row = rows[one.id] = {}
        if one.quarantine is not None:
            row["quarantined"] = one.quarantine
        if one.refusal:
            row["set_aside"] = f"its newest report was refused: {one.refusal}"
        trained = -1 if one.trained is None else one.trained
        if one.failures and one.failures["round"] > trained + 1:
            row["failing"] = one.failures["why"]
    for agent, row in sorted(rows.items()):
        known += reports_of(agent, row)
    facts = of_reports(run)
    return examine(replace(facts, known=[*known, *facts.known]))
