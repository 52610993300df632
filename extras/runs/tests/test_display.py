"""The display shows text from agents, files and brokers literally, never as markup: what needs `runs`."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from covey.coordinator.report.progress import ProgressBar
from covey.coordinator.view.printed import framed, show
from covey.coordinator.view.words import epsilons
from covey.extras.runs import status
from covey.extras.runs.roster_table import roster_table, status_lines
from covey.shared.candidate_names import CONSTANT
from covey.shared.wire.documents import RosterMessage
from tests.coordinator.test_display import FINE, ODD, PHASE, ROW, console


def test_the_roster_prints_names_and_problems_without_interpreting_markup() -> None:
    plain, text = console()
    plain.print(framed(roster_table({"run": ODD, "agents": {ODD: ROW}})))
    assert text.getvalue().count(ODD) == 3  # title, agent, problem


def test_the_roster_names_an_agent_that_fails_and_why_and_has_no_empty_columns() -> None:
    plain, text = console()
    failing = {**FINE, "failed": "no such file", "failures": 5}
    plain.print(framed(roster_table({"run": "r", "agents": {"pi-1": FINE, "pi-2": failing}})))
    shown = text.getvalue()
    assert "failing" in shown
    assert "failed 5 times in a row, the last time: no such file" in shown
    assert "version in use" not in shown


def test_a_roster_that_is_too_wide_for_the_terminal_becomes_a_block_for_each_agent() -> None:
    narrow, text = console(width=80)
    failing = {**FINE, "failed": f"no such file: /data/{'x' * 60}.csv", "failures": 5}
    agents = {f"raspberry-{number}.field.example.org": failing for number in range(3)}
    show(narrow, roster_table({"run": "r", "agents": agents}))
    lines = text.getvalue().splitlines()
    assert "agent: raspberry-0.field.example.org" in lines
    assert "  state: failing" in lines
    assert all(len(line) <= 80 for line in lines)


STATUS = {
    "name": "devices",
    "online": True,
    "state": "open",
    "round": 1,
    "rounds": 2,
    "phase": "train",
}
LEFT = "no coordinator is running: this is what the agents state themselves"


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({}, ["devices: open, round 1 of 2, train"]),
        ({"state": "gathering", "phase": ""}, ["devices: gathering, round 1 of 2"]),
        ({"state": "finished", "round": 2, "phase": ""}, ["devices: finished, round 2 of 2", LEFT]),
        ({"state": "stopped"}, ["devices: stopped, round 1 of 2, train", LEFT]),
        ({"name": "", "online": False, "state": "stopped"}, [LEFT]),  # a last will
    ],
)
def test_the_status_marks_a_roster_that_an_earlier_coordinator_left(
    changes: dict[str, Any], lines: list[str]
) -> None:
    assert status_lines({"status": {**STATUS, **changes}, "devices": {}}) == lines


def test_a_roster_from_a_folder_shows_its_time_and_whether_the_run_is_finished(
    tmp_path: Path,
) -> None:
    (tmp_path / "roster.json").write_bytes(RosterMessage(run="r1").to_bytes())
    (written,) = status_lines(status.from_folder(tmp_path))
    assert written.startswith("this is what its coordinator wrote last, at ")
    (tmp_path / "result.json").touch()
    assert status_lines(status.from_folder(tmp_path)) == [f"the run is finished; {written}"]


def test_an_agent_last_seen_on_another_day_is_shown_with_the_date() -> None:
    now = time.time()
    for seen, wanted in ((now, "%H:%M:%S"), (now - 3 * 86400, "%Y-%m-%d %H:%M")):
        plain, text = console()
        plain.print(framed(roster_table({"run": "r", "agents": {"a": {**ROW, "seen": seen}}})))
        assert f" {time.strftime(wanted, time.localtime(seen))} " in text.getvalue()


ACCOUNT = {"client": {"epsilon": 3.456, "delta": 1e-5}, "local": {"epsilon": None, "delta": 1e-5}}


def test_the_privacy_account_appears_in_the_progress_line_and_the_status() -> None:
    words = "client-level ε 3.46 at δ 1e-05; example-level no bound"
    assert epsilons(ACCOUNT) == words
    plain, text = console()
    with ProgressBar(plain, 3) as progress:
        progress(replace(PHASE, privacy=ACCOUNT))
    assert words in text.getvalue()
    seen = {"status": STATUS, "privacy": ACCOUNT}
    assert words in " ".join(status_lines(seen))
    assert words not in " ".join(status_lines({**seen, "privacy": None}))


FULL = {
    **FINE,
    "samples": 12000,
    "test_samples": 3000,
    "labels": 10,
    "cluster": 3,
    "seen": 1.7e9,
    "since": 1.7e9,
    "figure": 19.838,
    "certificate": 1.9e9,
    "disk_free": 10**9,
    "refusals": {"bad index": 17},
    "failed": "step 7 moved the model by 1e+06; is the learning rate too large for this data?",
    "failures": 5,
    "model": {"run": "c0ffee1234", "round": 59, "name": "candidate-july", "rejected": 43}
    | {"note": "rejected: RMSE 81.2 is worse than 71.6 of the model in use", "hook_failures": 3},
}


def test_the_roster_fits_80_columns_whatever_is_known_of_an_agent() -> None:
    names = ["gateway-berlin-12", "gw-2"]
    for known in (set(FULL), {"model"}, {"failed", "failures"}, {"refusals"}, {"since"}):
        row = {**FINE, **{name: FULL[name] for name in known}}
        narrow, text = console(width=80)
        show(narrow, roster_table({"run": "r", "agents": dict.fromkeys(names, row)}))
        lines = text.getvalue().splitlines()
        assert max(map(len, lines)) <= 80
        assert any("state" in line and "since" in line for line in lines), lines  # a table still


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"failed", "failures", "model"}, "failed 5 times in a row"),
        ({"model", "refusals"}, "rejected: RMSE 81.2"),
        ({"refusals"}, "refused messages: bad index 17"),
        ({"certificate", "disk_free"}, ""),
    ],
)
def test_the_row_of_an_agent_has_what_matters_most_about_it(known: set[str], words: str) -> None:
    row = {**FINE, "test_samples": 9, **{name: FULL[name] for name in known}}
    table = roster_table({"run": "r", "agents": {"pi-1": row, "pi-2": FULL}})
    assert table.rows[0][-1].startswith(words)
    assert bool(table.rows[0][-1]) == bool(words)


@pytest.mark.parametrize(
    ("model", "mixes", "wrong"),
    [
        ({"note": "in use: june", "uses": "60 % served"}, "60 % served", ""),
        ({"note": "judging: july", "uses": "60 % served"}, "judging: july", ""),
        ({"note": "rejected: july", "uses": CONSTANT}, CONSTANT, "rejected: july"),
        ({"note": "in use: june"}, None, ""),  # a device that does not tell, or an earlier version
    ],
)
def test_a_line_has_what_the_device_mixes_where_it_states_it(
    model: dict[str, str], mixes: str | None, wrong: str
) -> None:
    rows = {
        "pi-1": {
            **FINE,
            "test_samples": 9,
            "model": {"run": "r", "round": 3, "name": "june", **model},
        }
    }
    table = roster_table({"run": "r", "agents": rows})
    cells = dict(zip((one.title for one in table.columns), table.rows[0], strict=True))
    assert (cells["version in use"], cells.get("it mixes")) == ("june", mixes)
    assert cells.get("what is wrong", "") == wrong
