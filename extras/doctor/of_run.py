"""The list of all that is odd about the fleet of a run, at work or at its end. A run asks for it (`coordinator.odd.doctor`)."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from covey.coordinator.fold.means import by_mode
from covey.coordinator.odd import Broker, Odd
from covey.extras.doctor.devices import Seen, excluded, reports_of
from covey.extras.doctor.examine import Facts, examine
from covey.extras.doctor.moments import columns_of_reports, target_of
from covey.shared.candidate_names import DELIVERED, USES
from covey.shared.programs.version import version

if TYPE_CHECKING:
    from covey.coordinator.run.run import Run
    from covey.coordinator.serve.roster import Roster


_newest: list[tuple[object, list[Odd]]] = []  # what the sums have shown; they seldom change


def of_sums(run: Run) -> list[Odd]:
    """Devices whose data differs, as the newest sums of each show."""
    sums = run.members.by_agent(lambda one: one.sums)
    looked_at = run.id, frozenset((agent, id(own)) for agent, own in sums.items())
    if not _newest or _newest[0][0] != looked_at:
        columns = columns_of_reports(sums.items(), run.scenario.task)
        found = examine(Facts(columns=columns, target=target_of(run.scenario.task)))
        _newest[:] = [(looked_at, found)]
    return _newest[0][1]


def of_reports(run: Run) -> list[Odd]:
    """What data and figures have shown so far. It changes with a fold alone."""
    return examine(_facts_of(run))


def now(
    run: Run, roster: Roster, broker: Broker, known: Sequence[Odd], *, waits: bool
) -> list[Odd]:
    """The list of all that is odd about the fleet of a run at work.

    Args:
        run: knows who is set aside, and why.
        roster: the newest status of each agent.
        broker: as the coordinator sees it.
        known: as `of_reports` gives it.
        waits: the run waits for agents: those that ended in order are odd then.
    """
    statuses, rows = roster.trouble(run.engine.resting)
    free = None
    with contextlib.suppress(OSError):  # the folder was moved away, or its disk is gone
        free = shutil.disk_usage(run.folder).free
    why = run.engine.waits_for if waits else ""
    seen = Seen(time.time(), statuses, rows, broker=broker, free=free, version=version(), waits=why)
    return examine(Facts(seen=seen, known=known))


def _facts_of(run: Run) -> Facts:
    """The newest evaluation of each agent, and what the sums of its data have shown. Under secure sums there is neither."""
    evaluation = {agent: by_mode(numbers) for agent, numbers in run.members.evaluation.items()}
    weights = {
        agent: modes[DELIVERED][USES]
        for agent, modes in evaluation.items()
        if USES in modes.get(DELIVERED, {})
    }
    return Facts(evaluation=evaluation, weights=weights, known=of_sums(run))


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
    facts = _facts_of(run)
    return examine(replace(facts, known=[*known, *facts.known]))
