"""The results of a comparison: the figures of a cell, their means over seeds, the tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from covey.extras.compare.grid import chosen, grid
from covey.extras.compare.rows import Spread, Summary, row_of, summaries
from covey.extras.compare.tables import markdown, tables
from covey.extras.compare.tests.comparisons import DIGITS, cell, compared, scenario


def figures(**modes: tuple[float, float]) -> dict[str, Any]:
    """Accuracies (micro, macro) by mode."""
    return {
        mode: {"agents": 6, "accuracy": {"micro": a, "macro": b}} for mode, (a, b) in modes.items()
    }


def result(last: float, **changes: Any) -> dict[str, Any]:
    base = {
        "accuracy": figures(last=(0.1, last), server=(0.2, 0.3)),
        **{"clusters": 2, "ari": 1.0, "nmi": 1.0, "purity": 1.0, "rounds": 2, "agents": 6},
        "notes": {"J": 0.5},
        **{
            "mbit_per_agent": 3.0,
            "seconds": 1.0,
            "bytes": {"wire_down": 2_000_000, "wire_up": 1_000_000},
        },
    }
    return {**base, **changes}


def line(round_: int, **more: Any) -> dict[str, Any]:
    traffic = {"down_vectors": 9e6, "up_vectors": 9e6 * round_}
    return {
        "event": "phase",
        "phase": "evaluate",
        "ends_round": False,
        "round": round_,
        "traffic": traffic,
        **more,
    }


def tracked(**reached: float) -> dict[str, Any]:
    """A round of training, with the accuracy of its participants."""
    mean = sum(reached.values()) / len(reached)
    figures = {"accuracy": {"micro": mean, "macro": mean}, "by_agent": reached}
    return {"phase": "train", "ends_round": True, "tracked": figures}


def test_rounds_to_target_average_over_all_agents_with_a_guess_for_the_untrained() -> None:
    compare = compared(scenario(compare={"target": 0.75}))
    guess = 0.1  # ten classes
    lines = [
        line(0, **tracked(a=1.0, b=1.0, c=1.0)),
        line(0, evaluation=figures(last=(1.0, 1.0))),  # an evaluation is no training
        line(1, **tracked(a=0.95, d=1.0)),
        line(2, **tracked(e=0.5)),
        line(3, **tracked(e=0.0, f=0.9)),
    ]
    row = row_of(cell("fedclust"), compare, result(0.8), lines)
    assert (0.95 + 1 + 1 + 1 + 2 * guess) / 6 < 0.75 <= (0.95 + 1 + 1 + 1 + 0.5 + guess) / 6
    assert (row["target_on"], row["rounds_to_target"]) == ("last, tracked", 3)
    assert (
        row["rounds_to_target_participants"] == 1
    )  # all who trained in the first round are above it
    assert (
        row["mbit_to_target"] == 32 * 27 / 6
    )  # megabits of down and up vectors, an average agent's share
    assert row["mb_wire_to_target"] is None  # this run had no broker


def test_models_from_a_phase_before_the_rounds_count_without_a_round() -> None:
    compare = compared(scenario(compare={"target": 0.75}))
    before = {
        **tracked(a=0.9, b=0.9, c=0.9, d=0.9, e=0.9, f=0.9),
        "phase": "signature",
        "ends_round": False,
    }
    later = [line(0, **tracked(a=0.5)), line(1, **tracked(b=0.9))]
    row = row_of(cell("fedclust"), compare, result(0.8), [line(0, **before), *later])
    assert (row["target_on"], row["rounds_to_target"]) == ("last, tracked", 1)
    assert (
        row["rounds_to_target_participants"] == 2
    )  # all agents before the rounds are no round's participants


def test_a_round_with_several_phases_that_train_counts_with_the_last_of_them() -> None:
    compare = compared(scenario(compare={"target": 0.75}))
    all_agents = dict.fromkeys("abcdef", 0.9)
    first = {**tracked(**all_agents), "ends_round": False}
    last = {**tracked(**dict.fromkeys("abcdef", 0.6)), "phase": "layer1"}
    rows = [
        line(0, **first),
        line(0, **last),
        line(1, **first),
        line(1, **{**last, **tracked(**all_agents)}),
    ]
    assert row_of(cell("fedclust"), compare, result(0.8), rows)["rounds_to_target"] == 2


def test_a_row_counts_the_agents_that_no_round_has_drawn_and_scores_their_models() -> None:
    undrawn = {"last_of_undrawn": {"agents": 2, "accuracy": {"micro": 0.4, "macro": 0.5}}}
    base = result(0.8)
    row = row_of(
        cell("fedclust"),
        compared(scenario()),
        {**base, "accuracy": {**base["accuracy"], **undrawn}},
        [],
    )
    assert (row["undrawn"], row["last_of_undrawn_accuracy_macro"]) == (2, 0.5)
    assert (
        row_of(cell("fedclust"), compared(scenario()), base, [])["undrawn"] is None
    )  # a result of an earlier version


def test_agents_without_test_data_count_neither_as_reached_nor_as_guesses() -> None:
    compare = compared(scenario(compare={"target": 0.75}))
    lines = [line(0, **tracked(a=1.0)), line(1, **tracked(b=1.0)), line(2, **tracked(c=1.0))]
    for later in lines:
        later["tracked"]["by_agent"] |= {"x": None, "y": None}
    row = row_of(
        cell("fedclust"), compare, result(0.8), lines
    )  # of six agents four test; 3 of them and a guess: 0.775
    assert row["rounds_to_target"] == 3


def test_a_target_is_never_reached_if_no_agent_has_an_accuracy() -> None:
    lines = [
        {
            **line(0),
            "phase": "train",
            "ends_round": True,
            "tracked": {"by_agent": {"a": None, "b": None}},
        }
    ]
    row = row_of(cell("fedclust"), compared(scenario(compare={"target": 0.75})), result(0.8), lines)
    assert row["rounds_to_target"] is None


def test_traffic_to_target_is_also_counted_in_bytes_on_the_wire() -> None:
    compare = compared(scenario(compare={"target": 0.75}))
    all_agents = line(0, **tracked(a=1.0, b=1.0, c=1.0, d=1.0, e=1.0, f=1.0))
    all_agents["traffic"] |= {"wire_down": 250_000, "down_models": 850_000, "wire_up": 1_000_000}
    all_agents["traffic"] |= {
        "evaluation_vectors": 3e6,
        "evaluation_models": 100_000,
    }  # neither count has these
    row = row_of(cell("fedclust"), compare, result(0.8), [all_agents])
    assert (row["mb_wire_to_target"], row["mbit_to_target"]) == (2.0, 32 * 6 / 6)


def test_single_models_and_untracked_runs_count_rounds_in_which_all_agents_were_evaluated() -> None:
    compare = compared(scenario(compare={"target": 0.75}))
    low, high = (
        figures(last=(0.9, 0.7), server=(0.7, 0.9)),
        figures(last=(0.0, 0.8), server=(0.76, 0.0)),
    )
    lines = [line(0), line(5, evaluation=low), line(10, evaluation=high)]
    for label, metric, more in (
        ("fedclust", "last", []),
        ("fedavg", "global", [line(1, **tracked(a=1.0))]),
    ):
        row = row_of(cell(label), compare, result(0.8), [*more, *lines])
        assert (row["target_on"], row["rounds_to_target"]) == (metric, 10)


def test_a_target_that_was_never_reached_has_no_rounds() -> None:
    row = row_of(
        cell("four"),
        compared(scenario(compare={"target": 0.75})),
        result(0.8),
        [line(0, **tracked(a=0.74))],
    )
    assert (row["rounds_to_target"], row["mbit_to_target"], row["mb_wire_to_target"]) == (
        None,
        None,
        None,
    )


def test_newcomers_have_columns_of_their_own() -> None:
    compare = compared(scenario(compare={"metric": "newcomers", "published": {"four": 97.0}}))
    late = {"agents": ["x"], "accuracy": figures(server=(0.5, 0.4), tuned=(0.9, 0.8))}
    rows = [row_of(cell("four"), compare, result(0.8, newcomers=late), [])]
    assert rows[0]["figure"] == rows[0]["newcomers_tuned_accuracy_macro"] == 0.8
    (shown,) = tables(scenario(), summaries(scenario(), rows))
    assert {"newcomers, as served", "newcomers, tuned"} <= set(shown.headers)
    (without,) = tables(
        scenario(), summaries(scenario(), [row_of(cell("four"), compare, result(0.8), [])])
    )
    assert "newcomers, tuned" not in without.headers


def with_figures(one: Summary, **changes: Spread | None) -> Summary:
    """The summary with other figures; None removes one."""
    figures = {**one.figures, **changes}
    return replace(one, figures={key: value for key, value in figures.items() if value is not None})


PARTITIONS = {
    "published": {},
    "partitions": [
        {"label": "even", "name": "iid", "published": {"fedavg": 90.0}, "target": 0.5},
        {"name": "label_skew", "share": 0.2},
    ],
}


def test_each_partition_of_a_grid_has_its_own_table_target_and_published_figures() -> None:
    scene = scenario(compare=PARTITIONS)
    cells = grid(scene)
    assert [cell.name for cell in cells[:4]] == [
        "even/fedavg/4",
        "even/fedclust/4",
        "even/four/4",
        "label_skew/fedavg/4",
    ]
    assert (cells[3].folder, len(cells)) == (Path("label_skew/fedavg/seed-4"), 12)
    fleets = [cells[0].scenario.fleet, cells[3].scenario.fleet]
    placed = [fleet.partition.name for fleet in fleets if fleet]  # type: ignore[union-attr]
    assert placed == ["iid", "label_skew"]
    assert [cell.name for cell in chosen(cells, ["even/four,label_skew/5"])][:2] == [
        "even/four/4",
        "even/four/5",
    ]
    lines = [line(5, evaluation=figures(server=(0.6, 0.6)))]
    rows = [row_of(one, compared(scene), result(0.8), lines) for one in (cells[0], cells[3])]
    assert rows[0]["rounds_to_target"] == 5
    assert "rounds_to_target" not in rows[1]
    even, skewed = tables(scene, summaries(scene, rows))
    assert (even.title[:12], skewed.title[:18]) == ("small, even:", "small, label_skew:")
    assert ("published (ours)" in even.headers, "published (ours)" in skewed.headers) == (
        True,
        False,
    )


def test_bytes_on_the_wire_are_unknown_without_a_broker() -> None:
    compare = compared(scenario())
    assert row_of(cell("four"), compare, result(0.8), [])["mb_wire"] == 3.0
    silent = result(0.8, bytes={"wire_down": 2_000_000, "wire_up": 0})
    assert row_of(cell("four"), compare, silent, [])["mb_wire"] is None


def test_a_method_is_summarised_by_mean_and_standard_deviation() -> None:
    compare = compared(scenario())
    rows = [
        row_of(cell("fedclust", seed), compare, result(last), [])
        for seed, last in ((4, 0.7), (5, 0.9))
    ]
    [found] = summaries(scenario(), rows)
    last = found.figures["last_accuracy_macro"]
    assert last.mean == pytest.approx(0.8)
    assert last.std == pytest.approx(0.02**0.5)  # n - 1
    assert last.n == 2
    assert found.to_json()["last_accuracy_macro"] == {"mean": last.mean, "std": last.std, "n": 2}
    assert found.figures["figure"].mean == pytest.approx(0.8)
    assert (found.published, found.seeds) == (95.5, [4, 5])


def test_the_metric_of_a_single_model_is_its_micro_average() -> None:
    assert row_of(cell("fedavg"), compared(scenario()), result(0.8), [])["figure"] == 0.2


def test_the_markdown_table_has_the_expected_columns_and_figures() -> None:
    scene = scenario(compare={"target": 0.75})
    compare = compared(scene)
    all_agents = dict.fromkeys("abcdef", 0.8)
    reached = [
        [line(1, **tracked(**all_agents), evaluation=figures(server=(0.8, 0.8)))],
        [line(1, **tracked(a=0.9))],
    ]
    rows = [
        row_of(cell(label, seed), compare, result(last), lines)
        for label in ("fedavg", "fedclust")
        for seed, last, lines in zip((4, 5), (0.7, 0.9), reached, strict=True)
    ]
    found = summaries(scene, rows)
    (words,) = tables(scene, found)
    assert dict(zip(words.headers, words.rows[1], strict=True)) == {
        "method": "fedclust",
        "seeds": "2",
        "own last": "80.00±14.14",
        "served": "30.00±0.00",
        "published (ours)": "95.50 (own last 80.00)",
        "ARI": "1.00±0.00",
        "groups": "2",
        "rounds to 75 %": "2, –",
        "Mbit to it": "96.00 (1 of 2)",
        "Mbit per agent": "3.00",
        "MB on the wire": "3.0",
    }
    text = markdown(scene, found)
    silent = [with_figures(one, ari=None, mb_wire=None) for one in found]
    assert set(words.headers) - set(tables(scene, silent)[0].headers) == {
        "ARI",
        "MB on the wire",
    }  # no empty columns
    assert "| fedavg | 2 | 80.00±14.14 | 30.00±0.00 | – |" in text
    assert "| fedavg | 2 | 10.00±0.00 |" not in text  # nobody reads the average by samples


def test_the_layout_of_averages_has_both_of_accuracy_and_f1_in_the_metrics_mode() -> None:
    scene = scenario(compare={"layout": "averages", "metric": "server"})
    found_result = result(0.8)
    found_result["accuracy"]["server"]["f1"] = {"micro": 0.4, "macro": 0.5}
    found = summaries(scene, [row_of(cell("fedclust"), compared(scene), found_result, [])])
    (words,) = tables(scene, found)
    shown = dict(zip(words.headers, words.rows[0], strict=True))
    assert [shown[title] for title in ("Micro-Acc", "Micro-F1", "Macro-Acc", "Macro-F1")] == [
        "20.00",
        "40.00",
        "30.00",
        "50.00",
    ]
    assert "own last" not in shown
    assert markdown(scene, found).count("| :--") == 1


# -- regression ----------------------------------------------------------------------------------------------------

REGRESSION = {**DIGITS["task"], "classes": None}


def errors(rmse: float) -> dict[str, Any]:
    """Averages of one mode; micro and macro are equal."""
    figures = {"rmse": rmse, "mae": rmse / 2, "r2": 0.8, "mse": rmse**2, "loss": rmse**2}
    return {
        "agents": 6,
        **{name: dict.fromkeys(("micro", "macro"), one) for name, one in figures.items()},
    }


def test_a_comparison_of_a_regression_speaks_of_errors_in_units_of_the_target() -> None:
    scene = scenario(
        task=REGRESSION,
        compare={"target": 3.5, "published": {"fedclust": 4.25}, "metric": "server"},
    )
    compare = compared(scene)
    cells = {one.label: one for one in grid(scene)}
    lines = [line(n, evaluation={"server": errors(6.0 - n)}) for n in range(4)]
    rows = [
        row_of(cells["fedclust"], compare, result(0, accuracy={"server": errors(3.25)}), lines),
        row_of(cells["fedavg"], compare, result(0, accuracy={"server": errors(3.0)}), lines),
    ]
    assert (rows[0]["figure"], rows[0]["measure"], rows[0]["rounds_to_target"]) == (3.25, "rmse", 3)
    found = summaries(scene, rows)
    (words,) = tables(scene, found)
    assert "RMSE in units of the target, mean over agents" in words.title
    shown = dict(zip(words.headers, words.rows[1], strict=True))
    expected = {
        "served": "3.2500",
        "served MAE": "1.6250",
        "served R2": "0.8000",
        "published (ours)": "4.25 (served 3.25)",
        "rounds to RMSE 3.5": "3",
    }
    assert expected.items() <= shown.items()


def test_a_comparison_shows_whatever_measure_its_task_names() -> None:
    scene = scenario(task={**DIGITS["task"], "measure": "auc"})
    [cell, *_] = grid(scene)
    served = {"agents": 6, "auc": {"micro": 0.75, "macro": 0.8125}}
    row = row_of(cell, compared(scene), result(0, accuracy={"server": served}), [])
    [table] = tables(scene, summaries(scene, [row]))
    assert "0.8125" in table.rows[0]


def test_the_target_of_a_regression_may_be_tracked_after_training() -> None:
    scene = scenario(task=REGRESSION, compare={"target": 3.5})
    (cell_, *_) = [one for one in grid(scene) if one.label == "fedclust"]
    lines = [
        line(n, phase="train", ends_round=True, tracked={**errors(1.0), "by_agent": reached})
        for n, reached in enumerate(({"a": 4.0, "b": None}, {"c": 3.0}))
    ]
    row = row_of(cell_, compared(scene), result(0, accuracy={"last": errors(3.0)}), lines)
    assert (row["target_on"], row["rounds_to_target"]) == ("last, tracked", 2)
    assert row["rounds_to_target_participants"] == 1


@pytest.mark.parametrize(
    ("task", "compare", "why"),
    [
        ({}, {"measure": "rmse"}, "compare.measure rmse is not for a classification"),
        (REGRESSION, {"measure": "accuracy"}, "compare.measure accuracy is not for a regression"),
        ({}, {"target": 1.5}, "expected accuracy as a share, above 0 and up to 1"),
        (REGRESSION, {"target": -1.0}, "expected RMSE above 0 in units of the target"),
        (REGRESSION, {"target": 1.5, "measure": "r2"}, "expected R2 below or equal to 1"),
    ],
)
def test_a_measure_or_target_that_is_not_of_the_task_is_refused(
    task: dict[str, Any], compare: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        scenario(task={**DIGITS["task"], **task}, compare=compare)
