"""Matching with widths that grow: scores by hand, the best of all places by brute force, functions that stay."""

from itertools import permutations
from math import log

import numpy as np
import pytest

from covey.agent.training.models import initial
from covey.shared.numerics.fedma import (
    BIAS,
    Inputs,
    Prior,
    Units,
    average_last,
    layers_of,
    match,
    match_layer,
    most_new,
    permute,
    raw_inputs,
    scores,
)
from covey.shared.numerics.vectors import Layout, Tensor, Vector
from covey.shared.scenario.task import Model, Task

MLP = Layout(
    tuple(Tensor(f"{name}.{kind}", shape) for name, kind, shape in (
        ("fc1", "weight", (4, 3)), ("fc1", "bias", (4,)),
        ("fc2", "weight", (3, 4)), ("fc2", "bias", (3,)),
        ("out", "weight", (2, 3)), ("out", "bias", (2,)),
    )),
    6,
)  # fmt: skip
ZERO = np.zeros(2)
VAGUE = Prior(noise=0.01, spread=1e6)  # its means are plain means


def draw(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def units(*rows: tuple[float, ...]) -> Units:
    return np.array(rows, np.float64)


def models(count: int, layout: Layout = MLP, scale: float = 3.0) -> list[Vector]:
    return [draw(seed).normal(0, scale, layout.size).astype(np.float32) for seed in range(count)]


def test_a_score_of_a_known_unit_is_the_formula_by_hand() -> None:
    # s = 2, s0 = 1/2, one unit matched: p = 5/2; J = 3
    prior = Prior(noise=0.5, spread=2.0, mass=1.5)
    found = scores(units((1, 2)), units((3, 1)), np.array([1]), networks=3, mean=ZERO, prior=prior)
    assert found[0, 0] == pytest.approx((5**2 + 5**2) / 4.5 - (9 + 1) / 2.5 + 2 * log(1 / 2))


def test_a_score_of_the_rth_new_unit_is_the_formula_by_hand() -> None:
    prior = Prior(noise=0.5, spread=2.0, mass=1.5)
    mean = np.array([0.0, 0.1])
    found = scores(
        units((1, 2), (0, 1)), units((3, 1)), np.array([1]), networks=3, mean=mean, prior=prior
    )
    assert found.shape == (2, 1 + 2)
    for r in (1, 2):
        alone = (2**2 + 4.05**2) / 2.5 - 0.05**2 / 0.5
        assert found[0, r] == pytest.approx(alone - 2 * log(r) + 2 * log(1.5 / 3))


def test_popularity_counts_up_to_ten() -> None:
    rows, sums = units((1, 2)), units((3, 1), (3, 1))
    found = scores(rows, sums, np.array([10, 15]), networks=20, mean=ZERO, prior=Prior())
    expected = [(16 + 9) / (p + 1) - 10 / p + 2 * log(10 / 10) for p in (11, 16)]
    assert found[0, :2] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("own", "known", "expected"), [(5, 0, 5), (5, 698, 2), (5, 900, 1), (900, 0, 900)]
)
def test_new_units_are_few_beyond_a_width_but_every_unit_gets_a_place(
    own: int, known: int, expected: int
) -> None:
    assert most_new(own, known) == expected


def test_two_networks_get_the_places_with_the_best_sum_of_scores() -> None:
    prior = Prior(sweeps=0)
    for seed in range(20):
        first, second = (draw(seed).normal(0, 2, (2, 3, 2))).astype(np.float64)
        table = scores(second, first, np.ones(3, np.int64), networks=2, mean=ZERO, prior=prior)
        sums = {
            c: sum(table[row, column] for row, column in enumerate(c))
            for c in permutations(range(6), 3)
        }
        best = max(sums, key=lambda c: sums[c])
        own = match([first, second], ZERO, prior, draw()).places[1]
        assert np.where(own < 3, own, 3).tolist() == [min(column, 3) for column in best]


def test_equal_networks_match_fully_and_keep_their_values() -> None:
    rows = draw().normal(0, 3, (5, 4))
    orders = [draw(seed).permutation(5) for seed in range(4)]
    found = match([rows[order] for order in orders], np.zeros(4), VAGUE, draw())
    assert found.units.shape == (5, 4)
    for order, own in zip(orders, found.places, strict=True):
        assert np.allclose(found.units[own], rows[order], atol=1e-6)


def test_a_global_unit_is_the_posterior_mean_of_its_units() -> None:
    # s = 1/2, s0 = 1/4: A = 1/4 * mean + 1/2 * (v + v), p = 1/4 + 2/2
    mean = np.array([0.0, 0.1])
    found = match([units((8, 2)), units((6, 4))], mean, Prior(noise=2.0, spread=4.0), draw())
    assert found.units == pytest.approx(np.array([[7 / 1.25, (0.025 + 3) / 1.25]]))


def test_units_of_one_client_alone_become_new_global_units() -> None:
    shared = (9.0, 0.0, 0.0)
    found = match([units(shared, (0, 9, 0)), units((0, 0, 9), shared)], np.zeros(3), VAGUE, draw())
    assert len(found.units) == 3
    assert found.places[0][0] == found.places[1][1]
    assert len({*found.places[0].tolist(), *found.places[1].tolist()}) == 3


