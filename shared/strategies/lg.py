"""LG-FedAvg: the lower layers are a client's own, the last ones are shared.

Paper. Liang et al. 2020, Think Locally, Act Globally: Federated Learning with Local and Global
Representations.

Our deviations.
- The shared part is averaged by samples and reaches a client when it next takes part, as in a
  public suite. The authors' code averages uniformly and sends it to all at once.
- All agents start from the common initial model. The authors start from a model that FedAvg has
  trained.
- The last layers are shared, as in the paper. Another widely used library shares the first layers
  under the same name.

Only shared values travel, in both directions. A client keeps its own layers in its client state,
inside its model after the last training. A new client gets the initial values of its own layers
once, with the shared part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from covey.shared.errors import DataError, PublicError
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
    Shown,
    Strategy,
    Sums,
    Terms,
    View,
)
from covey.shared.strategies.bases.single import sample_term

# keys
SHARED = "0"  # the shared part
START = "start"  # the initial values of a client's own layers

VECTOR = "shared"  # name of the reported vector
Spans = tuple[tuple[int, int], ...]  # (start, stop) of parts of a model, ascending


@dataclass(frozen=True)
class LgState:
    """The shared values, and who has layers of its own."""

    start: Vector  # initial values of a client's own layers
    shared: Vector  # the shared values
    spans: Spans  # where they are in a model
    trained: tuple[ClientId, ...] = ()  # clients that have own layers


class LgFedAvg(Strategy[LgState]):
    """For clients whose inputs differ more than their task does."""

    client_fields = ("trained",)

    no_server: ClassVar[str] = "the mean is a part of a model"

    summary: ClassVar[str] = "own lower layers, shared last layers; only the shared ones travel"
    source: ClassVar[str] = "Liang et al. 2020"

    name: Literal["lg"] = "lg"
    shared_layers: int = Field(
        2,
        ge=0,
        description="The number of layers that are shared, counted from the last. Only modules "
        "with parameters count.",
    )
    weights: Literal["samples", "uniform"] = Field(
        "samples", description="The weights of the clients in the shared layers."
    )

    def init(self, setup: Setup) -> LgState:
        spans = _shared_spans(setup.layout, self.shared_layers)
        own, shared = _split(setup.starts[0], spans)
        return LgState(own, shared, spans)

    def plan(self, state: LgState, view: View) -> Phase:
        sizes = {VECTOR: state.shared.size} if state.shared.size else {}
        return Phase(sizes=sizes)

    def order(self, state: LgState, phase: Phase, client: ClientId) -> Order:
        return self.serve(state, client)

    def model(self, state: LgState, key: str) -> Vector:
        return state.start if key == START else state.shared

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        spans = _shared_spans(job.layout, self.shared_layers)
        result = local.train(_composed(job, client_state, spans))
        _, shared = _split(result.end, spans)
        report = Report({}, local.examples, steps=result.steps, loss=result.loss)
        if shared.size:
            report = replace(report, vectors={VECTOR: shared}, bases={VECTOR: 0})
        return report, {**client_state, LAST_MODEL: result.end}

    def terms(self, state: LgState, phase: Phase, client: ClientId, report: Report) -> Terms:
        if not state.shared.size:
            return ()
        return sample_term(report, SHARED, VECTOR, uniform=self.weights == "uniform")

    def fold(self, state: LgState, phase: Phase, sums: Sums, reports: Reports) -> LgState:
        trained = {*state.trained, *[client for client, _ in reports]}
        shared = sums.mean(SHARED, otherwise=state.shared)
        return replace(state, shared=shared, trained=tuple(sorted(trained)))

    def serve(self, state: LgState, client: ClientId) -> Order:
        keys: list[str] = []
        if state.shared.size:
            keys.append(SHARED)
        if state.start.size and client not in state.trained:
            keys.append(START)
        return Order(models=tuple(keys))

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        spans = _shared_spans(job.layout, self.shared_layers)
        return ((1.0, _composed(job, client_state, spans)),)

    def clusters(self, state: LgState) -> tuple[Vector, ...]:
        """The model of a newcomer: shared values on initial layers; none if there are none."""
        if not state.shared.size:
            return ()
        return (_joined(state.start, state.shared, state.spans),)

    def shown(self, state: LgState) -> Shown:
        return Shown(
            {
                "shared_values": state.shared.size,
                "own_values": state.start.size,
                "trained": len(state.trained),
            }
        )


def _shared_spans(layout: Layout, count: int) -> Spans:
    """The places of the last `count` parametrised modules in a model, with their buffers.

    Raises:
        PublicError: the model has fewer modules.
    """
    modules = layout.modules
    if count > len(modules):
        raise PublicError(
            f"strategy.lg.shared_layers is {count}, but the model has {len(modules)} "
            f"parametrised modules ({', '.join(modules)}); share fewer, or take a model with more"
        )
    last = modules[len(modules) - count :]
    spans = [(span.start, span.stop) for tensor, span in layout.spans() if tensor.module in last]
    return tuple(spans)


def _composed(job: Job, client_state: ClientState, spans: Spans) -> Vector:
    """The model (d,) of a client: shared values on its own layers, or on the initial ones.

    Raises:
        DataError: the client has trained, but its own layers are missing.
    """
    nothing = np.empty(0, np.float32)
    parts = list(job.models)
    shared = parts.pop(0) if spans else nothing
    if LAST_MODEL in client_state:
        own, _ = _split(client_state[LAST_MODEL], spans)
        return _joined(own, shared, spans)
    if not parts and shared.size < job.layout.size:
        raise DataError(
            f"agent {job.client} has trained in this run but its own layers are missing: "
            "was its folder deleted?"
        )
    initial = parts[0] if parts else nothing
    return _joined(initial, shared, spans)


def _split(model: Vector, spans: Spans) -> tuple[Vector, Vector]:
    """Own and shared values of a model (d,)."""
    is_shared = _mask(model.size, spans)
    return model[~is_shared], model[is_shared]


def _joined(own: Vector, shared: Vector, spans: Spans) -> Vector:
    """The inverse of `_split`: a model (d,)."""
    model = np.empty(own.size + shared.size, np.float32)
    is_shared = _mask(model.size, spans)
    model[~is_shared] = own
    model[is_shared] = shared
    return model


def _mask(size: int, spans: Spans) -> npt.NDArray[np.bool_]:
    """Which values of a model are in the spans (size,)."""
    mask = np.zeros(size, np.bool_)
    for start, stop in spans:
        mask[start:stop] = True
    return mask
