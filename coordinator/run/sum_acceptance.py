"""What follows from a message of an aggregator: reports that count, failures, refusals, and unexpected reports."""

from __future__ import annotations

from dataclasses import dataclass

from covey.coordinator.checks import check_examples
from covey.coordinator.engine.events import Failed
from covey.coordinator.engine.step import Stage
from covey.coordinator.fold.folding import Folding
from covey.coordinator.fold.partial_sums import WRONG, AggregatorAgents, count_sum
from covey.coordinator.run.effects import Effect, SumTaken
from covey.coordinator.run.run import Came, Run
from covey.shared.errors import DecodeError
from covey.shared.strategies.base import ClientId
from covey.shared.wire.aggregates import PartialSum
from covey.shared.wire.messages import digest

Effects = list[Effect]


@dataclass(frozen=True)
class SumCame(Came):
    """An aggregator has sent a partial sum, which counts as if its reports had come one by one.

    A sum of a step that is over is dropped, as late reports are. One that is refused makes its step direct: the caller
    asks the agents for their reports.
    """

    content: bytes  # the message of the aggregator
    partial: PartialSum  # the same, read
    origin: AggregatorAgents  # what is known of its agents

    def taken(self, run: Run, now: float) -> Effects:
        """The effects, and last what became of the sum."""
        try:
            effects = _accepted(run, self.content, self.partial, self.origin, now)
        except DecodeError as error:
            return [SumTaken(counts=False, error=error)]
        if effects is None:
            return [SumTaken(counts=False)]
        return [*effects, SumTaken(counts=True)]


def _accepted(
    run: Run, content: bytes, partial: PartialSum, origin: AggregatorAgents, now: float
) -> Effects | None:
    """What follows; None if the sum came before, or too late. Raises DecodeError for one that must not be counted."""
    if partial.run != run.facts.run:
        raise DecodeError("other run", f"sum of run {partial.run}, this is {run.facts.run}")
    number = partial.step
    folding = run.folding
    is_open = run.engine.stage is Stage.OPEN
    if folding is None or folding.number != number or not is_open:
        return None
    content_digest = digest(content)
    if content_digest in folding.settled:
        return None
    if partial.unable:
        folding.is_direct = True
        run.direct_phases.add(folding.phase.name)
    if partial.reports:
        try:
            _check(run, folding, partial, origin)
            count_sum(folding, run.store.reports, partial, run.state)
        except DecodeError:
            folding.is_direct = True
            raise
        run.store.reports.keep_sum(number, content, content_digest)
    folding.settled.append(content_digest)
    effects: Effects = []
    if partial.reports:
        reports = {report.client: report.digest for report in partial.reports}
        run.store.note("sum", step=number, sum=content_digest.hex(), reports=len(reports))
        effects += run.accepted_together(number, reports, now)
    effects += _others(run, partial, origin, now)
    return effects


def _check(run: Run, folding: Folding, partial: PartialSum, origin: AggregatorAgents) -> None:
    """Compare a sum with what is known of the step and its agents. Raises DecodeError if it must not be counted."""
    number = partial.step
    if folding.is_direct:
        raise DecodeError(WRONG, f"step {number} takes single reports")
    clients = [report.client for report in partial.reports]
    if len(set(clients)) < len(clients):
        raise DecodeError(WRONG, "two reports of one agent")
    for report in partial.reports:
        client = report.client
        why = run.engine.refusal(client, number)
        if why:
            raise DecodeError(WRONG, why)
        if not origin.lives(client):
            raise DecodeError("other broker", f"{client} lives on another broker")
        if report.work != run.orders.work_of(client, number, run.state).digest:
            raise DecodeError(WRONG, f"the report of {client} came from other work")
        check_examples(report, origin.samples(client))


def _others(run: Run, partial: PartialSum, origin: AggregatorAgents, now: float) -> Effects:
    """Reports that count for nothing. An aggregator may speak only of agents of its own broker."""
    number = partial.step
    effects: Effects = []
    for failure in partial.failures:
        client = failure.client
        if _may_speak_of(run, client, origin):
            effects += run.failed(Failed(client, number, failure.why), now)
    for refusal in partial.refusals:
        client = refusal.client
        if _may_speak_of(run, client, origin):
            error = refusal.error
            why = str(error)
            run.store.audit.blame("refuse", client, why)
            effects += run.refused(client, error, now)
    for client in partial.ignored:
        if not _may_speak_of(run, client, origin):
            continue
        why = run.engine.refusal(client, number)
        if why:
            run.store.audit.blame("ignored", client, why)
            effects += run.ignored(client, number, now)
    return effects


def _may_speak_of(run: Run, client: ClientId, origin: AggregatorAgents) -> bool:
    is_known = client in run.engine.known
    return is_known and origin.lives(client)
