"""FedProx: FedAvg whose local objective adds (mu/2) * ||w - w_t||^2, and that welcomes partial work.

Li et al. 2020, Federated Optimization in Heterogeneous Networks, algorithm 2.
We differ from the paper's server as its authors' code does: clients are drawn uniformly and weighted by
samples, so that mu = 0 is exactly FedAvg.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from covey.shared.seeds import generator
from covey.shared.strategies.base import ClientState, GradientCorrection, Job, Local, Report
from covey.shared.strategies.bases.single import AveragedOnly


class FedProx(AveragedOnly):
    """A pull towards the round's model keeps unequal clients together."""

    summary: ClassVar[str] = (
        "FedAvg with a pull towards the round's model; partial work is accepted"
    )
    source: ClassVar[str] = "Li et al. 2020"

    name: Literal["fedprox"] = "fedprox"
    mu: float = Field(0.1, ge=0, description="strength of the pull towards the round's model")
    straggler_fraction: float = Field(
        0.0,
        ge=0,
        le=1,
        description="chance that a client stops after 1 to E - 1 epochs, drawn per client and round",
    )

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        anchor, epochs = job.models[0], self._epochs(job)
        done = local.train(anchor, GradientCorrection(anchor, self.mu), epochs=epochs)
        numbers = {"epochs": epochs}
        return Report(
            {"model": done.end}, local.examples, numbers, done.steps, done.loss, {"model": 0}
        ), client_state

    def _epochs(self, job: Job) -> int:
        """E, or fewer where the run's seed makes this client a straggler in this round: uniform in [1, E)."""
        draw = generator(job.seed, "straggler", job.round, job.client)
        if draw.random() >= self.straggler_fraction:
            return job.training.epochs
        return int(draw.integers(1, max(job.training.epochs, 2)))
