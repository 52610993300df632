"""FedBABU: agents train the body on an untrained head, and fit the head after the run.

Paper. Oh, Kim, Yun 2022, FedBABU: Toward Enhanced Representation for Federated Image
Classification, algorithm 1. The head keeps its initial values, the same for all agents, so that
bodies agree on one target. An agent then fine-tunes the whole model: that is mode `tuned`, whose
epochs `evaluation.tune_epochs` sets.

Our deviations. None.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from covey.shared.strategies.bases.own_head import OwnHead
from covey.shared.strategies.client_half import (
    ClientState,
    Drill,
    Job,
    Local,
    Report,
    trained_report,
)


class FedBabu(OwnHead):
    """For agents that fine-tune the result."""

    summary: ClassVar[str] = (
        "trains the body alone, on a fixed head that each agent fits at the end"
    )
    source: ClassVar[str] = "Oh et al. 2022"

    name: Literal["fedbabu"] = "fedbabu"

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        body = None if job.split is None else job.split.is_shared
        return trained_report(local.train(job.models[0], Drill(trained=body)), local), client_state
