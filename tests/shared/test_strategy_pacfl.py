"""PACFL on clients whose answers are known by hand."""

import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from covey.shared.numerics.vectors import Vector
from covey.shared.seeds import generator
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.strategies.pacfl import Pacfl, signature
from tests.bowl import Softmax, flat
from tests.drive import fingerprint
from tests.shared.planted import alternating, close, run


def pictures(labels: tuple[int, ...], *, seed: int, turn: float = 0.0, n: int = 30) -> Softmax:
    """Every class is a ray in the first two of five values; `turn` (degrees) turns the rays in their plane."""
    draw = generator(seed, "pictures")
    y = np.sort(draw.choice(labels, n))
    angle = np.radians(turn + 25.0 * y)
    rays = np.stack([np.cos(angle), np.sin(angle), *np.zeros((3, n))], axis=1)
    return Softmax(rays * draw.uniform(1, 2, (n, 1)), y.astype(np.int64), 4)


@pytest.mark.parametrize(
    ("measure", "expected"), [("min_entry", 7.0), ("principal", 7.0), ("trace", 7.0)]
)
def test_pacfl_measures_degrees_between_single_rays(measure: Any, expected: float) -> None:
    locals_ = {"a": pictures((1,), seed=1), "b": pictures((1,), seed=2, turn=7.0)}
    end = run(Pacfl(measure=measure), locals_, rounds=1)
    assert end.state.heights == pytest.approx((expected,), abs=1e-3)


def test_pacfl_least_entry_and_smallest_principal_angle_differ_where_bases_are_not_orthogonal() -> (
    None
):
    # two rays each, in one plane: the planes are the same, the rays 10 degrees apart at the least
    locals_ = {"a": pictures((0, 1), seed=1), "b": pictures((0, 1), seed=2, turn=10.0)}
    heights = {
        m: run(Pacfl(measure=m), locals_, rounds=1).state.heights[0]
        for m in ("min_entry", "principal", "trace")
    }
    assert heights["min_entry"] == pytest.approx(10.0, abs=1e-3)
    assert heights["principal"] == pytest.approx(0.0, abs=0.05)
    assert heights["trace"] == pytest.approx(20.0, abs=1e-3)


def test_pacfl_trace_counts_90_degrees_for_a_class_that_one_side_lacks() -> None:
    locals_ = {"a": pictures((0, 1), seed=1), "b": pictures((1, 2), seed=2)}
    assert run(Pacfl(measure="trace"), locals_, rounds=1).state.heights == pytest.approx(
        (180.0,), abs=1e-3
    )


def test_pacfl_takes_no_notice_of_a_sign() -> None:
    strategy = Pacfl()
    start = strategy.init(run(strategy, {"a": pictures((0,), seed=1)}, rounds=1).setup)
    v, w = flat(1, 0, 0), flat(-math.cos(0.1), math.sin(0.1), 0)
    reports = [(c, Report({"signature": s}, 5, {"labels": [0]})) for c, s in (("a", v), ("b", w))]
    heights = strategy.form_clusters(start, reports).heights
    assert heights == pytest.approx((math.degrees(0.1),), abs=1e-3)


def test_a_signature_spans_each_class_and_has_as_many_vectors_as_there_are() -> None:
    draw = generator(4, "x")
    x = np.concatenate([draw.normal(0, 1, (9, 6)), np.outer([1.0, 2.0], np.arange(6))])
    y = np.array([5] * 9 + [7] * 2)
    vectors, labels = signature(x, y, 3)
    assert labels == [5, 5, 5, 7]  # the two samples of class 7 lie on one ray
    left = np.linalg.svd(x[:9].T)[0][:, :3]
    assert np.abs(vectors[:3] @ left) == pytest.approx(np.eye(3), abs=1e-5)
    assert vectors[3] == pytest.approx(np.arange(6) / np.linalg.norm(np.arange(6)))
    assert signature(x, np.linspace(0, 1, 11), 2)[1] == [0, 0]  # values: all are one class


def test_pacfl_finds_groups_and_trains_one_model_for_each() -> None:
    locals_ = {f"c{i}": pictures(((0, 1), (2, 3))[i % 2], seed=i) for i in range(6)}
    end = run(Pacfl(threshold=4.9), locals_, rounds=3)
    assert end.state.assign == alternating(locals_)
    assert [phase.name for phase, _ in end.phases] == ["signature", "train", "train", "train"]
    alone = run(FedAvg(), {c: v for c, v in locals_.items() if end.state.assign[c] == 1}, rounds=3)
    assert close(end.state.models[1], alone.state.model)


