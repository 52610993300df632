"""Ditto: FedAvg for everybody, and beside it a personal model of each client's own that is pulled towards it.

Li, Hu, Beirami, Smith 2021, Ditto: Fair and Robust Federated Learning Through Personalization, algorithm 1. The
global model is trained as if there were no personal ones. The personal model is trained for as many epochs from where
it was, with the gradient of (lambda / 2) * ||v - w_t||^2 added; it never leaves the client.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import ConfigDict, Field

from covey.shared.strategies.base import (
    ClientState,
    GradientCorrection,
    Job,
    Local,
    Mixture,
    Report,
)
from covey.shared.strategies.bases.single import AveragedOnly

OWN = "own"  # the personal model (d,) in the client's state


class Ditto(AveragedOnly):
    """Two models per client, one vector on the wire."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    summary: ClassVar[str] = (
        "FedAvg, and a personal model per client that is pulled towards it and stays at home"
    )
    source: ClassVar[str] = "Li et al. 2021"

    name: Literal["ditto"] = "ditto"
    lam: float = Field(
        0.1, ge=0, alias="lambda", description="strength of the pull towards the round's model"
    )

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        report, client_state = super().work(job, local, client_state)
        anchor = job.models[0]
        own = local.train(client_state.get(OWN, anchor), GradientCorrection(anchor, self.lam)).end
        return report, {**client_state, OWN: own}

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        return ((1.0, client_state.get(OWN, job.models[0])),)
