"""The versions of a run's models: what can be published, and what a rollback goes back to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from covey.coordinator.commands import promote
from covey.coordinator.deploy.log import FILE, Act, in_force, note
from covey.coordinator.deploy.publish import Published
from covey.coordinator.disk.versions import (
    BEST,
    ModelVersion,
    best_version,
    last_version,
    round_name,
    save_version,
    version_of_round,
)
from covey.coordinator.run.result import write_all, write_models
from covey.shared.errors import UserError
from covey.shared.numerics.vectors import Layout
from tests.kit import small_run


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The folder of a finished run with two clusters."""
    scene = small_run.scenario("ifca", rounds={"count": 2})
    setup = small_run.setup(scene)
    np.savez(
        tmp_path / "start.npz",
        starts=np.stack(setup.starts),
        layout=np.array(small_run.layout_text(scene)),
    )
    run = small_run.in_process(tmp_path, scene)
    write_models(run)
    write_all(run, None)
    return tmp_path


def test_the_last_the_best_and_a_kept_round_are_found(finished: Path) -> None:
    last = last_version(finished)
    assert (last.round, len(last.models)) == (2, 2)
    assert set(last.assignment.values()) <= {0, 1}
    assert last.task["features"] == [5]
    assert best_version(finished).round == 2, "without evaluations between rounds it is the last"
    better = replace(last, round=1, figure={"metric": "accuracy", "value": 0.9})
    save_version(finished, BEST, better)
    assert best_version(finished).figure == {"metric": "accuracy", "value": 0.9}
    assert version_of_round(finished, 1).round == 1
    assert np.array_equal(version_of_round(finished, 2).models[1], last.models[1])
    with pytest.raises(UserError, match="round 7 were not kept; there are those of: 1, 2"):
        version_of_round(finished, 7)


def test_versions_that_cannot_be_published_are_refused_with_a_reason(finished: Path) -> None:
    with pytest.raises(UserError, match="name two versions"):
        promote.chosen(finished, 1, best=True)
    with pytest.raises(UserError, match="not finished"):
        promote.chosen(finished / "models", None, best=False)
    last = last_version(finished)
    save_version(finished, round_name(9), replace(last, round=9, models=last.models[:1]))
    with pytest.raises(UserError, match="a cluster that has no model"):
        version_of_round(finished, 9)
    infinite = tuple(np.full_like(model, np.inf) for model in last.models)
    save_version(finished, round_name(9), replace(last, round=9, models=infinite))
    with pytest.raises(UserError, match="diverged"):
        version_of_round(finished, 9)
    for text in ('{"rounds": 2', '{"rounds": 2}', "[]"):
        (finished / "result.json").write_text(text)
        with pytest.raises(UserError, match="damaged"):
            last_version(finished)


@pytest.mark.parametrize(
    ("acts", "expected"),
    [
        ([("finish", 3), ("promote", 7)], [3, 7]),
        ([("finish", 3), ("promote", 7), ("rollback", 3)], [3]),
        ([("finish", 3), ("promote", 7), ("promote", 8), ("rollback", 7)], [3, 7]),
        ([("finish", 3), ("finish", 3), ("promote", 3)], [3]),
        ([("rollback", 3)], []),
    ],
)
def test_a_rollback_takes_back_the_newest_publication(
    tmp_path: Path, acts: Sequence[tuple[Act, int]], expected: list[int]
) -> None:
    for serial, (act, number) in enumerate(acts, start=1):
        version = ModelVersion("r1", number, {}, Layout((), 0), (), {}, {})
        note(tmp_path, act, version, Published(serial, before=None))
    assert [one.round for one in in_force(tmp_path)] == expected
    if len(expected) < 2:
        with pytest.raises(UserError, match="nothing to go back to"):
            promote.before(tmp_path)
    with (tmp_path / FILE).open("a") as file:
        file.write("{")
    with pytest.raises(UserError, match="damaged"):
        in_force(tmp_path)
