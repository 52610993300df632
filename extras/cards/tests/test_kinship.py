"""Which shifts the cards of a fleet show, and how often they show one that is not there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.extras.cards import kinship
from covey.shared.numerics import votes
from covey.shared.numerics.choose_k import by_rotations
from covey.shared.numerics.clustering import euclidean
from covey.shared.numerics.metrics import adjusted_rand
from covey.shared.strategies.bases.cut import KINDS, Cut

CLASSES, VALUES = 5, 20
FLEETS = 20
Array = npt.NDArray[np.float64]
Agent = tuple[Array, npt.NDArray[np.int64]]  # inputs and labels
Change = Callable[[int, Array, npt.NDArray[np.int64]], Agent]


def unchanged(_: int, inputs: Array, labels: npt.NDArray[np.int64]) -> Agent:
    return inputs, labels


def fleet(
    seed: int, agents: int, sigma: float, mean: int = 100, change: Change = unchanged
) -> list[Agent]:
    """Gaussian classes with common centres; numbers of samples are log-normal."""
    draw = np.random.default_rng(seed)
    centres = draw.standard_normal((CLASSES, VALUES))
    owned = []
    for agent in range(agents):
        size = max(int(mean * np.exp(sigma * draw.standard_normal())), 12)
        labels = draw.integers(0, CLASSES, size)
        inputs = centres[labels] + draw.standard_normal((size, VALUES))
        owned.append(change(agent, inputs, labels))
    return owned


def shifts_of(owned: list[Agent], seed: int = 0) -> kinship.Shifts:
    cards = []
    for agent, (inputs, labels) in enumerate(owned):
        cards.append(
            kinship.card(
                [inputs], labels, CLASSES, units=np.arange(len(labels)), seed=seed, client=agent
            )
        )
    return kinship.shifts(cards, seed, flips=499)


@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("agents", [8, 20])
def test_a_fleet_without_shift_is_seldom_split_whatever_the_sizes(
    agents: int, sigma: float
) -> None:
    """Each of three tests fires at 1 %, so four alarms in 20 fleets have a chance below 0.3 %."""
    alarms = sum(shifts_of(fleet(seed, agents, sigma), seed).any for seed in range(FLEETS))
    assert alarms <= 3


def test_rotations_split_the_same_fleets_where_sizes_differ() -> None:
    """Class means as signatures: those of agents with few samples are far from all others."""
    split = 0
    for seed in range(10):
        rows = []
        for inputs, labels in fleet(seed, 20, 1.0):
            means = [
                inputs[labels == c].sum(axis=0) / max((labels == c).sum(), 1)
                for c in range(CLASSES)
            ]
            rows.append(np.concatenate(means).astype(np.float32))
        split += by_rotations(euclidean(rows)).clusters > 1
    assert split >= 8


def test_a_style_of_half_of_the_agents_is_found_as_style() -> None:
    def lifted(agent: int, inputs: Array, labels: npt.NDArray[np.int64]) -> Agent:
        return inputs + (0.5 if agent % 2 else 0.0), labels

    found = shifts_of(fleet(1, 20, 0.5, change=lifted))
    assert found.style < 0.01
    assert found.labels >= 0.01
    assert found.concept >= 0.01


def test_two_classes_that_are_swapped_at_half_of_the_agents_are_found_as_concept() -> None:
    def swapped(agent: int, inputs: Array, labels: npt.NDArray[np.int64]) -> Agent:
        swap = np.array([1, 0, 2, 3, 4])
        return inputs, swap[labels] if agent % 2 else labels

    found = shifts_of(fleet(2, 20, 0.5, change=swapped))
    assert found.concept < 0.01
    assert found.labels >= 0.01


def test_agents_with_classes_of_their_own_are_found_by_their_labels() -> None:
    def narrow(agent: int, inputs: Array, labels: npt.NDArray[np.int64]) -> Agent:
        kept = (labels + agent) % 2 == 0
        return inputs[kept], labels[kept]

    found = shifts_of(fleet(3, 20, 0.5, change=narrow))
    assert found.labels < 0.01
    assert found.style >= 0.01


def test_samples_of_one_unit_stay_in_one_block_and_blocks_are_filled_in_turn() -> None:
    units = np.repeat(np.arange(6), 5)
    blocks = kinship.dealt(units, 1, "a")
    of_units = blocks.reshape(6, 5)
    assert (of_units == of_units[:, :1]).all()
    assert sorted(np.bincount(of_units[:, 0], minlength=4).tolist()) == [1, 1, 2, 2]
    assert (blocks != kinship.dealt(units, 1, "b")).any()


def test_an_agent_with_one_unit_has_no_say() -> None:
    """Its blocks but one are empty, so its products of two blocks are zero."""
    cards = []
    for agent, (inputs, labels) in enumerate(fleet(4, 8, 0.0)):
        one_unit = np.zeros(len(labels))
        cards.append(
            kinship.card([inputs + agent], labels, CLASSES, units=one_unit, seed=0, client=agent)
        )
    found = kinship.shifts(cards)
    assert (found.style, found.concept) == (1.0, 1.0)


def test_sums_of_classes_with_few_samples_are_not_sent_and_counts_are() -> None:
    labels = np.array([0] * 4 + [1] * 5)
    one = kinship.card(
        [np.ones((9, VALUES))], labels, CLASSES, units=np.arange(9), seed=0, client="c"
    )
    assert one.counts.sum(axis=0).tolist() == [4, 5, 0, 0, 0]
    assert not one.sums[:, 0].any()
    assert one.sums[:, 1].any()


def test_the_sums_of_single_samples_are_sent_where_the_task_allows_it_and_the_fit_has_them() -> (
    None
):
    labels = np.array([0] * 4 + [1])
    one = kinship.card(
        [np.ones((5, VALUES))], labels, CLASSES, units=np.arange(5), seed=0, client="c", min_cell=1
    )
    received = kinship.unpacked(*one.packed(), one.squares.tolist())
    assert received is not None
    np.testing.assert_allclose(received.squares, one.squares)
    assert kinship.Kinship.of([received] * 4).sent[0].tolist() == [4, 1, 0, 0, 0]


def test_a_card_in_pieces_is_the_card_and_travels_as_means_and_counts() -> None:
    [(inputs, labels)] = fleet(2, 1, 0.0)
    units = np.arange(len(labels))
    whole = kinship.card([inputs], labels, CLASSES, units=units, seed=3, client="c")
    pieces = kinship.card(
        [inputs[:40], inputs[40:]], labels, CLASSES, units=units, seed=3, client="c"
    )
    means, counts = pieces.packed()
    received = kinship.unpacked(means, counts)
    assert received is not None
    np.testing.assert_array_equal(received.counts, whole.counts)
    np.testing.assert_allclose(received.sums, whole.sums, rtol=1e-6)
    assert (means.size, len(counts)) == (4 * CLASSES * 32, 4 * CLASSES)


@pytest.mark.parametrize(("means", "counts"), [(128, 5), (127, 4), (128, 8)])
def test_means_and_counts_that_do_not_fit_each_other_are_no_card(means: int, counts: int) -> None:
    assert kinship.unpacked(np.ones(means, np.float32), [1] * counts) is None


def test_more_than_fifty_classes_share_fifty() -> None:
    labels = np.arange(120)
    one = kinship.card([np.ones((120, 2))], labels, 120, units=labels, seed=0, client="c")
    assert one.counts.sum(axis=0).tolist() == [3] * 20 + [2] * 30


def test_classes_of_a_regression_are_tenths_of_a_normal_distribution() -> None:
    values = np.random.default_rng(1).standard_normal(20_000)
    counts = np.bincount(kinship.tenths(values), minlength=10)
    assert len(counts) == 10
    assert np.abs(counts / 2_000 - 1).max() < 0.1


def test_agents_whose_data_are_equal_show_no_shift_by_rounding() -> None:
    labels = np.arange(60) % 3
    inputs = np.full((60, 4), 0.1) * (1.0 + labels[:, None])
    cards = []
    for agent in range(8):
        size = 30 + 3 * agent
        one = kinship.card(
            [inputs[:size]], labels[:size], 3, units=np.arange(size), seed=0, client=agent
        )
        received = kinship.unpacked(*one.packed())
        assert received is not None
        cards.append(received)
    assert not kinship.shifts(cards).any


def test_the_fit_finds_class_means_and_styles_of_unequal_tables() -> None:
    """Without noise the layout is exact but for the ridge; each term goes where it belongs."""
    draw = np.random.default_rng(5)
    counts = draw.integers(50, 5000, (6, 3)).astype(np.float64)
    means, style = draw.standard_normal((3, 2)), draw.standard_normal((6, 2))
    sums = counts[..., None] * (means + style[:, None])
    _, found, concept = kinship.fitted(counts, sums)
    apart = found - found[0] - (style - style[0])
    assert np.abs(apart).max() < 0.01
    assert np.abs(concept).max() < 0.01


def test_equal_cards_and_seeds_give_equal_chances() -> None:
    owned = fleet(6, 8, 0.5)
    assert shifts_of(owned, 3) == shifts_of(owned, 3)


# -- distances ------------------------------------------------------------------------------------


def cards_of(owned: list[Agent], seed: int = 0) -> list[kinship.Card]:
    return [
        kinship.card(
            [inputs], labels, CLASSES, units=np.arange(len(labels)), seed=seed, client=agent
        )
        for agent, (inputs, labels) in enumerate(owned)
    ]


@given(seed=st.integers(0, 50), agents=st.integers(4, 12))
@settings(max_examples=20, deadline=None)
def test_agents_in_another_order_have_the_same_distances_in_that_order(
    seed: int, agents: int
) -> None:
    cards = cards_of(fleet(seed, agents, 1.0, mean=30), seed)
    order = np.random.default_rng(seed).permutation(agents)
    before = kinship.Kinship.of(cards)
    after = kinship.Kinship.of([cards[i] for i in order])
    for one, other in (
        (before.by_inputs(("style", "concept")), after.by_inputs(("style", "concept"))),
        (before.by_labels(), after.by_labels()),
    ):
        np.testing.assert_allclose(other, one[np.ix_(order, order)], atol=2 * kinship.GRAIN)


@given(cut=st.integers(30, 170))
@settings(max_examples=20, deadline=None)
def test_the_totals_of_a_card_are_those_of_its_parts(cut: int) -> None:
    [(inputs, labels)] = fleet(7, 1, 0.0, mean=200)
    labels = np.arange(200) % CLASSES
    whole, one, two = (
        kinship.card(
            [inputs[rows]], labels[rows], CLASSES, units=np.arange(200)[rows], seed=0, client="c"
        )
        for rows in (slice(None), slice(cut), slice(cut, None))
    )
    for name in ("counts", "sums"):
        parts = getattr(one, name).sum(axis=0) + getattr(two, name).sum(axis=0)
        np.testing.assert_allclose(getattr(whole, name).sum(axis=0), parts, atol=1e-9)
    np.testing.assert_allclose(whole.squares, one.squares + two.squares)


@pytest.mark.parametrize("kind", ["style", "concept"])
def test_noise_leaves_distances_between_groups_unbiased(kind: str) -> None:
    """Agents with few samples are as far apart as those with many; without the correction they would not be."""

    def moved(agent: int, inputs: Array, labels: npt.NDArray[np.int64]) -> Agent:
        size = 0.8 * (agent % 2)
        return inputs + (size / 3 if kind == "style" else size * (labels[:, None] < 2)), labels

    def apart(mean: int, *, corrected: bool = True) -> float:
        means = []
        for seed in range(12):
            found = kinship.Kinship.of(cards_of(fleet(seed, 10, 0.0, mean, moved), 1))
            squares = (found if corrected else replace(found, noise=0.0)).by_inputs((kind,))
            means.append(squares[::2, 1::2].mean())
        return float(np.mean(means))

    truth = apart(2000)
    assert apart(40) == pytest.approx(truth, rel=0.12)
    assert apart(40, corrected=False) > 1.3 * truth


@pytest.mark.parametrize("samples", [30, 120])
def test_other_samples_of_the_same_kind_are_no_change(samples: int) -> None:
    draws = range(50)
    fired = sum(
        kinship.has_changed(own_card(seed, samples), own_card(seed + 1000, samples), seed)
        for seed in draws
    )
    assert fired <= 2


@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_finds_each_kind_of_change_in_its_own_data(kind: str) -> None:
    found = [
        kinship.has_changed(own_card(seed), own_card(seed + 1000, kind=kind), seed)
        for seed in range(10)
    ]
    assert sum(found) >= 9


def test_equal_data_and_a_part_of_them_are_no_change() -> None:
    whole = own_card(3)
    assert not kinship.has_changed(whole, own_card(3), 0)
    assert not kinship.has_changed(whole, own_card(3, samples=180), 0)


def test_data_with_another_number_of_classes_are_a_change() -> None:
    before, after = own_card(3), own_card(3)
    fewer = kinship.Card(after.counts[:, :3], after.sums[:, :3], after.squares[:3])
    assert kinship.has_changed(before, fewer, 0)


def own_card(seed: int, samples: int = 200, kind: str = "") -> kinship.Card:
    """A card that stays with its agent, of four classes in eight dimensions."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 2 if kind == "labels" else 4, samples)
    inputs = 3 * np.eye(4, 8)[labels] + draw.standard_normal((samples, 8))
    inputs += kind == "style"
    if kind == "concept":
        labels = np.array([1, 0, 2, 3])[labels]
    units = np.arange(samples)
    return kinship.card(
        [inputs], labels, 4, units=units, seed=0, client="a", min_cell=1, blocks=kinship.OWN_BLOCKS
    )


