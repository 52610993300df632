"""Local, also called NoFed: every client trains alone from the common start; no model is ever sent up.

The baseline of the clustered papers (FeSEM, FedClust), with no paper of its own. The budget is R * C * E epochs,
what a client of a federated run is expected to do, spent in one phase of round 1.
The later rounds invite nobody but those who have not trained yet: latecomers, and those who were cut off.
We report the final model; one public suite prints the best test accuracy ever seen beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from pydantic import Field

from covey.shared.errors import DataError
from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import (
    LAST_MODEL,
    ClientId,
    ClientState,
    Job,
    Local,
    Mixture,
    Order,
    Phase,
    Report,
    Reports,
    Routes,
    Setup,
    Strategy,
    View,
)


@dataclass(frozen=True)
class LocalState:
    """The common start (d,), each agent's epochs, whether round 1 was folded, and who has trained."""

    start: Vector
    epochs: int
    opened: bool = False
    trained: tuple[ClientId, ...] = ()


class LocalOnly(Strategy[LocalState]):
    """The lower bound on sharing, and often a strong one for skewed labels."""

    summary: ClassVar[str] = "no federation: every agent trains alone from the common start"
    source: ClassVar[str] = "baseline"

    name: Literal["local"] = "local"
    epochs: int | None = Field(
        None, ge=1, description="epochs of each agent; null: rounds * participation * epochs"
    )
    newcomer_epochs: int | None = Field(
        None, ge=1, description="epochs of those who join after round 1; null: same"
    )

    def init(self, setup: Setup) -> LocalState:
        expected = round(setup.rounds * setup.participation * setup.training.epochs)
        return LocalState(setup.starts[0], self.epochs or max(expected, 1))

    def plan(self, state: LocalState, view: View) -> Phase:
        if not state.opened:
            return Phase(cohort="all")
        return Phase(
            cohort=tuple(sorted(set(view.present) - set(state.trained))), may_be_empty=True
        )

    def order(self, state: LocalState, phase: Phase, client: ClientId) -> Order:
        late = state.opened and self.newcomer_epochs
        return Order(models=("start",), numbers={"epochs": late or state.epochs})

    def model(self, state: LocalState, key: str) -> Vector:
        return state.start

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        done = local.train(job.models[0], epochs=int(job.numbers["epochs"]))
        return Report({}, local.examples, {}, done.steps, done.loss), {
            **client_state,
            LAST_MODEL: done.end,
        }

    def fold(
        self, state: LocalState, phase: Phase, reports: Reports, average: Average = MEAN
    ) -> LocalState:
        trained = {*state.trained, *(client for client, _ in reports)}
        return replace(state, opened=True, trained=tuple(sorted(trained)))

    def refuses_schedule(self) -> str:
        return "it counts rounds, and here every agent trains once, for its whole budget"

    def serve(self, state: LocalState, client: ClientId) -> Order:
        return Order() if client in state.trained else Order(models=("start",))

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        if LAST_MODEL in client_state:
            return ((1.0, client_state[LAST_MODEL]),)
        if not job.models:
            raise DataError(
                f"agent {job.client} has trained in this run but its model is gone: was its folder deleted?"
            )
        return ((1.0, job.models[0]),)

    def clusters(self, state: LocalState) -> tuple[Vector, ...]:
        return ()

    def notes(self, state: LocalState) -> dict[str, Any]:
        return {"trained": len(state.trained), "epochs": state.epochs}

    def private_routes(self) -> Routes:
        return "nothing"

    def check_local_privacy(self) -> None:
        """Nothing is sent."""
