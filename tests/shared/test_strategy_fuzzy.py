"""Fuzzy-CFL on clients whose answers are known by hand."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import Phase, View
from covey.shared.strategies.client_half import Contrast, Drill, Report, TrainingResult
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.strategies.fuzzy import Fuzzy
from covey.shared.strategies.reading import folded
from tests.bowl import flat
from tests.shared.planted import ONE, TWO, close, job, run, setup, softmaxes, two_groups, unequal


def counted(model: Vector, *counts: float) -> Report:
    return Report({"model": model}, int(sum(counts)), {"counts": list(counts)})


def test_fuzzy_mixes_clients_into_clusters_and_clusters_into_clients_by_counts() -> None:
    strategy = Fuzzy(n_clusters=2)
    state = strategy.init(setup(two_groups(spread=0), ONE, flat(0, 0)))
    state = folded(
        strategy,
        state,
        Phase(),
        reports=[("a", counted(flat(8, 0), 30, 10)), ("b", counted(flat(0, 8), 10, 30))],
    )
    assert [model.tolist() for model in state.models] == [[6, 2], [2, 6]]  # equation 3
    assert strategy.model(state, "@a").tolist() == [5, 3]  # equation 4: 3/4 and 1/4
    assert strategy.shown(state).memberships == {"a": (0.75, 0.25), "b": (0.25, 0.75)}
    assert strategy.order(state, Phase(), "a").models == ("@a",)
    later = folded(strategy, state, Phase(), reports=[("b", counted(flat(9, 9), 0, 40))])
    assert later.models[0] is state.models[0]  # nobody has a sample in it
    assert strategy.model(later, "@a").tolist() == [
        (3 * 6 + 9) / 4,
        (3 * 2 + 9) / 4,
    ]  # not a reporter, newest clusters


def test_fuzzy_ablation_with_the_loss_alone_aggregates_as_fedavg() -> None:
    locals_ = softmaxes(n=12)  # these have no head that a contrast could train
    fuzzy = run(Fuzzy(variant="fedavg+clu"), locals_, TWO)
    assert len(fuzzy.state.models) == 1
    assert close(
        fuzzy.state.models[0], run(FedAvg(), locals_, TWO, fuzzy.setup.starts[0]).state.model
    )
    assert len(fuzzy.strategy.shown(fuzzy.state).memberships["c0"]) == 2


def test_fuzzy_ablation_with_known_memberships_counts_by_them() -> None:
    known = {
        client: (0.9, 0.1) if i % 2 == 0 else (0.1, 0.9)
        for i, client in enumerate(two_groups(spread=0))
    }
    end = run(
        Fuzzy(variant="fedavg+clusteredFL", known=known),
        two_groups(spread=0),
        ONE,
        flat(0, 0),
        rounds=1,
    )
    assert end.state.counts["c00"] == (9.0, 1.0)
    assert close(end.state.models[0], 0.9 * flat(2.5, 2.5) - 0.1 * flat(2.5, 2.5))


@dataclass
class Recorder:
    """A client that notes with which contrast it was trained."""

    examples: int = 10
    seen: list[Contrast | None] = field(default_factory=list)
    counted: list[list[float]] = field(default_factory=list)

    def train(self, start: Vector, drill: Drill) -> TrainingResult:
        self.seen.append(drill.contrast)
        return TrainingResult(start + 1, 1, 0.0)

    def memberships(self, model: Vector, clusters: int) -> Any:
        self.counted.append(model.tolist())
        return np.array([4, 6])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"beta": 0.5, "temperature": 0.2, "kappa": 0.3, "contrast": "rows"},
            Contrast(2, 0.5, 0.2, 0.3, "rows"),
        ),
        ({"variant": "fedavg+clu"}, Contrast(2)),
        ({"beta": 0.0}, None),
        ({"variant": "fedavg+clusteredFL", "known": {"c": [0.4, 0.6]}}, None),
    ],
)
def test_fuzzy_trains_with_the_contrast_of_its_variant(
    options: dict[str, Any], expected: Contrast | None
) -> None:
    local: Any = Recorder()
    report, _ = Fuzzy(**options).work(job(flat(0, 0)), local, {})
    assert local.seen == [expected]
    assert report.numbers["counts"] == [4.0, 6.0]


@pytest.mark.parametrize(
    ("options", "counted"),
    [({}, [3.0, 5.0]), ({"counts": "received"}, [3.0, 5.0]), ({"counts": "trained"}, [4.0, 6.0])],
)
def test_fuzzy_by_default_counts_with_the_model_as_received(
    options: dict[str, Any], counted: list[float]
) -> None:
    local: Any = Recorder()
    report, _ = Fuzzy(**options).work(job(flat(3, 5)), local, {})
    assert local.counted == [counted]
    assert report.vectors["model"].tolist() == [4.0, 6.0]


def test_fuzzy_newcomers_count_with_the_mean_model_before_they_train() -> None:
    end = run(Fuzzy(), softmaxes(n=12), TWO, joins={"c4": 2})
    entries = [(phase.cohort, who) for phase, who in end.phases if phase.name == "entry"]
    assert entries == [(("c4",), ("c4",))]
    state = run(Fuzzy(), softmaxes(n=12), TWO, rounds=2, joins={"c4": 2}).state
    assert end.strategy.order(state, Phase("entry"), "c4").models == ("mean",)
    assert close(end.strategy.model(state, "mean"), (state.models[0] + state.models[1]) / 2)


def test_fuzzy_warns_when_all_clients_have_the_same_memberships() -> None:
    strategy = Fuzzy()
    state = strategy.init(setup(two_groups(spread=0), ONE, flat(0, 0)))
    same = [("a", counted(flat(1, 1), 5, 5)), ("b", counted(flat(2, 2), 10, 10))]
    assert (
        "one and the same"
        in strategy.shown(folded(strategy, state, Phase(), reports=same)).notes["warning"]
    )
    other = [("a", counted(flat(1, 1), 5, 5)), ("b", counted(flat(2, 2), 15, 5))]
    assert "warning" not in strategy.shown(folded(strategy, state, Phase(), reports=other)).notes


@pytest.mark.parametrize(
    "options",
    [
        {"known": {"a": [0.5, 0.5]}},
        {"variant": "fedavg+clusteredFL"},
        {"variant": "fedavg+clusteredFL", "known": {"a": [0.5, 0.2]}},
        {"variant": "fedavg+clusteredFL", "known": {"a": [0.5, 0.2, 0.3]}},
        {"variant": "fedavg+clusteredFL", "known": {"a": [1.5, -0.5]}},
    ],
)
def test_fuzzy_refuses_known_memberships_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="known"):
        Fuzzy(**options)


def test_fuzzy_keeps_what_it_knew_of_a_client_that_counts_nothing() -> None:
    strategy = Fuzzy(n_clusters=2)
    state = strategy.init(setup(two_groups(spread=0), ONE, flat(0, 0)))
    state = folded(
        strategy,
        state,
        Phase(),
        reports=[("a", counted(flat(8, 0), 30, 10)), ("b", counted(flat(0, 8), 10, 30))],
    )
    later = folded(
        strategy,
        state,
        Phase(),
        reports=[("a", counted(flat(1, 1), 0, 0)), ("new", counted(flat(1, 1), 0, 0))],
    )
    assert later.counts == state.counts
    assert [model.tolist() for model in later.models] == [model.tolist() for model in state.models]
    assert set(strategy.shown(later).memberships) == {"a", "b"}
    assert strategy.order(later, Phase(), "new").models == ("mean",)


def test_fuzzy_asks_a_newcomer_that_counts_nothing_only_once_in_a_round() -> None:
    strategy = Fuzzy(n_clusters=2)
    state = strategy.init(setup(two_groups(spread=0), ONE, flat(0, 0)))
    state = folded(strategy, state, Phase(), reports=[("a", counted(flat(8, 0), 30, 10))])
    view = View(1, 3, 0, ("a", "new"))
    entry = strategy.plan(state, view)
    assert (entry.name, entry.cohort) == ("entry", ("new",))
    state = folded(
        strategy, state, entry, reports=[("new", Report({}, 10, {"counts": [0.0, 0.0]}))]
    )
    assert strategy.plan(state, view).name == "train"


def test_fuzzy_with_known_memberships_of_one_cluster_each_is_a_fedavg_for_each() -> None:
    clients = unequal()
    groups = {client: i % 2 for i, client in enumerate(clients)}
    known = {client: (1.0, 0.0) if group == 0 else (0.0, 1.0) for client, group in groups.items()}
    end = run(Fuzzy(variant="fedavg+clusteredFL", known=known), clients, TWO, rounds=4)
    for k, model in enumerate(end.state.models):
        members = {client: local for client, local in clients.items() if groups[client] == k}
        alone = run(FedAvg(), members, TWO, end.setup.starts[0], rounds=4)
        assert close(model, alone.state.model)
