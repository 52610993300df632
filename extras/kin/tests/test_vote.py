"""Votes over whole runs, on the data of Kin's tests."""

from __future__ import annotations

from pathlib import Path

from covey.coordinator.run.run import Run as WholeRun
from covey.extras.kin.tests.test_strategy_kin import (
    Labelling,
    even,
    people,
    phases,
    sentences,
    swapped,
)
from covey.shared.scenario.scenario import Scenario
from tests.kit import small_run
from tests.kit.local_clients import LocalClients
from tests.kit.small_run import local_for, samples_of
from tests.shared.test_vote import scene


def complete(folder: Path, labelling: Labelling, plan: Scenario) -> WholeRun:
    held = local_for(people(labelling, n=30, more=100))
    fleet = people(labelling)
    driver = small_run.driver(folder, plan, fleet, held_back=held, start_agents=8)
    assert isinstance(driver.clients, LocalClients)
    return driver.complete(samples_of(fleet))


def test_clusters_that_help_are_voted_for_and_train_apart_from_then_on(tmp_path: Path) -> None:
    given = {"n_clusters": 2, "vote": "auto"}
    run = complete(
        tmp_path / "a", swapped, scene({"name": "fedclust", "signature": "update", **given})
    )
    assert phases(tmp_path / "a") == ["signature", "vote", "trial", "trial", "vote"]
    assert [*run.state.assign.values()] == [0, 1] * 4
    assert len(run.state.models) == 2
    answer, at_home = sentences(tmp_path / "a")
    assert "after round 4: after 5 epochs at home 2 groups serve the agents better" in at_home
    assert answer.startswith("vote after round 2: 2 groups serve the agents better")
    complete(tmp_path / "b", swapped, scene({"name": "pacfl", **given}))
    assert phases(tmp_path / "b") == ["signature", "vote"]


def test_clusters_that_do_not_help_are_one_model(tmp_path: Path) -> None:
    run = complete(
        tmp_path / "voted", even, scene({"name": "fedclust", "n_clusters": 3, "vote": "auto"})
    )
    assert len(run.state.models) == 1
    assert set(run.state.assign.values()) == {0}
    [answer] = sentences(tmp_path / "voted")
    assert "3 groups do not serve the agents better than one model" in answer


def test_under_a_rule_without_shares_agents_vote_with_their_own_models(tmp_path: Path) -> None:
    given = {"n_clusters": 2, "vote": "auto"}
    plan = scene(
        {"name": "fedclust", "signature": "update", **given}, aggregation={"rule": "median"}
    )
    complete(tmp_path, swapped, plan)
    assert phases(tmp_path) == ["signature", "vote", "trial", "trial", "vote"]
