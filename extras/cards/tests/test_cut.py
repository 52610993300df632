"""Whether a fleet is clustered, and into how many clusters: the cut that FedClust, PACFL, Robust and CFL share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from covey.extras.cards import fleet_cards, kinship
from covey.shared.numerics.clustering import Linkage, euclidean
from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import Strategy, View
from covey.shared.strategies.bases import cut
from covey.shared.strategies.bases.cut import COUNTS, Chances, Cut
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.strategies.fedclust import FedClust
from covey.shared.strategies.fesem import Fesem
from covey.shared.strategies.fesem_ma import FesemMa
from covey.shared.strategies.ifca import Ifca
from covey.shared.strategies.pacfl import Pacfl
from covey.shared.strategies.phase_names import CARD
from covey.shared.strategies.reading import folded
from covey.shared.strategies.robust import Robust
from tests.bowl import Softmax, softmax_client
from tests.drive import Run
from tests.shared.planted import SGD, bowls, run, setup, softmaxes

NONE: Chances = (0.5, 0.5, 0.5)
SHIFT: Chances = (0.5, 0.005, 0.5)
HEADS = np.random.default_rng(5).standard_normal((10, 1))


def alike(count: int = 10) -> dict[str, Softmax]:
    """Agents with all labels and unequal numbers of samples."""
    return {
        f"c{i:02}": softmax_client((0, 1, 2, 3), seed=i, n=24 + 40 * (i % 3)) for i in range(count)
    }


def swapped(count: int = 12) -> dict[str, Softmax]:
    """Agents in three groups with names of their own for the labels."""
    names = [np.array(one) for one in ([0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1])]
    clients = {f"c{i:02}": softmax_client((0, 1, 2, 3), seed=i, n=80) for i in range(count)}
    return {
        client: replace(local, y=names[i % 3][local.y])
        for i, (client, local) in enumerate(clients.items())
    }


def notes(end: Run) -> dict[str, Any]:
    return dict(end.strategy.shown(end.state).notes)


@pytest.mark.parametrize("strategy", [FedClust(), Pacfl()])
def test_a_fleet_without_shift_is_one_cluster_and_the_record_has_why(
    strategy: Strategy[Any],
) -> None:
    end = run(strategy, alike(), rounds=1)
    facts = notes(end)
    assert len(end.state.models) == 1
    assert facts["shift"] == "no shift found: one group"
    assert min(facts["shift_chances"].values()) >= 0.01
    assert (
        "no shift found between the data of 10 agents: one group, this run is FedAvg"
        in (facts["warning_clusters"])
    )


@pytest.mark.parametrize("strategy", [FedClust(), Pacfl()])
def test_groups_by_label_are_found_behind_the_gate_with_their_evidence(
    strategy: Strategy[Any],
) -> None:
    clients = softmaxes(8)
    end = run(strategy, clients, rounds=1)
    facts = notes(end)
    assert [*end.state.assign.values()] == [0, 1] * 4
    assert facts["shift"].startswith("agents differ in labels")
    assert facts["shift_chances"]["labels"] < 0.01
    assert 0 < facts["silhouette"] <= 1
    assert "silhouette_by_chance" not in facts
    assert "warning_clusters" not in facts
    labels = [client.y for client in clients.values()]
    samples = np.bincount(np.concatenate(labels), minlength=len(facts["classes"]))
    holders = [sum(k in of_agent for of_agent in labels) for k in range(len(samples))]
    assert facts["classes"] == [list(one) for one in zip(samples, holders, strict=True)]


def test_robust_without_a_number_of_clusters_has_the_same_gate_and_cut() -> None:
    groups = bowls(*((s * 5.0, 0.1 * i) for i, s in enumerate((1, -1) * 4)))
    end = run(Robust(n_clusters=None), groups, rounds=1)
    assert [*end.state.assign.values()] == [0, 1] * 4
    assert notes(end)["shift"].startswith("agents differ in")
    one = run(Robust(n_clusters=None), alike(), SGD, rounds=1)
    assert len(one.state.models) == 1
    assert "this run is FedAvg" in notes(one)["warning_clusters"]
    given = run(Robust(), groups, rounds=1)
    assert "shift" not in notes(given)


def test_the_gate_decides_whether_and_silhouettes_how_many() -> None:
    matrix = euclidean(list(HEADS))
    rule = Cut("complete")
    closed, opened = rule.choice(matrix, NONE), rule.choice(matrix, SHIFT)
    assert closed is not None
    assert opened is not None
    assert (closed.clusters, opened.clusters > 1) == (1, True)


@pytest.mark.parametrize("choose", get_args(cut.Choose))
def test_the_gate_is_in_front_of_every_automatic_cut(choose: Any) -> None:
    matrix = euclidean(list(np.repeat([[0.0], [9.0]], 5, axis=0) + 0.1 * HEADS))
    rule = Cut("ward", choose)
    closed, _ = rule.tree(matrix, NONE)
    opened, _ = rule.tree(matrix, SHIFT)
    assert (closed.clusters, opened.clusters) == (1, 2)


def test_without_a_say_of_the_cards_silhouettes_must_be_better_than_chance() -> None:
    matrix = euclidean(list(HEADS))
    for rule, chances in ((Cut("complete"), ()), (Cut("complete", gate="none"), SHIFT)):
        choice = rule.choice(matrix, chances)
        assert choice is not None
        assert choice.clusters == 1
        assert 0 < choice.score < choice.chance


@pytest.mark.parametrize(
    ("agents", "least"),
    [(1, 1), (3, 1), (4, 2), (6, 2), (8, 3), (9, 3), (30, 3), (31, 4), (100, 10)],
)
def test_a_group_has_three_agents_and_a_tenth_and_a_third_of_a_small_fleet(
    agents: int, least: int
) -> None:
    assert Cut("complete").least(agents) == least
    assert Cut("complete", min_group=2).least(agents) == 2
    assert Cut("complete", n_clusters=2).least(agents) == 1, "a given cut has groups of any size"


LOOSE = np.random.default_rng(3).standard_normal((36, 6))
OUTLIERS = np.eye(6)[:4] * 12  # four agents, each far from all others


def sizes(rule: Cut, points: Vector, chances: Chances = SHIFT) -> list[int]:
    tree, _ = rule.tree(euclidean(list(points)), chances)
    return sorted(np.bincount(tree.labels).tolist())


@pytest.mark.parametrize("linkage", ["complete", "average", "ward", "single"])
def test_outliers_around_one_loose_group_are_no_cut(linkage: Linkage) -> None:
    points = np.concatenate([LOOSE, OUTLIERS])
    assert sizes(Cut(linkage), points) == [40]
    assert min(sizes(Cut(linkage, min_group=1), points)) == 1


@pytest.mark.parametrize("choose", get_args(cut.Choose))
@pytest.mark.parametrize("chances", [SHIFT, ()])
def test_groups_are_found_among_outliers_which_join_the_nearest(
    choose: Any, chances: Chances
) -> None:
    groups = np.concatenate([0.3 * LOOSE[:18], 0.3 * LOOSE[18:] + 9 * np.eye(6)[4]])
    lone = np.array([[0.0, 0, 0, 0, 4, 3], [0, 0, 0, 0, 5, -3]])
    tree, _ = Cut("ward", choose).tree(euclidean(list(np.concatenate([groups, lone]))), chances)
    assert tree.labels[:36].tolist() == [0] * 18 + [1] * 18
    assert tree.clusters == 2


def test_agents_that_have_joined_have_no_weight_and_the_record_has_their_number() -> None:
    points = np.concatenate([LOOSE[:10] * 0.1, LOOSE[10:20] * 0.1 + 5, [[0.0] * 5 + [-40]]])
    tree, _ = Cut("average").tree(euclidean(list(points)), SHIFT)
    assert (tree.joined, tree.clusters, tree.weights[-1]) == (1, 2, 0.0)
    assert tree.weights[tree.labels == 0].sum() == pytest.approx(1)


def test_a_fleet_without_two_groups_that_are_large_enough_is_one() -> None:
    far = np.diag(np.arange(1.0, 9.0)) * 100
    assert sizes(Cut("complete"), far) == [8]
    assert sizes(Cut("complete", "gap"), far) == [8]


@pytest.mark.parametrize(
    "given",
    [
        lambda: FedClust(n_clusters=2, min_group=1),
        lambda: Pacfl(threshold=9, min_group=3),
        lambda: Robust(min_group=1),
        lambda: Ifca(n_clusters=2, min_group=1),
        lambda: Fesem(gate="none", min_group=1),
    ],
)
def test_the_least_size_of_a_group_next_to_a_cut_that_is_given_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"leave (it|min_group) out"):
        given()


@pytest.mark.parametrize(
    "given", [{"n_clusters": 3}, {"threshold": 1e9}, {"quantile": 1.0}], ids=str
)
def test_a_given_cut_is_never_gated_and_asks_for_no_cards(given: dict[str, Any]) -> None:
    rule = Cut("average", **given)
    tree, evidence = rule.tree(euclidean(list(HEADS)), NONE)
    assert tree.clusters == given.get("n_clusters", 1)
    assert (rule.asks_cards, evidence) == (False, ())


@pytest.mark.parametrize(
    "strategy", [FedClust(n_clusters=2), FedClust(gate="none"), Pacfl(threshold=9)]
)
def test_cards_are_sent_only_where_they_decide(strategy: Strategy[Any]) -> None:
    end = run(strategy, softmaxes(8), rounds=1)
    first, _ = end.phases[0]
    assert CARD not in first.sizes
    assert "shift" not in notes(end)


NUMBERED = (Ifca, Fesem, FesemMa)


@pytest.mark.parametrize("method", NUMBERED)
def test_methods_that_need_a_number_take_that_of_the_cards_and_one_without_a_shift(
    method: Any,
) -> None:
    one, two = (run(method(), clients, SGD, rounds=2) for clients in (alike(), swapped()))
    assert (len(one.state.models), notes(one)["shift"]) == (1, "no shift found: one group")
    assert (len(two.state.models), notes(two)["shift"]) == (3, "agents differ in concept")
    given = run(method(n_clusters=3), swapped(), SGD, rounds=2)
    assert not any(CARD in phase.sizes for phase, _ in given.phases)
    assert "shift" not in notes(given)
    for mine, others in zip(two.state.models, given.state.models, strict=True):
        np.testing.assert_array_equal(mine, others)


@pytest.mark.parametrize("method", NUMBERED)
def test_a_given_number_stands_behind_a_gate_that_is_asked_for(method: Any) -> None:
    for clients, clusters in ((alike(), 1), (swapped(), 4)):
        end = run(method(n_clusters=4, gate="cards"), clients, SGD, rounds=1)
        assert len(end.state.models) == clusters


@pytest.mark.parametrize("method", NUMBERED)
def test_without_a_say_of_the_cards_these_methods_have_their_usual_number(method: Any) -> None:
    clients = alike()
    begun = replace(setup(clients, count=method().starts), private=True)
    ends = [
        Run(method(), begun, clients).rounds(1),
        run(method(gate="none"), clients, rounds=1),
        run(method(), alike(3), rounds=1),
    ]
    assert [len(end.state.models) for end in ends] == [method.usual] * 3
    assert "under privacy none are sent" in notes(ends[0])["shift"]


def test_ifca_without_a_shift_is_fedavg_to_the_byte() -> None:
    clients = alike()
    ifca, fedavg = (run(strategy, clients, SGD, rounds=3) for strategy in (Ifca(), FedAvg()))
    np.testing.assert_array_equal(ifca.state.models[0], fedavg.state.model)


def test_a_newcomer_sends_no_card() -> None:
    end = run(FedClust(), softmaxes(8), rounds=3, joins={"c7": 1})
    names = [(phase.name, CARD in phase.sizes) for phase, _ in end.phases]
    assert ("entry", False) in names
    assert ("signature", True) in names
    assert end.state.assign["c7"] == 0, (
        "agents that hold nothing back abstain, so the cut has no votes"
    )


def test_under_privacy_no_card_is_sent_and_the_record_has_why() -> None:
    clients = softmaxes(8)
    begun = replace(setup(clients), private=True)
    end = Run(FedClust(), begun, clients).rounds(1)
    first, _ = end.phases[0]
    assert CARD not in first.sizes
    assert "under privacy none are sent" in notes(end)["shift"]


def test_fewer_than_four_cards_have_no_say() -> None:
    end = run(FedClust(), softmaxes(3), rounds=1)
    assert notes(end)["shift"] == "not tested: fewer than 4 agents sent a card"


def test_the_gate_answers_from_the_cards_that_came_and_fit() -> None:
    """Two agents with another number of classes; the others still show their labels."""
    clients = softmaxes(8)
    strategy = FedClust()
    begun = setup(clients)
    state = strategy.init(begun)
    phase = strategy.plan(state, View(0, 3, 0, tuple(clients)))
    whole = Run(strategy, begun, clients)
    reports = []
    for client in clients:
        order = strategy.order(state, phase, client)
        job = whole.job(phase.name, client, order)
        report, _ = strategy.work(job, whole.local(job), {})
        reports.append((client, report))
    short = replace(
        reports[0][1],
        vectors={**reports[0][1].vectors, CARD: np.ones(128, np.float32)},
        numbers={COUNTS: [9] * 4},
    )
    broken = replace(short, numbers={COUNTS: [9] * 5})
    phase = replace(phase, cohort=tuple(clients))
    mixed = [(reports[0][0], short), (reports[1][0], broken), *reports[2:]]
    assert min(folded(strategy, state, phase, reports=mixed).chances) < 0.01
    few = [(client, short) for client in list(clients)[:5]] + reports[5:]
    assert folded(strategy, state, phase, reports=few).chances != ()


def test_of_a_large_fleet_a_sample_of_the_cards_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight agents five are drawn, and the rest may send what they like."""
    unpacked: list[int] = []
    monkeypatch.setattr(fleet_cards, "MOST_CARDS", 5)

    def counted(means: Vector, counts: Sequence[int], squares: None) -> kinship.Card | None:
        unpacked.append(len(counts))
        return kinship.Card(np.ones((4, 2)), np.ones((4, 2, cut.PROJECTED)), np.zeros(2))

    monkeypatch.setattr(fleet_cards, "unpacked", counted)
    run(FedClust(), softmaxes(8), rounds=1)
    assert len(unpacked) == 5


