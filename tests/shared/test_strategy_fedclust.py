"""FedClust on clients whose answers are known by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from covey.shared.strategies.base import Phase, Training
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.strategies.fedclust import FedClust
from covey.shared.strategies.reading import folded
from tests.bowl import Bowl, bowl_layout, flat
from tests.drive import Run, fingerprint
from tests.shared.planted import ONE, SGD, bowls, equal, run, setup, softmaxes, two_groups


@pytest.mark.parametrize("linkage", ["average", "single", "complete", "weighted", "ward"])
@pytest.mark.parametrize("cut", [{"n_clusters": 2}, {"lambda": 3.0}, {"lambda_quantile": 0.43}])
def test_fedclust_finds_planted_groups_from_final_layers(cut: dict[str, Any], linkage: Any) -> None:
    # the bodies differ more than the heads: only who looks at the final layer alone finds the groups
    locals_ = bowls(*((100.0 * i, (-1) ** i * 10 + 0.1 * i) for i in range(8)))
    end = run(FedClust(**cut, linkage=linkage), locals_, rounds=1)
    assert end.state.assign == {client: i % 2 for i, client in enumerate(locals_)}
    first, _ = end.phases[0]
    assert (first.name, first.sizes, first.ends_round) == ("signature", {"signature": 1}, False)


def test_fedclust_finds_label_groups_of_real_classifiers_and_trains_them() -> None:
    locals_ = softmaxes(more=0)
    training = Training(epochs=3, batch=8, lr=0.1, momentum=0.5)
    end = run(FedClust(n_clusters=2), locals_, training, rounds=5)
    assert end.state.assign == {f"c{i}": i % 2 for i in range(6)}
    single = run(FedAvg(), locals_, training, rounds=5)

    def accuracy(where: Run, client: str) -> float:
        local = locals_[client]
        return float(
            np.mean(local.predict(where.personal(client)[0][1], "test").argmax(axis=1) == local.y)
        )

    clustered = np.mean([accuracy(end, client) for client in locals_])
    assert clustered > 0.9
    assert clustered >= np.mean([accuracy(single, client) for client in locals_])


def test_fedclust_clusters_start_at_the_common_start_and_end_at_their_groups() -> None:
    locals_ = two_groups()
    at = Run(FedClust(n_clusters=2), setup(locals_, ONE, flat(1, -1)), locals_)
    at.phase(0)
    assert [model.tolist() for model in at.state.models] == [[1, -1], [1, -1]]
    at.rounds(20)
    assert at.state.models[0] == pytest.approx([5, 5.3], rel=1e-4)
    assert at.state.models[1] == pytest.approx([-5, -4.6], rel=1e-4)


def test_fedclust_names_the_lambda_that_a_cut_implies() -> None:
    end = run(FedClust(n_clusters=2), two_groups(), rounds=1)
    facts = end.strategy.shown(end.state).notes
    for threshold in (facts["lambda_from"], (facts["lambda_from"] + facts["lambda_below"]) / 2):
        assert (
            run(FedClust(threshold=threshold), two_groups(), rounds=1).state.assign
            == end.state.assign
        )
    other = run(FedClust(threshold=facts["lambda_below"]), two_groups(), rounds=1).state
    assert len(other.models) == 1
    assert len(facts["merge_heights"]) == 7


def test_fedclust_by_default_trains_as_long_as_in_a_round_before_clustering() -> None:
    locals_ = two_groups(each=1)
    end = run(FedClust(n_clusters=2), locals_, Training(epochs=2, batch=100, lr=0.5), rounds=1)
    assert end.state.signatures["c00"] == pytest.approx([5 * (1 - 0.5**2)])


def test_fedclust_reference_is_the_plain_mean_of_the_first_uploads() -> None:
    locals_ = {
        f"c{i}": Bowl(flat(0, v), examples)
        for i, (v, examples) in enumerate([(2, 10), (3, 90), (7, 20), (-9, 10)])
    }
    end = run(FedClust(n_clusters=2), locals_, rounds=1)
    assert [centroid.tolist() for centroid in end.state.centroids] == [[2.0], [-4.5]]


def test_fedclust_trains_for_first_epochs_before_clustering_only() -> None:
    locals_ = two_groups(each=1)
    end = run(FedClust(n_clusters=2, first_epochs=3), locals_, rounds=1)
    assert end.state.signatures["c00"] == pytest.approx([5 * (1 - 0.5**3)])
    assert end.state.models[0] == pytest.approx([2.5, 2.5])


def test_fedclust_counts_its_first_training_in_steps_if_the_scenario_gives_steps() -> None:
    """Three steps for everybody: within the first epoch of 40 samples, in the third epoch of 10."""
    locals_ = {"a": Bowl(flat(5, 5), examples=40), "b": Bowl(flat(-5, -5), examples=10)}
    training = Training(epochs=2, batch=10, lr=0.5)
    end = run(FedClust(n_clusters=2, first_steps=3), locals_, training, rounds=1)
    assert end.strategy.order(end.state, Phase("entry"), "stranger").numbers == {"steps": 3}
    assert end.state.signatures["a"] == pytest.approx([5 * (1 - 0.5**3)])
    assert end.state.signatures["b"] == pytest.approx([-5 * (1 - 0.5**3)])
    assert end.state.models[0] == pytest.approx(
        [5 * (1 - 0.5**8)] * 2
    )  # two epochs of four steps in the round


def test_fedclust_steps_that_make_whole_epochs_are_epochs_to_the_byte() -> None:
    clients = equal()  # 24 samples, three batches
    steps = run(FedClust(n_clusters=2, first_steps=6), clients, SGD, rounds=1).state.signatures
    epochs = run(FedClust(n_clusters=2, first_epochs=2), clients, SGD, rounds=1).state.signatures
    assert fingerprint(steps) == fingerprint(epochs)


def test_fedclust_refuses_two_lengths_of_the_first_training() -> None:
    with pytest.raises(ValidationError, match="first_epochs and first_steps both set the length"):
        FedClust(first_epochs=1, first_steps=5)


@pytest.mark.parametrize(
    ("normalize", "groups"),
    [("none", [0, 0, 1, 2]), ("delta", [0, 0, 1, 2]), ("unit", [0, 1, 1, 0])],
)
def test_fedclust_normalisation_takes_out_size_or_leaves_it_in(
    normalize: Any, groups: list[int]
) -> None:
    # two directions, one short and one long each: by plain distance the short ones are alike, by unit the directions
    locals_ = bowls((0, 1, 1), (0, 1, -1), (0, 9, -9), (0, 8, 8))
    strategy = FedClust(n_clusters=max(groups) + 1, normalize=normalize)
    end = Run(strategy, replace(setup(locals_), layout=bowl_layout(3, head=2)), locals_).rounds(1)
    assert [*end.state.assign.values()] == groups


@pytest.mark.parametrize(
    ("normalize", "reference", "expected"),
    [
        ("none", "round0", 0),
        ("delta", "round0", 0),
        ("unit", "round0", 1),
        ("none", "current", 0),
        ("unit", "current", 1),
    ],
)
def test_fedclust_compares_a_newcomer_in_the_way_that_the_clusters_were_found(
    normalize: Any, reference: Any, expected: int
) -> None:
    # short and long in two directions: a newcomer is short like one cluster and points like the other
    locals_ = bowls((0, 1, 1), (0, 1.2, 1), (0, 8, -9), (0, 9, -9))
    strategy = FedClust(n_clusters=2, normalize=normalize, newcomer_ref=reference)
    start = replace(setup(locals_, ONE, flat(5, 1, 1)), layout=bowl_layout(3, head=2))
    at = Run(
        strategy, start, {c: Bowl(b.minimum + flat(0, 1, 1)) for c, b in locals_.items()}
    ).rounds(1)
    assert [*at.state.assign.values()] == [0, 0, 1, 1]
    newcomer = Report({"signature": flat(1 + 0.5, 1 - 0.5)}, 10)
    after = folded(strategy, at.state, Phase("entry", ("new",)), reports=[("new", newcomer)])
    assert after.assign["new"] == expected


@pytest.mark.parametrize("reference", ["round0", "current"])
def test_fedclust_newcomers_join_their_group_by_their_final_layer(reference: Any) -> None:
    joins = {"c04": 3, "c05": 3}
    end = run(FedClust(n_clusters=2, newcomer_ref=reference), two_groups(), rounds=6, joins=joins)
    assert end.state.assign == {client: i % 2 for i, client in enumerate(two_groups())}
    names = [(phase.name, phase.cohort) for phase, _ in end.phases]
    assert names[4] == ("entry", ("c04", "c05"))
    assert [name for name, _ in names] == [
        "signature",
        "train",
        "train",
        "train",
        "entry",
        "train",
        "train",
        "train",
    ]


def test_fedclust_reference_is_the_first_uploads_or_the_current_model() -> None:
    grown = (
        flat(0, 40),
        flat(0, 2.6),
    )  # after many rounds: by now a newcomer's 2.4 is nearest to the other cluster
    newcomer = [("new", Report({"signature": flat(2.4)}, 10))]
    for reference, expected in (("round0", 0), ("current", 1)):
        end = run(FedClust(n_clusters=2, newcomer_ref=reference), two_groups(), rounds=1)
        state = replace(end.state, models=grown)
        assert (
            folded(end.strategy, state, Phase("entry", ("new",)), reports=newcomer).assign["new"]
            == expected
        )


def test_fedclust_newcomers_do_not_move_the_reference_of_their_cluster() -> None:
    before = run(FedClust(n_clusters=2), two_groups(), rounds=2, joins={"c05": 3})
    centroids = fingerprint(before.state.centroids)
    assert "c05" in before.rounds(4).state.assign
    assert fingerprint(before.state.centroids) == centroids


def test_fedclust_clusters_those_who_answered_once_half_of_them_have() -> None:
    end = run(
        FedClust(n_clusters=2),
        two_groups(),
        rounds=2,
        drop=lambda phase, _, c: phase == "signature" and c < "c04",
    )
    assert len(end.phases[0][1]) == 4
    assert end.state.assign == {
        client: i % 2 for i, client in enumerate(two_groups())
    }  # the rest came by entry
    with pytest.raises(AssertionError, match="void again and again"):
        run(FedClust(), two_groups(), drop=lambda phase, _, c: phase == "signature" and c < "c05")


def test_fedclust_takes_one_cut_and_its_refusal_names_the_given_ones() -> None:
    with pytest.raises(ValidationError, match="n_clusters and lambda cut the same tree"):
        FedClust.model_validate({"name": "fedclust", "lambda": 1, "n_clusters": 2})
    for spelled in ({"lambda": 1.5}, {"threshold": 1.5}):
        assert FedClust.model_validate(spelled).threshold == 1.5


def test_a_cluster_without_reporters_keeps_its_model() -> None:
    end = run(FedClust(n_clusters=2), two_groups(), rounds=2)
    odd = {client for client, k in end.state.assign.items() if k == 1}
    end.drop = lambda phase, round_, client: client in odd
    before = end.state.models
    after = end.rounds(3).state.models
    assert after[1] is before[1]
    assert not np.array_equal(after[0], before[0])


def turned(each: int = 4) -> dict[str, Bowl]:
    """Two groups whose bodies go opposite ways, while all final layers go the same way."""
    return bowls(*((9.0 * (-1) ** i, 8.0 * (-1) ** i, 1 + 0.01 * i) for i in range(2 * each)))


def test_fedclust_finds_groups_of_inputs_by_updates_where_final_layers_are_equal() -> None:
    locals_ = turned()
    truth = {client: i % 2 for i, client in enumerate(locals_)}
    by_update = run(FedClust(n_clusters=2, signature="update"), locals_, rounds=1).state
    assert by_update.assign == truth
    assert run(FedClust(n_clusters=2), locals_, rounds=1).state.assign != truth


def test_fedclust_sends_an_update_as_one_kilobyte_whatever_its_length() -> None:
    """The direction alone: agents with more data go farther the same way."""
    strategy = FedClust(n_clusters=2, signature="update")
    end = run(strategy, bowls((0, 3, 3), (0, 30, 30), (0, 5, -5), (0, 50, -50)), rounds=1)
    first, _ = end.phases[0]
    assert first.sizes == {"signature": 256}
    short, long, *_ = end.state.signatures.values()
    assert short.nbytes == 1024
    assert short == pytest.approx(long, abs=1e-6)
    assert [*end.state.assign.values()] == [0, 0, 1, 1]


@pytest.mark.parametrize("reference", ["round0", "current"])
def test_fedclust_compares_a_newcomers_update_also_if_it_was_drawn_for_a_round(
    reference: Any,
) -> None:
    locals_ = turned()
    strategy = FedClust(n_clusters=2, signature="update", newcomer_ref=reference)
    at = Run(strategy, setup(locals_), locals_).rounds(2)
    model = flat(-4, -4, 1)
    drawn = Report({"model": model}, examples=10)
    state = strategy.assign_newcomers(at.state, [("stranger", drawn)])
    assert state.assign["stranger"] == at.state.assign["c01"]


def test_fedclust_refuses_to_normalise_an_update() -> None:
    with pytest.raises(ValidationError, match="leave normalize out"):
        FedClust(signature="update", normalize="delta")
