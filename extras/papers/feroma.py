"""Feroma: each agent gets a mixture of all agents' models, weighted by how near their profiles are.

Paper. Li, Fenoglio, Gjoreski, Langheinrich 2026, Federated Learning with Profile Mapping under
Distribution Shifts and Drifts (arXiv 2602.07671). After some rounds of FedAvg the common model is
frozen and makes profiles: means and deviations of latent features, over all samples and by class.
The model of agent i is the mean of the latest models, of agent j with the weight n_j / distance_ij.

Our deviations.
- The latent features are the outputs of the common model, which every learner has.
- Profiles have no noise, so an agent whose data do not change would be at distance zero from
  itself and train alone: its own distance is that of the nearest other agent.
- FedAvg lasts for three rounds, and not until an accuracy is reached.
- An agent outside of the cohort takes part with its latest model.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np

from covey.extras.papers.profile import (
    COMMON,
    PROFILE,
    WARMUP_ROUNDS,
    length_of,
    profile,
    refused,
    scaled,
)
from covey.shared.numerics.averages import Average, fair_weights
from covey.shared.numerics.vectors import Vector, mean
from covey.shared.strategies.base import (
    ENTRY,
    MODEL,
    ClientId,
    Facts,
    Moving,
    Order,
    Phase,
    PrivacyFacet,
    Reports,
    Settings,
    Setup,
    Shown,
    Strategy,
    Sums,
    View,
    without,
)
from covey.shared.strategies.bases.hard import unanswered
from covey.shared.strategies.bases.single import averaged, samples_of, vectors_of
from covey.shared.strategies.bases.soft import merged
from covey.shared.strategies.client_half import ClientState, Job, Local, Report, trained_report

OWN = "@"  # key of an agent's mixture; its id follows
LEAST = 1e-8  # distance


@dataclass(frozen=True)
class FeromaState(Moving):
    """The latest model and profile of each agent."""

    common: Vector  # (d,): trained until the warm-up is over, then it makes profiles
    outputs: int = 0
    round: int = 0  # rounds that are complete
    stored: dict[ClientId, Vector] = field(default_factory=dict)  # (d,)
    samples: dict[ClientId, int] = field(default_factory=dict)  # n_i
    profiles: dict[ClientId, Vector] = field(default_factory=dict)
    share: float | None = None  # of all samples, that one agent can have
    asked: tuple[ClientId, ...] = ()  # whose entry failed since the last complete round


class Feroma(Strategy[FeromaState]):
    """Neither clusters nor one model: similar agents weigh more."""

    facts: ClassVar[Facts] = Facts(individual=True, keeps=True, phases=(ENTRY,))

    summary: ClassVar[str] = (
        "a mixture of all models for each agent, weighted by 1 / distance of profiles"
    )
    source: ClassVar[str] = "Li et al. 2026"

    name: Literal["feroma"] = "feroma"

    def init(self, setup: Setup) -> FeromaState:
        return FeromaState(setup.starts[0], setup.whole.outputs)

    def continued(self, state: FeromaState, fresh: FeromaState) -> FeromaState:
        return replace(state, asked=())

    # -- phases and orders ------------------------------------------------------------------------

    def plan(self, state: FeromaState, view: View) -> Phase:
        if self._is_warmup(state):
            return Phase(sizes={MODEL: state.common.size})
        sizes = {PROFILE: length_of(state.outputs)}
        strangers = sorted(set(view.present) - state.profiles.keys() - set(state.asked))
        if strangers:
            return Phase(ENTRY, tuple(strangers), sizes, ends_round=False, may_be_empty=True)
        return Phase(sizes={MODEL: state.common.size, **sizes})

    def _is_warmup(self, state: FeromaState) -> bool:
        return state.round < WARMUP_ROUNDS

    def order(self, state: FeromaState, phase: Phase, client: ClientId) -> Order:
        if self._is_warmup(state) or phase.name == ENTRY:
            return Order(models=(COMMON,))
        return Order(models=(*self.serve(state, client).models, COMMON))

    def serve(self, state: FeromaState, client: ClientId) -> Order:
        has_mixture = client in state.profiles and state.stored
        return Order(models=(f"{OWN}{client}" if has_mixture else COMMON,))

    def model(self, state: FeromaState, key: str) -> Vector:
        if key == COMMON:
            return state.common
        return _mixture(state, key.removeprefix(OWN))

    def clusters(self, state: FeromaState) -> tuple[Vector, ...]:
        return (state.common,)

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase == ENTRY:
            return Report({PROFILE: profile(local, job.models[0])}, local.examples), client_state
        report = trained_report(local.train(job.models[0]), local)
        if len(job.models) > 1:
            own = {PROFILE: profile(local, job.models[-1])}
            report = replace(report, vectors={**report.vectors, **own})
        return report, client_state

    # -- the server -------------------------------------------------------------------------------

    def fold(self, state: FeromaState, phase: Phase, sums: Sums, reports: Reports) -> FeromaState:
        if self._is_warmup(state):
            common = averaged(reports, state.common, average=sums.average)
            return replace(state, common=common, round=state.round + 1)
        profiles = {client: report.vectors[PROFILE].copy() for client, report in reports}
        after = replace(state, profiles=merged(state.profiles, profiles))
        if phase.name == ENTRY:
            return replace(after, asked=unanswered(state.asked, phase, after.profiles))
        return replace(
            after,
            stored=merged(state.stored, vectors_of(reports)),
            samples=merged(state.samples, samples_of(reports)),
            share=sums.average.share,
            round=state.round + 1,
            asked=(),
        )

    def refuses(self, settings: Settings) -> str:
        if isinstance(settings, Average) and settings.single:
            return "each agent's model is a mixture of all, weighted by profiles"
        return refused(settings) or super().refuses(settings)

    def shown(self, state: FeromaState) -> Shown:
        return Shown({"profiles": len(state.profiles), "mixed": len(state.stored)})

    @property
    def privacy(self) -> PrivacyFacet:
        return PrivacyFacet(refusal="feroma sends means of the data's outputs without noise")

    def forget(self, state: FeromaState, client: ClientId) -> FeromaState:
        return replace(
            state,
            stored=without(state.stored, client),
            samples=without(state.samples, client),
            profiles=without(state.profiles, client),
            asked=without(state.asked, client),
        )


def _mixture(state: FeromaState, client: ClientId) -> Vector:
    """The mean of all latest models, of each with its samples / its distance in profiles."""
    others = [name for name in state.stored if name in state.profiles]
    rows = scaled(
        [state.profiles[name] for name in others], state.outputs, [state.profiles[client]]
    )
    apart = np.sqrt(((rows[:-1] - rows[-1]) ** 2).sum(axis=1))
    own = np.array([name == client for name in others])
    if own.any() and not own.all():
        apart[own] = apart[~own].min()
    samples = fair_weights([float(max(state.samples[name], 1)) for name in others], state.share)
    weights = np.array(samples) / (apart + LEAST)
    return mean([(state.stored[name], float(w)) for name, w in zip(others, weights, strict=True)])
