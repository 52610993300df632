"""The fate of a closed step: its reports are folded, some must come again or be set aside, or nothing helps.

Nothing of the run changes here. `Run` carries the verdict out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from covey.coordinator.disk.spool import Spool
from covey.coordinator.engine.events import Close
from covey.coordinator.fold import limits
from covey.coordinator.fold.arrivals import Arrivals, Collected
from covey.coordinator.fold.fold_trial import FoldTrial, Outcome, failure_of
from covey.shared.strategies.base import ClientId, Report

ClientReports = list[tuple[ClientId, Report]]
Reasons = Mapping[ClientId, str]  # by agent, why its report does not count


@dataclass(frozen=True)
class Missing:
    """Accepted reports that must come again, because they cannot be used as they are."""

    reasons: Reasons


@dataclass(frozen=True)
class Guilty:
    """Reports that must be set aside. The step continues with the others."""

    reasons: Reasons


@dataclass(frozen=True)
class Hopeless:
    """The fold fails, and no report is to blame for it."""

    why: str


@dataclass(frozen=True)
class Sound:
    """The fold of these reports."""

    outcome: Outcome
    reports: ClientReports
    steps: Sequence[limits.Step]  # how far the reports moved from their models


Verdict = Missing | Guilty | Hopeless | Sound


@dataclass(frozen=True)
class ClosedStep:
    """A closed step with its reports: in the spool, and perhaps added up already."""

    close: Close
    trial: FoldTrial
    spool: Spool
    arrivals: Arrivals
    usual: Mapping[str, float]  # the usual norm of a step, by name of the vector
    # the reports of the spool as they are folded
    prepared: Callable[[Close, ClientReports], ClientReports]

    def verdict(self) -> Verdict:
        """The fate of the step. Raises OSError and MemoryError, for which no report is to blame."""
        trial = self.trial
        number = self.close.step
        collected = self.arrivals.collect(number, self.close.reporters, trial.phase, trial.state)
        if collected is None:
            return self._verdict_of_single_reports()
        verdict = self._before_the_fold(collected)
        if verdict is not None:
            return verdict
        try:
            outcome = trial.outcome(collected.reports, self.arrivals)
        except MemoryError:
            raise
        except Exception:
            # the reports in the spool show who is to blame
            self.arrivals.give_up()
            return self._verdict_of_single_reports()
        return Sound(outcome, collected.reports, collected.steps)

    def _verdict_of_single_reports(self) -> Verdict:
        """The verdict by a fold that needs the vectors themselves."""
        trial = self.trial
        collected = self._from_spool()
        verdict = self._before_the_fold(collected)
        if verdict is not None:
            return verdict
        reports = collected.reports
        try:
            outcome = trial.outcome(reports)
        except (MemoryError, OSError):
            raise
        except Exception as error:
            guilty = limits.guilty(trial.outcome, reports)
            if guilty:
                return Guilty(guilty)
            return Hopeless(failure_of(error))
        return Sound(outcome, reports, collected.steps)

    def _from_spool(self) -> Collected:
        found, unreadable = self.spool.readable(self.close.step, self.close.reporters)
        if unreadable:
            return Collected(found, unreadable)
        reports = self.prepared(self.close, found)
        return Collected(reports, steps=self.trial.steps(reports))

    def _before_the_fold(self, collected: Collected) -> Missing | Guilty | None:
        """What keeps these reports from being folded, if anything does."""
        if collected.unreadable:
            return Missing(collected.unreadable)
        refused = limits.too_far(collected.steps, self.trial.scenario.aggregation, self.usual)
        if not refused:
            return None
        summed = self.spool.summed(self.close.step)
        is_in_a_sum = not refused.keys().isdisjoint(summed)
        if is_in_a_sum:
            # a sum cannot be taken apart: all reports in sums are needed themselves
            why = "a sum has a report that must be set aside"
            return Missing(dict.fromkeys(summed, why))
        return Guilty(refused)
