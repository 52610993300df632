"""Runs with buffered rounds on a virtual clock: staleness, the synchronous limit, kills, and what is refused."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from pydantic import ValidationError

from covey.coordinator.fold.stale_reports import staleness_weight
from covey.coordinator.run import run as run_module
from covey.coordinator.run.closing import close
from covey.coordinator.run.parts import Parts
from covey.coordinator.run.rules import rules_of
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.virtual_clock import Driver, duration_s
from covey.shared.numerics.vectors import combine
from covey.shared.scenario.fleet import Durations
from tests.kit import small_run
from tests.kit.small_run import fingerprint

PLAIN_IFCA = {"initial": "warmup", "warmup_rounds": 1, "shared_trunk": False}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "ifca": PLAIN_IFCA,
    "fesem": {},
    "pacfl": {},
    "fedrep": {},
}


def lines_of(run: Run) -> list[dict[str, Any]]:
    text = (run.folder / "rounds.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("method", METHODS)
def test_every_kind_of_method_runs_in_buffers(tmp_path: Path, method: str) -> None:
    scene = small_run.buffered(method, strategy=METHODS[method], rounds={"count": 4})
    run = small_run.in_process(tmp_path, scene)
    folds = [line for line in lines_of(run) if "staleness" in line]
    assert run.engine.round == 4
    assert folds
    assert all(len(fold["reported"]) <= 3 for fold in folds)
    times = [line["clock_s"] for line in lines_of(run)]
    assert times == sorted(times)


@pytest.mark.parametrize("method", ["fedavg", "fedclust"])
def test_a_buffer_of_all_agents_gives_the_synchronous_run(tmp_path: Path, method: str) -> None:
    """FedAvg to the byte. FedClust's two clusters fold in turn: two folds are one of its rounds."""
    clusters = 2 if method == "fedclust" else 1
    same = {"participation": 1.0, "start_agents": 8}
    scene = small_run.scenario(method, rounds={"count": 2, **same})
    whole = small_run.in_process(tmp_path / "whole", scene)
    count = {"count": 2 * clusters, "buffer": 8}
    still = small_run.buffered(method, rounds=count, fleet={"durations": {"sigma": 0}})
    buffered = small_run.in_process(tmp_path / "buffered", still)
    if method == "fedavg":
        assert fingerprint(buffered) == fingerprint(whole)
    stale = [line["staleness"] for line in lines_of(buffered) if "staleness" in line]
    assert all(set(one) == {0} for one in stale)


@pytest.mark.parametrize("durations", [None, {"sigma": 0}])
def test_agents_that_are_equally_fast_take_turns(tmp_path: Path, durations: Any) -> None:
    """An agent that has reported waits until the others have: none fills buffer after buffer before their first report."""
    scene = small_run.buffered(
        "fedavg",
        rounds={"count": 8, "buffer": 2, "participation": 1.0, "start_agents": 8},
        fleet={"durations": durations},
    )
    run = small_run.in_process(tmp_path, scene)
    turns = Counter(
        client for line in lines_of(run) if "staleness" in line for client in line["reported"]
    )
    assert set(turns.values()) == {2}, turns
    assert len(turns) == 8


def test_a_stale_report_is_carried_over_to_the_present_model(tmp_path: Path) -> None:
    """One report a fold, s folds late: w' = w + (1 + s)^-a (w_i - w_start), as FedBuff's update."""
    scene = small_run.buffered("fedavg", rounds={"buffer": 1, "staleness": 0.5})
    driver = small_run.driver(tmp_path, scene)
    run = driver.run
    seen: list[tuple[int, float]] = []
    take = run.take

    def checked(phase: Any, reports: Any, outcome: Any, circumstances: Any) -> None:
        if phase.name == "train":
            [(client, _)] = reports
            number, staleness = folding[-1]
            trained = run.store.reports.reports(number, [client])[0][1].vectors["model"]
            start = run.orders.start_of(number, "0")
            share = staleness_weight(staleness, 0.5)
            present = run.state.model
            expected = trained
            if staleness:
                expected = combine([(present, 1.0), (trained, share), (start, -share)])
            assert np.array_equal(outcome.state.model, expected)
            seen.append((staleness, share))
        take(phase, reports, outcome, circumstances)

    folding: list[tuple[int, int]] = []

    def noted(parts: Parts, action: Any, answer: Any) -> Any:
        if action.buffer is not None:
            folding.append((action.buffer.steps[0], action.buffer.staleness[0]))
        return close(parts, action, answer)

    run.take = checked  # type: ignore[method-assign]
    with patch.object(run_module, "close", noted):
        driver.complete(small_run.samples_of(small_run.clients()))
    assert len(seen) == 6
    assert max(staleness for staleness, _ in seen) >= 1