@pytest.mark.parametrize("newcomers", ["nearest", "recluster"])
def test_pacfl_newcomer_joins_the_nearest_cluster_or_founds_one_from_its_model(
    newcomers: Any,
) -> None:
    locals_ = {f"c{i}": pictures(((0,), (2,))[i % 2], seed=i) for i in range(4)}
    locals_ |= {"n1": pictures((2,), seed=8, turn=2.0), "n2": pictures((3,), seed=9)}
    drop: dict[str, Any] = {"drop": lambda phase, r, c: phase == "train" and c == "n2"}
    end = run(
        Pacfl(threshold=4.9, newcomers=newcomers),
        locals_,
        rounds=3,
        joins={"n1": 1, "n2": 2},
        **drop,
    )
    assert end.state.assign == {"c0": 0, "c1": 1, "c2": 0, "c3": 1, "n1": 1, "n2": 2}
    before = run(
        Pacfl(threshold=4.9, newcomers=newcomers),
        locals_,
        rounds=2,
        joins={"n1": 1, "n2": 2},
        **drop,
    )
    assert (
        end.state.models[2].tolist() == before.state.models[1].tolist()
    )  # the nearest: 25 degrees away, not 75


def test_pacfl_clustering_again_may_part_a_cluster_and_the_parts_start_from_its_model() -> None:
    # complete linkage up to 20 degrees: 0 and 18 are together until 25 comes and takes 18 away
    locals_ = {
        c: pictures((0,), seed=i, turn=turn)
        for i, (c, turn) in enumerate({"a": 0, "b": 18, "c": 25}.items())
    }
    strategy = Pacfl(threshold=20.0, linkage="complete", newcomers="recluster")
    end = run(
        strategy,
        locals_,
        rounds=2,
        joins={"c": 1},
        drop=lambda phase, r, c: phase == "train" and r == 1 and c != "a",
    )
    assert end.state.assign == {"a": 0, "b": 1, "c": 1}
    before = run(strategy, locals_, rounds=1, joins={"c": 1})
    assert before.state.assign == {"a": 0, "b": 0}
    assert end.state.models[1].tolist() == before.state.models[0].tolist()


@pytest.mark.parametrize("cut", [{"n_clusters": 2}, {"vote": "none"}])
def test_pacfl_newcomer_is_judged_by_the_cut_that_was_made(cut: Any) -> None:
    locals_ = {f"c{i}": pictures(((0,), (2,))[i % 2], seed=i, turn=0.01 * i) for i in range(6)}
    locals_ |= {
        "n": pictures((3,), seed=9, turn=60.0)
    }  # 85 degrees from class 2, 45 from class 0 the other way
    end = run(Pacfl(**cut), locals_, rounds=2, joins={"n": 1})
    assert len(end.state.models) == 2
    assert end.state.assign["n"] in (0, 1)


def test_pacfl_keeps_out_a_signature_that_cannot_be_compared() -> None:
    strategy = Pacfl(threshold=5.0)
    start = strategy.init(run(strategy, {"a": pictures((0,), seed=1)}, rounds=1).setup)
    good = {"labels": [0]}
    v = flat(1, 0, 0)
    told: list[tuple[dict[str, Vector], dict[str, Any]]] = [
        ({"signature": flat(1, 0)}, good),
        ({"signature": v}, {"labels": "0"}),
        ({"signature": v}, {"labels": []}),
    ]
    told += [({"signature": flat(1, 0, 0, 1)}, {"labels": [0, 0, 0]}), ({}, good)]
    for vectors, numbers in told:
        reports = [
            ("a", Report({"signature": v}, 5, good)),
            ("b", Report({"signature": v}, 5, good)),
        ]
        state = strategy.form_clusters(start, [*reports, ("odd", Report(vectors, 5, numbers))])
        assert set(state.assign) == {"a", "b"}
        assert set(
            strategy.assign_newcomers(state, [("odd", Report(vectors, 5, numbers))]).assign
        ) == {"a", "b"}


def test_pacfl_wants_one_cut() -> None:
    with pytest.raises(ValidationError, match="beta and n_clusters cut the same tree"):
        Pacfl(threshold=3.0, n_clusters=2)


def test_pacfl_drawn_stranger_trains_but_no_cluster_takes_it_in() -> None:
    locals_ = {f"c{i}": pictures(((0,), (2,))[i % 2], seed=i) for i in range(4)}
    late: dict[str, Any] = {
        "drop": lambda phase, r, c: c == "c3" and phase != "train" and r < 2,
        "joins": {"c3": 1},
    }
    end = run(Pacfl(threshold=5.0), locals_, rounds=2, **late)
    assert "c3" not in end.state.assign
    without = run(Pacfl(threshold=5.0), {c: v for c, v in locals_.items() if c != "c3"}, rounds=2)
    assert fingerprint(end.state.models) == fingerprint(without.state.models)
    assert end.rounds(3).state.assign["c3"] == 1


