"""Reports that are added up as they are accepted: closing their phase then reads none of them again.

This needs a method that names sums (`Strategy.terms`), and the plain mean as the rule. The sums are exact, so a phase has the bytes of a fold of all reports at once, whatever came in which order,
was taken out again, or was read from the spool after a kill.

The spool keeps every report all the same. It is read where a report's weight turns out to be another one than it was
added with, where a report is taken out, after a restart, and where a fold fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from covey.coordinator.checks import check_vector
from covey.coordinator.disk.spool import Spool
from covey.coordinator.fold import limits
from covey.coordinator.fold.limits import AnyStrategy, ClientReport, Step
from covey.shared.errors import DecodeError
from covey.shared.numerics.accumulator import Accumulator
from covey.shared.numerics.vectors import Vector
from covey.shared.scenario.aggregation import Aggregation
from covey.shared.strategies import phase_names
from covey.shared.strategies.base import ClientId, Phase, Report, Reports
from covey.shared.strategies.reading import is_whole
from covey.shared.strategies.sums import ExactSums, Terms, fair_terms

State = object  # the strategy's
Norms = Mapping[str, float]  # by vector name
NO_STEP = 0  # steps are numbered from 1


class SpooledVectors(Mapping[str, Vector]):
    """The vectors of a report in the spool, which is opened when one of them is read."""

    def __init__(self, spool: Spool, step: int, client: ClientId, sizes: Mapping[str, int]) -> None:
        self._spool = spool
        self._step = step
        self._client = client
        self.sizes = sizes  # the lengths by name

    def __getitem__(self, name: str) -> Vector:
        [(_, report)] = self._spool.reports(self._step, [self._client])
        return report.vectors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True)
class Arrived:
    """One report of the open step."""

    report: Report  # its vectors are in the spool
    terms: Terms  # what is in the sums
    steps: Sequence[Step]  # how far the vectors moved from their models
    is_whole: bool  # the fold needs the vectors too


@dataclass(frozen=True)
class Collected:
    """The reports of a closed step, with what was computed when they arrived."""

    reports: list[ClientReport]
    unreadable: dict[ClientId, str] = field(default_factory=dict)  # with reasons
    steps: list[Step] = field(default_factory=list)


class ExpectedSums:
    """Number, length and weight of the vectors that the sums of some reports must have under each key."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._weights: dict[str, Fraction] = {}
        self._sizes: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"ExpectedSums({self._counts})"

    def count(self, terms: Terms, sizes: Mapping[str, int]) -> None:
        """Count the terms of a report, whose vectors have these lengths."""
        for term in terms:
            key = term.key
            before = self._weights.get(key, Fraction(0))
            self._counts[key] = self._counts.get(key, 0) + 1
            self._weights[key] = before + Fraction(term.weight)
            self._sizes[key] = term.size(sizes)

    def compare(self, sums: Accumulator) -> None:
        """Raises DecodeError("partial sum") unless the sums are of these terms, as far as anyone but their maker can know."""
        if set(sums.keys) != self._counts.keys():
            sent = list(sums.keys)
            expected = sorted(self._counts)
            raise DecodeError("partial sum", f"it has the clusters {sent}, expected {expected}")
        for key, number in self._counts.items():
            same_count = sums.count(key) == number
            same_weight = sums.exact_weight(key) == self._weights[key]
            same_size = sums.size(key) == self._sizes[key]
            if not (same_count and same_weight and same_size):
                raise DecodeError(
                    "partial sum", f"the sum of {key} is not one of the {number} reports with it"
                )
            if self._weights[key] > 0:
                check_vector(key, sums.mean(key))


