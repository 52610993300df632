"""Groups of agents that the scenario names."""

import pytest
from pydantic import ValidationError

from covey.shared.strategies.base import Phase
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.given import Given
from covey.shared.strategies.reading import folded
from covey.shared.strategies.server import Server
from tests.bowl import flat
from tests.shared.planted import ONE, run, setup, two_groups

PLACES = Given(groups={"north": ("gw-0*", "gw-15"), "south": ("gw-1*",)})


def test_an_agent_is_in_the_first_group_that_fits_or_with_the_others() -> None:
    places = {"gw-01": 0, "gw-15": 0, "gw-14": 1, "GW-14": 2, "pi": 2}
    assert {client: PLACES.cluster_of(client) for client in places} == places
    state = PLACES.init(setup(two_groups(spread=0), ONE, flat(0, 0)))
    for client, place in places.items():
        assert PLACES.order(state, Phase(), client).models == (str(place),)
        assert PLACES.serve(state, client).cluster == place


def test_each_group_has_the_mean_of_its_members_and_the_others_none_before_one_reports() -> None:
    state = PLACES.init(setup(two_groups(spread=0), ONE, flat(0, 0)))
    sent = {"gw-01": (flat(8, 0), 30), "gw-02": (flat(0, 8), 10), "gw-11": (flat(4, 4), 1)}
    reports = [(client, Report({"model": model}, count)) for client, (model, count) in sent.items()]
    state = folded(PLACES, state, Phase(), reports=reports)
    assert [model.tolist() for model in PLACES.clusters(state)] == [[6, 2], [4, 4]]
    facts = PLACES.shown(state).notes
    assert facts == {"clusters": 2, "sizes": [2, 1], "groups": ["north", "south"]}
    state = folded(PLACES, state, Phase(), reports=[("pi", Report({"model": flat(1, 1)}, 5))])
    assert [model.tolist() for model in PLACES.clusters(state)] == [[6, 2], [4, 4], [1, 1]]
    assert PLACES.shown(state).notes["groups"] == ["north", "south", "others"]
    assert PLACES.assignment(state) == {"gw-01": 0, "gw-02": 0, "gw-11": 1, "pi": 2}


def test_the_planted_groups_reach_their_own_optima() -> None:
    people = two_groups()
    own = {f"g{i}": tuple(sorted(people)[i::2]) for i in range(2)}
    end = run(Given(groups=own), people, rounds=20)
    for k, members in enumerate(own.values()):
        mean = sum(people[client].minimum for client in members) / len(members)
        assert end.state.models[k] == pytest.approx(mean, abs=0.3)


def test_the_server_optimiser_moves_each_group() -> None:
    assert Given(groups={"all": ("*",)}, server=Server(name="adam", lr=0.1)).server is not None


def test_groups_that_share_a_pattern_are_refused() -> None:
    with pytest.raises(ValidationError, match="'gw-1' is in 'north' and in 'south'"):
        Given(groups={"north": ("gw-1",), "south": ("gw-2", "gw-1")})
    with pytest.raises(ValidationError):
        Given(groups={"north": ()})
