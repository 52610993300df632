"""What follows from a message of an aggregator: reports that count, failures, refusals, and unexpected reports."""

from __future__ import annotations

from covey.coordinator.engine.events import Reported
from covey.coordinator.engine.step import Stage, Step
from covey.coordinator.fold.partial_sums import Origin
from covey.coordinator.run.effects import Effect
from covey.coordinator.run.run import Run
from covey.shared.errors import DecodeError
from covey.shared.strategies.base import ClientId
from covey.shared.wire.aggregates import PartialSum
from covey.shared.wire.messages import digest

Effects = list[Effect]


def accept_sum(
    run: Run, content: bytes, partial: PartialSum, origin: Origin, now: float
) -> Effects | None:
    """Count a partial sum, as if its reports had come one by one.

    A sum of a step that is over is dropped, as late reports are. One that is refused makes its step direct: the caller
    asks the agents for their reports.

    Args:
        run: takes the reports.
        content: the message of the aggregator.
        partial: the same, read.
        origin: what is known of its agents.
        now: the time (s) of the engine.

    Returns:
        what follows; None if it came before, or too late.

    Raises:
        DecodeError: the message must not be counted.
    """
    own_run = run.facts.run
    if partial.run != own_run:
        seen = f"sum of run {partial.run}, this is {own_run}"
        raise DecodeError("other run", seen)
    step = run.engine.step
    number = partial.step
    is_open = step is not None and run.engine.stage is Stage.OPEN
    if step is None or not is_open or step.number != number:
        return None
    content_digest = digest(content)
    if content_digest in run.sums.settled(number):
        return None
    if partial.unable:
        phase = step.phase.name
        run.sums.refuse(number)
        run.sums.refuse_phase(phase)
    effects: Effects = []
    if partial.reports:
        effects += _reports(run, content, content_digest, partial, step, origin, now)
    run.sums.settle(number, content_digest)
    effects += _others(run, partial, origin, now)
    return effects


def _reports(
    run: Run,
    content: bytes,
    content_digest: bytes,
    partial: PartialSum,
    step: Step,
    origin: Origin,
    now: float,
) -> Effects:
    """The sum itself. Raises DecodeError, and makes the step direct, if it does not fit."""
    number = partial.step
    try:
        run.sums.take(
            content,
            content_digest,
            partial,
            step,
            run.state,
            run.engine.refusal,
            run.work_digest_of,
            origin,
        )
    except DecodeError:
        run.sums.refuse(number)
        raise
    count = len(partial.reports)
    run.audit.note("sum", step=number, sum=content_digest.hex(), reports=count)
    reports = {report.client: report.digest for report in partial.reports}
    return run.accepted_together(number, reports, now)


def _others(run: Run, partial: PartialSum, origin: Origin, now: float) -> Effects:
    """Reports that count for nothing. An aggregator may speak only of agents of its own broker."""
    number = partial.step
    effects: Effects = []
    for failure in partial.failures:
        client = failure.client
        if _may_speak_of(run, client, origin):
            effects += run.failed(client, number, failure.why, now)
    for refusal in partial.refusals:
        client = refusal.client
        if _may_speak_of(run, client, origin):
            error = refusal.error
            why = str(error)
            run.audit.blame("refuse", client, why)
            effects += run.refused(client, error, now)
    for client in partial.ignored:
        if not _may_speak_of(run, client, origin):
            continue
        why = run.engine.refusal(client, number)
        if why:
            run.audit.blame("ignored", client, why)
            effects += run.handle(Reported(client, number), now)
            effects.append(run.order_of(client))
    return effects


def _may_speak_of(run: Run, client: ClientId, origin: Origin) -> bool:
    is_known = client in run.engine.known
    return is_known and origin.lives(client)