class Arrivals:
    """The sums of the open step. One that goes wrong gives up: its step is then folded from the spool.

    Args:
        strategy: the method.
        settings: the scenario's limits on single reports.
        spool: has the reports that are counted here.
        is_batch: every step is folded from the spool, whatever the method.
    """

    def __init__(
        self, strategy: AnyStrategy, settings: Aggregation, spool: Spool, *, is_batch: bool
    ) -> None:
        self._strategy = strategy
        self._spool = spool
        self._is_batch = is_batch
        self._average = settings.average
        self._measures_steps = settings.refuse_beyond is not None
        # each vector is looked at when all are there
        self._needs_vectors = strategy.individual or self._average.single or settings.clips
        self._number = NO_STEP
        self._sums = Accumulator()  # of the terms in `_arrived`
        self._arrived: dict[ClientId, Arrived] = {}
        self._base_norms: dict[str, float] = {}  # of the models that steps started from
        self._has_given_up = False

    def __repr__(self) -> str:
        return f"<Arrivals of step {self._number}: {len(self._arrived)} reports>"

    def begin(self, number: int) -> None:
        """Forget everything that does not belong to this step."""
        if number == self._number:
            return
        self._number = number
        self._sums = Accumulator()
        self._arrived = {}
        self._base_norms = {}
        self._has_given_up = False

    def give_up(self) -> None:
        """Leave the step to the spool."""
        self._sums = Accumulator()
        self._arrived = {}
        self._has_given_up = True

    def add(
        self, number: int, client: ClientId, report: Report, phase: Phase, state: State
    ) -> None:
        """Count a report that lies in the spool. Its vectors are not kept."""
        self.begin(number)
        if self._has_given_up or self._is_batch:
            return
        if client in self._arrived:  # the spool has replaced the first one
            self.give_up()
            return
        try:
            self._add(client, report, phase, state)
        except (OSError, MemoryError):
            raise
        except Exception:
            # the batch fold fails as well, and finds out who is to blame
            self.give_up()

    def _add(self, client: ClientId, report: Report, phase: Phase, state: State) -> None:
        if self._needs_vectors and _has_vectors(phase):
            self.give_up()
            return
        terms = self._terms(state, phase, client, report)
        is_of_the_run = phase.name in phase_names.OF_THE_RUN
        steps: list[Step] = []
        if self._measures_steps and not is_of_the_run:
            entry = (client, report)
            steps = limits.steps_of(self._strategy, state, phase, [entry], self._base_norms)
        self._count(terms, report.vectors)
        self._arrived[client] = Arrived(
            self._without_vectors(client, report),
            terms,
            steps,
            _has_vectors(phase) and is_whole(self._strategy, state, phase, client),
        )

    def _without_vectors(self, client: ClientId, report: Report) -> Report:
        """The report with vectors that are read from the spool."""
        vectors = SpooledVectors(
            self._spool,
            self._number,
            client,
            {name: vector.size for name, vector in report.vectors.items()},
        )
        return replace(report, vectors=vectors)

    def _terms(self, state: State, phase: Phase, client: ClientId, report: Report) -> Terms:
        return self._strategy.terms(state, phase, client, report) if _has_vectors(phase) else ()

    def _count(self, terms: Terms, vectors: Mapping[str, Vector]) -> None:
        for term in terms:
            self._sums.add(term.key, term.part(vectors), term.weight)

    def _uncount(self, terms: Terms, vectors: Mapping[str, Vector]) -> None:
        for term in terms:
            self._sums.subtract(term.key, term.part(vectors), term.weight)

    def add_sum(
        self,
        number: int,
        reports: Sequence[ClientReport],
        norms: Mapping[ClientId, Norms],
        sums: Accumulator,
        phase: Phase,
        state: State,
    ) -> None:
        """Count reports that were added up elsewhere. Their vectors are not here (`SummedVectors`).

        Args:
            number: of the step.
            reports: what the sums are said to be of.
            norms: how far each report's vectors lie from their models, by name.
            sums: of the terms of these reports.
            phase: the open phase.
            state: the strategy's.

        Raises:
            DecodeError: ("partial sum") the step needs single reports, or the sums have other terms than the reports.
                Nothing is counted then.
        """
        self.begin(number)
        if self._has_given_up or self._is_batch:
            raise DecodeError("partial sum", f"step {number} is folded from single reports")
        if self._needs_vectors and _has_vectors(phase):
            raise DecodeError("partial sum", "the fold needs the reports themselves")
        arrived: dict[ClientId, Arrived] = {}
        expected = ExpectedSums()
        is_of_the_run = phase.name in phase_names.OF_THE_RUN
        for client, report in reports:
            if _has_vectors(phase) and is_whole(self._strategy, state, phase, client):
                raise DecodeError("partial sum", f"the fold needs the report of {client} itself")
            terms = self._terms(state, phase, client, report)
            steps: list[Step] = []
            if self._measures_steps and not is_of_the_run:
                steps = limits.steps_of_norms(
                    self._strategy, state, phase, (client, report), norms[client], self._base_norms
                )
            expected.count(terms, phase.sizes)
            arrived[client] = Arrived(report, terms, steps, is_whole=False)
        expected.compare(sums)
        self._sums.merge(sums)
        self._arrived |= arrived

    def remove(self, number: int, client: ClientId) -> None:
        """Take a report out, while the spool still has it."""
        if number != self._number or client not in self._arrived:
            return
        arrived = self._arrived.pop(client)
        try:
            self._uncount(arrived.terms, arrived.report.vectors)
        except (OSError, ValueError, KeyError):
            self.give_up()

    def collect(
        self, number: int, reporters: Sequence[ClientId], phase: Phase, state: State
    ) -> Collected | None:
        """The reports of a closed step in this order; None where the step must be folded from the spool.

        Reports that an earlier process accepted are read and counted now. The vectors of a report that the fold needs
        whole are mapped from the spool.
        """
        self.begin(number)
        if self._has_given_up or self._is_batch:
            return None
        missing: list[ClientId] = []
        for client in reporters:
            if client not in self._arrived:
                missing.append(client)
        found, unreadable = self._spool.readable(number, missing)
        for client, report in found:
            self.add(number, client, report, phase, state)
        if self._has_given_up:
            return None
        whole: list[ClientId] = []  # whose vectors the fold needs
        known = 0
        for client in reporters:
            arrived = self._arrived.get(client)
            if arrived is None:
                continue
            known += 1
            if arrived.is_whole:
                whole.append(client)
        if len(whole) == known:
            return None
        opened, lost = self._spool.readable(number, whole)
        for client in lost:
            del self._arrived[client]
        return self._collected(reporters, dict(opened), unreadable | lost)

    def _collected(
        self,
        reporters: Sequence[ClientId],
        opened: Mapping[ClientId, Report],
        unreadable: dict[ClientId, str],
    ) -> Collected:
        reports: list[ClientReport] = []
        steps: list[Step] = []
        for client in reporters:
            arrived = self._arrived.get(client)
            if arrived is None:
                continue
            reports.append((client, opened.get(client, arrived.report)))
            steps += arrived.steps
        return Collected(reports, unreadable, steps)

    def sums(self, state: State, phase: Phase, reports: Reports) -> ExactSums:
        """The sums of exactly these reports: other ones are taken out, and changed weights are put right.

        Args:
            state: the strategy's.
            phase: the closed phase.
            reports: with the numbers of samples that they count with.

        Raises:
            ValueError: the sums do not fit these reports. What happened before must be forgotten (`give_up`).
        """
        counted = dict(reports)
        uncounted = self._arrived.keys() - counted.keys()
        for client in sorted(uncounted):
            self.remove(self._number, client)
        claimed = [self._terms(state, phase, client, report) for client, report in reports]
        for (client, _), terms in zip(
            reports, fair_terms(claimed, self._average.share), strict=True
        ):
            arrived = self._arrived.get(client)
            if arrived is None:
                raise ValueError(f"the report of {client} is not in the sums")
            if terms == arrived.terms:
                continue
            vectors = dict(arrived.report.vectors)
            self._uncount(arrived.terms, vectors)
            self._count(terms, vectors)
            self._arrived[client] = replace(arrived, terms=terms)
        return ExactSums(self._sums, self._average)


def _has_vectors(phase: Phase) -> bool:
    """Whether the reports of a phase hold vectors, which are the method's and not the run's own figures."""
    return bool(phase.sizes) and phase.name not in phase_names.OF_THE_RUN
