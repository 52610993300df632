"""Local, also called NoFed: every client trains alone from the common start and sends no model.

Paper. None of its own: it is the baseline of FeSEM and FedClust. A client trains R * C * E epochs,
as many as it is expected to train in a federated run, in one phase of round 1. Later rounds invite
only those who have not trained yet: latecomers, and those who lost their connection.

Our deviations. The final model is measured; one public suite prints the best test accuracy that it
ever had.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from pydantic import Field

from covey.shared.errors import DataError
from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import (
    TRAIN,
    ClientId,
    Facts,
    Order,
    Phase,
    PrivacyFacet,
    Reports,
    Serves,
    Settings,
    Setup,
    Shown,
    Strategy,
    Sums,
    Training,
    Trainings,
    View,
    without,
)
from covey.shared.strategies.bases.hard import START
from covey.shared.strategies.client_half import (
    LAST_MODEL,
    ClientState,
    Drill,
    Job,
    Local,
    Mixture,
    Report,
)
from covey.shared.strategies.expected import A_COUNT


@dataclass(frozen=True)
class LocalState:
    """Who has trained."""

    start: Vector  # the common initial model (d,)
    epochs: int  # of each agent
    opened: bool = False  # is round 1 complete?
    trained: tuple[ClientId, ...] = ()


class LocalOnly(Strategy[LocalState]):
    """What agents reach without each other: often a lot if their labels are skewed."""

    facts: ClassVar[Facts] = Facts(individual=True, numbers={TRAIN: {"epochs": A_COUNT}})

    summary: ClassVar[str] = "no federation: every agent trains alone from the common start"
    source: ClassVar[str] = "baseline"

    name: Literal["local"] = "local"
    epochs: int | None = Field(
        None,
        ge=1,
        description="The epochs of each agent; null: rounds * participation * training.epochs.",
    )

    def init(self, setup: Setup) -> LocalState:
        budget = round(setup.rounds * setup.participation * setup.training.epochs)  # R * C * E
        return LocalState(setup.starts[0], self.epochs or max(budget, 1))

    def plan(self, state: LocalState, view: View) -> Phase:
        if not state.opened:
            return Phase(cohort="all")
        untrained = set(view.present) - set(state.trained)
        return Phase(cohort=tuple(sorted(untrained)), may_be_empty=True)

    def order(self, state: LocalState, phase: Phase, client: ClientId) -> Order:
        return Order(models=(START,), numbers={"epochs": state.epochs})

    def model(self, state: LocalState, key: str) -> Vector:
        return state.start

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        epochs = int(job.numbers["epochs"])
        result = local.train(job.models[0], Drill(epochs=epochs, at_home=True))
        report = Report({}, local.examples, steps=result.steps, loss=result.loss)
        return report, {**client_state, LAST_MODEL: result.end}

    def fold(self, state: LocalState, phase: Phase, sums: Sums, reports: Reports) -> LocalState:
        trained = set(state.trained)
        trained.update(client for client, _ in reports)
        return replace(state, opened=True, trained=tuple(sorted(trained)))

    def refuses(self, settings: Settings) -> str:
        if isinstance(settings, Training) and settings.lr_steps:
            return "it counts rounds, and here every agent trains once, for its whole budget"
        return super().refuses(settings)

    def serve(self, state: LocalState, client: ClientId) -> Order:
        return Order() if client in state.trained else Order(models=(START,))

    serves: ClassVar[Serves] = "own"

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        if LAST_MODEL in client_state:
            return ((1.0, client_state[LAST_MODEL]),)
        if not job.models:
            raise DataError(
                f"agent {job.client} has trained in this run but its model is missing: "
                "was its folder deleted?"
            )
        return ((1.0, job.models[0]),)

    def clusters(self, state: LocalState) -> tuple[Vector, ...]:
        return ()

    def shown(self, state: LocalState) -> Shown:
        return Shown({"trained": len(state.trained), "epochs": state.epochs})

    @property
    def privacy(self) -> PrivacyFacet:
        return PrivacyFacet(Trainings(trainings=0), "nothing")

    def forget(self, state: LocalState, client: ClientId) -> LocalState:
        return replace(state, trained=without(state.trained, client))
