"""A report that has come as a whole: it is compared with the work that was asked for, checked, and kept."""

from __future__ import annotations

from covey.coordinator.checks import read_report
from covey.coordinator.disk.spool import Circumstances
from covey.coordinator.engine import events
from covey.coordinator.fold import stale_reports
from covey.coordinator.run.parts import Parts
from covey.shared.errors import DecodeError
from covey.shared.strategies.base import ClientId
from covey.shared.wire.messages import ReportContent, digest


def taken(
    parts: Parts, client: ClientId, content: bytes, content_digest: bytes = b""
) -> events.Reported | events.Failed:
    """Check a report, and keep it if it counts. Returns what the engine has to know.

    Args:
        parts: of the run.
        client: who has sent it.
        content: the report.
        content_digest: its digest if the caller has compared it already.

    Raises DecodeError for one that must be dropped.
    """
    content_digest = content_digest or digest(content)
    report = ReportContent.from_bytes(content, verified=True)
    del content  # of a large model each copy counts; the caller keeps none
    run = parts.facts.run
    if report.run != run:
        raise DecodeError("other run", f"report of run {report.run}, this is {run}")
    if report.client != client:
        raise DecodeError("other sender", f"report of {report.client} came from {client}")
    number = report.step
    if report.failure is not None:
        return events.Failed(client, number, report.failure)
    reported = events.Reported(client, number)
    engine, store = parts.engine, parts.store
    why = engine.refusal(client, number)
    if why:  # the engine refuses it again, and remembers it for the agent's story
        store.audit.blame("ignored", client, why)
        return reported
    if report.work != parts.orders.asked_for(client, number, parts.state):
        raise DecodeError(
            "other work", f"the report came from other work than step {number} asks for"
        )
    is_own = engine.pace.is_at_work(client, number)
    phase = parts.own_phase(client) if is_own else parts.open_folding.phase
    if is_own and phase.name != (asked := parts.orders.own.works[number].phase):
        raise DecodeError("other phase", f"report of phase {asked}, now due is {phase.name}")
    checked = read_report(
        report,
        phase,
        parts.scenario,
        train_samples=parts.samples_of(client),
        base=parts.orders.base,
    )
    member = parts.members.of(client)
    member.refusal = ""
    came = Circumstances(report.seconds, report.client_state, report.device, content_digest.hex())
    store.reports.keep(number, client, checked, came)
    if is_own:
        store.reports.kept.add(number)
        member.accepted = number
        reported = stale_reports.reported(
            parts.strategy,
            parts.state,
            phase,
            client=client,
            number=number,
            report=checked,
            keys=parts.orders.own.keys_of(number),
        )
    else:
        parts.open_folding.add(client, checked, parts.state)
        parts.members.accept(client, number)
    if parts.privacy is not None:
        parts.privacy.enter(phase.name, number, client, checked)
    return reported