def test_the_widest_network_comes_first() -> None:
    rows = draw().normal(0, 3, (4, 3))
    found = match([rows[2:], rows], np.zeros(3), Prior(sweeps=0), draw())
    assert found.places[1].tolist() == [0, 1, 2, 3]
    assert found.places[0].tolist() == [2, 3]


def test_sweeps_correct_the_first_pass_and_leave_no_empty_unit() -> None:
    rows = [draw(seed).normal(0, 1.5, (4, 2)) for seed in range(6)]
    ends = {sweeps: match(rows, ZERO, Prior(noise=0.3, sweeps=sweeps), draw()) for sweeps in (0, 8)}
    assert any((a != b).any() for a, b in zip(ends[0].places, ends[8].places, strict=True))
    for end in ends.values():
        assert set(np.concatenate(end.places).tolist()) == set(range(len(end.units)))
        assert all(len(set(own.tolist())) == len(own) for own in end.places)


def test_a_network_alone_keeps_all_its_units() -> None:
    found = match([units((3, 1), (1, 4))], ZERO, VAGUE, draw())
    assert np.allclose(found.units[found.places[0]], units((3, 1), (1, 4)), atol=1e-6)


def whole_pass(
    members: list[Vector], layout: Layout, prior: Prior, weights: Units
) -> tuple[list[Vector], list[int]]:
    inputs, widths = raw_inputs(layout, len(members)), []
    for index in range(len(layers_of(layout)) - 1):
        members, inputs = match_layer(
            members, layout, index, inputs=inputs, prior=prior, draw=draw(index)
        )
        widths.append(inputs.width)
    return average_last(members, layout, inputs, weights), widths


TASKS = [
    Task(features=(1, 8, 8), classes=4, model=Model(name="femnist_cnn", options={"hidden": 12})),
    Task(features=(6,), classes=4, model=Model(name="mlp", options={"hidden": [7, 5]})),
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.model.name)
def test_networks_that_differ_in_the_order_of_units_come_out_of_a_pass_as_they_went_in(
    task: Task,
) -> None:
    start, layout = initial(task, 3)
    start = start * np.float32(10)
    orders = [
        [draw(seed).permutation(layer.units) for layer in layers_of(layout)[:-1]]
        for seed in range(3)
    ]
    members = [permute(start, order, layout) for order in orders]
    ends, widths = whole_pass(members, layout, VAGUE, np.ones((3, 4)))
    assert widths == [layer.units for layer in layers_of(layout)[:-1]]
    for end, member in zip(ends, members, strict=True):
        assert np.allclose(end, member, atol=1e-4)


def test_a_layer_after_a_wider_one_counts_zero_for_inputs_that_a_network_lacks() -> None:
    layout = Layout(
        (Tensor("fc1.weight", (1, 2)), Tensor("fc2.weight", (1, 1)), Tensor("out.weight", (1, 1))),
        3,
    )
    members = [np.array(values, np.float32) for values in ((9, 0, 6, 1), (0, 9, 6, 1))]
    prior = Prior(noise=1.0, spread=1e9, mass=1e-9)  # the second layer matches rather than widens
    inputs = Inputs(2, (np.array([0]), np.array([1])))
    moved, after = match_layer(members, layout, 1, inputs=inputs, prior=prior, draw=draw())
    assert after.width == 1
    assert [round(float(model[2]), 4) for model in moved] == [
        3.0,
        3.0,
    ]  # the means of (6, 0) and of (0, 6)


def test_the_prior_mean_of_a_bias_is_a_tenth() -> None:
    zero = np.zeros(MLP.size, np.float32)
    moved, _ = match_layer(
        [zero], MLP, 0, inputs=raw_inputs(MLP, 1), prior=Prior(noise=1e12, spread=1.0), draw=draw()
    )
    assert MLP.named(moved[0])["fc1.bias"] == pytest.approx(BIAS)
    assert not MLP.named(moved[0])["fc1.weight"].any()


def test_the_last_layer_is_averaged_class_by_class() -> None:
    members = models(2)
    same = Inputs(3, (np.arange(3),) * 2)
    ends = average_last(members, MLP, same, np.array([[1.0, 0.0], [3.0, 5.0]]))
    a, b = (MLP.named(model) for model in members)
    for end in ends:
        out = MLP.named(end)
        assert out["out.weight"][0] == pytest.approx(
            a["out.weight"][0] / 4 + b["out.weight"][0] * 3 / 4
        )
        assert out["out.weight"][1] == pytest.approx(b["out.weight"][1])
        assert out["out.bias"][1] == pytest.approx(b["out.bias"][1])
        assert MLP.named(end)["fc1.weight"].tolist() in (
            a["fc1.weight"].tolist(),
            b["fc1.weight"].tolist(),
        )


def test_a_class_without_samples_is_averaged_by_samples() -> None:
    members = models(2)
    same = Inputs(3, (np.arange(3),) * 2)
    end = average_last(members, MLP, same, np.array([[1.0, 0.0], [3.0, 0.0]]))[0]
    a, b = (MLP.named(model)["out.bias"][1] for model in members)
    assert MLP.named(end)["out.bias"][1] == pytest.approx(a / 4 + b * 3 / 4)


def test_models_that_came_in_are_not_changed() -> None:
    members = models(3)
    for model in members:
        model.flags.writeable = False
    whole_pass(members, MLP, Prior(), np.ones((3, 2)))
