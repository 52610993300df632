"""The display shows text from agents, files and brokers literally, never as markup."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from covey.coordinator.fold.means import Means
from covey.coordinator.record.notices import (
    AgentExcluded,
    BrokerReady,
    ControlReceived,
    LinesLost,
    LinkDown,
    LinkUp,
    ModelChosen,
    Notice,
    PhaseFolded,
    ReportIgnored,
    ReportRefused,
    RoundVoid,
    WorkFailed,
)
from covey.coordinator.report.progress import ProgressBar
from covey.coordinator.report.tables import labels, results
from covey.coordinator.view.printed import divided, results_table, show, show_words
from covey.coordinator.view.table import Table, columns_of
from covey.coordinator.view.words import epsilons
from tests.coordinator.test_notices import EXAMPLES

ODD = "[/odd]/one.csv [red]:smile:"
ROW = {
    "online": True,
    "problem": ODD,
    "takes_part": False,
    "busy": False,
    "seen": 0.0,
    "refusals": {ODD: 1},
}
ROW |= {"cluster": None, "samples": 0, "test_samples": 0, "labels": 0}
PHASE = PhaseFolded(
    phase=ODD,
    ends_round=True,
    round=0,
    step=1,
    invited=[],
    reported=[],
    missing=[],
    cluster_sizes={},
    moved=0,
    seconds=0.0,
    train_seconds=0.0,
    fold_seconds=0.0,
    traffic={},
    notes={},
)


def console(width: int = 400) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(
        file=text, width=width, markup=False, emoji=False
    ), text  # with the options of every console of the project (test_house.py)


@pytest.mark.parametrize(
    "notice",
    [
        AgentExcluded("a", ODD),
        WorkFailed("a", 1, ODD),
        ReportRefused("a", ODD),
        RoundVoid(0, 1, ODD),
        LinkDown(ODD),
        BrokerReady("theirs", "mqtt://x", ODD),
        ModelChosen("mlp", [ODD]),
        replace(PHASE, notes={"warning": ODD}),
    ],
    ids=lambda notice: str(notice.event),
)
def test_a_notice_is_printed_without_interpreting_markup(notice: Notice) -> None:
    plain, text = console()
    with ProgressBar(plain, 3) as progress:
        progress(notice)
    assert ODD in text.getvalue()


SOUND = [notice for notice, _ in EXAMPLES if getattr(notice, "why", "")]


@pytest.mark.parametrize("notice", SOUND, ids=lambda notice: type(notice).__name__)
def test_a_notice_with_a_reason_is_shown(notice: Notice) -> None:
    """A disk that was full, a damaged report and a process that stood still were not. Reports that nobody waits for
    may be thousands: `coordinator status` has their number.
    """
    plain, text = console()
    with ProgressBar(plain, 3) as progress:
        progress(notice)
    assert (vars(notice)["why"] in text.getvalue()) == (not isinstance(notice, ReportIgnored))


def test_lines_that_the_record_lacks_are_counted() -> None:
    plain, text = console()
    with ProgressBar(plain, 3) as progress:
        progress(LinesLost(4))
    assert "the record lacks 4 lines" in text.getvalue()


def test_a_link_that_is_back_is_named_once_and_at_the_start_it_is_not() -> None:
    plain, text = console()
    with ProgressBar(plain, 3) as progress:
        for notice in (LinkUp(), LinkDown("refused"), LinkDown("refused"), LinkUp(), LinkUp()):
            progress(notice)
    assert text.getvalue().count("connected again") == 1


def test_tensors_that_do_not_train_are_named_at_the_start() -> None:
    plain, text = console()
    with ProgressBar(plain, 3) as progress:
        progress(ModelChosen("mlp", []))
        progress(ModelChosen("mlp", ["trunk.weight", "trunk.bias"]))
    [line] = [line for line in text.getvalue().splitlines() if "not trained" in line]
    assert "not trained: trunk.weight, trunk.bias (requires_grad is False" in line


def test_an_evaluation_shows_the_figure_of_its_task_and_who_diverged() -> None:
    plain, text = console()
    accuracy = {"agents": 8, "accuracy": {"micro": 0.8, "macro": 0.8123}}
    rmse = {"agents": 7, "rmse": {"micro": 2.0, "macro": 2.3456}, "diverged": ["pi-3"]}
    with ProgressBar(plain, 3) as progress:
        for number, served in enumerate((accuracy, rmse)):
            progress(replace(PHASE, round=number, means=Means(evaluation={"server": served})))
            progress(replace(PHASE, round=number, invited=["a"]))
    assert "accuracy served 81.23 %" in text.getvalue()
    assert "RMSE served 2.346, 1 diverged" in text.getvalue()


def test_of_evaluations_after_the_last_round_the_last_one_is_shown() -> None:
    """Devices weigh what they use again with the weights of the fleet: the figures before are those of nobody."""
    plain, text = console()
    with ProgressBar(plain, 3) as progress:
        for share in (0.7, 0.8, 0.9):
            figures = {"agents": 8, "accuracy": {"micro": share, "macro": share}}
            progress(replace(PHASE, means=Means(evaluation={"delivered": figures})))
    [line] = [line for line in text.getvalue().splitlines() if "accuracy" in line]
    assert line.endswith("accuracy in use 90.00 %")


def test_an_agent_that_fails_in_every_step_is_shown_once_for_each_cause() -> None:
    """Before: 66 lines in 10 s."""
    plain, text = console()
    with ProgressBar(plain, 3) as progress:
        for step in range(20):
            for agent in ("agent-1", "agent-2"):
                progress(
                    WorkFailed(agent, step, f"moved by {1.5 + step:.3g}e+03 after {step} steps")
                )
                progress(WorkFailed(agent, step, "no file"))
                progress(ReportRefused(agent, f"part {step} is damaged"))
    lines = [line for line in text.getvalue().splitlines() if "agent-" in line]
    assert len(lines) == 2 * 3, lines


def test_a_pause_is_shown_with_the_command_to_resume() -> None:
    plain, text = console()
    with ProgressBar(plain, 3) as progress:
        progress(ControlReceived("pause", "covey/f/control"))
    shown = "paused: no new phase opens; to resume: coordinator lab resume"
    assert shown in text.getvalue()


FINE = {**ROW, "problem": None, "takes_part": True, "refusals": {}, "samples": 120}


def test_a_result_fits_a_terminal_of_80_columns() -> None:
    narrow, text = console(width=80)
    figures = {"agents": 20, "accuracy": {"micro": 0.8123, "macro": 0.8012}}
    modes = {"server": figures, "tuned": figures, "last": figures}
    show_words(
        narrow,
        results([result(accuracy=modes, ari=0.97, method="fesem_ma")], modes=True),
        results_table,
    )
    lines = text.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert text.getvalue().count(" 80.12 ") == 3


def result(**others: Any) -> dict[str, Any]:
    """A result of regression, as far as the table reads it."""
    mse = {"agents": 20, "mse": {"micro": 44.8512, "macro": 45.0234}}
    modes: dict[str, Any] = {"accuracy": {"server": mse, "tuned": mse, "last": mse}}
    wire = {"bytes": {"wire_down": 2840000, "wire_up": 2130000}}
    plain = {
        "name": "heat",
        "method": "fedavg",
        "agents": 20,
        "clusters": 1,
        "ari": None,
        "rounds": 9,
        "seconds": 13.8,
    }
    return {**plain, **modes, **wire, **others}


def test_a_table_of_results_is_complete_on_a_narrow_terminal() -> None:
    narrow, text = console(width=80)
    show_words(narrow, results([result()], modes=True), results_table)
    assert text.getvalue().count(" 45.02 ") == 3
    assert "…" not in text.getvalue()


def test_folders_name_two_runs_of_one_method() -> None:
    found = [result(), result()]
    words = results(found, labels([Path("runs/a"), Path("runs/b")], found))
    assert words.headers[:2] == ["run", "method"]
    assert [line[:2] for line in words.rows] == [["a", "fedavg"], ["b", "fedavg"]]


def test_runs_of_different_methods_need_no_other_name() -> None:
    found = [result(), result(method="ifca")]
    assert results(found, labels([Path("a"), Path("b")], found)) == results(found)


def test_a_table_has_the_mean_over_agents_of_what_devices_use_and_all_modes_if_asked() -> None:
    used = {
        mode: {"agents": 20, "mse": {"micro": 44.85, "macro": 9.0}} for mode in ("server", "tuned")
    }
    used["delivered"] = {"agents": 20, "mse": {"micro": 3.0, "macro": 4.0}}
    judged = result(accuracy=used, uses={"a": {"served": 1.0}})
    short = results([judged, result(method="local")])
    assert short.headers[:3] == ["method", "in use", "groups"]
    assert [line[1] for line in short.rows] == ["4", "45.02"]  # of local, what it serves
    assert results([result()]).headers[:2] == ["method", "served"]
    whole = results([judged], modes=True)
    assert whole.headers[1:4] == ["served", "in use", "fine-tuned"]


def test_the_title_holds_only_facts_of_all_results() -> None:
    right = {"server": {"agents": 9, "accuracy": {"micro": 0.5, "macro": 0.5}}}
    for others, title in (
        ({}, "heat, 20 agents; MSE in squared units of the target, mean over agents"),
        ({"name": "cold"}, "20 agents; MSE in squared units of the target, mean over agents"),
        ({"agents": 9}, "heat; MSE in squared units of the target, mean over agents"),
        (
            {"agents": 9, "name": "cold", "accuracy": right},
            "accuracy in % or MSE in squared units of the target, mean over agents",
        ),
    ):
        assert results([result(), result(**others)]).title == title


@pytest.mark.parametrize(
    "damaged",
    [{"client": 3}, {"client": {"epsilon": "[red]", "delta": 1}}, {"client": {}}, {"x": 1}],
)
def test_a_damaged_privacy_account_is_ignored(damaged: dict[str, Any]) -> None:
    assert "red" not in epsilons(damaged)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_of_a_table_is_wider_than_the_terminal_and_no_column_is_lost(width: int) -> None:
    words = results([result(), result(method="ifca")], modes=True)
    text = io.StringIO()
    terminal = Console(
        width=width, file=text, force_terminal=True, no_color=True, markup=False, emoji=False
    )
    show_words(terminal, words, results_table)
    lines = Text.from_ansi(text.getvalue()).plain.splitlines()
    assert max(len(line) for line in lines) <= width
    for word in (*words.headers, *words.rows[0]):
        assert any(word in line for line in lines)
    tables = sum("┏" in line for line in lines)
    assert tables == sum("ifca" in line for line in lines)  # each part names its lines
    assert (tables == 1) == (width == 200)


def test_no_column_of_a_narrow_table_stands_alone() -> None:
    words = results([result(), result(method="ifca"), result(method="fesem")], modes=True)
    for width in range(40, 140):
        console = Console(width=width, file=io.StringIO(), force_terminal=True)
        parts = list(divided(console, words, results_table, width))
        assert min(len(part.columns) for part in parts) > 2 or len(parts[-2].columns) <= 3


def test_a_round_without_a_report_to_wait_for_has_no_line() -> None:
    """Of the method `local`, whose agents train on their own at the end."""
    plain, text = console()
    with ProgressBar(plain, 3) as progress:
        progress(replace(PHASE, means=Means()))
        assert "0/0" not in text.getvalue()
        progress(replace(PHASE, means=Means(), invited=["a"], reported=["a"]))
    assert "1/1 agents" in text.getvalue()


SIX = "6: north-1, north-2, north-3 and 3 more"


def test_no_word_of_a_table_is_cut() -> None:
    """Before: the name of a version ended in dots where its neighbours could have been wrapped."""
    titles = ["version", "role", "mean over agents", "published", "by", "in use on"]
    rows = [
        ["digits-fedavg@5", "", "accuracy 69.44 %", "2026-11-27 18:55", "root@vm", "0"],
        ["digits@5", "champion", "accuracy 96.53 %", "2026-11-27 18:55", "root@vm", SIX],
    ]
    narrow, text = console(width=80)
    show(narrow, Table("federation default: 2 versions", columns_of(titles), rows))
    assert "…" not in text.getvalue()
    assert "digits-fedavg@5" in text.getvalue()
    assert max(map(len, text.getvalue().splitlines())) <= 80