def test_a_cut_of_the_distances_finds_groups_of_unequal_agents() -> None:
    def swapped(agent: int, inputs: Array, labels: npt.NDArray[np.int64]) -> Agent:
        swap = [np.arange(5), np.array([1, 0, 2, 3, 4]), np.array([0, 1, 3, 2, 4])][agent % 3]
        return inputs, swap[labels]

    found = kinship.Kinship.of(cards_of(fleet(2, 15, 0.7, mean=200, change=swapped)))
    rule = Cut("average", most=8)
    tree, _ = rule.tree(np.sqrt(found.by_inputs(("concept",))), (1.0, 1.0, 0.001))
    assert tree.labels.tolist() == [0, 1, 2] * 5


@pytest.mark.parametrize("lie", ["means", "noise", "one class", "counts"])
def test_one_false_card_hides_no_groups_among_the_others(lie: str) -> None:
    def swapped(agent: int, inputs: Array, labels: npt.NDArray[np.int64]) -> Agent:
        swap = [np.arange(5), np.array([1, 0, 2, 3, 4]), np.array([0, 1, 3, 2, 4])][agent % 3]
        return inputs, swap[labels]

    cards = cards_of(fleet(2, 15, 0.7, mean=300, change=swapped))
    one = cards[4]
    sums = one.sums.copy()
    sums[:, 2 if lie == "one class" else slice(None)] *= 1e4
    cards[4] = {
        "means": replace(one, sums=sums, squares=one.squares * 1e8),
        "noise": replace(one, squares=np.full(CLASSES, 1e90)),
        "one class": replace(one, sums=sums),
        "counts": replace(one, counts=one.counts * 1e6, squares=one.squares * 1e12),
    }[lie]
    squares = kinship.within_reach(kinship.Kinship.of(cards).by_inputs(("concept",)))
    tree, _ = Cut("average", most=8).tree(np.sqrt(squares), (1.0, 1.0, 0.001))
    honest = [agent for agent in range(15) if agent != 4]
    truth = [agent % 3 for agent in honest]
    assert adjusted_rand([int(tree.labels[agent]) for agent in honest], truth) == 1