@pytest.mark.parametrize(("m_step", "all_folds"), [("all", True), ("participants", False)])
def test_reports_of_fesem_are_as_old_as_the_centre_that_their_order_named(
    tmp_path: Path, m_step: str, all_folds: bool
) -> None:
    """With `m_step: all` every fold changes every centre; else the folds of the order's own centre count."""
    scene = small_run.buffered(
        "fesem",
        rounds={"buffer": 1, "count": 24},
        strategy={"m_step": m_step, "n_clusters": 4},
        training={"lr": 0.5, "epochs": 1},
    )
    driver = small_run.driver(tmp_path, scene)
    run = driver.run
    named: dict[int, tuple[int, dict[int, int]]] = {}  # by order: its centre, and the folds then
    checked: list[tuple[bool, int]] = []
    give = run._give

    def noted(action: Any, *now: float) -> Any:
        done = give(action, *now)
        for client, number in action.orders:
            [key] = run.orders.own.keys_of(number)
            named[number] = (int(key), dict(run.engine.pace.orders[client].folds))
        return done

    def compared(parts: Parts, action: Any, answer: Any) -> Any:
        if action.buffer is not None and action.buffer.cluster is not None:
            (number,), (staleness,) = action.buffer.steps, action.buffer.staleness
            centre, then = named[number]
            folds = run.engine.pace.folds
            expected = folds.get(centre, 0) - then.get(centre, 0)
            if all_folds:
                expected = sum(folds.values()) - sum(then.values())
            assert staleness == expected
            checked.append((centre != action.buffer.cluster, staleness))
        return close(parts, action, answer)

    run._give = noted  # type: ignore[method-assign, assignment]
    with patch.object(run_module, "close", compared):
        driver.complete(small_run.samples_of(small_run.clients()))
    assert len(checked) == 24
    assert any(stale > 0 for moved, stale in checked if moved), "no report changed its centre"


def test_reports_that_are_due_at_the_same_time_come_as_invited(tmp_path: Path) -> None:
    """Over-selection must not prefer the first names."""
    rounds = {"mode": "synchronous", "count": 8, "participation": 0.25, "over_select": 2.0}
    scene = small_run.buffered("fedavg", rounds=rounds, fleet={"durations": None})
    run = small_run.in_process(tmp_path, scene)
    reported = [line["reported"] for line in lines_of(run) if line.get("phase") == "train"]
    assert {len(names) for names in reported} == {2}
    assert "agent-7" in {name for names in reported for name in names}
    first_names = [max(names) <= "agent-3" for names in reported]
    assert not all(first_names)


def test_the_weight_of_a_report_falls_with_its_staleness() -> None:
    assert staleness_weight(0, 0.5) == 1.0
    assert staleness_weight(3, 0.5) == 0.5
    assert staleness_weight(3, 0.0) == 1.0


@pytest.mark.parametrize("method", ["ifca"])
def test_a_kill_between_any_two_reports_keeps_the_buffer(tmp_path: Path, method: str) -> None:
    settings = {"every": 2}
    scene = small_run.buffered(
        method, strategy=METHODS[method], evaluation=settings, rounds={"count": 4}
    )
    whole = small_run.in_process(tmp_path / "whole", scene)
    folder = tmp_path / "killed"
    driver = small_run.driver(folder, scene)
    kills = 0

    class Killed(Exception):  # noqa: N818 - it is no error
        pass

    def deliver_and_die(this: Any) -> Any:
        deliver = this.deliver

        def dies(client: str, order: Any) -> Any:
            deliver(client, order)
            raise Killed

        return dies

    first: list[Any] = []
    while True:
        driver.deliver = deliver_and_die(driver)  # type: ignore[method-assign]
        try:
            run = driver.complete(small_run.samples_of(small_run.clients()), first)
        except Killed:
            kills += 1
        else:
            break
        clock = driver.run.store.checkpoint.facts()["run"]["clock"]
        run, effects = Run.resume(
            folder, scene, small_run.setup(scene), rules=rules_of(scene), now=clock
        )
        driver = Driver(run, driver.clients)
        first = [*effects, *run.desired()]
    assert kills > 15
    assert fingerprint(run) == fingerprint(whole)
    same = ("phase", "round", "step", "reported", "buffer", "staleness", "clock_s", "test")
    for line, other in zip(lines_of(run), lines_of(whole), strict=True):
        assert {key: line.get(key) for key in same} == {key: other.get(key) for key in same}


def test_durations_are_log_normal_and_drawn_on_the_seed() -> None:
    drawn = [duration_s(Durations(), 1, "agent-0", step) for step in range(2000)]
    logs = np.log(drawn)
    assert abs(float(logs.mean())) < 0.1
    assert abs(float(logs.std()) - 1.0) < 0.1
    alike = Durations(median_s=4.0, sigma=0.0)
    assert math.isclose(duration_s(alike, 1, "agent-0", 7), 4.0)
    assert duration_s(None, 1, "agent-0", 7) == 0.0


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"rounds": {"quorum": 2}}, "rounds.quorum is about agents that are invited together"),
        ({"rounds": {"over_select": 1.5}}, "rounds.over_select"),
        ({"wire": {"delivery": "all"}}, "set wire.delivery to participants"),
        ({"strategy": {"name": "cfl"}}, "is not for cfl: a round needs the reports of one cohort"),
        (
            {"strategy": {"name": "ifca", "averaging": "gradient"}},
            "a stale gradient does not apply",
        ),
        (
            {"privacy": {"client": {"noise_multiplier": 1.0, "clip": 1.0}}},
            "privacy.client counts what a drawn cohort reveals",
        ),
    ],
)
def test_settings_that_need_a_cohort_in_step_are_refused(
    sections: dict[str, Any], why: str
) -> None:
    base = small_run.buffered("fedavg").model_dump(mode="json")
    for name, values in sections.items():
        replaces = name == "strategy"
        base[name] = values if replaces else {**(base[name] or {}), **values}
    with pytest.raises(ValidationError, match=why):
        type(small_run.buffered("fedavg")).model_validate(base)
