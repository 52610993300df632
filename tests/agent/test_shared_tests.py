"""Test rows that agents of a simulated fleet have in common: each is computed once for a model, with the same figures."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.agent.data.dataset import (
    Array,
    Outputs,
    Rows,
    hold_back,
    kept_arrays,
    recalled,
    sets_of,
    shared_tests,
)
from covey.agent.data.partition import partition
from covey.agent.policy import NO_CODE_RULES
from covey.agent.training.learner import TorchLocal
from covey.agent.training.torch_learner import LEARNER
from covey.agent.worker import fleet_share
from covey.agent.worker.sources import dataset
from covey.shared.numerics.vectors import Vector
from covey.shared.scenario.partition import Dirichlet, GroupedLabels, Iid, LabelSkew, Partition
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import Training
from covey.shared.wire.jobs import FleetShare
from covey.shared.work.evaluate import measure
from tests.kit.scenes import Scenes

TARGETS = np.arange(2000) % 10
TESTS = np.arange(600) % 10
AGENTS = 20
TESTED = 359  # of the images of digits
TASK = Task.model_validate({"features": [64], "classes": 10, "model": {"name": "linear"}})
scenes = Scenes.of("tested", TASK.model_dump(mode="json"))
MODEL = np.linspace(-1, 1, 650, dtype=np.float32)


def fleet(folder: Path, rule: dict[str, Any]) -> list[FleetShare]:
    """The data of ten agents, whose test parts have no less than a hundred rows."""
    scenario = scenes.written(folder, fleet={"agents": 10, "data": "digits", "partition": rule})
    return [FleetShare(scenario=scenario, index=index) for index in range(10)]


@pytest.mark.parametrize("rule", [LabelSkew(share=0.2), Dirichlet(alpha=0.5), GroupedLabels()])
def test_the_rows_of_a_set_test_the_same_agents(rule: Partition) -> None:
    rng = np.random.default_rng(0)
    split = partition(rule, TARGETS, AGENTS, rng, test_targets=TESTS)
    numbers = sets_of(split.test_idx, split.test_ptr)
    assert numbers is not None
    testers: dict[int, set[int]] = {row: set() for row in split.test_idx.tolist()}
    for agent in range(AGENTS):
        for row in split.test(agent).tolist():
            testers[row].add(agent)
    for number in np.unique(numbers):
        assert len({frozenset(testers[row]) for row in split.test_idx[numbers == number]}) == 1


def test_rows_that_test_one_agent_each_are_not_shared() -> None:
    split = partition(Iid(), TARGETS, AGENTS, np.random.default_rng(0), test_targets=TESTS)
    assert sets_of(split.test_idx, split.test_ptr) is None


def test_sets_of_a_few_rows_are_not_shared() -> None:
    rows = np.concatenate([np.arange(100), np.arange(0, 100, 2), np.arange(0, 100, 3)])
    assert sets_of(rows, np.array([0, 100, 150, len(rows)])) is not None
    rows = np.concatenate([np.arange(8), np.arange(4)])
    assert sets_of(rows, np.array([0, 8, 12])) is None


def test_an_agent_without_test_rows_or_with_one_twice_shares_none() -> None:
    kept = kept_arrays()
    nothing = np.empty(0, np.int64)
    assert shared_tests(nothing, nothing, kept) is None
    assert shared_tests(np.zeros(2, np.int64), np.array([5, 5]), kept) is None


def test_each_row_is_computed_once_for_a_model_and_lies_where_the_agent_has_it() -> None:
    numbers = np.array([0, 1, 0, 1, 0])
    computed: list[int] = []
    kept = kept_arrays()

    def outputs(own: Rows, model: Vector) -> Outputs:
        def compute(rows: Rows) -> Outputs:
            computed.extend(own[rows].tolist())
            return own[rows, None].astype(np.float32)

        shared = shared_tests(numbers, own, kept)
        assert shared is not None
        return shared.outputs("settings", model, compute)

    one, other = np.array([30, 11, 10, 12, 20]), np.array([20, 12, 30, 11, 10])
    assert outputs(one, MODEL)[:, 0].tolist() == one.tolist()
    assert outputs(other, MODEL)[:, 0].tolist() == other.tolist()
    assert sorted(computed) == [10, 11, 12, 20, 30]
    outputs(other, MODEL + 1)
    assert len(computed) == 10


def test_the_outputs_that_were_used_last_are_kept() -> None:
    kept = kept_arrays(room_bytes=2 * 40)
    asked: list[bytes] = []

    def outputs_of(name: bytes) -> Outputs:
        asked.append(name)
        return np.ones(10, np.float32)

    for name in (b"a", b"b", b"a", b"c", b"a", b"b"):
        recalled(kept, (b"", name, 0), partial(outputs_of, name))
    assert asked == [b"a", b"b", b"c", b"b"]


def test_outputs_larger_than_all_the_room_are_not_kept() -> None:
    kept = kept_arrays(room_bytes=39)
    for _ in range(2):
        assert len(recalled(kept, (b"a",), lambda: np.ones(10, np.float32))) == 10
    assert len(kept) == 0


def test_shares_of_simulated_agents_are_kept_as_far_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept(room_bytes: int) -> int:
        """How many of three shares are the same object when they are asked for again, the newest first."""
        monkeypatch.setattr(fleet_share, "SHARES_BYTES", room_bytes)
        folder = tmp_path / str(room_bytes)
        folder.mkdir()
        agents = fleet(folder, {"name": "iid"})[:3]
        shares = [dataset(agent, TASK) for agent in agents]
        return sum(dataset(agents[index], TASK) is shares[index] for index in (2, 1, 0))

    own = dataset(fleet(tmp_path, {"name": "iid"})[0], TASK)
    arrays = (own.features, own.targets, own.test_features, own.test_targets)
    share_bytes = sum(array.nbytes for array in arrays)
    assert [kept(int(share_bytes * shares)) for shares in (0.5, 2.5, 3.5)] == [0, 2, 3]


def test_figures_of_shared_rows_are_those_of_each_agent_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = LEARNER.layout(TASK, NO_CODE_RULES.allowed)
    rows: list[int] = []
    alone: list[dict[str, Any]] = []
    together: list[dict[str, Any]] = []
    computed = TorchLocal._computed

    def counted(local: TorchLocal, model: Vector, features: Array) -> Outputs:
        rows.append(len(features))
        return computed(local, model, features)

    monkeypatch.setattr(TorchLocal, "_computed", counted)
    for source in fleet(tmp_path, {"name": "label_skew", "share": 0.2}):
        data = dataset(source, TASK)
        assert data.shared_tests is not None
        for own, figures in ((replace(data, shared_tests=None), alone), (data, together)):
            rng = np.random.default_rng(0)
            local = LEARNER.local(
                own, TASK, layout, training=Training(), rng=rng, rules=NO_CODE_RULES
            )
            figures.append(measure(((1.0, MODEL),), local))
    assert together == alone
    assert sum(rows) == sum(figures["n"] for figures in alone) + TESTED


def test_turned_images_and_samples_that_are_held_back_share_no_rows(tmp_path: Path) -> None:
    images = Task.model_validate(
        {"features": [1, 8, 8], "classes": 10, "model": {"name": "linear"}}
    )
    turned, *_ = fleet(tmp_path, {"name": "rotation"})
    assert dataset(turned, images).shared_tests is None
    skewed, *_ = fleet(tmp_path, {"name": "label_skew", "share": 0.2})
    _, held = hold_back(dataset(skewed, TASK), 0, "agent")
    assert held is not None
    assert held.shared_tests is None
