"""Accepts whole reports, many of them with one wait for the disk. Refused ones count against their senders."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from covey.coordinator.record.notices import WorkFailed
from covey.coordinator.run.effects import Announce, Effect, ReportTaken
from covey.coordinator.run.happenings import ReportCame
from covey.coordinator.serve.desk import Desk, apart
from covey.coordinator.serve.intake import Arrived
from covey.shared.wire.parts import taken


def accept(desk: Desk, reports: Sequence[Arrived], now: float) -> list[Effect]:
    """Accept reports in their order, or refuse them. Returns what follows, once all of them are on the disk."""
    # each is read when its turn comes: of a large model each copy counts
    came = [ReportCame(one.client, partial(taken, one.sink), one.digest) for one in reports]
    found = apart(desk, lambda: desk.run.handle_all(came, now))
    for report, effects in zip(reports, found, strict=True):
        [refused] = [effect.refused for effect in effects if isinstance(effect, ReportTaken)]
        desk.intake.report_taken(report, is_refused=refused != "")
        if refused:
            desk.roster.refuse(refused, report.client)
            desk.show.changed(now)
        else:
            desk.roster.reported(report.client, time.time(), worked=_has_worked(effects))
            desk.unpublished[report.client] = None  # its next order states it
    return [effect for effects in found for effect in effects]


def _has_worked(effects: Sequence[Effect]) -> bool:
    """Whether a report holds a result, and not the reason why there is none."""
    return not any(
        isinstance(effect, Announce) and isinstance(effect.notice, WorkFailed) for effect in effects
    )
