"""Models that are worse than none on most devices are not for use, unless an operator insists."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from covey.coordinator.record.notices import ModelsNotPublished
from covey.coordinator.run.result import worse_than_none, write_all, write_models
from covey.coordinator.run.run import Run
from covey.extras.in_use.finished import publish_finished, withheld
from covey.extras.in_use.promote import check_worth
from covey.shared.errors import UserError
from covey.shared.strategies.base import Strategy
from tests.kit import small_run


def finished(folder: Path, worse: int) -> Run:
    """A run of eight agents, on a number of which the constant is better."""
    run = small_run.in_process(folder, small_run.scenario("fedavg"))
    for number, modes in enumerate(dict(sorted(run.members.evaluation.items())).values()):
        better = 1.0 if number < worse else 0.0
        modes["baseline"] = {**modes["server"], "accuracy": better}
    write_models(run)
    write_all(run, None)
    return run


@pytest.mark.parametrize("worse", [0, 4, 5])
def test_models_that_are_worse_than_none_on_most_devices_are_withheld(
    tmp_path: Path, worse: int
) -> None:
    run = finished(tmp_path / "run", worse)
    assert worse_than_none(run) == ([f"agent-{number}" for number in range(worse)], 8)
    told: list[Any] = []

    class Link:
        """Nothing may be published by it."""

    why = withheld(*worse_than_none(run))
    assert bool(why) == (worse > 4)
    document = json.loads((tmp_path / "run" / "result.json").read_text())
    assert document.get("worse_than_none", []) == worse_than_none(run)[0]
    if not why:
        check_worth(tmp_path / "run", run.version({}))
        return
    asyncio.run(publish_finished(run, Link(), told.append))  # type: ignore[arg-type]
    [notice] = told
    assert isinstance(notice, ModelsNotPublished)
    assert "worse than none on 5 of 8 devices" in notice.why
    assert "agent-0, agent-1" in notice.why
    assert "--force" in notice.why
    with pytest.raises(UserError, match=r"worse than none on 5 of 8 devices.*--force overrides"):
        check_worth(tmp_path / "run", run.version({}))


def test_a_run_that_came_to_nothing_publishes_no_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Strategy, "failure", lambda *_: "no sum was opened")
    told: list[Any] = []
    asyncio.run(publish_finished(finished(tmp_path / "run", 0), object(), told.append))  # type: ignore[arg-type]
    assert told == [ModelsNotPublished("no sum was opened")]


def test_a_device_whose_served_model_diverged_counts_as_worse(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", 0)
    run.members.evaluation["agent-7"]["server"] = {"n": 3, "diverged": True}
    assert worse_than_none(run) == (["agent-7"], 8)
