"""FedDANE on clients whose answers are known by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from covey.shared.errors import DataError
from covey.shared.strategies.base import Phase, Setup, Training, View
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.feddane import FedDane
from covey.shared.strategies.fedprox import FedProx
from covey.shared.strategies.reading import folded
from tests.bowl import Bowl, bowl_layout, flat
from tests.kit.small_run import in_process, scenario
from tests.shared.planted import ONE, SGD, equal, job, run, same, setup_for, unequal


def test_feddane_corrects_the_first_step_to_the_mean_gradient() -> None:
    """Gradients at 0 are -4 and -16, their mean -7 by samples: both first steps go 0.1 * 7, the bowls then bend them."""
    locals_ = {"a": Bowl(flat(4.0), 30), "b": Bowl(flat(8.0), 10, curvature=2.0)}
    assert run(
        FedDane(), locals_, Training(batch=100, lr=0.1), rounds=1
    ).state.model == pytest.approx([0.7])
    two = run(FedDane(), locals_, Training(epochs=2, batch=100, lr=0.1), rounds=1).state.model
    ends = [0.7 - 0.1 * (curvature * 0.7 - 7) for curvature in (1.0, 2.0)]
    assert two == pytest.approx([0.75 * ends[0] + 0.25 * ends[1]])


def test_feddane_pulls_towards_the_rounds_model() -> None:
    locals_ = {"a": Bowl(flat(8.0))}
    end = run(FedDane(mu=0.5), locals_, Training(epochs=2, batch=10, lr=0.5), rounds=1)
    assert end.state.model == pytest.approx([5.0])  # as FedProx: 4, then 4 + 0.5 * (4 - 0.5 * 4)


def test_feddane_of_one_client_with_pull_is_fedprox() -> None:
    one = {"c0": unequal()["c0"]}
    same(run(FedDane(mu=0.3), one, SGD, rounds=3), run(FedProx(mu=0.3), one, SGD, rounds=3))


def test_feddane_trains_those_who_gave_their_gradient_and_are_still_there() -> None:
    end = run(
        FedDane(),
        equal(),
        SGD,
        rounds=2,
        drop=lambda phase, round_, client: (phase, round_, client) == ("gradient", 1, "c1"),
    )
    assert [(phase.name, who) for phase, who in end.phases] == [
        ("gradient", ("c0", "c1", "c2", "c3")),
        ("train", ("c0", "c1", "c2", "c3")),
        ("gradient", ("c0", "c2", "c3")),
        ("train", ("c0", "c2", "c3")),
    ]


def test_feddane_sends_the_model_only_to_those_who_do_not_have_it() -> None:
    strategy = FedDane()
    state = strategy.init(Setup((flat(1, 1),), bowl_layout(), 0, 1, 1.0, ONE))
    gave = folded(
        strategy, state, Phase("gradient"), reports=[("a", Report({"gradient": flat(2, 0)}, 5))]
    )
    assert strategy.order(gave, Phase(), "a").models == ("gradient",)
    assert strategy.order(gave, Phase(), "b").models == ("gradient", "0")
    assert strategy.model(gave, "gradient").tolist() == [2, 0]
    assert strategy.shown(gave).notes == {"gradient_norm": 2.0}


def test_feddane_draws_again_if_the_first_cohort_is_gone_or_the_phase_was_void() -> None:
    strategy = FedDane()
    state = strategy.init(Setup((flat(1, 1),), bowl_layout(), 0, 1, 1.0, ONE))
    gave = folded(
        strategy,
        state,
        Phase("gradient"),
        reports=[(c, Report({"gradient": flat(2, 0)}, 5)) for c in ("a", "b")],
    )

    def cohort(method: FedDane, attempt: int, *present: str) -> Any:
        return method.plan(gave, View(0, 1, attempt, present)).cohort

    assert cohort(strategy, 0, "b", "c") == ("b",)
    assert cohort(strategy, 1, "b", "c") == "sample"
    assert cohort(strategy, 0, "c") == "sample"


def test_feddane_clients_new_in_the_second_phase_compute_their_gradient_first() -> None:
    strategy, local = FedDane(), Bowl(flat(8.0), training=ONE)
    layout = bowl_layout(1)
    _, client_state = strategy.work(job(flat(0.0), phase="gradient", layout=layout), local, {})
    kept, _ = strategy.work(job(flat(-2.0), layout=layout), local, client_state)
    fresh, _ = strategy.work(job(flat(-2.0), flat(0.0), layout=layout), local, {})
    assert kept.vectors["model"] == pytest.approx(
        [1.0]
    )  # one step of 0.5 along the mean gradient -2
    assert fresh.vectors["model"].tolist() == kept.vectors["model"].tolist()
    assert (kept.bases, fresh.bases) == ({}, {"model": 1})


def test_feddane_refuses_to_train_on_a_gradient_of_another_round() -> None:
    strategy, local, layout = FedDane(), Bowl(flat(8.0), training=ONE), bowl_layout(1)
    _, client_state = strategy.work(job(flat(0.0), phase="gradient", layout=layout), local, {})
    with pytest.raises(DataError, match="round 1"):
        strategy.work(job(flat(-2.0), round_=1, layout=layout), local, client_state)
    with pytest.raises(DataError, match="folder"):
        strategy.work(job(flat(-2.0), layout=layout), local, {})


def invited(method: str, folder: Path, **options: Any) -> list[tuple[str, ...]]:
    """Who was invited to each phase of three rounds, with half of eight clients in each."""
    rows: list[Any] = []
    scene = scenario(method, strategy=options)
    in_process(
        folder / f"{method}-{options}",
        scene,
        start=setup_for(scene),
        observer=lambda notice: rows.append(notice.to_json()),
    )
    return [
        tuple(row["invited"])
        for row in rows
        if row["event"] == "phase" and row["phase"] != "evaluate"
    ]


def test_feddane_draws_fedavgs_clients_in_both_phases_of_every_round(tmp_path: Path) -> None:
    drawn = invited("fedavg", tmp_path)
    assert len(set(drawn)) > 1
    assert invited("feddane", tmp_path) == [cohort for cohort in drawn for _ in range(2)]
