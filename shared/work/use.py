"""The model that an agent can use for predictions after an order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import EVALUATE, TRAIN, Strategy
from covey.shared.strategies.client_half import LAST_MODEL, ClientState, Job, Mixture
from covey.shared.strategies.part_local import PartLocal
from covey.shared.wire.messages import OrderMessage, Work
from covey.shared.work.at_hand import AtHand, prepared
from covey.shared.work.evaluate import is_summed, served_by
from covey.shared.work.label_prior import served
from covey.shared.work.order_settings import settings_of


def serves_own(strategy: Strategy[Any], models: int) -> bool:
    """Whether an agent is served by more than one model of an order that has this number of them: one that it keeps, or that its data chooses."""
    return strategy.serves == "own" or (strategy.serves == "chosen" and models != 1)


MESSAGES = 2  # of a secure sum, which follow the models of an order to evaluate


def without_messages(job: Job, work: Work) -> Job:
    """The job without the messages of a secure sum."""
    return replace(job, models=job.models[:-MESSAGES]) if is_summed(work) else job


def model_for_use(
    order: OrderMessage,
    models: Sequence[Vector],
    at_hand: AtHand,
    client_state: ClientState,
    *,
    client: str,
) -> Mixture | None:
    """The model that the agent can use for predictions after an order, as mode `server` would; None if it has none.

    An order of an evaluation gives the agent what the method serves it. An order to train names the same model if the
    method keeps no part of it on the agent and the order has no choice of models; a model without any training is of
    no use.

    Args:
        order, models, at_hand, client: as `execute_order` takes them.
        client_state: the state that the work began with.
    """
    work = order.work
    if work is None:
        return None
    strategy, _ = settings_of(work)
    job, local, prior = prepared(work, models, at_hand, client_state, client=client)
    job = without_messages(job, work)
    if work.phase == EVALUATE:
        return served(served_by(strategy, job, local, client_state), prior)
    is_trained = work.phase == TRAIN and work.round > 0
    if not is_trained or len(job.models) != 1 or serves_own(strategy, 1):
        return None
    model = job.models[0]
    if model.size != job.layout.size:
        return None
    if not isinstance(local, PartLocal):
        return served(((1.0, model),), prior)
    if local.split.keeps and LAST_MODEL not in client_state:
        return None  # what the agent keeps has not trained yet
    return served(local.whole_mixture(((1.0, model),)), prior)
