"""A buffered run done once more: what happened to its engine is noted, and played to a run in another folder.

The models of a buffered run depend on the order in which reports arrived, so no calm run has its bytes. The engine decides
from events and their times alone: the same ones, with reports that are computed again, give the same orders and models.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.engine.events import Event, Reported
from covey.coordinator.engine.rounds import RoundEngine
from covey.coordinator.engine.step import Stage
from covey.coordinator.run import own_orders
from covey.coordinator.run.effects import Effect, SendOrder
from covey.coordinator.run.rules import rules_of
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.virtual_clock import Clients, GivenUpError, Work
from covey.shared.strategies.base import ClientId
from covey.shared.wire.messages import OrderMessage


@dataclass(frozen=True)
class Restarted:
    """The coordinator was started again."""

    step: int  # that was open in its checkpoint; 0: none
    reported: tuple[ClientId, ...]  # whose reports of this step it found in its spool
    lost: tuple[int, ...] = ()  # orders whose waiting reports, or own files, it did not find


@dataclass(frozen=True)
class Arrival:
    """An event, and the time of the engine when it happened (s)."""

    at: float
    event: Event | Restarted


Arrivals = dict[Path, list[Arrival]]  # of each run, by its folder


@contextmanager
def noted() -> Iterator[Arrivals]:
    """What happens to the engines of all runs meanwhile. A run that is resumed continues from what its checkpoint knew."""
    arrivals: Arrivals = {}
    known: dict[
        str, tuple[list[Arrival], int]
    ] = {}  # by checkpoint: a run's events, and how many it has
    resuming: list[Path] = []
    handles, save = Run._engine_handles, Checkpoint.save
    resume, restore = Run.resume.__func__, RoundEngine.restore.__func__  # type: ignore[attr-defined]

    def handled(run: Run, event: Event, now: float) -> Any:
        arrivals.setdefault(run.folder, []).append(Arrival(now, event))
        return handles(run, event, now)

    def saved(checkpoint: Checkpoint, facts: dict[str, Any], state: Any) -> Any:
        events = arrivals.setdefault(checkpoint.folder.parent, [])
        known[_name(facts["engine"], facts["run"])] = events, len(events)
        return save(checkpoint, facts, state)

    def resumed(cls: Any, folder: Path, *about: Any, **named: Any) -> Any:
        resuming.append(folder)
        try:
            return resume(cls, folder, *about, **named)
        finally:
            resuming.pop()

    def restored(
        cls: Any,
        /,
        rules: Any,
        snapshot: Mapping[str, Any],
        reported: Collection[ClientId],
        now: float,
        lost: Collection[int] = (),
        **run: Any,
    ) -> Any:
        for folder in resuming[-1:]:
            events, count = known[_name(snapshot, run["run"])]
            step = 0 if snapshot["step"] is None else snapshot["step"]["number"]
            restart = Arrival(now, Restarted(step, tuple(reported), tuple(sorted(lost))))
            arrivals[folder] = [*events[:count], restart]
        return restore(cls, rules, snapshot, reported, now, lost, **run)

    with (
        patch.object(Run, "_engine_handles", handled),
        patch.object(Checkpoint, "save", saved),
        patch.object(Run, "resume", classmethod(resumed)),
        patch.object(RoundEngine, "restore", classmethod(restored)),
    ):
        yield arrivals


def _name(engine: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """What only one checkpoint has."""
    return json.dumps([engine, run], sort_keys=True)


class Replay:
    """Feeds a run with recorded events.

    Args:
        run: a new one.
        clients: compute the reports.
    """

    def __init__(self, run: Run, clients: Clients) -> None:
        self.run = run
        run.simulate(evaluates_busy=False)
        run.facts.trains_on = run.engine.pace.trains_on = True
        self._clients = clients
        self._now = 0.0
        # of agents at work, by agent and number
        self._orders: dict[tuple[ClientId, int], OrderMessage] = {}
        self._computed: set[tuple[ClientId, int]] = set()

    def __repr__(self) -> str:
        return f"<Replay at {self._now:.3f} s: {self.run!r}>"

    def play(self, samples: Mapping[ClientId, tuple[int, int]], arrivals: Sequence[Arrival]) -> Run:
        """The run after all these events. `samples` are training and test samples of all agents.

        Raises GivenUpError where the record ends before the run does: it was stopped, or given up.
        """
        self.run.members.note_samples(samples)
        for place, arrival in enumerate(arrivals):
            if isinstance(arrival.event, Restarted):
                self._hand_in(arrival.event)
            self._now = arrival.at
            match arrival.event:
                case Restarted() as restarted:
                    effects = self._restart(restarted)
                case Reported(client, step) if self._is_expected(client, step):
                    self._compute(islice(arrivals, place, place + self._clients.ahead + 1))
                    effects = self._deliver(client, step)
                case event:
                    effects = self.run.handle(event, self._now)
            self._take(effects)
        if self.run.engine.stage is not Stage.DONE:
            raise GivenUpError(
                f"the record ends after round {self.run.engine.round}, before the run does"
            )
        return self.run

    def _is_expected(self, client: ClientId, step: int) -> bool:
        """Whether this report can count."""
        return (client, step) in self._orders and not self.run.engine.refusal(client, step)

    def _compute(self, soon: Iterable[Arrival]) -> None:
        """Compute the reports of the next arrivals whose orders are known."""
        work: Work = []
        for arrival in soon:
            event = arrival.event
            if not isinstance(event, Reported):
                continue
            key = (event.client, event.step)
            if key in self._orders and key not in self._computed:
                self._computed.add(key)
                work.append((event.client, self._orders[key]))
        self._clients.compute(self.run, work)

    def _deliver(self, client: ClientId, step: int) -> Sequence[Effect]:
        order = self._orders.pop((client, step))
        self._computed.discard((client, step))
        effects = self.run.accept(client, self._clients.report(self.run, client, order), self._now)
        self._clients.settle(self.run, client, step)
        return effects

    def _hand_in(self, restarted: Restarted) -> None:
        """Reports that came after the last checkpoint: before the restart, so no deadline is over.

        With the last of them their step closes. A coordinator that is killed before that restarts in the same step again.
        """
        for client in restarted.reported:
            if self._is_expected(client, restarted.step):
                self._compute([Arrival(self._now, Reported(client, restarted.step))])
                self._take(self._deliver(client, restarted.step))

    def _restart(self, restarted: Restarted) -> Sequence[Effect]:
        """The run from its checkpoint, with the reports that its spool had."""
        before = self.run
        spool = before.store.reports
        for client in set(spool.who(restarted.step)) - set(restarted.reported):
            spool.discard(restarted.step, client)
        for number in restarted.lost:
            own_orders.file_of(before.folder / "outgoing", number).unlink(missing_ok=True)
        self.run, first = Run.resume(
            before.folder,
            before.scenario,
            before.setup,
            rules=rules_of(before.scenario),
            now=self._now,
        )
        self.run.members.note_samples(before.members.samples)
        self.run.simulate(evaluates_busy=False)
        return [*first, *self.run.desired()]

    def _take(self, effects: Sequence[Effect]) -> None:
        """Keep the orders until their reports come."""
        for effect in effects:
            if isinstance(effect, SendOrder) and effect.order.work is not None:
                self._orders[effect.client, effect.order.step] = effect.order
