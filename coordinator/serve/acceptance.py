"""Accepts whole reports, many of them with one wait for the disk. Refused ones count against their senders."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from covey.coordinator.run.effects import Announce, Effect
from covey.coordinator.run.notices import WorkFailed
from covey.coordinator.run.run import Run
from covey.coordinator.serve.intake import Arrived, Intake
from covey.coordinator.serve.items import MAX_TOGETHER
from covey.coordinator.serve.roster import Roster
from covey.coordinator.serve.roster_show import RosterShow
from covey.shared.errors import DecodeError

# A report waits this long (s) for others that are accepted with it, while very many are awaited. A thread, a wait for the
# disk and a look at all timers then serve several reports. The last reports of a step, and those of a small fleet, do not wait.
COMPANY_S = 0.02


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


class Acceptance:
    """Hands reports to the run, in a thread, and notes in the roster what became of them."""

    def __init__(self, run: Run, intake: Intake, roster: Roster, show: RosterShow) -> None:
        self._run = run
        self._intake = intake
        self._roster = roster
        self._show = show

    def __repr__(self) -> str:
        return f"<Acceptance of reports for {self._run!r}>"

    @property
    def expects_many(self) -> bool:
        """Whether very many reports of the open step are awaited. Then the next ones come before long."""
        step = self._run.engine.step
        return step is not None and len(step.awaited) > MAX_TOGETHER

    async def take(self, reports: Sequence[Arrived], now: float) -> list[Effect]:
        """Accept reports in their order, or refuse them. Returns what follows, once all of them are on the disk."""
        taken = await asyncio.to_thread(self._accept, reports, now)
        effects: list[Effect] = []
        for report, one in zip(reports, taken, strict=True):
            self._intake.report_taken(report, is_refused=one.refused != "")
            effects += one.effects
            if one.refused:
                self._roster.refuse(one.refused, one.client)
                self._show.changed(now)
            else:
                self._roster.reported(one.client, time.time(), worked=one.worked)
        return effects

    def _accept(self, reports: Sequence[Arrived], now: float) -> list[Taken]:
        """What follows from each report; after this all that were accepted survive a power cut."""
        taken: list[Taken] = []
        run = self._run
        # left from the inside out: the reports are on the disk before a checkpoint that counts them
        with run.one_checkpoint(), run.audit.batch(), run.spool.batch():
            for report in reports:
                client = report.client
                try:
                    # no name for the content: the run drops the last reference to it
                    effects = self._run.accept(client, report.sink.content(), now, report.digest)
                except DecodeError as error:
                    self._run.audit.blame("refuse", client, str(error))
                    effects = self._run.refused(client, error, now)
                    taken.append(Taken(client, effects, refused=error.reason))
                else:
                    taken.append(Taken(client, effects))
                finally:
                    report.sink.discard()
        return taken
