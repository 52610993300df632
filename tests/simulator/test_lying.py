"""Histories in which the coordinator lies, each on one seed: no answer depends on a row, and no sum gives an update.

The short form of `python -m tests.simulator --lying`.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from covey.agent.worker import perform
from covey.extras.secure.agent import SecureAgent
from covey.extras.secure.messages import Terms
from covey.extras.secure.on_device import OnDevice
from covey.shared.disclosures import cleared
from covey.shared.scenario.task import Task
from covey.shared.strategies.client_half import Job
from covey.shared.wire.messages import ReportContent, Work
from tests.simulator.lies import ABOUT, LIES, Lie, kinds_told
from tests.simulator.lying_plan import NOISE, SUMS, LyingPlan, lying_plan
from tests.simulator.lying_world import VICTIM, Fleet, Row, odd, play, table
from tests.simulator.shrink import shrunk

SEEDS = range(100, 130)
HONEST = LyingPlan(1, "fedavg", 4, 2, False, SUMS[0], (), "far", 3, (), ())
AGAIN = Lie("again", "the models")
WITHOUT_THE_VICTIM = Lie("member", "the victim", since=1)


def test_no_answer_to_a_lie_depends_on_a_row() -> None:
    struck: Counter[str] = Counter()
    for seed in SEEDS:
        history = play(lying_plan(seed))
        command = f"python -m tests.simulator --lying --seed {seed}"
        assert not history.failure, f"{command}: {history.failure}"
        struck += history.struck
    told = kinds_told(struck)
    assert [kind for kind in LIES if not told[kind]] == []
    assert struck["opened sum"] > 10
    assert struck["compared report"] > 100


def test_there_are_lies_about_every_field() -> None:
    names = {name for seed in range(3_000) for name in _names(seed)}
    assert names == {f"{kind}: {about}" for kind in LIES for about in ABOUT[kind]}
    assert {*Task.model_fields} <= {*ABOUT["task"]} & {*ABOUT["status"]}
    assert {*ABOUT["terms"]} == {*Terms.model_fields}
    assert {*ABOUT["order"], "phase", "task"} == {*Work.model_fields}


def _names(seed: int) -> list[str]:
    return [lie.name for lie in lying_plan(seed).lies]


def test_an_honest_coordinator_has_its_sums() -> None:
    history = play(HONEST)
    assert history.failure == ""
    assert history.struck["opened sum"] == 2
    assert play(replace(HONEST, demand=NOISE, agents=1, rounds=1)).failure == ""


def test_an_update_that_two_sums_give_is_found() -> None:
    plan = replace(HONEST, lies=(AGAIN, WITHOUT_THE_VICTIM))
    assert play(plan).failure == ""
    with (
        patch.object(SecureAgent, "_check_lock", lambda *about: None),
        patch.object(SecureAgent, "_check_content", lambda *about: None),
    ):
        assert f"the update of {VICTIM} is computed" in play(plan).failure


def test_sums_of_models_that_differ_may_give_an_update() -> None:
    """With one level all updates are zero: sums of two runs, one without an agent, give how many rows it has, as its report does."""
    told = (Lie("terms", "levels", 531), Lie("run", "another run", since=1))
    history = play(replace(lying_plan(17042), lies=told))
    assert (history.failure, history.struck["opened sum"]) == ("", 2)


def test_a_status_that_depends_on_a_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    lies = tuple(Lie("status", "impute", draw) for draw in range(4))
    plan = replace(HONEST, odd="target", rounds=1, lies=lies)
    assert play(plan).failure == ""
    honest = Fleet.status

    def told(fleet: Fleet, client: str, task: Task) -> bytes:
        rows = (fleet.folder / client / "data.csv").read_bytes()
        return honest(fleet, client, task).replace(b'"samples":', b'"samples":%d' % sum(rows))

    monkeypatch.setattr(Fleet, "status", told)
    assert "a status depends on a row" in play(plan).failure


def test_a_report_that_depends_on_a_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    work, seen = OnDevice.work, [0]

    def looked(device: OnDevice, job: Job, local: Any, state: Any) -> Any:
        seen.append(int(np.abs(local.targets("train")).max()) if job.phase == "train" else 0)
        return work(device, job, local, state)

    def told(report: ReportContent, *about: Any) -> ReportContent:
        return cleared(report, *about).model_copy(update={"examples": seen[-1]})

    plans = [replace(HONEST, odd="target", rounds=1, row=row) for row in range(3)]
    assert not any(play(plan).failure for plan in plans)
    monkeypatch.setattr(OnDevice, "work", looked)
    monkeypatch.setattr(perform, "cleared", told)
    assert any("a report depends on a row" in play(plan).failure for plan in plans)


def test_what_an_agent_shows_of_itself_it_shows_once() -> None:
    again = (Lie("run", "another run"),)
    history = play(replace(HONEST, method="kin", demand=SUMS[-1], lies=again))
    assert history.failure == ""
    assert history.struck["refusal"] > 0


def test_a_plan_survives_its_text() -> None:
    for seed in range(20):
        plan = lying_plan(seed)
        assert LyingPlan.of_json(plan.to_json()) == plan


def test_a_plan_shrinks_to_the_lie_that_it_needs() -> None:
    plan = replace(lying_plan(7), lies=(AGAIN, Lie("terms", "clip", 3, "the others", 1)))
    simplest = shrunk(plan, lambda one: any(lie.kind == "terms" for lie in one.lies))
    assert simplest.lies == (Lie("terms", "clip", 3),)
    assert simplest.faults == ()


def test_another_row_is_as_long_and_differs() -> None:
    row: Row = table(1, VICTIM)[0]
    for kind in ("usual", "far", "very far", "target", "cells"):
        other = odd(row, kind, random.Random(1))  # noqa: S311
        assert len(other) == len(row)
        assert other != row


def test_an_order_with_invalid_settings_is_refused_by_name_where_noise_is_demanded() -> None:
    lies = (Lie("order", "privacy", 921),)
    history = play(replace(HONEST, demand=NOISE, agents=1, rounds=1, lies=lies))
    assert (history.failure, history.struck["refusal"] > 0) == ("", True)
