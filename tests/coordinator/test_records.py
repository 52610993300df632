"""The reader of a run's files names a damaged file, the fault and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from covey.coordinator.disk.space import Room
from covey.coordinator.fold.means import averages, means_by_cluster, means_of
from covey.coordinator.record import records
from covey.coordinator.record.notices import RoundVoid
from covey.coordinator.run.run_state import best_so_far
from covey.shared.errors import UserError
from covey.shared.numerics.measures import derived
from covey.shared.strategies.client_half import Report


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"name": "digits", "met', "not JSON"),
        ("", "not JSON"),
        ("{}", "name, method, .* is missing"),
        ("[]", "name, method, .* is missing"),
        ("3", "name, method, .* is missing"),
    ],
)
def test_a_damaged_result_is_named_and_what_to_do(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(UserError, match=f"{tmp_path}/result.json: {why}.*run the scenario again"):
        records.finished(tmp_path)


def test_a_damaged_line_of_the_record_is_named_by_its_number(tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").write_text('{"event": "link", "up": true}\n{"event": "pha')
    with pytest.raises(UserError, match=r"rounds.jsonl, line 2: not JSON"):
        records.lines(tmp_path)


def test_a_damaged_line_of_the_record_is_left_out_at_a_resume_and_the_file_is_kept(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rounds.jsonl"
    damaged = '{"event": "first"}\n{"event": "se\x00cond\n{"event": "third"}\n{"event": "newer"}\n'
    path.write_text(damaged)
    lines = records.round_lines(tmp_path, 3, Room(tmp_path))
    lines.add(RoundVoid(round=1, step=2, why="nobody came"))
    lines.flush()
    assert (lines.count, lines.lost) == (3, 1)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"event": "first"},
        {"event": "third"},
        {"event": "void", "round": 1, "step": 2, "why": "nobody came"},
    ]
    assert (tmp_path / "rounds.jsonl.damaged").read_text() == damaged


def regression(n: int, mse: float, mean: float, variance: float) -> dict[str, Any]:
    figures = {"n": n, "mse": mse, "mae": mse / 2, "loss": mse, "mean": mean, "variance": variance}
    return {"server": figures | derived(figures)}


def test_averages_of_a_regression_are_those_of_all_samples_and_those_of_all_agents() -> None:
    agents = {"a": regression(30, 1.0, 0.0, 4.0), "b": regression(10, 9.0, 8.0, 4.0)}
    row = averages(agents, {}, "test")["server"]
    assert row["agents"] == 2
    assert row["rmse"] == {"micro": pytest.approx(3**0.5), "macro": 2.0}
    assert row["mae"] == {"micro": 1.5, "macro": 2.5}
    # SSE = 30 * 1 + 10 * 9; SST = 40 * 4 + 30 * 2^2 + 10 * 6^2, for the common mean is 2
    assert row["r2"] == {"micro": pytest.approx(1 - 120 / 640), "macro": (0.75 - 1.25) / 2}


def test_claimed_test_samples_own_no_micro_average_and_no_mean_loss() -> None:
    """Before: one of twenty had 84 % of the weight, at a hundred times the median."""
    agents: dict[str, Any] = {
        f"a{i}": {"server": {"n": 10, "accuracy": 0.5, "loss": 1.0}} for i in range(19)
    }
    agents["liar"] = {"server": {"n": 1000, "accuracy": 0.0, "loss": 9.0}}
    for train, weight in (({}, "test"), ({"liar": 10**12}, "total")):
        row = averages(agents, train, weight, 0.2)["server"]
        assert row["accuracy"] == {"micro": pytest.approx(0.4), "macro": pytest.approx(0.475)}
    reports = [
        (name, Report({}, own["server"]["n"], steps=1, loss=own["server"]["loss"]))
        for name, own in agents.items()
    ]
    assert means_of(reports, "train", "test", share=0.2).loss == pytest.approx(2.6)


def test_an_agent_that_diverged_is_named_and_in_no_average() -> None:
    agents = {"a": regression(30, 1.0, 0.0, 4.0), "b": {"server": {"n": 10, "diverged": True}}}
    row = averages(agents, {}, "test")["server"]
    assert (row["agents"], row["diverged"], row["rmse"]["macro"]) == (1, ["b"], 1.0)


def test_agents_whose_targets_are_all_equal_have_no_r2_of_their_own() -> None:
    agents = {"a": regression(30, 1.0, 0.0, 4.0), "b": regression(10, 1.0, 4.0, 0.0)}
    row = averages(agents, {}, "test")["server"]
    assert row["r2"] == {"macro": 0.75, "agents": 1, "micro": pytest.approx(1 - 40 / 240)}


def test_the_best_tracked_figures_are_never_those_of_a_diverged_model() -> None:
    good = {"n": 4, "mse": 2.0}
    diverged: dict[str, Any] = {"n": 4, "diverged": True}
    assert best_so_far(dict(good), {"track": diverged}) == good
    assert best_so_far(diverged, {"track": good}) == good


def test_the_figures_of_a_cluster_are_means_over_its_tested_agents() -> None:
    def figures(accuracy: float, n: int = 10) -> dict[str, Any]:
        return {"server": {"n": n, "accuracy": accuracy} if n else {"n": 0}}

    evaluation = {"a": figures(0.5), "b": figures(1.0), "c": figures(0.25), "d": figures(0.0, n=0)}
    clusters = {"a": 1, "b": 1, "c": 0, "d": 0}
    rows = means_by_cluster(evaluation, clusters)
    assert rows == {"0": {"agents": 1, "accuracy": 0.25}, "1": {"agents": 2, "accuracy": 0.75}}
    assert list(rows) == ["0", "1"]
