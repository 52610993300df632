"""FedProx: FedAvg with (mu/2) * ||w - w_t||^2 in the local objective.

Paper. Li et al. 2020, Federated Optimization in Heterogeneous Networks, algorithm 2.

Our deviations. Clients are drawn uniformly and weighted by samples, as in the authors' code, so
that mu = 0 is exactly FedAvg. The paper draws them by samples and weights them alike.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from covey.shared.strategies.bases.single import AveragedOnly
from covey.shared.strategies.client_half import (
    ClientState,
    Drill,
    GradientCorrection,
    Job,
    Local,
    Report,
    trained_report,
)


class FedProx(AveragedOnly):
    """The proximal term keeps clients with unlike data or unequal work together."""

    summary: ClassVar[str] = "FedAvg with a pull towards the round's model"
    source: ClassVar[str] = "Li et al. 2020"

    name: Literal["fedprox"] = "fedprox"
    mu: float = Field(
        0.1,
        ge=0,
        description="The strength of the proximal term, which pulls a client's model towards the "
        "round's model. 0 is FedAvg.",
    )

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        w_t = job.models[0]
        result = local.train(w_t, Drill(GradientCorrection(w_t, self.mu)))
        return trained_report(result, local), client_state
