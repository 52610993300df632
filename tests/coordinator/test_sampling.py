"""Who is invited: the seeded walk and the size of a cohort."""

import pytest

from coordinator.sampling import cohort_size, walk

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


def test_the_walk_visits_everybody_once() -> None:
    assert sorted(walk(FLEET, 1, 0, 0, "train")) == FLEET


def test_the_walk_does_not_depend_on_the_order_in_which_agents_came() -> None:
    assert walk(FLEET, 1, 0, 0, "train") == walk(FLEET[::-1], 1, 0, 0, "train")


@pytest.mark.parametrize("other", [(2, 0, 0, "train"), (1, 1, 0, "train"), (1, 0, 1, "train"), (1, 0, 0, "gradient")])
def test_seed_round_attempt_and_phase_each_give_another_walk(other: tuple[int, int, int, str]) -> None:
    assert walk(FLEET, *other) != walk(FLEET, 1, 0, 0, "train")


def test_the_walk_is_the_same_on_every_machine() -> None:
    assert walk("abcdef", 7, 3, 1, "train") == ("a", "c", "e", "f", "d", "b")


def test_over_many_rounds_everybody_is_invited_about_equally_often() -> None:
    invited = [client for round_ in range(1000) for client in walk(FLEET, 1, round_, 0, "train")[:5]]
    counts = [invited.count(client) for client in FLEET]
    assert min(counts) > 190  # of 250 expected, deviation 13.7: below 1 in 10 000 for one of twenty
    assert max(counts) < 310