def test_agents_without_common_classes_are_as_far_apart_as_the_mean() -> None:
    labels = [np.repeat([0, 1, 2], 20)] * 6 + [np.repeat([3, 4], 30)]
    draw = np.random.default_rng(1)
    owned = [(draw.standard_normal((60, VALUES)), one) for one in labels]
    found = kinship.Kinship.of(cards_of(owned))
    apart = found.by_inputs(("concept",))
    others = apart[:6, :6][np.triu_indices(6, 1)]
    assert apart[6, :6] == pytest.approx(np.full(6, others.mean()), abs=2 * others.max())
    assert len(set(apart[6, :6].tolist())) == 1


def test_fleets_with_few_common_classes_are_compared_by_style_alone() -> None:
    def narrow(agent: int, inputs: Array, labels: npt.NDArray[np.int64]) -> Agent:
        kept = labels == agent % 5
        return inputs[kept], labels[kept]

    found = kinship.Kinship.of(cards_of(fleet(3, 10, 0.0, change=narrow)))
    np.testing.assert_array_equal(found.by_inputs(("concept",)), found.by_inputs(("style",)))


def test_a_newcomer_is_nearest_to_the_group_of_its_kin() -> None:
    def lifted(agent: int, inputs: Array, labels: npt.NDArray[np.int64]) -> Agent:
        return inputs + (0.5 if agent % 2 else 0.0), labels

    cards = cards_of(fleet(1, 12, 0.5, change=lifted))
    groups = kinship.Kinship.of(cards[:10]).grouped(np.arange(10) % 2)
    for agent in (10, 11):
        apart = groups.joined(cards[agent]).by_inputs(("style",))
        assert int(apart[-1, :-1].argmin()) == agent % 2


