"""The fold of one step, from its first report to the method's new state: the door of this room.

A report is added when it is accepted and lies in the spool. `close` gives the new state, or what is in its way. Behind the
door are all ways to a sum, and caps, limits, clips, staleness, blame and soundness.

A phase is added up on arrival if its method names sums (`Strategy.terms`), the rule is the plain mean, and nothing else looks
at single reports: closing it then reads none of them again, and aggregators may send sums. All other phases are folded from
the spool, and so is one that goes wrong on the way. Sums are exact: both ways give the same bytes, whatever came in which
order, was taken out again, or was read after a kill.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from covey.coordinator.disk.spool import Spool, SpooledVectors
from covey.coordinator.engine.members import Members
from covey.coordinator.engine.step import AllAsked, order_of
from covey.coordinator.fold import limits
from covey.coordinator.fold.means import Means, means_of
from covey.coordinator.fold.stale_reports import Began, fresh
from covey.shared import extras
from covey.shared.candidate_names import DELIVERED, REPORTED, USES
from covey.shared.disclosures import SUMS
from covey.shared.numerics.accumulator import Accumulator
from covey.shared.numerics.vectors import Vector
from covey.shared.own_code.faults import said
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies import phase_names
from covey.shared.strategies.base import ClientId, Order, Phase, Reports, Strategy, Sums
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.reading import fold, is_whole, sums_of
from covey.shared.strategies.sums import ExactSums, Terms, count, fair_terms

if TYPE_CHECKING:
    from covey.extras.private.private_sums import PrivateSums

MAX_REASON = 300  # characters of a fold's failure that are kept

ClientReport = tuple[ClientId, Report]
Figures = dict[str, Any]
Reasons = Mapping[ClientId, str]  # by agent, why its report does not count
MakeSums = Callable[[Reports, Any], tuple[Sums, Reports]]  # of reports, and the method's state


@dataclass(frozen=True)
class FoldOutcome:
    """The method's state after a fold, and all else that the run takes over from it."""

    state: Any
    means: Means  # of the reporters, for the record
    scaling: Figures | None = None  # of the phase that finds moments: see `fleet_statistics`
    evaluation: Mapping[ClientId, Figures] = field(default_factory=dict)  # by mode
    fleet: Figures | None = None  # weights and gains of the last evaluation, if agents have a judge


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

    outcome: FoldOutcome
    reports: Reports
    steps: Sequence[limits.ReportedVector]  # how far the reports moved from their models


Verdict = Missing | Guilty | Hopeless | Sound


@dataclass(frozen=True)
class Arrived:
    """A report that is in the sums."""

    report: Report  # its vectors are in the spool, or only an aggregator has seen them
    own: Terms  # as the method made them
    terms: Terms  # as they were added
    steps: Sequence[limits.ReportedVector]
    is_whole: bool  # the fold needs the vectors too


