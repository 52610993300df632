"""FedALA: an agent begins with a mixture of the common model and its own, whose weights it learns on its data.

Paper. Zhang et al. 2023, FedALA: Adaptive Local Aggregation for Personalized Federated Learning, algorithm 1. With the
agent's model w_i and the common model w, training begins with w_i + (w - w_i) * W. The weights W are 1 in lower layers;
in the last ones they are learned by steps of -rate * gradient * (w - w_i), cut to [0, 1]: for several epochs the first time,
then for one in each round, on a share of the samples.

Our deviations.
- The first time W is learned for a fixed number of epochs; the paper stops when the loss stays the same.
- Gradients are those of evaluation mode, without dropout.
- In an evaluation agents mix with the weights of their latest training.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from covey.shared.numerics.split import last_modules
from covey.shared.numerics.vectors import Vector
from covey.shared.seeds import generator
from covey.shared.strategies.base import Facts, Sealed, Serves
from covey.shared.strategies.bases.single import PlainSingle
from covey.shared.strategies.client_half import (
    LAST_MODEL,
    ClientState,
    Job,
    Local,
    Mixture,
    Report,
    trained_report,
)

WEIGHTS = "fedala/weights"  # client state: W of the last layers, one after the other
SHARE = 0.8  # of the samples, on which weights are learned
RATE = 1.0  # of a step of the weights
FIRST_EPOCHS = 10


class FedAla(PlainSingle):
    """For agents whose data differs in part: each takes of the common model what lowers its own loss."""

    facts: ClassVar[Facts] = Facts(sealed=Sealed())
    summary: ClassVar[str] = "FedAvg whose agents learn how much of the common model to take"
    source: ClassVar[str] = "Zhang et al. 2023"

    name: Literal["fedala"] = "fedala"
    layers: int = Field(1, ge=1, description="The last layers for which weights are learned.")

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        start = w = job.models[0]
        if LAST_MODEL in client_state:
            weights = self._learned(job, local, w, client_state)
            start = self._mixed(job, w, client_state[LAST_MODEL], weights)
            client_state = {**client_state, WEIGHTS: weights}
        result = local.train(start)
        return trained_report(result, local), {**client_state, LAST_MODEL: result.end}

    serves: ClassVar[Serves] = "own"

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        w = job.models[0]
        if WEIGHTS in client_state and LAST_MODEL in client_state:
            w = self._mixed(job, w, client_state[LAST_MODEL], client_state[WEIGHTS])
        return ((1.0, w),)

    def _learned(self, job: Job, local: Local, w: Vector, client_state: ClientState) -> Vector:
        """W after the steps of this round."""
        own = client_state[LAST_MODEL]
        places = self._places(job)
        way = (w - own)[places]
        weights = client_state.get(WEIGHTS, np.ones(way.size, np.float32))
        epochs = 1 if WEIGHTS in client_state else FIRST_EPOCHS
        draws = generator(job.seed, "fedala", job.client, job.round)
        count = max(round(SHARE * local.examples), 1)
        rows = draws.permutation(local.examples)[:count]
        for _ in range(epochs):
            order = draws.permutation(rows)
            for batch in np.array_split(
                order, range(job.training.batch, count, job.training.batch)
            ):
                gradient = local.gradient(self._mixed(job, w, own, weights), rows=batch)
                weights = np.clip(weights - np.float32(RATE) * gradient[places] * way, 0, 1)
        return weights

    def _mixed(self, job: Job, w: Vector, own: Vector, weights: Vector) -> Vector:
        places = self._places(job)
        mixed = w.copy()
        mixed[places] = own[places] + (w - own)[places] * weights
        return mixed

    def _places(self, job: Job) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        """Of the parameters of the last layers."""
        spans = job.layout.span_of(*last_modules(job.layout, self.layers, "strategy.layers"))
        return np.concatenate([np.arange(span.start, span.stop) for span in spans])