def test_labels_are_compared_without_the_share_of_chance() -> None:
    def narrow(agent: int, inputs: Array, labels: npt.NDArray[np.int64]) -> Agent:
        kept = labels >= 2 if agent % 2 else labels < 3
        return inputs[kept], labels[kept]

    found = kinship.Kinship.of(cards_of(fleet(1, 8, 0.5, change=narrow))).by_labels()
    same = found[0, 2::2]
    other = found[0, 1::2]
    assert same.max() < 0.1 * other.min()


# -- votes of a fleet -----------------------------------------------------------------------------


def test_a_vote_is_the_sum_of_differences_in_standard_deviations() -> None:
    won = votes.counted([(0.2, 0.01), (0.3, 0.01), (-0.1, 0.01)])
    assert (won.voters, won.better) == (3, 2)
    assert won.z == pytest.approx(0.4 / 0.03**0.5)


def test_one_liar_has_one_vote() -> None:
    honest = [(0.1, 0.001)] * 9
    for lie in ((-1e50, 0.0), (-1e50, 1e100), (0.0, 1e100)):
        assert votes.counted([*honest, lie]).z > votes.SURE


def test_a_group_that_loses_beyond_chance_is_harmed_however_much_the_others_gain() -> None:
    votes_of = [(0.4, 0.01)] * 3 + [(-0.2, 0.01)] * 3
    groups = [0] * 3 + [1] * 3
    won = votes.counted(votes_of, groups)
    assert won.z > 2.33
    assert won.harms
    assert won.least == pytest.approx(-0.6 / 0.03**0.5)
    assert not votes.counted(votes_of, [0, 1] * 3).harms, "both groups gain on average"
    assert not votes.counted(votes_of).harms


