"""FedRep and FedPer: a body that all agents share, and a head of each agent's own.

Papers. Collins, Hassani, Mokhtari, Shakkottai 2021, Exploiting Shared Representations for
Personalized Federated Learning, algorithm 1: each agent trains its head on the fixed body, then the
body. Arivazhagan et al. 2019, Federated Learning with Personalization Layers (FedPer), algorithm 1:
both at once (`head: joint`).

Our deviations.
- Bodies are averaged by samples, as in FedPer. FedRep's algorithm averages uniformly.
- The body trains for the epochs of the training section. FedRep's algorithm makes one step, its
  experiments train for one or five epochs.
- All heads start from the common initial one.
- Where the head trains last, it fits the body as the agent has trained it, and not the average
  that it is used with.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from covey.shared.strategies.base import PrivacyFacet, Trainings
from covey.shared.strategies.bases.own_head import OwnHead
from covey.shared.strategies.client_half import (
    ClientState,
    Drill,
    Job,
    Local,
    Report,
    trained_report,
)


class FedRep(OwnHead):
    """For clients whose labels or tasks differ while the same features serve all of them."""

    summary: ClassVar[str] = "a shared body, and a head of each agent's own that never travels"
    source: ClassVar[str] = "Collins et al. 2021"

    name: Literal["fedrep"] = "fedrep"
    head: Literal["first", "last", "joint"] = Field(
        "first",
        description="When the head trains: before the body, after it, or with it. joint is FedPer.",
    )

    @property
    def privacy(self) -> PrivacyFacet:
        """DP-SGD plans for the trainings of a round, which are of equal length here or there is only one."""
        if self.head == "joint":
            return super().privacy
        return PrivacyFacet(Trainings(trainings=2), "assigned")

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if self.head == "joint" or job.split is None:
            return super().work(job, local, client_state)
        head, body = Drill(trained=job.split.is_kept), Drill(trained=job.split.is_shared)
        before, after = (head, body) if self.head == "first" else (body, head)
        half = local.train(job.models[0], before)
        result = local.train(half.end, after)
        whole = replace(result, steps=half.steps + result.steps)
        return trained_report(whole, local), client_state
