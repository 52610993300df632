"""What others may read of a run: nothing here changes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from covey.coordinator.checks import MAX_OTHER_BYTES, largest_report_of
from covey.coordinator.disk.versions import ModelVersion
from covey.coordinator.engine.members import Members, Trouble
from covey.coordinator.engine.step import Stage, Step
from covey.coordinator.run.effects import Effect, SendModel, SendOrder
from covey.coordinator.run.parts import Parts
from covey.shared import extras
from covey.shared.numerics.mixture import FleetWeights
from covey.shared.numerics.vectors import Vector
from covey.shared.scenario.fleet_statistics import resolved
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId, Setup, Strategy
from covey.shared.strategies.part_local import whole_models


class RunView:
    """A run as it is now, for those who show it, publish what it asks for, or draw a result from it."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.folder: Path = parts.folder
        self.scenario: Scenario = parts.scenario
        self.setup: Setup = parts.setup
        self.strategy: Strategy[Any] = parts.strategy
        self.members: Members = parts.members  # an agent's status belongs to it, too

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} in {self.folder}: {self._parts.engine!r}>"

    # -- the run -----------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Names the run towards agents; never changes."""
        return self._parts.facts.run

    @property
    def incarnation(self) -> int:
        """It grows with each restart, and when accepted reports are lost."""
        return self._parts.facts.incarnation

    @property
    def origin(self) -> Mapping[str, Any]:
        """The finished run that this one continues; empty where it continues none."""
        return self._parts.facts.origin

    @property
    def state(self) -> Any:
        """The method's state; its arrays may be mapped from the checkpoint."""
        return self._parts.state

    @property
    def seconds(self) -> float:
        """Wall time of the run, earlier sessions included."""
        return self._parts.seconds

    @property
    def clock(self) -> float | None:
        """The virtual time of a simulation (s); None without."""
        return self._parts.facts.clock

    @property
    def traffic(self) -> Mapping[str, int]:
        """Totals of values and bytes sent; 0 for what nothing was counted of."""
        return self._parts.traffic

    # -- its rounds --------------------------------------------------------------------------------

    @property
    def stage(self) -> Stage:
        """The state of the round."""
        return self._parts.engine.stage

    @property
    def step(self) -> Step | None:
        """The phase that is open or has just been closed; None in between."""
        return self._parts.engine.step

    @property
    def number(self) -> int:
        """Of the newest step."""
        return self._parts.engine.number

    @property
    def round(self) -> int:
        """How many rounds are complete."""
        return self._parts.engine.round

    @property
    def attempt(self) -> int:
        """How many attempts at the present phase came to nothing, one after the other."""
        return self._parts.engine.attempt

    @property
    def paused(self) -> bool:
        """Whether an operator has paused the run."""
        return self._parts.engine.paused

    @property
    def stopped(self) -> str:
        """Why the method needed no more rounds; empty where it has not said so."""
        return self._parts.facts.stopped

    @property
    def is_buffered(self) -> bool:
        """Whether agents have orders of their own, and their reports wait in buffers."""
        return self._parts.engine.rules.is_buffered

    @property
    def wake_at(self) -> float | None:
        """When the run wants a `Tick`; None: only an event can change anything."""
        return self._parts.engine.wake_at

    @property
    def waits_for(self) -> str:
        """Why no phase opens, in words; empty while one is open or nothing is missing."""
        return self._parts.engine.waits_for or ""

    # -- its agents --------------------------------------------------------------------------------

    @property
    def known(self) -> set[ClientId]:
        """All agents that have joined."""
        return self._parts.engine.known

    @property
    def newcomers(self) -> frozenset[ClientId]:
        """Those that take part in nothing before the last round."""
        return self._parts.engine.rules.newcomers

    @property
    def resting(self) -> Mapping[ClientId, Trouble]:
        """Those that are not invited for some rounds."""
        return self._parts.engine.resting

    @property
    def expected(self) -> int:
        """How many agents may answer a roll call."""
        return self._parts.engine.expected

    @property
    def assignment(self) -> Mapping[ClientId, int]:
        """The cluster of each agent; empty for a method without an assignment."""
        return self.strategy.assignment(self.state)

    def refusal(self, client: ClientId, step: int) -> str:
        """Why a report of this step would not count now; empty if it would."""
        return self._parts.engine.refusal(client, step)

    def at_work_since(self, client: ClientId, step: int) -> float | None:
        """When this agent's own order of that number was made; None if it is at work on none."""
        pace = self._parts.engine.pace
        return pace.orders[client].opened if pace.is_at_work(client, step) else None

    def samples_of(self, client: ClientId) -> int | None:
        """The training samples of an agent's status; None if it has none, or if its data may have drifted since."""
        return self._parts.samples_of(client)

    # -- its figures -------------------------------------------------------------------------------

    @property
    def evaluated(self) -> int:
        """The complete rounds at the newest evaluation; -1 before the first."""
        return self._parts.facts.evaluated

    @property
    def history(self) -> list[list[float]]:
        """Of each evaluation between rounds: the complete rounds, its figure, and the mean (`early_stop`)."""
        return self._parts.facts.history

    @property
    def fleet(self) -> FleetWeights | None:
        """The fleet's weights as the newest evaluation stated them to agents; None before there are any."""
        return self._parts.facts.fleet

    @property
    def odd(self) -> list[dict[str, Any]]:
        """Devices whose data differs, as their sums before the first round have shown: see `Odd.to_json`."""
        return self._parts.facts.odd

    @property
    def spent(self) -> dict[str, Any] | None:
        """The privacy account; None without a `privacy` section that adds noise."""
        privacy = self._parts.privacy
        return None if privacy is None else privacy.spent()

    # -- its models --------------------------------------------------------------------------------

    @property
    def models(self) -> tuple[Vector, ...]:
        """The models (d,), one per cluster; empty where they never leave the devices."""
        return whole_models(self.strategy, self.state, self.setup)

    @property
    def task_of_models(self) -> dict[str, Any]:
        """The task that the models solve, with the statistics that the fleet found and the tensors that devices keep."""
        task = resolved(self.scenario.task, self._parts.facts.scaling).for_agents()
        split = self.setup.split
        kept = [] if split is None else [tensor.name for tensor in split.tensors("keep")]
        return {**task, "keep": kept} if kept else task

    def version(self, figure: Mapping[str, Any]) -> ModelVersion:
        """The models as they are now; `figure` is that of their evaluation, or empty."""
        return ModelVersion(
            run=self.id,
            round=self.round,
            task=self.task_of_models,
            layout=self.setup.whole,
            models=self.models,
            assignment=dict(self.assignment),
            figure=figure,
        )

    # -- what it asks for --------------------------------------------------------------------------

    def order_of(self, client: ClientId) -> SendOrder:
        """What this agent should do now."""
        return self._parts.orders.order_of(client, self.state)

    def models_of(self, orders: Sequence[SendOrder]) -> list[SendModel]:
        """The models that these orders name, each once."""
        return self._parts.orders.models_of(orders)

    def desired(self) -> list[Effect]:
        """All that should be retained at the broker now: models first, then the order of each agent."""
        orders = self._parts.orders_of(sorted(self.known))
        return [*self.models_of(orders), *orders]

    @property
    def shared(self) -> SendModel | None:
        """What all orders of the newest step share; None where they share nothing."""
        return self._parts.orders.shared

    def file_of(self, key: str) -> Path:
        """The file with the encoded model behind a key that an order of the open step names. It stays until the next fold."""
        return self._parts.orders.file_of(key)

    def parts_of_own_model(self, client: ClientId) -> int:
        """How many parts of a model for this agent alone are published now."""
        return self._parts.orders.parts_of_own_model(client)

    @property
    def largest_report(self) -> int:
        """Bytes that no report of the open step can exceed, in any codec."""
        step = self.step
        return MAX_OTHER_BYTES if step is None else largest_report_of(step.phase)

    # -- sums of aggregators -----------------------------------------------------------------------

    def is_summable(self, step: Step) -> bool:
        """Whether the method allows that reports of a step come as sums."""
        keys = self._parts.orders.keys()
        sums = extras.part("scale", "partial_sums")
        return bool(sums.is_summable(self.scenario, step, self.state, keys))

    @property
    def is_direct(self) -> bool:
        """Whether the coordinator turned out to need the reports of the newest step themselves, and not sums of them."""
        folding = self._parts.folding
        if folding is None:
            return False
        return folding.is_direct or folding.phase.name in self._parts.direct_phases

    @property
    def settled(self) -> Sequence[bytes]:
        """The digests of the sums of the newest step that have come; empty once it is over."""
        folding = self._parts.folding
        return () if folding is None else folding.settled

    def state_for_terms(self) -> tuple[bytes, dict[str, bytes]]:
        """What `terms` needs of the method's state, as a manifest and its arrays."""
        return self._parts.store.checkpoint.exported(self.strategy.for_terms(self.state))

    def bases(self) -> dict[str, bytes]:
        """The encoded models that orders of this state name, by digest, where reports are differences to them; else empty."""
        return self._parts.orders.bases() if self.scenario.wire.delta else {}
