"""Known mixtures: the membership error, the accuracy of each super-class's own cluster, and runs that have both."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.coordinator.compare.mixture_columns import Column, mixture_columns, mixture_figures
from covey.coordinator.processes import launch
from covey.coordinator.processes.finish import finish
from covey.coordinator.record.truth import cluster_accuracy, membership
from covey.coordinator.run.options import Options
from covey.coordinator.simulate.driver import simulate
from covey.shared.errors import UserError
from covey.shared.scenario.load import load
from tests.e2e.conftest import finish as ends_well
from tests.kit import small_run
from tests.kit.device_run import here
from tests.kit.scenes import DIGITS, Scenes
from tests.processes import Program

TRUTH = {"a": (0.7, 0.3), "b": (0.3, 0.7), "c": (0.3, 0.7)}


def test_the_membership_error_is_that_of_the_agents_that_both_know() -> None:
    found = membership({"a": (0.4, 0.6), "b": (0.6, 0.4), "stranger": (1.0, 0.0)}, TRUTH)
    assert found == {
        **{"mse_sum": pytest.approx(0.02), "mse_mean": pytest.approx(0.01), "permutation": [1, 0]},
        "separation": pytest.approx([0.5, 0.5]),
    }


def test_the_separation_of_a_head_is_what_it_sorts_differently_in_the_two_kinds() -> None:
    """A head that puts 80 % of kind 0 and 30 % of kind 1 into cluster 0: P(c|V) - P(c|A) is 0.5, whatever the mixtures."""
    truth = {f"a{i}": (share, 1 - share) for i, share in enumerate((0.9, 0.6, 0.2))}
    into_first = {client: 0.8 * own + 0.3 * other for client, (own, other) in truth.items()}
    found = membership({client: (share, 1 - share) for client, share in into_first.items()}, truth)
    assert found is not None
    assert found["separation"] == pytest.approx([0.5, 0.5])


def test_agents_with_one_and_the_same_mixture_say_nothing_of_the_separation() -> None:
    even = {"a": (0.5, 0.5), "b": (0.5, 0.5)}
    found = membership({"a": (0.9, 0.1), "b": (0.2, 0.8)}, even)
    assert found is not None
    assert found["separation"] == [None, None]


@pytest.mark.parametrize(
    ("estimated", "truth"),
    [
        ({}, TRUTH),
        ({"a": (0.5, 0.5)}, {}),
        ({"d": (0.5, 0.5)}, TRUTH),
        ({"a": (0.2, 0.3, 0.5)}, TRUTH),
    ],
    ids=["no estimates", "no truth", "nobody in both", "three clusters of two super-classes"],
)
def test_without_memberships_to_compare_there_is_no_error(estimated: Any, truth: Any) -> None:
    assert membership(estimated, truth) is None


def test_clusters_stand_for_the_superclasses_that_they_know_best_together() -> None:
    # each by itself, both super-classes would take cluster 1
    assert cluster_accuracy([[0.2, 0.6], [0.9, 0.7]]) == {
        "by_superclass": [0.9, 0.6],
        "permutation": [1, 0],
    }
    assert cluster_accuracy([[0.1, 0.1], [0.5, 0.6], [0.7, 0.2]]) == {
        "by_superclass": [0.7, 0.6],
        "permutation": [2, 1],
    }


def test_a_single_model_stands_for_every_superclass() -> None:
    assert cluster_accuracy([[0.8, 0.6]]) == {"by_superclass": [0.8, 0.6], "permutation": [0, 0]}


@pytest.mark.parametrize("table", [[], [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]], ids=["none", "too few"])
def test_models_that_cannot_stand_for_the_superclasses_have_no_accuracy(table: Any) -> None:
    assert cluster_accuracy(table) is None


def test_a_row_has_the_figures_of_the_result_and_an_old_result_has_none() -> None:
    result = {
        "membership": {"mse_sum": 0.02, "mse_mean": 0.01, "permutation": [1, 0]},
        "cluster_accuracy": {"by_superclass": [0.9, 0.7], "permutation": [0, 1]},
    }
    assert mixture_figures(result) == {
        **{"membership_mse": 0.02, "membership_mse_mean": 0.01},
        **{"superclass_0_accuracy": 0.9, "superclass_1_accuracy": 0.7},
    }
    assert (
        mixture_figures({}) == mixture_figures({"membership": None, "cluster_accuracy": None}) == {}
    )


def test_a_table_has_a_column_where_any_method_has_the_figure() -> None:
    assert mixture_columns(["ari", "membership_mse", "membership_mse_mean"]) == [
        Column("membership_mse", "membership MSE", 4),
        Column("membership_mse_mean", "MSE / K", 4),
    ]
    accuracy = "superclass_0_accuracy"
    assert mixture_columns([accuracy]) == [Column(accuracy, "super-class 0", 2, 100.0)]
    assert mixture_columns(["ari"]) == []


# -- the end of a run --------------------------------------------------------------------------------------------------


def ended(
    folder: Path, method: str, truth: Any, rule: str = "superclass_mixture", **strategy: Any
) -> dict[str, Any]:
    """The result of a small run in numpy whose partition file holds this truth."""
    scene = small_run.scenario(
        method, strategy=strategy, fleet={"agents": 8, "partition": {"name": rule}}
    )
    run = small_run.in_process(folder, scene)
    np.savez(folder / "partition.npz", truth=np.array(truth))
    return asyncio.run(finish(run, None))


def test_memberships_are_held_against_the_partitions_mixtures(tmp_path: Path) -> None:
    told = ended(tmp_path, "fedem", [[1.0, 0.0], [0.0, 1.0]] * 4, "iid", share_memberships=True)
    assert 0 <= told["membership"]["mse_sum"] == 2 * told["membership"]["mse_mean"] <= 2
    assert told["cluster_accuracy"] is None  # no rule names the labels of the super-classes
    assert told["ari"] is None


def test_a_truth_of_groups_is_no_mixture(tmp_path: Path) -> None:
    told = ended(tmp_path, "fesem", [0, 1] * 4, "grouped_labels")
    assert (told["membership"], told["cluster_accuracy"], told["ari"]) == (None, None, 1.0)


def test_models_that_never_leave_the_agents_are_not_tested(tmp_path: Path) -> None:
    told = ended(tmp_path, "local", [[0.7, 0.3]] * 8)
    assert (told["membership"], told["cluster_accuracy"]) == (None, None)


@pytest.mark.processes
def test_a_failed_test_of_the_models_is_reported_and_leaves_no_result(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"could not be tested on the super-classes:\n.*scenario\.yaml"
    ):
        ended(tmp_path, "fedavg", [[0.7, 0.3]] * 8)  # nobody wrote scenario.yaml
    assert not (tmp_path / "result.json").exists()


# -- whole runs --------------------------------------------------------------------------------------------------------


MIXED = Scenes.of(
    "mixed",
    DIGITS,
    seed=1,
    training={"epochs": 1, "batch": 10, "lr": 0.1},
    rounds={"count": 2, "participation": 1.0},
    evaluation={"tune_epochs": 0},
    fleet={
        "agents": 4,
        "limit": 600,
        "partition": {"name": "superclass_mixture", "major": 0.9},
        "workers": 1,
    },
)
HEAD = {"model": {"options": {"hidden": 16, "head": 2}}}  # for fuzzy


@pytest.mark.processes
def test_a_soft_method_ends_with_both_figures_over_a_broker_as_without_one(tmp_path: Path) -> None:
    path = MIXED.written(tmp_path, "fuzzy", task=HEAD)
    arguments = [
        "covey.coordinator.cli",
        "run",
        str(path),
        "--out",
        str(tmp_path / "wire"),
        "--embedded",
        "--json",
    ]
    ends_well(Program(arguments, tmp_path / "log"))
    alone = simulate(load(path), Options(tmp_path / "here"), here(), lambda row: None)
    there = json.loads((tmp_path / "wire" / "result.json").read_text())
    assert alone["membership"] == there["membership"]
    assert alone["cluster_accuracy"] == there["cluster_accuracy"]
    for folder in ("here", "wire"):
        lines = [
            json.loads(line)
            for line in (tmp_path / folder / "rounds.jsonl").read_text().splitlines()
        ]
        trained = [line for line in lines if line["event"] == "phase" and line["phase"] == "train"]
        assert len(trained) == 2
        assert all(len(line["membership"]["separation"]) == 2 for line in trained)
        assert trained[-1]["membership"] == alone["membership"]
        assert all("membership" not in line for line in lines if line not in trained)
    assert 0 < alone["membership"]["mse_sum"] == 2 * alone["membership"]["mse_mean"]
    assert (
        sorted(alone["membership"]["permutation"])
        == sorted(alone["cluster_accuracy"]["permutation"])
        == [0, 1]
    )
    assert np.all(np.array(alone["cluster_accuracy"]["by_superclass"]) > 0.1)


@pytest.mark.processes
def test_memberships_that_are_known_have_no_error_and_their_clusters_know_their_own_superclass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise AssertionError(
            "a simulation starts no process for its models: its workers have torch"
        )

    monkeypatch.setattr(launch, "_child", fails)
    known = {f"agent-{i}": ([0.9, 0.1] if i < 2 else [0.1, 0.9]) for i in range(4)}
    strategy = {"name": "fuzzy", "variant": "fedavg+clusteredFL", "known": known}
    scene = MIXED(strategy, task=HEAD)
    told = simulate(scene, Options(tmp_path / "run"), here(), lambda row: None)
    assert told["membership"]["mse_sum"] == pytest.approx(0, abs=1e-12)
    assert told["membership"]["permutation"] == told["cluster_accuracy"]["permutation"] == [0, 1]
