"""Whether an agent is served by more than the models of its order: the method is asked."""

from __future__ import annotations

import numpy as np

from covey.shared.strategies.client_half import ClientState, Job, Local, Mixture
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.work.use import serves_own


class OwnWords(FedAvg):
    """The usual body, in a class of somebody else."""

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        return ((1.0, job.models[0]),)


class Grown(FedAvg):
    """Serves another model than the order's."""

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        return ((1.0, job.models[0] + np.float32(local.examples)),)


def test_a_method_that_writes_the_usual_body_itself_serves_what_the_order_names() -> None:
    assert not serves_own(FedAvg(), 1)
    assert not serves_own(OwnWords(), 1)
    assert serves_own(Grown(), 1)
