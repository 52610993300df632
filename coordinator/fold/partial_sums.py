"""Partial sums of the open step: checked, kept on disk, and counted as the reports that they are made of.

An aggregator near a broker checks the reports of its agents, adds them up, and sends one sum per cluster with what else
the reports hold. Here this is compared with what the coordinator knows: the step, whom it invited, and what each report
counts for. A sum cannot be taken apart. If the fold turns out to need a report itself, or a sum does not fit, the step
becomes `direct`: its sums are forgotten, and its agents are asked for their reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from covey.coordinator.checks import check_examples, checked_numbers
from covey.coordinator.disk.spool import Circumstances, Spool, SummedVectors
from covey.coordinator.engine.step import Step
from covey.coordinator.fold.arrivals import NO_STEP, Arrivals
from covey.coordinator.fold.limits import AnyStrategy, ClientReport
from covey.shared.errors import DecodeError, UserError
from covey.shared.numerics.accumulator import Accumulator
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId, Phase, Report
from covey.shared.strategies.reading import is_whole
from covey.shared.wire.aggregates import PartialSum, SummedReport

WRONG = "partial sum"  # the reason of a refusal
State = object  # the strategy's


def check_aggregators(scenario: Scenario) -> None:
    """Raises UserError for a scenario whose reports cannot be added up on their way to the coordinator."""
    why = _needs_single_reports(scenario)
    if why:
        raise UserError(
            f"--aggregators: {why}, so the coordinator needs every report itself; omit --aggregators, or change that setting"
        )


def _needs_single_reports(scenario: Scenario) -> str:
    """Why a run cannot use aggregators; empty if it can."""
    strategy = scenario.strategy
    aggregation = scenario.aggregation
    if scenario.rounds.mode == "buffered":
        return "rounds.mode buffered compares each report with the version of the model that it started from"
    if strategy.individual:
        return f"the rounds of strategy {strategy.name} are more than weighted means"
    if scenario.privacy is not None:
        return "the privacy section clips and counts single reports"
    if aggregation.average.single:
        return f"aggregation.rule {aggregation.rule} compares single reports"
    if aggregation.clips:
        return "aggregation.clip shortens single reports"
    if scenario.sketch:
        return "records.sketch stores a projection of each report"
    return ""


@dataclass(frozen=True)
class Origin:
    """What the coordinator knows of the agents of one aggregator."""

    lives: Callable[[ClientId], bool]  # may this agent's reports come from the aggregator's broker?
    samples: Callable[[ClientId], int | None]  # training samples of an agent's status, if known


class PartialSums:
    """The partial sums of the open step.

    Args:
        scenario: of the run.
        spool: keeps them.
        arrivals: counts them.
    """

    def __init__(self, scenario: Scenario, spool: Spool, arrivals: Arrivals) -> None:
        self._scenario = scenario
        self._strategy: AnyStrategy = scenario.strategy
        self._spool = spool
        self._arrivals = arrivals
        self._direct = NO_STEP  # the newest step that takes single reports
        self._direct_phases: set[str] = set()  # phases whose folds need the reports themselves
        self._step = NO_STEP  # that `settled` belongs to
        self._settled: list[bytes] = []  # digests

    def __repr__(self) -> str:
        return f"<PartialSums of step {self._step}: {len(self._settled)} settled>"

    def settled(self, number: int) -> Sequence[bytes]:
        """Digests of the sums of a step that were dealt with, in their order."""
        return tuple(self._settled) if number == self._step else ()

    def settle(self, number: int, content_digest: bytes) -> None:
        """Nobody needs to send this sum of a step again."""
        if number != self._step:
            self._step = number
            self._settled = []
        if content_digest not in self._settled:
            self._settled.append(content_digest)

    def refuse(self, number: int) -> None:
        """From now on the step takes single reports alone."""
        self._direct = number

    def refuse_phase(self, name: str) -> None:
        """The fold of phases of this name needs the reports themselves."""
        self._direct_phases.add(name)

    def is_direct(self, step: Step) -> bool:
        """Whether the coordinator turned out to need the reports of this step themselves."""
        return step.number == self._direct or step.phase.name in self._direct_phases

    def is_summable(self, step: Step, state: State, keys: Sequence[str]) -> bool:
        """Whether the reports of a step may come as sums. `keys` are those of the models that its orders name."""
        phase = step.phase
        if min(phase.sizes.values(), default=1) < 1:
            return False  # an agent may choose the length
        has_own_models = any(key.startswith("@") for key in keys)
        if has_own_models and self._scenario.wire.delta:
            return False  # the aggregator would need the models of all agents
        if not phase.sizes:
            return True
        return not any(is_whole(self._strategy, state, phase, client) for client in step.cohort)

    def take(
        self,
        content: bytes,
        content_digest: bytes,
        partial: PartialSum,
        step: Step,
        state: State,
        refusal: Callable[[ClientId, int], str],
        work_digest: Callable[[ClientId, int], bytes],
        origin: Origin,
    ) -> None:
        """Check a sum of the open step, count it, and write it to the disk.

        Args:
            content: the message.
            content_digest: its digest.
            partial: the same, read.
            step: the open one.
            state: the strategy's.
            refusal: gives the reason why a report of an agent cannot count; empty: it can.
            work_digest: gives the digest of the work that an agent's order of a step asks for.
            origin: what is known of the aggregator's agents.

        Raises:
            DecodeError: it must not be counted. Nothing has changed then.
        """
        number = step.number
        if number == self._direct:
            raise DecodeError(WRONG, f"step {number} takes single reports")
        clients = [report.client for report in partial.reports]
        if len(set(clients)) < len(clients):
            raise DecodeError(WRONG, "two reports of one agent")
        for report in partial.reports:
            client = report.client
            why = refusal(client, number)
            if why:
                raise DecodeError(WRONG, why)
            if not origin.lives(client):
                raise DecodeError("other broker", f"{client} lives on another broker")
            if report.work != work_digest(client, number):
                raise DecodeError(WRONG, f"the report of {client} came from other work")
            check_examples(report, origin.samples(client))
        self._count(partial, step.phase, state)
        self._spool.keep_sum(number, content, content_digest)
        self.settle(number, content_digest)

    def restore(self, number: int, phase: Phase, state: State) -> None:
        """Count the sums that an earlier process accepted. If that fails, their agents are asked again."""
        try:
            for content_digest, content in self._spool.sums(number).items():
                self._count(PartialSum.from_bytes(content), phase, state)
                self.settle(number, content_digest)
        except DecodeError:
            self._arrivals.give_up()
            self.refuse(number)

    def forget(self, number: int) -> None:
        """Forget the sums of a step, which takes single reports from now on."""
        self._spool.drop_sums(number)
        self.refuse(number)

    def _count(self, partial: PartialSum, phase: Phase, state: State) -> None:
        number = partial.step
        held: list[tuple[ClientId, Report, Circumstances]] = []
        reports: list[ClientReport] = []
        norms: dict[ClientId, Mapping[str, float]] = {}
        for summed in partial.reports:
            client = summed.client
            report = self._report(summed, phase)
            circumstances = Circumstances(summed.seconds, summed.client_state, summed.device)
            reports.append((client, report))
            held.append((client, report, circumstances))
            norms[client] = summed.norms
        sums = Accumulator.from_bytes(partial.sums)
        self._arrivals.add_sum(partial.step, reports, norms, sums, phase, state)
        self._spool.hold(number, held)

    def _report(self, summed: SummedReport, phase: Phase) -> Report:
        """A report as the fold reads it. Raises DecodeError for wrong numbers."""
        numbers = checked_numbers(phase, summed, self._scenario)
        return Report(
            vectors=SummedVectors(phase.sizes),
            examples=summed.examples,
            numbers=numbers,
            steps=summed.steps,
            loss=summed.loss,
        )


def clients_of(sums: Iterable[bytes]) -> list[ClientId]:
    """The agents whose reports are in these sums, which an earlier process accepted."""
    clients: list[ClientId] = []
    for content in sums:
        clients += [report.client for report in PartialSum.from_bytes(content).reports]
    return clients
