"""LG-FedAvg: the lower layers are a client's own, the last ones are shared.

Liang et al. 2020, Think Locally, Act Globally. The shared part is averaged by samples and reaches a client when it
next takes part, as a public suite does; the authors' code averages uniformly and pushes it to everybody at once.
Everyone starts from the common initial model; the authors start from a model that FedAvg has trained.
Another widely used library shares the first layers under the same name; the paper shares the last.

Only shared values travel, in both directions. A client's own layers lie in its client state, inside the model that it held
after its last training. Who is new gets the own layers' initial values once, beside the shared part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from covey.shared.errors import DataError, PublicError
from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.vectors import Layout, Vector
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
    Setup,
    Strategy,
    View,
)
from covey.shared.strategies.bases.single import averaged

SHARED, START = "0", "start"  # keys: the shared part, and the own layers' initial values
Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class LgState:
    """The own layers' initial values, the shared values, where the latter lie in a model, and who has own layers."""

    start: Vector
    shared: Vector
    spans: Spans
    trained: tuple[ClientId, ...] = ()


class LgFedAvg(Strategy[LgState]):
    """For clients whose inputs differ more than their task does."""

    summary: ClassVar[str] = "own lower layers, shared last layers; only the shared ones travel"
    source: ClassVar[str] = "Liang et al. 2020"

    name: Literal["lg"] = "lg"
    shared_layers: int = Field(
        2, ge=0, description="how many of the last parametrised modules are shared"
    )
    weights: Literal["samples", "uniform"] = Field(
        "samples", description="how clients count in the shared layers"
    )

    def init(self, setup: Setup) -> LgState:
        spans = _shared_spans(setup.layout, self.shared_layers)
        own, shared = _split(setup.starts[0], spans)
        return LgState(own, shared, spans)

    def plan(self, state: LgState, view: View) -> Phase:
        return Phase(sizes={"shared": state.shared.size} if state.shared.size else {})

    def order(self, state: LgState, phase: Phase, client: ClientId) -> Order:
        return self.serve(state, client)

    def model(self, state: LgState, key: str) -> Vector:
        return state.start if key == START else state.shared

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        spans = _shared_spans(job.layout, self.shared_layers)
        done = local.train(_composed(job, client_state, spans))
        shared = _split(done.end, spans)[1]
        vectors, bases = ({"shared": shared}, {"shared": 0}) if shared.size else ({}, {})
        return Report(vectors, local.examples, {}, done.steps, done.loss, bases), {
            **client_state,
            LAST_MODEL: done.end,
        }

    def fold(
        self, state: LgState, phase: Phase, reports: Reports, average: Average = MEAN
    ) -> LgState:
        trained = tuple(sorted({*state.trained, *(client for client, _ in reports)}))
        if not state.shared.size:
            return replace(state, trained=trained)
        uniform = self.weights == "uniform"
        shared = averaged(
            reports, otherwise=state.shared, of="shared", uniform=uniform, average=average
        )
        return replace(state, shared=shared, trained=trained)

    def base(
        self, state: LgState, phase: Phase, client: ClientId, report: Report, name: str
    ) -> str | None:
        return SHARED

    def serve(self, state: LgState, client: ClientId) -> Order:
        new = client not in state.trained and state.start.size
        return Order(models=(*[SHARED] * bool(state.shared.size), *[START] * bool(new)))

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        return ((1.0, _composed(job, client_state, _shared_spans(job.layout, self.shared_layers))),)

    def clusters(self, state: LgState) -> tuple[Vector, ...]:
        """What a newcomer starts from: the shared values on initial own layers; none where nothing is shared."""
        return (_joined(state.start, state.shared, state.spans),) if state.shared.size else ()

    def notes(self, state: LgState) -> dict[str, Any]:
        return {
            "shared_values": state.shared.size,
            "own_values": state.start.size,
            "trained": len(state.trained),
        }


def _shared_spans(layout: Layout, count: int) -> Spans:
    """Where the last `count` parametrised modules lie in a model, their buffers included."""
    if count > len(layout.modules):
        raise PublicError(
            f"strategy.lg.shared_layers is {count}, but the model has {len(layout.modules)} parametrised modules "
            f"({', '.join(layout.modules)}); share fewer, or take a model with more"
        )
    last = layout.modules[len(layout.modules) - count :]
    return tuple(
        (s.start, s.stop) for tensor, s in layout.spans() if tensor.name.rpartition(".")[0] in last
    )


def _composed(job: Job, client_state: ClientState, spans: Spans) -> Vector:
    """The shared values on the client's own layers, or on the initial ones if it has none yet."""
    parts = list(job.models)
    shared = parts.pop(0) if spans else np.empty(0, np.float32)
    if LAST_MODEL in client_state:
        return _joined(_split(client_state[LAST_MODEL], spans)[0], shared, spans)
    if not parts and shared.size < job.layout.size:
        raise DataError(
            f"agent {job.client} has trained in this run but its own layers are gone: was its folder deleted?"
        )
    return _joined(parts[0] if parts else np.empty(0, np.float32), shared, spans)


def _split(model: Vector, spans: Spans) -> tuple[Vector, Vector]:
    """Own and shared values of a model (d,)."""
    mask = _mask(model.size, spans)
    return model[~mask], model[mask]


def _joined(own: Vector, shared: Vector, spans: Spans) -> Vector:
    """The model (d,) that `_split` takes apart."""
    model = np.empty(own.size + shared.size, np.float32)
    mask = _mask(model.size, spans)
    model[~mask], model[mask] = own, shared
    return model


def _mask(size: int, spans: Spans) -> npt.NDArray[np.bool_]:
    mask = np.zeros(size, np.bool_)
    for start, stop in spans:
        mask[start:stop] = True
    return mask