def test_one_liar_alone_in_a_group_is_not_a_group_that_loses() -> None:
    honest = [(0.1, 0.001)] * 9
    assert not votes.counted([*honest, (-1e50, 0.0)], [0] * 9 + [1]).harms
    assert votes.counted([*honest, *[(-1e50, 0.0)] * 2], [0] * 9 + [1] * 2).harms


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20), st.floats(1e-6, 1.0))
def test_a_vote_for_the_other_model_is_the_vote_against_this_one(
    gains: list[float], variance: float
) -> None:
    one = votes.counted([(gain, variance) for gain in gains])
    other = votes.counted([(-gain, variance) for gain in gains])
    assert other.z == -one.z
    assert other.gain == -one.gain


def test_nothing_is_sure_without_votes_or_between_equal_models() -> None:
    for none in (votes.counted([]), votes.counted([(0.0, 0.0)] * 4)):
        assert none.z == 0
    assert votes.counted([(0.1, 0.0)] * 4).z > votes.SURE


def test_losses_that_are_not_finite_count_as_very_large() -> None:
    gain, variance = votes.difference(
        np.array([np.inf, np.nan, 1.0], np.float32), np.ones(3, np.float32), np.arange(3)
    )
    assert np.isfinite([gain, variance]).all()
    assert gain > 0