def test_pacfl_newcomer_beyond_the_largest_gap_founds_a_cluster_and_one_before_it_does_not() -> (
    None
):
    """The gap of the tree is from about 0 to 40 degrees: who lies nearer than 40 joins, who lies farther founds."""
    turns = {"a0": 0.0, "a1": 0.01, "b0": 40.0, "b1": 40.01}
    clients = {
        name: pictures((0,), seed=i, turn=turn) for i, (name, turn) in enumerate(turns.items())
    }
    near = {**clients, "n": pictures((0,), seed=8, turn=79.0)}
    far = {**clients, "n": pictures((0,), seed=8, turn=85.0)}
    by_gap = Pacfl(choose="gap", linkage="complete", min_group=1, vote="none")
    joined = run(by_gap, near, rounds=2, joins={"n": 1})
    founded = run(by_gap, far, rounds=2, joins={"n": 1})
    assert joined.state.cut[1] == pytest.approx(40.01, abs=1e-3)
    assert joined.state.assign["n"] == joined.state.assign["b0"]
    assert founded.state.assign["n"] == 2
    assert len(founded.state.models) == 3
    of_two = run(Pacfl(choose="gap", linkage="complete"), far, rounds=2, joins={"n": 1})
    assert of_two.state.assign["n"] == of_two.state.assign["b0"], "alone it is no group"


@pytest.mark.parametrize(("linkage", "joins"), [("weighted", "c"), ("average", "d")])
def test_pacfl_newcomer_is_placed_by_the_linkage_that_made_the_clusters(
    linkage: Any, joins: str
) -> None:
    """a (0), b (4) and c (10 degrees) are a cluster, where WPGMA's merges give them 1/4, 1/4 and 1/2. The newcomer at 20 is
    14 degrees away by these weights and 15.3 by the plain mean; d lies 15 away."""
    turns = {"a": 0.0, "b": 4.0, "c": 10.0, "d": 35.0, "n": 20.0}
    clients = {
        name: pictures((0,), seed=i, turn=turn) for i, (name, turn) in enumerate(turns.items())
    }
    state = run(Pacfl(linkage=linkage, n_clusters=2), clients, rounds=2, joins={"n": 1}).state
    assert state.assign["a"] == state.assign["b"] == state.assign["c"] != state.assign["d"]
    assert state.assign["n"] == state.assign[joins]


def test_pacfl_newcomers_do_not_outweigh_the_clustered_and_found_clusters_that_others_join() -> (
    None
):
    turns = {"a": 0.0, "b": 2.0, "n1": 60.0, "n2": 62.0, "n3": 64.0}
    clients = {
        name: pictures((0,), seed=i, turn=turn) for i, (name, turn) in enumerate(turns.items())
    }
    late = {"n1": 1, "n2": 2, "n3": 3}
    state = run(Pacfl(threshold=3.5), clients, rounds=4, joins=late).state
    assert state.assign == {
        "a": 0,
        "b": 0,
        "n1": 1,
        "n2": 1,
        "n3": 1,
    }  # n3: 3 degrees from the mean of n1 and n2


@pytest.mark.parametrize(
    ("beta", "clusters"), [(0.0, 3), (9.9, 3), (10.1, 2), (19.9, 2), (20.1, 1), (180.0, 1)]
)
def test_pacfl_merges_up_to_beta_degrees(beta: float, clusters: int) -> None:
    clients = {
        name: pictures((0,), seed=i, turn=10.0 * i) for i, name in enumerate(("a", "b", "c"))
    }
    state = run(Pacfl(threshold=beta, linkage="complete"), clients, rounds=1).state
    assert len(state.models) == clusters


def test_pacfl_without_a_gate_leaves_agents_without_groups_together() -> None:
    turns = np.random.default_rng(4).standard_normal(10) * 5
    alike = {f"c{i:02}": pictures((0,), seed=i, turn=float(turn)) for i, turn in enumerate(turns)}
    one = run(Pacfl(gate="none"), alike, rounds=1)
    assert len(one.state.models) == 1
    assert (
        "one group, this run is FedAvg" in one.strategy.shown(one.state).notes["warning_clusters"]
    )
    assert len(run(Pacfl(choose="gap", min_group=1), alike, rounds=1).state.models) > 1


def test_pacfl_has_the_public_codes_linkage_where_a_cut_is_given() -> None:
    assert (Pacfl().choose, Pacfl().linkage) == ("silhouette", "complete")
    assert (Pacfl(n_clusters=2).linkage, Pacfl(threshold=4.9).linkage) == ("weighted", "weighted")
    assert (Pacfl(choose="gap").linkage, Pacfl(linkage="single").linkage) == ("weighted", "single")


@pytest.mark.parametrize(("beta", "cluster"), [(90.0, 0), (89.9, 1)])
def test_pacfl_newcomer_at_beta_itself_joins_as_a_merge_at_beta_is_made(
    beta: float, cluster: int
) -> None:
    strategy = Pacfl(threshold=beta)
    start = strategy.init(run(strategy, {"a": pictures((0,), seed=1)}, rounds=1).setup)
    known, at_right_angles = (
        Report({"signature": flat(*vector)}, 5, {"labels": [0]})
        for vector in ((1, 0, 0), (0, 1, 0))
    )
    state = strategy.form_clusters(start, [("a", known)])
    newcomers = [("b", at_right_angles)]
    assert strategy.assign_newcomers(state, newcomers).assign == {"a": 0, "b": cluster}
