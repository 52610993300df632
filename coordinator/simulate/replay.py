"""`coordinator lab replay`: do what a buffered run has recorded once more, and compare the models.

The events of the record come in their order, with reports that are computed again. The engine decides from events and
their times alone, so it gives the same orders; the same orders on the same data give the same reports. The models of a
replay are therefore those of the run, byte for byte, on the same kind of machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.disk.versions import START
from covey.coordinator.engine.events import Reported
from covey.coordinator.engine.step import Stage
from covey.coordinator.processes import launch
from covey.coordinator.processes.finish import finish
from covey.coordinator.processes.workers import WorkerPool
from covey.coordinator.record.event_log import Arrival, Restarted, arrivals_of
from covey.coordinator.record.notices import Observer, ignore
from covey.coordinator.record.records import MIXED
from covey.coordinator.run.effects import Announce, Effect, SendOrder
from covey.coordinator.run.folder import IN_PROCESS, prepared
from covey.coordinator.run.options import RunOptions
from covey.coordinator.run.rules import rules_of
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.driver import fleet_at_hand
from covey.coordinator.simulate.virtual_clock import Clients, GivenUpError, Work
from covey.coordinator.simulate.worker_clients import WorkerClients
from covey.shared.errors import UserError
from covey.shared.scenario.code import check_code
from covey.shared.scenario.load import load
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId
from covey.shared.wire.messages import USUAL_LEARNER, OrderMessage, learner_of

MODELS = "models"  # of a run's folder


class Replay:
    """Feeds a run with recorded events.

    Args:
        run: a new one.
        clients: compute the reports.
        observer: gets the notices.
        evaluates_busy: an evaluation asks agents that are at work, as in a run without a broker.
    """

    def __init__(
        self, run: Run, clients: Clients, observer: Observer = ignore, *, evaluates_busy: bool
    ) -> None:
        self.run = run
        run.simulate(evaluates_busy=evaluates_busy)
        self._evaluates_busy = evaluates_busy
        self._clients = clients
        self._observer = observer
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
        if self.run.stage is not Stage.DONE:
            raise GivenUpError(f"the record ends after round {self.run.round}, before the run does")
        return self.run

    def _is_expected(self, client: ClientId, step: int) -> bool:
        """Whether this report can count."""
        return (client, step) in self._orders and not self.run.refusal(client, step)

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
        self.run, first = Run.resume(
            before.folder,
            before.scenario,
            before.setup,
            rules=rules_of(before.scenario),
            now=self._now,
            lost=restarted.lost,
            only=restarted.reported,
        )
        self.run.members.note_samples(before.members.samples)
        self.run.simulate(evaluates_busy=self._evaluates_busy)
        return [*first, *self.run.desired()]

    def _take(self, effects: Sequence[Effect]) -> None:
        """Keep the orders until their reports come."""
        for effect in effects:
            if isinstance(effect, Announce):
                self._observer(effect.notice)
            if isinstance(effect, SendOrder) and effect.order.work is not None:
                self._orders[effect.client, effect.order.step] = effect.order


@dataclass(frozen=True)
class Replayed:
    """A replay and how its models compare with those of the run."""

    folder: Path
    result: Mapping[str, Any]  # as result.json has it
    models: tuple[str, ...]  # names of the files that were compared
    different: tuple[str, ...]  # those that are not byte-identical, or are missing on one side


def replay(record: Path, options: RunOptions, observer: Observer) -> Replayed:
    """Replay a run in another folder.

    Args:
        record: the folder of the run.
        options: of the replay, with its folder.
        observer: gets the notices of the replay.

    Raises:
        UserError: the run cannot be replayed, or its record ends early.
    """
    arrivals = arrivals_of(record)
    scenario = load(record / "scenario.yaml")
    saved = replayable(record, scenario)
    check_code(scenario, options.allowed)
    check_new(options.folder)
    fleet = scenario.fleet
    workers = 0 if fleet is None else fleet.workers
    with (
        prepared(scenario, options, in_process=True),
        WorkerPool(workers, options.folder / "workers.log") as pool,
    ):
        start = record / START
        if start.exists():
            shutil.copyfile(start, options.folder / START)
        run = _replay(scenario, options, pool, arrivals=arrivals, saved=saved, observer=observer)
        result = finish(run)
    models, different = compared(record / MODELS, options.folder / MODELS)
    return Replayed(folder=options.folder, result=result, models=models, different=different)


def check_new(folder: Path) -> None:
    """A replay begins from nothing and is never resumed. Raises UserError for a folder with files."""
    if folder.exists() and any(folder.iterdir()):
        raise UserError(
            f"{folder}: there are files in it already; choose another with --out, or remove it yourself"
        )


def replayable(record: Path, scenario: Scenario) -> Mapping[str, Any]:
    """The run's own state in the checkpoint. Raises UserError for a run whose reports cannot be computed here."""
    if scenario.fleet is None:
        raise UserError(
            f"{record}: the data of this run is on its devices; only runs of a simulated fleet can be replayed"
        )
    saved: Mapping[str, Any] = Checkpoint(record / "checkpoint").facts()["run"]
    if saved["origin"]:
        raise UserError(
            f"{record}: this run continues another one (--from); only runs that began from nothing can be replayed"
        )
    return saved


def learner_of_run(saved: Mapping[str, Any]) -> str:
    """What all agents of a run trained with. Raises UserError if they differ: the workers of a replay have one learner."""
    learners = sorted({learner_of(device) for device in saved["devices"].values()})
    if len(learners) > 1 or MIXED in saved["devices"].values():
        kinds = ", ".join(sorted(set(saved["devices"].values())))
        raise UserError(
            f"this run was computed on several kinds of devices ({kinds}); only a run on one kind can be replayed"
        )
    return learners[0] if learners else USUAL_LEARNER


def _replay(
    scenario: Scenario,
    options: RunOptions,
    pool: WorkerPool,
    *,
    arrivals: list[Arrival],
    saved: Mapping[str, Any],
    observer: Observer,
) -> Run:
    """The run after all its events, in a folder that is prepared."""
    fleet = fleet_at_hand(scenario, replace(options, resume=False), pool, observer)
    folder = options.folder.resolve()
    setup = launch.started(folder, scenario)
    rules = rules_of(scenario)
    began_at = 0.0
    for first in arrivals[:1]:
        began_at = first.at
    run = Run.start(folder, scenario, setup, rules=rules, run=IN_PROCESS, now=began_at)
    if saved.get("trains_on"):
        run.train_on()
    clients = WorkerClients(run, pool, fleet.sources, options.allowed, learner_of_run(saved))
    try:
        at_hand = saved["run"] == IN_PROCESS
        return Replay(run, clients, observer, evaluates_busy=at_hand).play(fleet.people, arrivals)
    except GivenUpError as error:
        raise UserError(f"this run cannot be replayed to its end: {error}") from None
    finally:
        clients.close()


def compared(run: Path, replay: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of all model files, and of those that differ."""
    names: set[str] = set()
    for folder in (run, replay):
        for path in folder.glob("*"):
            names.add(path.name)
    different: list[str] = []
    for name in sorted(names):
        before = run / name
        after = replay / name
        if not before.exists() or not after.exists() or before.read_bytes() != after.read_bytes():
            different.append(name)
    return tuple(sorted(names)), tuple(different)