class Folding:
    """The fold of one step. It reads the run and changes nothing of it; the state is that of the moment of each call.

    Args:
        scenario: of the run.
        spool: has every report that is added.
        number: of the step.
        phase: of the step, as it was planned.
        asked: the orders that the agents got from this process.
        newcomers: agents that came after the last round.
        members: the agents, of whom some were drawn by a training round.
        usual: the usual norm of a step in the run so far, by name of the vector.
        privacy: makes the sums of a run with a `privacy` section.
        parameters: P, the values at the front of a model that are trained; None: all.
    """

    def __init__(
        self,
        scenario: Scenario,
        spool: Spool,
        number: int,
        phase: Phase,
        *,
        asked: AllAsked | None = None,
        newcomers: Collection[ClientId] = (),
        members: Members | None = None,
        usual: Mapping[str, float] | None = None,
        privacy: PrivateSums | None = None,
        parameters: int | None = None,
    ) -> None:
        self.number = number
        self.phase = phase
        self._invited = phase  # the same with those who were invited, at the close
        self._asked = {} if asked is None else asked
        self._has_changed = False  # the method's state or the cohort, since reports came
        self.scenario = scenario
        self.is_direct = False  # takes no sums of aggregators
        self.settled: list[bytes] = []  # digests of aggregators' messages that were dealt with
        self._spool = spool
        self._strategy: Strategy[Any] = scenario.method
        self._settings = scenario.aggregation
        self._newcomers = newcomers
        self._members = members or Members()
        self._usual = usual or {}
        self._privacy = privacy
        self._parameters = parameters
        settings = self._settings
        self._has_vectors = bool(phase.sizes)  # the run's own figures have none in the clear
        self._measures = limits.are_measured(scenario, phase)
        self._distances = limits.Distances(self._strategy)
        needs_vectors = self._strategy.facts.individual or settings.average.single or settings.clips
        self.is_added_up = (
            (scenario.privacy is None or scenario.privacy.adds_up)
            and scenario.rounds.mode != "buffered"
            and not (needs_vectors and self._has_vectors)
        )
        self._sums = Accumulator()  # of the terms in `_arrived`
        self._arrived: dict[ClientId, Arrived] = {}

    def __repr__(self) -> str:
        return f"<Folding of step {self.number}: {len(self._arrived)} reports added up>"

    # -- while the step is open --------------------------------------------------------------------

    def add(self, client: ClientId, report: Report, state: Any) -> None:
        """Count a report that lies in the spool. Its vectors are not kept."""
        if not self.is_added_up:
            return
        if client in self._arrived:  # the spool has replaced the first one
            self.give_up()
            return
        try:
            arrived = self.seen(client, report, state)
            count(self._sums, arrived.terms, report.vectors)
        except (OSError, MemoryError):
            raise
        except Exception:
            self.give_up()  # the fold from the spool fails as well, and finds out who is to blame
            return
        sizes = {name: vector.size for name, vector in report.vectors.items()}
        spooled = SpooledVectors(self._spool, self.number, client, sizes)
        self._arrived[client] = replace(arrived, report=replace(report, vectors=spooled))

    def merge(self, arrived: Mapping[ClientId, Arrived], sums: Accumulator) -> None:
        """Count reports that were added up elsewhere, as `seen` made them; `sums` are of their terms."""
        self._sums.merge(sums)
        self._arrived |= arrived

    def remove(self, client: ClientId) -> None:
        """Take a report out, while the spool still has it."""
        arrived = self._arrived.pop(client, None)
        if arrived is None:
            return
        try:
            self._uncount(arrived.terms, arrived.report.vectors)
        except (OSError, ValueError, KeyError):
            self.give_up()

    def forget(self, client: ClientId) -> None:
        """The method forgets an agent, whose report does not count any more."""
        self.remove(client)
        self.is_direct = True  # an aggregator's sum may have its report
        self._has_changed = True

    def give_up(self) -> None:
        """Leave the step to the spool."""
        self.is_added_up = False
        self._sums = Accumulator()
        self._arrived = {}

    def forget_sums(self) -> None:
        """The step needs the reports that are in sums of aggregators: their agents send them."""
        self._spool.drop_sums(self.number)
        self.is_direct = True
        self.give_up()

    def seen(
        self, client: ClientId, report: Report, state: Any, norms: Mapping[str, float] | None = None
    ) -> Arrived:
        """A report with all that the sums and the limits need of it; `norms` as for `Distances.of`, which may refuse them."""
        terms = self._terms(client, report, state)
        steps: Sequence[limits.ReportedVector] = ()
        order = self._order(client, state) if self._has_vectors else Order()
        if self._measures:
            steps = self._distances.of(
                state, self.phase, client, report=report, order=order, terms=terms, norms=norms
            )
        whole = self._has_vectors and is_whole(self._strategy, order)
        return Arrived(report, terms, terms, steps, whole)

    def _terms(self, client: ClientId, report: Report, state: Any) -> Terms:
        if not self._has_vectors:
            return ()
        return self._strategy.terms(state, self.phase, client, report)

    def _order(self, client: ClientId, state: Any) -> Order:
        return order_of(self._strategy, state, self.phase, client, self._asked)

    def _uncount(self, terms: Terms, vectors: Mapping[str, Vector]) -> None:
        for term in terms:
            self._sums.subtract(term.key, term.part(vectors), term.weight)

    # -- the close ---------------------------------------------------------------------------------

    def close(
        self,
        reporters: Sequence[ClientId],
        phase: Phase,
        state: Any,
        began: Mapping[ClientId, Began] | None = None,
    ) -> Verdict:
        """What becomes of the step. It may be closed again, after reports came again or were removed.

        Args:
            reporters: whose reports are folded, in ascending order.
            phase: of the step, with the invited agents.
            state: the method's.
            began: of those whose reports are stale, what they began with.

        Raises:
            OSError, MemoryError: no report is to blame.
        """
        self._invited = phase
        if self.phase.cohort != phase.cohort and isinstance(self.phase.cohort, tuple):
            self.phase = phase  # it names its cohort
            self._has_changed = True
        verdict = self._close_sums(reporters, state) if self.is_added_up else None
        if verdict is not None:
            return verdict
        found, unreadable = self._spool.readable(self.number, reporters)
        if unreadable:
            return Missing(unreadable)
        reports = [
            (client, fresh(self.scenario, state, client, report, (began or {}).get(client)))
            for client, report in found
        ]
        try:
            steps = self._steps_of(reports, state) if self._measures else []
        except (OSError, MemoryError):
            raise
        except Exception:
            steps = []  # the fold fails as well, and finds who is to blame
        refused = self._refused(steps)
        if refused is not None:
            return refused

        try:
            return Sound(self.folded(reports, state), reports, steps)
        except (MemoryError, OSError):
            raise
        except Exception as error:
            guilty = limits.guilty(lambda some: self.folded(some, state), reports)
            if guilty:
                return Guilty(guilty)
            return Hopeless(f"the fold failed: {said(error)}"[:MAX_REASON])

    def _close_sums(self, reporters: Sequence[ClientId], state: Any) -> Verdict | None:
        """The verdict from the sums; None where the step must be folded from the spool.

        Reports that an earlier process accepted are read and counted now. The vectors of a report that the fold needs whole
        are mapped from the spool.
        """
        before = [client for client in reporters if client not in self._arrived]
        found, unreadable = self._spool.readable(self.number, before)
        for client, report in found:
            self.add(client, report, state)
        counted = [client for client in reporters if client in self._arrived]
        whole = [client for client in counted if self._arrived[client].is_whole]
        if len(whole) == len(counted):
            return None
        opened, lost = self._spool.readable(self.number, whole)
        if lost:
            self.give_up()  # their vectors are in the sums, and cannot be taken out
            return None
        if unreadable:
            return Missing(unreadable)
        vectors = dict(opened)
        reports = [
            (client, vectors.get(client, self._arrived[client].report)) for client in counted
        ]
        steps = [step for client in counted for step in self._arrived[client].steps]
        refused = self._refused(steps)
        if refused is not None:
            return refused
        try:
            return Sound(self._folded(reports, state, self._put_right), reports, steps)
        except MemoryError:
            raise
        except Exception:
            self.give_up()  # the reports in the spool show who is to blame
            return None

    def _steps_of(self, reports: Reports, state: Any) -> list[limits.ReportedVector]:
        """How far the reports moved."""
        phase, steps = self.phase, list[limits.ReportedVector]()
        for client, report in reports:
            terms = self._terms(client, report, state)
            order = self._order(client, state)
            steps += self._distances.of(
                state, phase, client, report=report, order=order, terms=terms
            )
        return steps

    def _refused(self, steps: Sequence[limits.ReportedVector]) -> Missing | Guilty | None:
        """What follows from steps that no training makes; None where there are none."""
        refused = limits.too_far(steps, self._settings, self._usual)
        if not refused:
            return None
        summed = self._spool.summed(self.number)
        if refused.keys().isdisjoint(summed):
            return Guilty(refused)
        # a sum cannot be taken apart: all reports in sums are needed themselves
        return Missing(dict.fromkeys(summed, "a sum has a report that must be set aside"))

    def folded(self, reports: Reports, state: Any) -> FoldOutcome:
        """The fold of reports that are at hand, with their vectors. Raises whatever a report makes it raise."""
        return self._folded(reports, state, self._sums_of)

    def _folded(self, reports: Reports, state: Any, make: MakeSums) -> FoldOutcome:
        fair = limits.capped(reports, self._settings)
        match self.phase.name:
            case phase_names.MOMENTS:
                from covey.coordinator.fold.statistics import pooled_statistics

                moments = [report.numbers for _, report in fair]
                scaling = pooled_statistics(moments, self.scenario.task, self._settings)
                limits.check_json(scaling, "the scaling")
                return FoldOutcome(state, self._means(fair), scaling=scaling)
            case phase_names.EVALUATE if not self.phase.sizes:
                return self._evaluated(fair, state)
        sums, seen = make(fair, state)
        after = fold(
            self._strategy,
            state,
            self._invited,
            sums=sums,
            reports=seen,
            orders={client: self._order(client, state) for client, _ in seen},
            parameters=self._parameters,
        )
        limits.check_sound(self._strategy, after)
        if self.phase.name == phase_names.EVALUATE:  # masked
            return FoldOutcome(after, Means())
        if self.phase.is_evaluation:
            of_sums: FoldOutcome = extras.part("secure", "evaluated").outcome(self.scenario, after)
            return of_sums
        return FoldOutcome(after, self._means(fair))

    def _evaluated(self, reports: Reports, state: Any) -> FoldOutcome:
        claims = {client: _rows_by_mode(report.numbers) for client, report in reports}
        evaluation = limits.fair_figures(claims, self._settings)
        means = self._means(
            [(client, replace(report, numbers=evaluation[client])) for client, report in reports]
        )
        judges = self.scenario.evaluation.judges
        fleet = extras.part("judge", "in_run").of_reports(reports) if judges else None
        return FoldOutcome(state, means, evaluation=evaluation, fleet=fleet)

    def _means(self, reports: Reports) -> Means:
        means = means_of(
            reports,
            self.phase.name,
            self.scenario.evaluation.weight,
            newcomers=self._newcomers,
            drawn=self._members.trained,
            share=self._settings.max_samples.share,
        )
        limits.check_json(means.to_json(), "its averages")
        return means

    def _sums_of(self, reports: Reports, state: Any) -> tuple[Sums, Reports]:
        """The sums of these reports, made now, and the reports as the fold may see them."""
        if self._settings.clips:
            steps = self._steps_of(reports, state)
            reports = limits.clip(self._strategy, state, reports, steps, self._settings)
        average = self._settings.average
        if self._privacy is not None:
            return self._privacy.sums(state, self.phase, reports, average, step=self.number)
        return sums_of(self._strategy, state, self.phase, reports, average), reports

    def _put_right(self, reports: Reports, state: Any) -> tuple[Sums, Reports]:
        """What was added up on arrival, as the sums of exactly these reports: others are taken out, and terms that have changed are added again.

        Raises:
            ValueError: a sum cannot be put right. What was added up must be forgotten (`give_up`).
        """
        for client in sorted(self._arrived.keys() - dict(reports).keys()):
            self.remove(client)
        average = self._settings.average
        claimed = [self._own_terms(client, report, state) for client, report in reports]
        for (client, _), terms in zip(reports, fair_terms(claimed, average.share), strict=True):
            arrived = self._arrived[client]
            if terms == arrived.terms:
                continue
            vectors = dict(arrived.report.vectors)
            self._uncount(arrived.terms, vectors)
            count(self._sums, terms, vectors)
            self._arrived[client] = replace(arrived, terms=terms)
        return ExactSums(self._sums, average), reports

    def _own_terms(self, client: ClientId, report: Report, state: Any) -> Terms:
        """The method's terms of a report: those that it made as the report came, unless its claims were capped since."""
        arrived = self._arrived.get(client)
        if arrived is None:
            raise ValueError(f"the report of {client} is not in the sums")
        then = arrived.report
        is_capped = (report.examples, report.steps) != (then.examples, then.steps)
        again = is_capped or self._has_changed
        return self._terms(client, report, state) if again else arrived.own


def _rows_by_mode(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of an evaluation by mode; those in use have the weights of what the agent uses."""
    modes = {mode: row for mode, row in numbers.items() if mode not in (*REPORTED, SUMS)}
    if DELIVERED in numbers:
        modes[DELIVERED] = {**numbers[DELIVERED], USES: numbers[USES]}
    return modes
