"""Ditto: FedAvg, and a personal model of each client that is pulled towards the global one.

Paper. Li, Hu, Beirami, Smith 2021, Ditto: Fair and Robust Federated Learning Through
Personalization, algorithm 1. The global model w_t is trained as if there were no personal ones. The
personal model v_i continues for as many epochs with the gradient of (lambda / 2) * ||v - w_t||^2
added. It never leaves the client.

Our deviations. None.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import ConfigDict, Field

from covey.shared.strategies.base import Serves
from covey.shared.strategies.bases.single import AveragedOnly
from covey.shared.strategies.client_half import (
    ClientState,
    Drill,
    GradientCorrection,
    Job,
    Local,
    Mixture,
    Report,
)

OWN = "own"  # client state: the personal model v_i (d,)


class Ditto(AveragedOnly):
    """Two models per client, one vector on the wire."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    summary: ClassVar[str] = (
        "FedAvg, and a personal model per client that is pulled towards it and stays at home"
    )
    source: ClassVar[str] = "Li et al. 2021"

    name: Literal["ditto"] = "ditto"
    lam: float = Field(
        0.1,
        ge=0,
        alias="lambda",
        description="The strength of the proximal term, which pulls the personal model towards the "
        "global one.",
    )

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        report, client_state = super().work(job, local, client_state)
        w_t = job.models[0]
        v_i = client_state.get(OWN, w_t)
        correction = GradientCorrection(w_t, self.lam)
        return report, {**client_state, OWN: local.train(v_i, Drill(correction, at_home=True)).end}

    serves: ClassVar[Serves] = "own"

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        model = client_state.get(OWN, job.models[0])
        return ((1.0, model),)
