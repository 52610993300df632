"""Votes on held-back samples, and members who leave a cluster because of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from covey.shared.numerics.votes import LARGEST_LOSS, Vote
from covey.shared.strategies.base import Phase, Report, Setup, Training
from covey.shared.strategies.bases.hard import Clustered, left
from covey.shared.strategies.cfl import Cfl, CflState
from covey.shared.strategies.fedclust import FedClust, FedClustState
from covey.shared.strategies.ifca import Ifca
from covey.shared.strategies.pacfl import Pacfl
from covey.shared.strategies.reading import alternative, folded, order_of_evaluation
from tests.bowl import bowl_layout, flat

A, B, C, D = "abcd"
TWO = Clustered(flat(0, 0), models=(flat(1, 1), flat(2, 2)), assign={A: 0, B: 0, C: 0, D: 1})


def rows(state: Clustered) -> list[list[float]]:
    return [model.tolist() for model in state.models]


def losses(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


# -- the vote ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("served", "other", "against"),
    [
        ([3.0, 3.1, 2.9, 3.0, 3.0], [1.0] * 5, True),
        ([1.0] * 5, [3.0] * 5, False),
        ([2.4, 2.5, 2.4, 2.5, 2.4], [2.0] * 5, False),  # beyond chance, and little
        ([1.0, 1.0, 1.0, 1.0, 14.0], [1.0] * 5, False),  # much, from one sample
        ([9.0] * 4, [1.0] * 4, False),  # four samples show nothing
        ([np.nan] * 5, [1.0] * 5, True),
        ([np.inf, np.nan, 3e38, np.inf, 1.0], [1.0] * 5, True),
        ([np.nan] * 5, [np.inf] * 5, False),
    ],
)
def test_a_vote_is_against_a_model_that_is_much_worse_beyond_chance(
    served: list[float], other: list[float], against: bool
) -> None:
    naught = losses(*[2.3] * len(served))
    vote = Vote.of(losses(*served), losses(*other), naught)
    assert vote.is_against is against
    assert Vote.from_wire(vote.to_wire()) == vote
    assert max(vote.loss, vote.other) <= LARGEST_LOSS


# -- who leaves --------------------------------------------------------------------------------------------------------


def test_a_member_that_leaves_has_the_last_good_model_to_itself() -> None:
    before = left(TWO, dict.fromkeys((A, B, C, D), False))
    assert [model.tolist() for model in before.good] == rows(TWO)
    worse = replace(before, models=(flat(9, 9), flat(3, 3)))
    after = left(worse, {A: True, B: True, C: False, D: False})
    assert after.assign == {A: 2, B: 3, C: 0, D: 1}
    assert rows(after) == [[9, 9], [3, 3], [1, 1], [1, 1]]
    assert [model.tolist() for model in after.good] == [[1, 1], [3, 3], [1, 1], [1, 1]]
    assert after.alone == (2, 3)


def test_before_the_first_evaluation_the_last_good_model_is_the_common_start() -> None:
    after = left(TWO, {A: True, B: False})
    assert rows(after)[2] == [0, 0]


def test_an_agent_that_trains_alone_goes_back_to_its_own_last_good_model() -> None:
    once = left(TWO, {A: True, B: False, D: False})
    trained = left(replace(once, models=(*once.models[:2], flat(4, 4))), {A: False})
    diverged = replace(trained, models=(*trained.models[:2], flat(9, 9)))
    again = left(diverged, {A: True, D: True})
    assert again.assign == once.assign
    assert rows(again)[2] == [4, 4]
    assert rows(again)[1] == [2, 2]  # alone in its cluster from the start


def test_those_who_left_are_never_put_together() -> None:
    """Hostile agents follow: they vote as their victims do."""
    after = left(TWO, dict.fromkeys((A, B, C), True))
    assert sorted(after.assign.values()) == [1, 2, 3, 4]
    later = left(after, {A: True, D: True})
    assert sorted(later.assign.values()) == [1, 2, 3, 4]


def test_newcomers_join_no_agent_that_trains_alone() -> None:
    fedclust = FedClust(newcomer_ref="current")
    state = replace(
        fedclust.init(SETUP), models=TWO.models, assign=TWO.assign, centroids=(flat(1), flat(2))
    )
    state = left(replace(state, span=(1, 2)), {A: True, B: False})
    assert fedclust.serve(state, "newcomer").models == ("0", "1")
    at_start = Report({"signature": flat(0)}, 5)  # the model of the agent that trains alone
    assert fedclust.assign_newcomers(state, [("e", at_start)]).assign["e"] == 0
    pacfl = Pacfl(n_clusters=2)
    direction = {name: flat(1, 0) if name == A else flat(0.5, 0.5) for name in TWO.assign}
    placed = replace(
        pacfl.init(SETUP),
        models=TWO.models,
        assign=TWO.assign,
        signatures=direction,
        labels=dict.fromkeys(TWO.assign, (0,)),
        weights=dict.fromkeys(TWO.assign, 0.25),
    )
    placed = left(placed, {A: True, B: False})
    like_a = Report({"signature": flat(1, 0)}, 5, {"labels": [0]})
    assert pacfl.assign_newcomers(placed, [("e", like_a)]).assign["e"] in (0, 1)


def test_a_model_that_was_not_judged_does_not_become_the_last_good_one() -> None:
    good = left(TWO, dict.fromkeys((A, B, C, D), False))
    unseen = left(replace(good, models=(flat(9, 9), flat(8, 8))), {D: False})
    assert [model.tolist() for model in unseen.good] == [[1, 1], [8, 8]]


def test_there_are_never_more_clusters_than_agents_and_first_clusters() -> None:
    state = TWO
    for turn in range(50):
        voters = sorted(state.assign)
        state = left(state, {client: (turn + i) % 2 == 0 for i, client in enumerate(voters)})
    assert len(state.models) <= len(TWO.models) + len(TWO.assign)


def test_members_of_methods_that_cluster_once_have_an_alternative_and_no_others() -> None:
    state = replace(FedClust().init(SETUP), models=TWO.models, assign=TWO.assign)
    assert isinstance(state, FedClustState)
    fedclust = FedClust()
    assert alternative(fedclust, state, A) == "start"
    assert alternative(fedclust, state, "newcomer") == ""
    judged = left(state, {A: False, D: False})
    assert alternative(fedclust, judged, A) == "good-0"
    assert fedclust.model(judged, "good-0").tolist() == [1, 1]
    order = order_of_evaluation(fedclust, judged, A, fallback=True)
    assert order.models == ("0", "good-0")
    assert order_of_evaluation(fedclust, judged, A, fallback=False) == fedclust.serve(judged, A)
    hypotheses = Ifca().init(replace(SETUP, starts=TWO.models))
    hypotheses = replace(hypotheses, assign=TWO.assign)
    assert alternative(Ifca(), hypotheses, A) == ""


SETUP = Setup((flat(0, 0),), bowl_layout(), 1, 9, 1.0, Training())


def test_a_split_of_cfl_after_agents_have_left_leads_newcomers_to_its_own_halves() -> None:
    cfl = Cfl(trigger="norms", warmup=0, eps_1=10.0, eps_2=0.1, min_size=1)
    state: CflState = cfl.init(SETUP)
    all_agents = (A, B, C, D)

    def sent(**ends: float) -> list[tuple[str, Report]]:
        return [(name, Report({"model": flat(end, 0)}, 5)) for name, end in ends.items()]

    state = replace(state, models=(flat(0, 0),), assign=dict.fromkeys(all_agents, 0))
    state = left(state, {A: True, B: False, C: False, D: False})
    assert state.assign == {A: 1, B: 0, C: 0, D: 0}
    state = folded(cfl, state, Phase(cohort=all_agents), reports=sent(a=0.0, b=5, c=-5, d=-5))
    assert len(state.models) == 3, "cluster 0 is divided, its new half is cluster 2"
    halves = {state.assign[B], state.assign[C]}
    assert halves == {0, 2}
    assert state.assign[A] == 1
    state = folded(cfl, state, Phase("entry", ("e", "f")), reports=sent(e=5, f=-5))
    assert state.assign["e"] == state.assign[B]
    assert state.assign["f"] == state.assign[C]


def test_agents_that_left_before_the_first_split_of_cfl_train_the_model_that_they_have() -> None:
    cfl = Cfl(trigger="norms")
    state: CflState = cfl.init(SETUP)
    phase = Phase(cohort=(A, B))
    state = folded(
        cfl, state, phase, reports=[(name, Report({"model": flat(1, 1)}, 5)) for name in (A, B)]
    )
    state = left(state, {A: True, B: False})
    reports = [(A, Report({"model": flat(4, 4)}, 5)), (B, Report({"model": flat(2, 2)}, 5))]
    state = folded(cfl, state, phase, reports=reports)
    assert state.assign == {A: 1, B: 0}
    assert rows(state) == [[2, 2], [4, 4]]
