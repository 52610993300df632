"""Whether an agent is served by more than the models of its order: the method states it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from covey.shared.numerics.vectors import Layout, Tensor
from covey.shared.strategies.base import EVALUATE, Strategy, Training
from covey.shared.strategies.client_half import ClientState, Job, Local, Mixture
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.work.use import serves_own
from tests.kit.small_run import scenario
from tests.methods import METHODS


def looks_at_more(strategy: Strategy[Any], models: int) -> bool:
    """Whether `personal` needs data or memory, or gives another vector than those of the order."""
    vectors = tuple(np.zeros(1, np.float32) for _ in range(models))
    job = Job(
        phase=EVALUATE,
        round=1,
        client="",
        seed=0,
        models=vectors,
        numbers={},
        cluster=0,
        layout=Layout((Tensor("w", (1,)),), 1),
        training=Training(),
    )
    nothing: Any = None
    try:
        [(_, served)] = strategy.personal(job, nothing, nothing)
    except (AttributeError, TypeError, KeyError, ValueError):
        return True
    return all(served is not one for one in vectors)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_states_whether_it_serves_more_than_its_orders_name(method: str) -> None:
    strategy = scenario(method).strategy
    for models in (1, 2):
        assert serves_own(strategy, models) == looks_at_more(strategy, models)


def test_a_method_that_decides_what_is_used_must_state_it() -> None:
    with pytest.raises(
        TypeError, match="Grown decides what an agent uses: write next to `personal`"
    ):

        class Grown(FedAvg):
            def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
                return ((1.0, job.models[0] + np.float32(local.examples)),)
