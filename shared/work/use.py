"""The model that an agent can use for predictions after an order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import EVALUATE, TRAIN, Strategy
from covey.shared.strategies.client_half import LAST_MODEL, ClientState, Job, Mixture
from covey.shared.strategies.part_local import PartLocal, of_whole
from covey.shared.wire.messages import OrderMessage, Work
from covey.shared.work.at_hand import AtHand, prepared
from covey.shared.work.candidates import BeforeHome, Candidate, made, with_models
from covey.shared.work.evaluate import brought, is_summed, served_by
from covey.shared.work.judge import Judgement, has_judge
from covey.shared.work.label_prior import served
from covey.shared.work.order_settings import settings_of, task_of


def serves_own(strategy: Strategy[Any], models: int) -> bool:
    """Whether an agent is served by more than one model of an order that has this number of them: one that it keeps, or that its data chooses."""
    return strategy.serves == "own" or (strategy.serves == "chosen" and models != 1)


MESSAGES = 2  # of a secure sum, which follow the models of an order to evaluate


def _without_messages(job: Job, work: Work) -> Job:
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
    job = _without_messages(job, work)
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


def candidates_for_use(
    order: OrderMessage,
    models: Sequence[Vector],
    at_hand: AtHand,
    client_state: ClientState,
    *,
    client: str,
) -> tuple[Mapping[str, float], dict[str, Candidate]]:
    """What the judge of an agent has chosen, the weights and the candidates by name; empty if it has judged nothing.

    Args:
        order, models, at_hand, client: as `execute_order` takes them.
        client_state: the state that replaces the one with which the work began.
    """
    work = order.work
    if work is None or not has_judge(work):
        return {}, {}
    strategy, _ = settings_of(work)
    job, local, prior = prepared(work, models, at_hand, client_state, client=client)
    job = _without_messages(job, work)
    mixture = served_by(strategy, job, local, client_state)
    known = Judgement.of_memory(client_state, mixture)
    if known is None:
        return {}, {}
    uses = known.choice_after(work).weights
    given = BeforeHome(
        mixture,
        task_of(work).outputs,
        split=job.split,
        others=at_hand.others,
        companion=brought(job, work),
    )
    found = made(of_whole(local), given, known.snapshots, uses)
    return uses, {
        name: with_models(one, partial(served, found=prior)) for name, one in found.items()
    }
