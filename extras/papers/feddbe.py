"""FedDBE: FedAvg whose agents take what is their own in their features out of the common model.

Paper. Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan 2023, Eliminating Domain Bias for Federated Learning in Representation Space
(NeurIPS), algorithm 1. The last layer of agent i reads z + z_i: the features z of the common layers, and a vector z_i that
trains on the agent and stays there (the personalised representation bias memory). The loss has the term
kappa / 2 * mean((m_i - m)^2): m_i is the running mean of the agent's features, momentum mu, and m the consensus, their mean
over the fleet, which is found once before the rounds (mean regularisation). The agent's model has z_i in it.

Our deviations.
- m is found from the agents of one cohort, not of all: each trains once, and sends the mean features of all its training
  samples by that model. The paper has the running mean of that training.
- mu = 1: m_i is the mean of the newest batch. With a smaller mu the authors' code begins with zeros.
- z_i trains with the learning rate of the training section, without its momentum and its weight decay.
- kappa is 1 by default; the authors' script has 50 for a small network of convolutions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import numpy as np
from pydantic import Field

from covey.shared.errors import PublicError
from covey.shared.numerics.split import Split
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.strategies.base import (
    ClientId,
    Facts,
    Order,
    Phase,
    PrivacyFacet,
    Reports,
    Sealed,
    Serves,
    Settings,
    Setup,
    Sums,
    Term,
    Terms,
    View,
)
from covey.shared.strategies.bases.single import KEY, Single, SingleModel, counted, sample_term
from covey.shared.strategies.client_half import (
    LAST_MODEL,
    ClientState,
    Debias,
    Drill,
    Featured,
    GradientCorrection,
    Job,
    Local,
    Mixture,
    Report,
    trained_report,
)

CONSENSUS = "consensus"  # phase, vector of its reports, and key of their mean m
OWN = "feddbe/own"  # client state: z_i


@dataclass(frozen=True)
class DbeState(Single):
    """The model w_t, and the consensus m."""

    width: int = 0  # of the features
    consensus: Vector | None = None  # (width,); None before the first phase


class FedDbe(SingleModel[DbeState]):
    """For agents whose labels differ, with a model whose last layer is linear."""

    facts: ClassVar[Facts] = Facts(sealed=Sealed(apart=(CONSENSUS,), begins=slice(0, 1)))
    summary: ClassVar[str] = "FedAvg with an own offset of features, and features of one mean"
    source: ClassVar[str] = "Zhang et al. 2023"

    name: Literal["feddbe"] = "feddbe"
    kappa: float = Field(
        1.0, ge=0, description="The weight of the term that pulls an agent's mean features to m."
    )

    def refuses(self, settings: Settings) -> str:
        if isinstance(settings, Split) and not settings.is_whole:
            return "its agents keep an offset before the last layer of a whole model; leave out task.share, keep and freeze"
        return super().refuses(settings)

    def init(self, setup: Setup) -> DbeState:
        _last_layer(setup.layout)
        return DbeState(setup.starts[0], setup.layout.last_width)

    def plan(self, state: DbeState, view: View) -> Phase:
        if state.consensus is None:
            return Phase(CONSENSUS, sizes={CONSENSUS: state.width}, ends_round=False)
        return super().plan(state, view)

    def order(self, state: DbeState, phase: Phase, client: ClientId) -> Order:
        return Order(models=(KEY,) if state.consensus is None else (KEY, CONSENSUS))

    def model(self, state: DbeState, key: str) -> Vector:
        if key == CONSENSUS:
            assert state.consensus is not None  # noqa: S101 - an order names it only after its phase
            return state.consensus
        return state.model

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        w = job.models[0]
        if job.phase == CONSENSUS:
            features = cast(Featured, local).features(local.train(w).end, "train")
            return Report(
                {CONSENSUS: features.mean(axis=0).astype(np.float32)}, local.examples
            ), client_state
        m = job.models[1]
        debias = Debias(client_state.get(OWN, np.zeros_like(m)), m, self.kappa)
        result = local.train(w, Drill(GradientCorrection(debias=debias)))
        own = debias.own if result.own is None else result.own
        last = with_own(result.end, own, job.layout)
        return trained_report(result, local), {**client_state, OWN: own, LAST_MODEL: last}

    serves: ClassVar[Serves] = "own"

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        w = job.models[0]
        if OWN in client_state:
            w = with_own(w, client_state[OWN], job.layout)
        return ((1.0, w),)

    def terms(self, state: DbeState, phase: Phase, client: ClientId, report: Report) -> Terms:
        if phase.name == CONSENSUS:
            return (Term(CONSENSUS, counted(report), CONSENSUS, base=""),)
        return sample_term(report)

    def fold(self, state: DbeState, phase: Phase, sums: Sums, reports: Reports) -> DbeState:
        if phase.name == CONSENSUS:
            nothing = np.zeros(state.width, np.float32)
            return replace(state, consensus=sums.mean(CONSENSUS, otherwise=nothing))
        return super().fold(state, phase, sums, reports)

    @property
    def privacy(self) -> PrivacyFacet:
        return PrivacyFacet(refusal="feddbe sends means of the data's features without noise")


def _last_layer(layout: Layout) -> tuple[slice, slice]:
    """The places of weight and bias of a linear layer at the end.

    Raises:
        PublicError: the model ends in something else.
    """
    name = layout.modules[-1]
    last = [(tensor, span) for tensor, span in layout.spans() if tensor.module == name]
    match last:
        case [(weight, place), (bias, of_bias)] if len(weight.shape) == 2 and len(bias.shape) == 1:
            return place, of_bias
    raise PublicError(
        f"strategy.feddbe needs a model that ends in a linear layer with a bias, and this one ends in {name}; choose another "
        "model, or fedavg"
    )


def with_own(model: Vector, own: Vector, layout: Layout) -> Vector:
    """The model (d,) whose last layer adds z_i to what it reads: W (z + z_i) + b has the bias b + W z_i."""
    place, of_bias = _last_layer(layout)
    changed = model.copy()
    changed[of_bias] += model[place].reshape(-1, own.size) @ own
    return changed
