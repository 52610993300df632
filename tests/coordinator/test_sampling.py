"""Who is invited: the seeded walk and the size of a cohort."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from covey.coordinator.engine.cohort import cohort_size, expected_share, invitation_order
from covey.coordinator.run.rules import listed_participants
from covey.shared.errors import UserError
from covey.shared.scenario.scenario import Scenario

FLEET = [f"agent-{i:02d}" for i in range(20)]


@pytest.mark.parametrize(
    ("known", "participation", "agents", "m"),
    [
        (100, 0.1, None, 10),
        (100, 0.29, None, 29),  # floats say 28.999999999999996
        (7, 0.5, None, 3),  # floor, not round
        (3, 0.1, None, 1),  # never nobody
        (100, 1.0, None, 100),
        (100, 0.1, 5, 5),  # a fixed number overrides the share
    ],
)
def test_m_is_the_floor_of_c_times_n_and_at_least_one(
    known: int, participation: float, agents: int | None, m: int
) -> None:
    assert cohort_size(known, participation, agents) == m


def test_the_walk_visits_each_agent_once() -> None:
    assert sorted(invitation_order(FLEET, 1, 0, 0, "train")) == FLEET


def test_the_walk_does_not_depend_on_the_order_in_which_agents_came() -> None:
    assert invitation_order(FLEET, 1, 0, 0, "train") == invitation_order(
        FLEET[::-1], 1, 0, 0, "train"
    )


@pytest.mark.parametrize(
    "other", [(2, 0, 0, "train"), (1, 1, 0, "train"), (1, 0, 1, "train"), (1, 0, 0, "gradient")]
)
def test_seed_round_attempt_and_phase_each_give_another_walk(
    other: tuple[int, int, int, str],
) -> None:
    assert invitation_order(FLEET, *other) != invitation_order(FLEET, 1, 0, 0, "train")


def test_the_walk_is_the_same_on_every_machine() -> None:
    assert invitation_order("abcdef", 7, 3, 1, "train") == ("a", "c", "e", "f", "d", "b")


def test_over_many_rounds_all_agents_are_invited_about_equally_often() -> None:
    invited = [
        client
        for round_ in range(1000)
        for client in invitation_order(FLEET, 1, round_, 0, "train")[:5]
    ]
    counts = [invited.count(client) for client in FLEET]
    assert min(counts) > 190  # of 250 expected, deviation 13.7: below 1 in 10 000 for one of twenty
    assert max(counts) < 310


@pytest.mark.parametrize(
    ("fleet", "rounds", "share"),
    [
        (20, {}, 1.0),
        (20, {"participation": 0.3}, 0.3),
        (20, {"agents": 5}, 0.25),
        (20, {"agents": 30}, 1.0),
        (None, {"participation": 0.3}, 0.3),
        (None, {"agents": 4, "start_agents": 16}, 0.25),
    ],
)
def test_the_expected_share_is_what_a_round_invites_of_all(
    fleet: int | None, rounds: Any, share: float
) -> None:
    assert expected_share(_scenario(fleet, rounds), None) == share


@pytest.mark.parametrize("rounds", [{"agents": 4}, {"agents": 4, "start_agents": 4}])
def test_a_fixed_number_of_an_open_fleet_is_never_the_whole_fleet(rounds: Any) -> None:
    assert 0.9 < expected_share(_scenario(None, rounds), None) < 1


@pytest.mark.parametrize(
    ("changes", "holds"),
    [
        ({}, True),
        ({"rounds": {"participation": 0.9}}, False),
        ({"rounds": {"agents": 20}}, False),
        ({"rounds": {"participants": "who.json"}}, False),
        ({"rounds": {"mode": "buffered", "buffer": 5}}, False),
        ({"rounds": {"participation": 0.1}, "wire": {"delivery": "all"}}, True),
        ({"wire": {"delivery": "participants"}}, True),
    ],
)
def test_agents_hold_the_newest_model_where_each_round_invites_all_or_the_scenario_demands_it(
    changes: dict[str, Any], holds: bool
) -> None:
    scenario = _scenario(20, changes.get("rounds", {}), wire=changes.get("wire", {}))
    assert scenario.holds_models == holds


def test_the_expected_share_of_listed_participants_is_their_mean_number(tmp_path: Path) -> None:
    file = tmp_path / "who.json"
    file.write_text(json.dumps([[0, 1], [2, 3, 4, 5]]))
    scenario = _scenario(20, {"participants": str(file), "count": 2})
    assert math.isclose(expected_share(scenario, listed_participants(scenario)), 3 / 20)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("[[0, 0, 1]]", "round 0 names an agent twice"),
        ("[[2.7]]", "expected a JSON list of lists of agent indices"),
        ('[["3"]]', "expected a JSON list of lists of agent indices"),
        ("[[true]]", "expected a JSON list of lists of agent indices"),
        ('["01"]', "expected a JSON list of lists of agent indices"),
        ("[[1], [20]]", r"agents \[20\] do not exist or are newcomers; 0 to 17 may be named"),
        ("[[1], [18]]", r"agents \[18\] do not exist or are newcomers"),
        ("[[1], []]", "that are not empty"),
        ("[[1]", "expected a JSON list of lists of agent indices"),
    ],
)
def test_a_list_of_participants_that_cannot_be_meant_is_refused(
    rows: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "who.json"
    file.write_text(rows)
    scenario = _scenario(20, {"participants": str(file), "count": 1})
    assert scenario.fleet is not None
    late = scenario.model_copy(update={"fleet": scenario.fleet.model_copy(update={"newcomers": 2})})
    with pytest.raises(UserError, match=words):
        listed_participants(late)


def _scenario(fleet: int | None, rounds: Any, **sections: Any) -> Scenario:
    data = {
        **sections,
        "name": "x",
        "task": {"features": [2]},
        "strategy": {"name": "fedavg"},
        "rounds": rounds,
    }
    return Scenario.model_validate({**data, "fleet": {"agents": fleet} if fleet else None})
