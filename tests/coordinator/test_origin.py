"""`coordinator run --from`: a new run begins with the models and clusters of a finished one, or is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.coordinator.run.folder import copy_start, origin_of
from covey.coordinator.run.result import result_of, write_all, write_models
from covey.coordinator.run.run import Run
from covey.shared.errors import UserError
from covey.shared.scenario.describe import dump
from covey.shared.scenario.scenario import Scenario
from covey.shared.storage.files import write_atomically
from tests.kit import small_run
from tests.methods import of_each_kind

PERSONAL = {"fedbabu", "fedbn", "fedrep", "fedsoft", "local"}


def finish(folder: Path, scene: Scenario) -> Run:
    """A finished run, as the commands leave it."""
    folder.mkdir()
    starts, _ = small_run.starts(scene)
    write_atomically(folder / "scenario.yaml", dump(scene).encode())
    np.savez(
        folder / "start.npz", starts=np.stack(starts), layout=np.array(small_run.layout_text(scene))
    )
    run = small_run.in_process(folder, scene)
    write_models(run)
    write_all(run, None)
    return run


def continued(folder: Path, scene: Scenario, before: Path) -> Run:
    """A new run that has not begun its first round."""
    folder.mkdir()
    origin = origin_of(before, scene)
    copy_start(origin, folder)
    setup = small_run.setup(scene)
    return Run.start(
        folder, scene, setup, rules=small_run.rules(scene), run="in-process", now=0.0, origin=origin
    )


@pytest.mark.parametrize("method", sorted({*of_each_kind("origin"), *PERSONAL}))
def test_a_method_of_each_kind_continues_with_its_models_and_clusters_or_names_the_reason(
    method: str, tmp_path: Path
) -> None:
    scene = small_run.scenario(method, rounds={"count": 2})
    before = finish(tmp_path / "before", scene)
    if scene.strategy.name in PERSONAL:
        with pytest.raises(UserError, match="keeps a part of its models on the devices"):
            continued(tmp_path / "after", scene, tmp_path / "before")
        return
    run = continued(tmp_path / "after", scene, tmp_path / "before")
    assert small_run.fingerprint(run) == small_run.fingerprint(before)
    assert result_of(run, None).origin == {"run": "in-process", "round": before.engine.round}


def test_a_continued_run_trains_on(tmp_path: Path) -> None:
    scene = small_run.scenario("fedclust", rounds={"count": 2})
    before = finish(tmp_path / "before", scene)
    more = small_run.scenario(
        "fedclust", rounds={"count": 1, "deadline_s": 5}, training={"lr": 0.2}
    )
    origin = origin_of(tmp_path / "before", more)
    run = small_run.in_process(tmp_path / "after", more, origin=origin)
    assert run.engine.round == 1
    assert run.strategy.assignment(run.state) == before.strategy.assignment(before.state)
    assert small_run.fingerprint(run) != small_run.fingerprint(before)
    record = (tmp_path / "after" / "rounds.jsonl").read_text()
    assert '"phase": "signature"' not in record, "no second clustering"


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"task": {"scale": 0.5}}, "other values of task.scale"),
        ({"strategy": {"name": "fedprox"}}, "other values of strategy.name"),
    ],
)
def test_another_task_or_method_is_refused_with_the_keys(
    tmp_path: Path, sections: Mapping[str, Any], why: str
) -> None:
    finish(tmp_path / "before", small_run.scenario("fedavg", rounds={"count": 1}))
    other = small_run.scenario("fedavg", **sections)
    with pytest.raises(UserError, match=why):
        origin_of(tmp_path / "before", other)
    (tmp_path / "before" / "result.json").unlink()
    with pytest.raises(UserError, match="expected the folder of a finished run"):
        origin_of(tmp_path / "before", other)