def test_options_of_a_cut_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="n_clusters gives the cut, so nothing is left to choose"):
        FedClust(n_clusters=2, choose="silhouette")
    with pytest.raises(ValueError, match="n_clusters gives the cut, which has no gate"):
        Pacfl(n_clusters=2, gate="cards")


def test_linkage_and_signature_are_the_papers_where_the_cut_is_given() -> None:
    automatic, given = FedClust(), FedClust(n_clusters=2)
    assert (automatic.choose, automatic.linkage, automatic.signature) == (
        "silhouette",
        "complete",
        "update",
    )
    assert (given.choose, given.linkage, given.signature) == ("gap", "average", "final_layer")
    assert FedClust(choose="rotations").linkage == "ward"
    assert FedClust(normalize="delta").signature == "final_layer"
    assert FedClust(linkage="single").linkage == "single"


@pytest.mark.parametrize(
    "strategy", [FedClust(), FedClust(n_clusters=2), Pacfl(), Pacfl(threshold=4)]
)
def test_options_written_out_and_read_again_are_the_same(strategy: Strategy[Any]) -> None:
    kind = type(strategy)
    assert kind.model_validate(strategy.model_dump(mode="json", by_alias=True)) == strategy


def test_fedclust_warns_where_every_agent_is_a_cluster_of_its_own() -> None:
    locals_ = bowls(*((0.0, float(head)) for head in range(6)))
    end = run(FedClust(threshold=-1.0), locals_, rounds=1)
    assert "each of 6 agents is a group of its own" in notes(end)["warning_clusters"]
    assert "warning_clusters" not in notes(run(FedClust(n_clusters=1), locals_, rounds=1))
