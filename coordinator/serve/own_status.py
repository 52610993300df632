"""The coordinator's own status: retained on every broker, for agents, and in the run's folder, for people."""

from __future__ import annotations

import contextlib
import time
from typing import Literal

from covey.coordinator.engine.step import Stage
from covey.coordinator.run.run import Run
from covey.shared.mqtt.link import Will
from covey.shared.mqtt.program import Effect, Publish
from covey.shared.programs.version import version
from covey.shared.storage.files import write_atomically
from covey.shared.strategies.phase_names import TRAIN
from covey.shared.wire.documents import CoordinatorStatus
from covey.shared.wire.roll_call import spread_s
from covey.shared.wire.topics import Topics

State = Literal["gathering", "open", "paused", "folding", "finished"]


class OwnStatus:
    """Publishes and stores the status of one coordinator. A new epoch on a broker is a roll call there.

    Args:
        run: whose status it is.
        shards: how many brokers there are.
        topics: of the federation.
        session: identifies this start of the coordinator.
    """

    def __init__(self, run: Run, shards: int, topics: Topics, session: str) -> None:
        self._run = run
        self._topics = topics
        self._session = session
        # the newest roll call on each broker
        self._epochs = [""] * shards
        self.given_up = False  # the run ended without its last round; it can be resumed
        self._calls = 0  # roll calls so far, on any broker
        self._stored: tuple[str, int, int, bool] | None = None  # what the run's folder has

    def __repr__(self) -> str:
        return f"<OwnStatus {self._session}: {self.state}, {self._calls} roll calls>"

    @property
    def state(self) -> State:
        """The run's state, in a word."""
        return "paused" if self._run.engine.paused else _STATES[self._run.engine.stage]

    @property
    def phase(self) -> str:
        """The name of the open phase; empty if none is open."""
        step = self._run.engine.step
        if step is not None:
            return step.phase.name
        if self._run.engine.stage is Stage.STREAMING:
            return TRAIN
        return ""

    def epoch(self, shard: int) -> str:
        """The newest roll call on a broker."""
        return self._epochs[shard]

    def call_roll_on(self, shard: int) -> None:
        """The next status is a roll call on this broker."""
        self._calls += 1
        self._name_epoch(shard)

    def call_roll(self) -> None:
        """The next status is a roll call on every broker."""
        self._calls += 1
        for shard in range(len(self._epochs)):
            self._name_epoch(shard)

    def _name_epoch(self, shard: int) -> None:
        self._epochs[shard] = f"{self._session}.{self._calls}"

    def publish(self, *, stopped: bool = False) -> list[Effect]:
        """Publish the status on every broker."""
        shards = range(len(self._epochs))
        return [self.publish_on(shard, stopped=stopped) for shard in shards]

    def publish_on(self, shard: int, *, stopped: bool = False) -> Effect:
        """Publish the status on one broker."""
        return self._publication(shard, self.payload(shard, stopped=stopped))

    def give_way(self, gone: Will) -> list[Effect]:
        """Publish on every broker that this coordinator is gone, as its last will would."""
        return [self._publication(shard, gone.payload) for shard in range(len(self._epochs))]

    def payload(self, shard: int, *, stopped: bool = False) -> bytes:
        """The status for one broker."""
        return self._now(self._epochs[shard], stopped=stopped).to_bytes()

    def _publication(self, shard: int, payload: bytes) -> Publish:
        topic = self._topics.coordinator_status
        return Publish([(topic, payload)], lane=("status", shard), shard=shard)

    def store(self, *, stopped: bool = False) -> None:
        """Write the status to the run's folder, for people and their dashboards, where it has changed."""
        run, path = self._run, self._run.folder / "status.json"
        shown = (self.state, run.engine.number, run.engine.round, stopped)
        if shown == self._stored:
            return
        self._stored = shown
        with contextlib.suppress(OSError):  # a full disk must not end a run for it
            write_atomically(path, self.payload(0, stopped=stopped), durable=False)

    def _now(self, epoch: str, *, stopped: bool) -> CoordinatorStatus:
        run, scenario, task = self._run, self._run.scenario, self._run.scenario.task
        return CoordinatorStatus(
            online=True,
            version=version(),
            epoch=epoch,
            run=run.id,
            incarnation=run.facts.incarnation,
            name=scenario.name,
            round=run.engine.round,
            rounds=scenario.rounds.count,
            phase=self.phase,
            step=run.engine.number,
            state="stopped" if stopped or self.given_up else self.state,
            given_up=self.given_up,
            clock=time.time(),
            trouble=run.room.trouble,
            task=task.for_agents(),
            task_digest=task.digest,
            batch=scenario.training.batch,
            delivery="all" if scenario.holds_models else "participants",
            spread_s=spread_s(run.engine.expected),
        )


_STATES: dict[Stage, Literal["gathering", "open", "folding", "finished"]] = {
    Stage.GATHERING: "gathering",
    Stage.PLANNING: "gathering",
    Stage.OPEN: "open",
    Stage.STREAMING: "open",
    Stage.FOLDING: "folding",
    Stage.DONE: "finished",
}
