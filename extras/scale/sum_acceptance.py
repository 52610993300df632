"""What follows from a message of an aggregator: reports that count, failures, refusals, and unexpected reports."""

from __future__ import annotations

from collections.abc import Iterator

from covey.coordinator.checks import check_examples
from covey.coordinator.engine.events import Failed, Reported, ReportedTogether
from covey.coordinator.engine.step import Stage
from covey.coordinator.fold.folding import Folding
from covey.coordinator.run.happenings import Refused, SumCame
from covey.coordinator.run.parts import Parts
from covey.extras.scale.partial_sums import WRONG, AggregatorAgents, count_sum
from covey.shared.errors import DecodeError
from covey.shared.strategies.base import ClientId
from covey.shared.wire.aggregates import PartialSum
from covey.shared.wire.messages import digest


def counted(parts: Parts, came: SumCame) -> bool:
    """Count a sum. False if it came before, or too late. Raises DecodeError for one that must not be counted."""
    partial = came.partial
    run = parts.facts.run
    if partial.run != run:
        raise DecodeError("other run", f"sum of run {partial.run}, this is {run}")
    number = partial.step
    folding = parts.folding
    is_open = parts.engine.stage is Stage.OPEN
    if folding is None or folding.number != number or not is_open:
        return False
    content_digest = digest(came.content)
    if content_digest in folding.settled:
        return False
    if partial.unable:
        folding.is_direct = True
        parts.direct_phases.add(folding.phase.name)
    if partial.reports:
        store = parts.store
        try:
            _check(parts, folding, partial, came.origin)
            count_sum(folding, store.reports, partial, parts.state)
        except DecodeError:
            folding.is_direct = True
            raise
        store.reports.keep_sum(number, came.content, content_digest)
        store.note("sum", step=number, sum=content_digest.hex(), reports=len(partial.reports))
        for report in partial.reports:
            parts.members.accept(report.client, number)
            parts.members[report.client].refusal = ""
    folding.settled.append(content_digest)
    return True


def events_of(
    parts: Parts, came: SumCame
) -> Iterator[Reported | ReportedTogether | Failed | Refused]:
    """All that the engine has to know of a sum that counts, one by one: how it takes one may decide on the next."""
    partial = came.partial
    number = partial.step
    if partial.reports:
        yield ReportedTogether(tuple(report.client for report in partial.reports), number)

    def may_speak_of(client: ClientId) -> bool:
        """An aggregator may speak only of agents of its own broker."""
        return client in parts.engine.known and came.origin.lives(client)

    for failure in partial.failures:
        if may_speak_of(failure.client):
            yield Failed(failure.client, number, failure.why)
    for refusal in partial.refusals:
        if may_speak_of(refusal.client):
            parts.store.audit.blame("refuse", refusal.client, str(refusal.error))
            yield Refused(refusal.client, refusal.error)
    for client in partial.ignored:
        why = parts.engine.refusal(client, number) if may_speak_of(client) else ""
        if why:
            parts.store.audit.blame("ignored", client, why)
            yield Reported(client, number)


def _check(parts: Parts, folding: Folding, partial: PartialSum, origin: AggregatorAgents) -> None:
    """Compare a sum with what is known of the step and its agents. Raises DecodeError if it must not be counted."""
    number = partial.step
    if folding.is_direct:
        raise DecodeError(WRONG, f"step {number} takes single reports")
    clients = [report.client for report in partial.reports]
    if len(set(clients)) < len(clients):
        raise DecodeError(WRONG, "two reports of one agent")
    for report in partial.reports:
        client = report.client
        why = parts.engine.refusal(client, number)
        if why:
            raise DecodeError(WRONG, why)
        if not origin.lives(client):
            raise DecodeError("other broker", f"{client} lives on another broker")
        if report.work != parts.orders.asked_for(client, number, parts.state):
            raise DecodeError(WRONG, f"the report of {client} came from other work")
        check_examples(report, origin.samples(client))
