"""A step is closed: it is folded, or reports that it lacks are asked for again, or those that spoil it are set aside."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from covey.coordinator.engine import events
from covey.coordinator.fold import limits
from covey.coordinator.fold.folding import Guilty, Hopeless, Missing, Reasons, Sound
from covey.coordinator.fold.stale_reports import Began
from covey.coordinator.record import notices
from covey.coordinator.record.recorder import FoldedStep
from covey.coordinator.run import early_stop
from covey.coordinator.run.effects import Announce, Effect
from covey.coordinator.run.parts import Parts
from covey.shared.strategies.base import ClientId, Reports

Answer = Callable[[events.Event], None]  # lets the engine know what came of a closed step


def close(parts: Parts, closed: events.Close, answer: Answer) -> list[Effect]:
    """Fold a closed step, or set the reports aside that make its fold fail. The engine hears of it by `answer`."""
    step = parts.engine.step
    assert step is not None  # noqa: S101 - the engine has just closed it
    number = closed.step
    buffer = closed.buffer
    spool = parts.store.reports
    if buffer is not None:
        spool.gather(number, zip(closed.reporters, buffer.steps, strict=True))
        parts.folding = parts.folding_of(number, step.phase)
    phase = replace(
        step.phase,
        cohort=tuple(sorted(step.cohort)),
        buffer=None if buffer is None else buffer.cluster,
    )
    began = time.monotonic()
    began_with = _began_with(parts, closed)
    match parts.open_folding.close(closed.reporters, phase, parts.state, began_with):
        case Missing(reasons):
            return _ask_again(parts, number, reasons, answer)
        case Guilty(reasons):
            return _set_aside(parts, number, reasons, answer)
        case Hopeless(why):
            answer(events.FoldFailed(why))
            return []
        case Sound(outcome, reports, moves):
            circumstances = spool.circumstances(number, closed.reporters)
            clusters_before = dict(parts.strategy.assignment(parts.state))
            parts.count_up(number, closed.reporters)
            parts.take(phase, reports, outcome, circumstances)
            parts.facts.usual |= limits.usual_steps(moves)
            folded = FoldedStep(
                step,
                closed,
                outcome,
                clusters_before=clusters_before,
                circumstances=circumstances,
                fold_s=time.monotonic() - began,
            )
            return _folded(parts, folded, reports, answer)


def _began_with(parts: Parts, closed: events.Close) -> dict[ClientId, Began]:
    """What the agents of stale reports began with."""
    if closed.buffer is None or closed.buffer.cluster is None:
        return {}
    orders = zip(closed.reporters, closed.buffer.steps, closed.buffer.staleness, strict=True)
    return {
        client: Began(
            phase=parts.own_phase(client),
            keys=parts.orders.own.keys_of(step),
            start=partial(parts.orders.start_of, step),
            folds=folds,
        )
        for client, step, folds in orders
        if folds
    }


def _folded(parts: Parts, folded: FoldedStep, reports: Reports, answer: Answer) -> list[Effect]:
    """The state has the reports. Once the engine knows it, the record follows, and the spool is emptied."""
    closed = folded.close
    privacy = None
    if parts.privacy is not None:
        privacy = parts.privacy.spent()
    recorder = parts.recorder
    record = recorder.phase_record(folded, parts.state, parts.traffic, privacy)
    record = replace(record, clock_s=parts.facts.clock)
    buffer = closed.buffer
    if buffer is not None:
        record = replace(record, buffer=buffer.cluster, staleness=list(buffer.staleness))
    recorder.note_fold(folded)
    if folded.step.phase.ends_round:
        parts.members.take_times(folded.step.took)
    parts.folding = None
    parts.orders.forget_models()
    parts.members.settle()

    answer(events.Folded(parts.strategy.accused(parts.state)))
    line = parts.recorded(record)
    recorder.keep_sketches(folded.step, parts.state, reports, parts.setup.layout.size)
    if folded.step.phase.is_evaluation:
        _keep_best(parts)
    parts.store.step_over(closed.step)
    return [line, *parts.orders_of(closed.missing)]


def _keep_best(parts: Parts) -> None:
    """Keep the models on disk if the newest evaluation is the best so far."""
    figure = early_stop.best_figure(parts.scenario, parts.facts.history, parts.engine.round)
    if figure is None:
        return
    version = parts.version(figure)
    if version.models:  # they never leave the devices in some methods
        parts.store.best(version)


def _ask_again(parts: Parts, step: int, unreadable: Reasons, answer: Answer) -> list[Effect]:
    """Accepted reports are gone from the spool. Their agents keep them until the step is closed."""
    effects: list[Effect] = []
    for client, why in unreadable.items():
        parts.members.take_back(client)
        damage = f"the accepted report of step {step} cannot be read ({why})"
        notice = notices.ReportDamaged(f"{damage}; {client} is asked for it again")
        effects.append(Announce(notice))
    parts.facts.incarnation += 1
    if parts.store.reports.summed(step):
        parts.open_folding.forget_sums()
    answer(events.Unreadable(tuple(unreadable), step))
    # the others get another order next
    asked = [client for client in unreadable if parts.orders.is_made(client)]
    return [*effects, *parts.orders_of(asked)]


def _set_aside(parts: Parts, step: int, guilty: Reasons, answer: Answer) -> list[Effect]:
    """Take these reports out of the step and name their senders; the step continues with the others."""
    effects: list[Effect] = []
    store = parts.store
    round_ = parts.engine.round
    for client, why in guilty.items():
        parts.count_up(step, [client])
        parts.open_folding.remove(client)
        store.reports.discard(step, client)
        store.audit.blame("set_aside", client, f"step {step}: {why}")
        effects.append(parts.recorded(notices.ReportSetAside(client, round_, step, why)))
    effects += parts.orders_of(guilty)
    answer(events.SetAside(dict(guilty)))
    return effects
