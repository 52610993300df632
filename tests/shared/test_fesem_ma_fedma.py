"""FeSEM-MA in mode `fedma`: a pass of L phases in which layers are matched, frozen, and the rest trained again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import Phase, Setup, Training, View
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.fesem_ma import FesemMa, FesemMaState
from covey.shared.strategies.reading import folded
from tests.bowl import Drop, Perceptron, perceptron_client
from tests.drive import Run, fingerprint

TRAINING = Training(epochs=2, batch=8, lr=0.2, momentum=0.5, weight_decay=0.01)
LAYOUT = perceptron_client(
    (0,), seed=0
).layout  # two hidden layers, 4 and 3 units wide, then 4 classes
FC1, FC2 = 24, 39  # where these layers end in a model
LOOSE: dict[str, Any] = {"gamma": 50.0}  # units found new global ones rather than match


def fleet(count: int = 6) -> dict[str, Perceptron]:
    return {
        f"c{i}": perceptron_client(((0, 1), (2, 3))[i % 2], seed=i, n=24 + 2 * i)
        for i in range(count)
    }


def started(
    drop: Drop = lambda *_: False, *, share: float = 1.0, shuffle: int = 0, **options: Any
) -> Run:
    start = np.random.default_rng(1).normal(0, 0.5, LAYOUT.size).astype(np.float32)
    strategy = FesemMa(**{"n_clusters": 2, "matching": "fedma", **options})
    return Run(
        strategy, Setup((start,), LAYOUT, 5, 5, share, TRAINING), fleet(), {"c5": 1}, drop, shuffle
    )


def stepped(run: Run, phases: int) -> FesemMaState:
    """The state after this many further phases."""
    for _ in range(phases):
        assert run.phase(0)
    state: FesemMaState = run.state
    return state


def test_a_round_is_one_training_and_one_phase_for_each_hidden_layer() -> None:
    run = started().rounds(2)
    names = [(phase.name, phase.ends_round) for phase, _ in run.phases]
    whole = [("train", False), ("layer1", False), ("layer2", True)]
    assert names == [("warmup", False), *whole, ("entry", False), *whole]
    frozen = [
        run.strategy.order(replace(run.state, frozen=n), Phase(), "c0").numbers.get("frozen")
        for n in range(3)
    ]
    assert frozen == [None, FC1, FC2]


def test_members_share_what_is_matched_and_train_what_is_not() -> None:
    run = started(n_clusters=1)
    after = stepped(run, 3)  # warm-up, training, layer 1
    assert after.frozen == 2
    sent, (a, b) = after.stored, ("c0", "c1")
    assert after.widths == {"0": (4, 3)}
    for client in (a, b):
        own = run.strategy.order(after, Phase("layer2"), client)
        assert own.models == (f"@{client}",)
        assert run.strategy.model(after, own.models[0]) is sent[client]
    ends = stepped(run, 1).stored
    assert np.array_equal(ends[a][:FC2], sent[a][:FC2])  # frozen
    assert not np.array_equal(ends[a][FC2:], sent[a][FC2:])
    order = [np.flatnonzero((rows(ends[b]) == unit).all(axis=1)).item() for unit in rows(ends[a])]
    assert sorted(order) == [0, 1, 2, 3]  # fully matched: the same units, if in other places


def rows(model: Vector) -> Any:
    return LAYOUT.named(model)["fc1.weight"]


def test_who_does_not_answer_mid_pass_takes_part_with_the_stored_model() -> None:
    run = started(lambda phase, _, client: (phase, client) == ("layer1", "c0"), n_clusters=1)
    before = stepped(run, 2).stored["c0"]  # layer 1 is matched
    after = stepped(run, 1)
    assert run.phases[-1][1] == ("c1", "c2", "c3", "c4")
    assert np.array_equal(after.stored["c0"][:FC1], before[:FC1])
    assert np.array_equal(after.stored["c0"][FC2:], before[FC2:])  # not trained
    assert not np.array_equal(
        after.stored["c0"][FC1:FC2], before[FC1:FC2]
    )  # but matched, with the others
    assert set(after.places) == {"c0", "c1", "c2", "c3", "c4"}


def test_a_layer_whose_cohort_is_gone_is_passed_with_stored_models() -> None:
    run = started()
    state = stepped(run, 2)
    plans = [
        run.strategy.plan(state, View(0, 5, attempt, present))
        for attempt, present in ((0, ("c0", "c9")), (1, ("c0",)), (0, ("c9",)))
    ]
    assert [(phase.cohort, phase.may_be_empty) for phase in plans] == [
        (("c0",), False),
        (("c0",), True),
        ((), True),
    ]
    folded(
        run.strategy,
        folded(run.strategy, state, plans[2], reports=[]),
        replace(plans[2], name="layer2"),
        reports=[],
    )


def test_a_newcomer_waits_for_the_next_pass() -> None:
    run = started()
    state = stepped(run, 2)
    assert run.strategy.plan(state, View(1, 5, 0, ("c0", "c5"))).name == "layer1"
    trained = Report({"model": run.setup.starts[0]}, 10)
    first = stepped(started(), 1)
    joined = folded(
        run.strategy,
        first,
        Phase("train"),
        reports=[("c0", Report({"model": first.stored["c0"]}, 10)), ("c5", trained)],
    )
    assert "c5" in joined.assign
    assert "c5" not in joined.places
    assert np.array_equal(joined.stored["c5"], trained.vectors["model"])
    assert {"c0"} < set(joined.places)


def test_a_cluster_without_any_report_rests() -> None:
    run = started()
    state = stepped(run, 1)
    (mine,) = {state.assign[client] for client in ("c0", "c2", "c4")}
    reports = [("c0", Report({"model": state.stored["c0"]}, 10))]
    after = folded(run.strategy, state, Phase("train"), reports=reports)
    assert set(after.places) == {"c0", "c2", "c4"}
    for name in ("layer1", "layer2"):
        after = folded(run.strategy, after, Phase(name), reports=[])
    assert (after.frozen, after.places, after.cohort) == (0, {}, ())
    assert set(after.widths) == {str(mine)}
    for client in ("c1", "c3"):
        assert after.stored[client] is state.stored[client]
    assert not np.array_equal(after.stored["c0"], state.stored["c0"])


@pytest.mark.parametrize("options", [{}, LOOSE], ids=["matched", "widened"])
def test_the_order_of_arrival_does_not_change_a_byte(options: dict[str, Any]) -> None:
    def lossy(phase: str, round_: int, client: str) -> bool:
        return (phase, client) in {("warmup", "c1"), ("layer1", "c2")} or (phase, round_) == (
            "layer2",
            1,
        )

    runs = [started(lossy, share=0.7, shuffle=shuffle, **options) for shuffle in (0, 1, 2)]
    for run in runs:
        while run.round < 3:  # nobody answers layer 2 in the second round
            run.phase(0) or run.phase(1)
    first, *others = (fingerprint(run.state) for run in runs)
    assert all(other == first for other in others)


def test_layers_widen_on_the_server_and_every_vector_has_the_tasks_layout() -> None:
    run = started(**LOOSE).rounds(2)
    widths = run.strategy.shown(run.state).notes["widths"]
    assert all(first > 4 and second > 3 for first, second in widths.values())
    assert {model.shape for model in run.state.stored.values()} == {(LAYOUT.size,)}
    assert {model.shape for model in run.strategy.clusters(run.state)} == {(LAYOUT.size,)}


def test_a_pass_lowers_every_agents_loss_and_finds_the_groups() -> None:
    run = started().rounds(3)
    assert {
        client: run.state.assign[client] == run.state.assign["c0"] for client in run.locals
    } == {f"c{i}": i % 2 == 0 for i in range(6)}
    for client, local in run.locals.items():
        ((_, own),) = run.personal(client)
        centre = run.strategy.clusters(run.state)[run.state.assign[client]]
        for model in (own, centre):
            assert local.loss(model) < local.loss(run.setup.starts[0]) / 3


def test_the_last_layer_counts_samples_of_each_class() -> None:
    run = started()
    state = stepped(run, 1)
    own = fleet()["c0"]
    assert state.counts["c0"] == tuple(np.bincount(own.y, minlength=4).tolist())


@pytest.mark.parametrize(
    "told", [[1, 2], "four", [0, 0, 0, 0], [1, -2, 3, 4], [1, 2.5, 3, 4], None], ids=str
)
def test_class_counts_that_make_no_sense_are_taken_as_none(told: Any) -> None:
    run = started()
    report = Report({"model": run.setup.starts[0]}, 7, {"classes": told})
    state = folded(
        run.strategy, run.strategy.init(run.setup), Phase("warmup"), reports=[("c0", report)]
    )
    assert state.counts["c0"] == (7, 7, 7, 7)


def test_mode_fixed_sends_centres_and_no_classes() -> None:
    run = started(matching="fixed").rounds(1)
    assert [phase.name for phase, _ in run.phases] == ["warmup", "train"]
    order = run.strategy.order(run.state, Phase(), "c0")
    assert order.models == (str(run.state.assign["c0"]),)
    assert set(order.numbers) == {"mu"}
    assert run.state.counts["c0"] == (24,) * 4
