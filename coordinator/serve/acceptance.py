"""Accepts whole reports, many of them with one wait for the disk. Refused ones count against their senders."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from covey.coordinator.record.notices import WorkFailed
from covey.coordinator.run.effects import Announce, Effect
from covey.coordinator.run.run import Run
from covey.coordinator.serve.desk import Desk, while_the_run_works
from covey.coordinator.serve.intake import Arrived
from covey.shared.errors import DecodeError
from covey.shared.mqtt.program import TOGETHER


@dataclass(frozen=True)
class Taken:
    """What followed from one report."""

    client: str
    effects: Sequence[Effect]
    refused: str = ""  # the reason in a word; empty if it was accepted

    @property
    def worked(self) -> bool:
        """Whether it holds a result, and not the reason why there is none."""
        for effect in self.effects:
            if isinstance(effect, Announce) and isinstance(effect.notice, WorkFailed):
                return False
        return True


def expects_many(run: Run) -> bool:
    """Whether very many reports of the open step are awaited. Then the next ones come before long."""
    step = run.engine.step
    return step is not None and len(step.awaited) > TOGETHER


def accept(desk: Desk, reports: Sequence[Arrived], now: float) -> list[Effect]:
    """Accept reports in their order, or refuse them. Returns what follows, once all of them are on the disk."""
    with while_the_run_works(desk):
        taken = _accept(desk.run, reports, now)
    effects: list[Effect] = []
    for report, one in zip(reports, taken, strict=True):
        desk.intake.report_taken(report, is_refused=one.refused != "")
        effects += one.effects
        if one.refused:
            desk.roster.refuse(one.refused, one.client)
            desk.show.changed(now)
        else:
            desk.roster.reported(one.client, time.time(), worked=one.worked)
    return effects


def _accept(run: Run, reports: Sequence[Arrived], now: float) -> list[Taken]:
    """What follows from each report; after this all that were accepted survive a power cut."""
    taken: list[Taken] = []
    # left from the inside out: the reports are on the disk before a checkpoint that counts them
    with run.one_checkpoint(), run.audit.batch(), run.spool.batch():
        for report in reports:
            client = report.client
            try:
                # no name for the content: the run drops the last reference to it
                effects = run.accept(client, report.sink.content(), now, report.digest)
            except DecodeError as error:
                run.audit.blame("refuse", client, str(error))
                effects = run.refused(client, error, now)
                taken.append(Taken(client, effects, refused=error.reason))
            else:
                taken.append(Taken(client, effects))
            finally:
                report.sink.discard()
    return taken
