"""`coordinator try`: the sentence and the table come from the verdict of the comparison, and a user's mistake has a sentence."""

from __future__ import annotations

import json
import shlex
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter
from typer.testing import CliRunner, Result

from covey.agent.data.cells import BadCells
from covey.agent.data.table_files import open_table
from covey.coordinator.cli.options import out
from covey.coordinator.cli.program import app
from covey.extras.compare.rows import ComparisonRow
from covey.extras.compare.tests.comparisons import scenario
from covey.extras.proposals.choices import Proposal
from covey.extras.trial import devices
from covey.extras.trial.devices import devices_in
from covey.extras.trial.tests.homes import DAY, QUERY, write_home
from covey.extras.trial.trial import (
    METHODS,
    MOST,
    ROUNDS,
    WAYS,
    Answer,
    answer_of,
    divided,
    limit_of,
    next_steps,
    planned,
    sources_of,
)
from covey.shared.errors import UserError
from covey.shared.scenario.load import load
from covey.shared.scenario.scenario import Scenario
from covey.shared.wire.framing import Name

KEY = "delivered_accuracy_macro"
CONSTANT, TREES = "baseline_accuracy_macro", "trees_accuracy_macro"
NAMED = {"a": "north.csv", "b": "south.csv"}
COMPARE = {
    "methods": [{"name": name} for name in METHODS],
    "seeds": [1],
    "published": {},
    "metric": "delivered",
}


def row(method: str, agents: Mapping[str, float], groups: int = 2) -> ComparisonRow:
    mean = sum(agents.values()) / len(agents)
    columns = {KEY: mean, CONSTANT: 0.3, TREES: 0.4}
    columns["clusters"] = groups if method == "fedclust" else 1
    return ComparisonRow("", method, 1, columns, dict(agents))


def answered(groups: int = 2, **figures: tuple[float, float]) -> Answer:
    rows = [row(name, dict(zip(NAMED, own, strict=True)), groups) for name, own in figures.items()]
    return answer_of(scenario(compare=COMPARE), rows, NAMED)


def test_the_sentence_is_that_of_the_verdict_on_the_best_way() -> None:
    found = answered(local=(0.5, 0.6), fedavg=(0.6, 0.7), fedclust=(0.85, 0.95))
    assert found.verdict.method == "fedclust"
    assert found.sentence.startswith("2 groups: accuracy in use 90.00 against 65.00 ")
    rest = found.verdict.sentence.partition("accuracy")[2]
    assert found.sentence.endswith(rest)


def test_of_equal_ways_the_simpler_one_is_named() -> None:
    assert answered(fedavg=(0.9, 0.9), fedclust=(0.9, 0.9)).verdict.method == "fedavg"


def test_groups_that_are_hardly_better_do_not_hide_what_one_model_is_worth() -> None:
    """Alone 55 %, one model 80 %: that groups have 80.1 % is no reason to write "not worth it"."""
    found = answered(local=(0.5, 0.6), fedavg=(0.75, 0.85), fedclust=(0.751, 0.851))
    assert (found.verdict.method, found.verdict.outcome) == ("fedavg", "worth it")


def test_groups_that_are_worth_it_over_agents_alone_are_the_best_way() -> None:
    """The best that they are compared with is no federation, although one model has a verdict of its own."""
    found = answered(local=(0.8, 0.8), fedavg=(0.6, 0.6), fedclust=(0.9, 0.9))
    assert (found.verdict.method, found.verdict.outcome) == ("fedclust", "worth it")


def test_one_group_is_no_answer_on_groups() -> None:
    """It is one model with the agents of another draw: "groups: 77.42 against 76.90 with one model" shows nothing."""
    found = answered(groups=1, local=(0.8, 0.8), fedavg=(0.76, 0.76), fedclust=(0.77, 0.77))
    assert found.verdict.method == "fedavg"
    assert answered(groups=1, local=(0.8, 0.8), fedclust=(0.7, 0.7)).verdict.method == "fedclust"


def test_the_devices_that_lose_are_named() -> None:
    found = answered(local=(0.5, 0.6), fedavg=(0.9, 0.55))
    assert found.worse == ["south.csv"]
    assert found.sentence.endswith("; worse for south.csv")
    assert "worse for" not in answered(local=(0.5, 0.6), fedavg=(0.9, 0.9)).sentence


def test_each_way_has_a_line_of_the_table_in_one_order() -> None:
    found = answered(fedclust=(0.9, 0.9), fedavg=(0.6, 0.7), local=(0.5, 0.6))
    assert [line[0] for line in found.table.rows] == [*WAYS.values()]
    assert [line[1] for line in found.table.rows] == ["55.00", "65.00", "90.00", "40.00", "30.00"]


def test_without_a_figure_of_training_together_there_is_no_verdict() -> None:
    with pytest.raises(UserError, match="nothing could be compared"):
        answered(local=(0.5, 0.6))


# -- files ---------------------------------------------------------------------------------------------------------


def tables(folder: Path, count: int = 3) -> list[str]:
    """Devices whose classes lie on two sides of a line; each has 40 rows."""
    draws = np.random.default_rng(0)
    files = [folder / f"pump-{number}.csv" for number in range(count)]
    for file in files:
        rows = draws.normal(size=(40, 3)).round(3)
        cells = [f"{a},{b},{c},{'worn' if a + b > 0 else 'good'}" for a, b, c in rows]
        file.write_text("\n".join(["heat,noise,speed,state", *cells]) + "\n", "utf-8")
    return [str(file) for file in files]


def tried(*words: str) -> Result:
    return CliRunner().invoke(app, ["try", *words])


def test_three_files_become_a_verdict_and_a_scenario(tmp_path: Path) -> None:
    place = tmp_path / "pumps.yaml"
    done = tried(*tables(tmp_path), "--target", "state", "--out", str(place), "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    ways = {line["way"]: float(line["in use"]) for line in found["ways"]}
    assert list(ways) == [*WAYS.values()]
    assert ways["one model"] > ways["constant"]
    assert found["outcome"] in ("worth it", "not worth it", "not shown", "worse")
    assert load(place).task.target == "state"
    assert found["next"][-1] == f"coordinator run {place}"


@pytest.fixture
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """200 columns. A process keeps its terminal, and other tests must not get this one."""
    monkeypatch.setenv("COLUMNS", "200")
    out.cache_clear()
    yield
    out.cache_clear()


@pytest.mark.usefixtures("wide_terminal")
def test_lines_that_are_printed_or_written_fit_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the terminal, and with remarks on both files."""
    monkeypatch.chdir(tmp_path)
    names = [Path(one).name for one in tables(tmp_path, 2)]
    for name in names:
        head, *rows = Path(name).read_text("utf-8").splitlines()
        keys = [f"{head},part", *(f"{row},TEIL-{number:05}" for number, row in enumerate(rows))]
        Path(name).write_text("\n".join(keys) + "\n", "utf-8")
    done = tried(*names, "--target", "state", "--out", "pump.yaml")
    assert done.exit_code == 0, done.output
    sources = [word for name in names for word in ("--from", name)]
    proposed = CliRunner().invoke(app, ["init", *sources, "--target", "state"])
    assert "'part' is not used" in " ".join(proposed.stderr.split())
    printed = [done.stdout, done.stderr, proposed.stdout, proposed.stderr]
    lines = "\n".join([*printed, Path("pump.yaml").read_text("utf-8")]).splitlines()
    assert [line for line in lines if len(line) > 80] == []


def test_a_trial_has_fewer_rounds_than_the_proposal_and_the_methods_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Scenario] = []

    def watched(proposal: Proposal, samples: int) -> Scenario:
        plans.extend([planned(proposal, samples), planned(proposal, 50_000)])
        raise UserError("enough")

    monkeypatch.setattr("covey.extras.trial.trial.planned", watched)
    assert tried(*tables(tmp_path), "--target", "state", "--out", "pumps.yaml").exit_code == 2
    [plan, large] = plans
    assert large.training.batch == 8 * plan.training.batch
    assert plan.rounds.count == ROUNDS < 20
    assert plan.compare is not None
    assert [method.label for method in plan.compare.methods] == [*METHODS]


def test_a_trial_of_many_samples_draws_some_and_states_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("covey.extras.trial.trial.MOST", 60)
    monkeypatch.setattr("covey.extras.trial.trial.LEAST", 10)
    command = [*(Path(one).name for one in tables(tmp_path)), "--target", "state", "--json"]
    found = [json.loads(tried(*command, *more).stdout) for more in ((), ("--all",))]
    assert [one["drawn"] for one in found] == [60, None]
    assert found[0]["outcome"] == found[1]["outcome"]
    done = tried(*command[:-1])
    assert "trained on 60 of 96 samples, drawn; --all takes all" in done.stdout


@pytest.mark.parametrize(
    ("counts", "limit"),
    [
        ([5000, 5000], None),
        ([50_000, 50_000], MOST),
        ([50_000, 100], 15_030),  # the smallest device keeps 30
        ([50_000, 20], None),
    ],
)
def test_every_device_keeps_some_of_the_samples_that_are_drawn(
    counts: list[int], limit: int | None
) -> None:
    assert limit_of(counts) == limit


@pytest.mark.parametrize(
    ("words", "why"),
    [((), "name the column to predict"), (("--target", "colour"), "no column is called 'colour'")],
)
def test_a_table_without_its_target_is_asked_for_one(
    tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    done = tried(*tables(tmp_path), *words)
    assert done.exit_code == 2
    assert f"{why}; choose one with --target: state, speed, noise, heat" in done.stderr


def test_a_table_without_anything_to_predict_is_named_by_what_it_has(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.txt" for number in range(2)]
    for file in files:
        file.write_text("temp  hum\n" + "".join(f"{n / 7:.2f}  {n / 3:.2f}\n" for n in range(90)))
    done = tried(*map(str, files), "--target", "hum")
    assert done.exit_code == 2
    text = " ".join(done.stderr.split())
    assert "all devices have 'temp hum', and nothing that could be predicted" in text
    assert "expected columns between" in text


def test_a_row_that_cannot_be_read_is_said_once_in_the_words_of_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of the three ways reads the same rows, and a newcomer has heard of no cell."""
    first, second = tables(tmp_path, 2)
    rows = Path(first).read_text("utf-8").splitlines()
    rows[7] = "0.1,loud,0.2,good"
    Path(first).write_text("\n".join(rows) + "\n", "utf-8")
    done = tried(first, second, "--target", "state", "--out", str(tmp_path / "pump.yaml"))
    assert done.exit_code == 2
    said = " ".join((done.stderr + caplog.text).split())
    assert said.count("'loud' is not a number") == 1
    assert f"{first}: row 7 (line 8), column 'noise'" in said
    assert "local" not in said
    assert "cell" not in said


def test_for_one_file_the_message_shows_how_to_divide(tmp_path: Path) -> None:
    done = tried(*tables(tmp_path, 1), "--target", "state")
    assert done.exit_code == 2
    assert "each file is a device" in done.stderr
    assert "--by COLUMN" in done.stderr


def test_a_file_that_is_not_there_or_named_twice_is_refused(tmp_path: Path) -> None:
    first, second = tables(tmp_path, 2)
    for files, why in (((first, f"{second}x"), "there is no such file"), ((first, first), "twice")):
        done = tried(*files, "--target", "state")
        assert done.exit_code == 2
        assert why in done.stderr


def test_a_folder_has_a_device_in_each_file_unless_it_is_one(tmp_path: Path) -> None:
    files = tables(tmp_path)
    assert sources_of([str(tmp_path)]) == files
    one = tmp_path / "one"
    one.mkdir()
    Path(files[0]).rename(one / "train.csv")
    Path(files[1]).rename(one / "test.csv")
    with pytest.raises(UserError, match="nobody to train with"):
        sources_of([str(one)])


def test_the_id_of_a_device_in_the_commands_is_one_that_an_agent_takes() -> None:
    [_, start, _] = next_steps("my devices/site 1 (old).csv", Path("x.yaml"))
    words = shlex.split(start)
    assert words[words.index("--data") + 1] == "my devices/site 1 (old).csv"
    assert TypeAdapter(Name).validate_python(words[words.index("--id") + 1]) == "site-1-old"


# -- one table of all devices --------------------------------------------------------------------------------------


def pooled(folder: Path) -> str:
    """The rows of three pumps as a German spreadsheet writes them, in turns, and one row of no pump."""
    devices = [Path(one).read_text("utf-8").splitlines() for one in tables(folder)]
    turns = zip(*(rows[1:] for rows in devices), strict=True)
    lines = ["Pumpe;heat;noise;speed;state"]
    for rows in turns:
        for name, row in zip(("Süd 1", "Süd/1", "3"), rows, strict=True):
            numbers, _, state = row.rpartition(",")
            lines.append(f"{name};{numbers.replace(',', ';').replace('.', ',')};{state}")
    lines.append(";0,5;0,5;0,5;good")
    file = folder / "all pumps.csv"
    file.write_text("\n".join(lines) + "\n", "cp1252")
    return str(file)


def test_one_table_is_divided_by_the_column_that_names_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = tried(pooled(tmp_path), "--by", "Pumpe", "--target", "state", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    ways = {line["way"]: float(line["in use"]) for line in found["ways"]}
    assert ways["one model"] > ways["constant"]
    files = sorted(Path("all pumps-by-Pumpe").iterdir())
    assert [file.name for file in files] == ["3.csv", "Süd-1-1.csv", "Süd-1.csv"]
    lines = files[2].read_text("utf-8").splitlines()
    assert lines[0] == "heat;noise;speed;state"
    assert len(lines) == 41
    own = Path(tables(tmp_path)[0]).read_text("utf-8").splitlines()[1].rpartition(",")
    assert lines[1] == f"{own[0].replace(',', ';').replace('.', ',')};{own[2]}"
    again = tried(pooled(tmp_path), "--by", "Pumpe", "--target", "colour")
    assert "no column is called 'colour'" in again.stderr


def test_values_with_types_keep_them_where_a_table_is_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("all.db")) as base, base:
        base.execute("CREATE TABLE t (room, heat, state)")
        base.executemany("INSERT INTO t VALUES (?, ?, ?)", [(1, 0.5, "on"), (2, None, "007")])
    files = divided(["sqlite:all.db?table=t"], "room")
    texts = [Path(file).read_text("utf-8") for file in files]
    assert texts == ['{"heat": 0.5, "state": "on"}\n', '{"heat": null, "state": "007"}\n']


@pytest.mark.parametrize(
    ("by", "why"),
    [
        ("colour", "no column 'colour'; expected one of 'Pumpe', 'heat'"),
        ("one", "'one' names 1 devices; expected two or more"),
        ("row", "'row' has more than 200 words; expected a column that names the device"),
    ],
)
def test_a_column_that_names_no_devices_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"p{row % 3};{row};a;{row}" for row in range(300)]
    Path("all.csv").write_text("\n".join(["Pumpe;heat;one;row", *rows]) + "\n", "utf-8")
    done = tried("all.csv", "--by", by, "--target", "heat")
    assert done.exit_code == 2
    assert why in " ".join(done.stderr.split())
    assert [one.name for one in tmp_path.iterdir()] == ["all.csv"]


@pytest.mark.parametrize("end", ["\r", "\n"])
def test_a_word_with_an_end_of_a_line_stays_within_its_row_where_a_table_is_divided(
    tmp_path: Path, end: str
) -> None:
    rows = [f'p{row % 2};{row};"a{end}b"' for row in range(40)]
    whole = tmp_path / "all.csv"
    whole.write_text("\n".join(["Pumpe;heat;state", *rows]) + "\n", "utf-8", newline="")
    for file in devices.divided(str(whole), "Pumpe", tmp_path / "devices"):
        faults = BadCells(Path(file))
        with open_table(Path(file)) as table:
            blocks = list(table.blocks(["heat", "state"], faults))
        assert (sum(len(one.rows) for one in blocks), faults.count) == (20, 0)


def test_a_row_of_another_length_is_named_where_a_table_is_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, it was in no file, without a word."""
    monkeypatch.chdir(tmp_path)
    rows = [f"p{row % 2};{row};a" for row in range(40)]
    rows[7] = "p1;7"
    Path("all.csv").write_text("\n".join(["Pumpe;heat;state", *rows]) + "\n", "utf-8")
    done = tried("all.csv", "--by", "Pumpe", "--target", "state")
    assert done.exit_code == 2
    assert "all.csv: row 8 (line 9)" in " ".join(done.stderr.split())
    assert [one.name for one in tmp_path.iterdir()] == ["all.csv"]


def test_rows_of_somebody_are_not_replaced_where_a_table_is_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = pooled(tmp_path)
    mine = tmp_path / "all pumps-by-Pumpe" / "3.csv"
    mine.parent.mkdir()
    mine.write_text("mine\n", "utf-8")
    done = tried(source, "--by", "Pumpe", "--target", "state")
    assert done.exit_code == 2
    assert "3.csv is there already, with other rows" in " ".join(done.stderr.split())
    assert mine.read_text("utf-8") == "mine\n"
    several = tried(*tables(tmp_path), "--by", "Pumpe", "--target", "state")
    assert "--by Pumpe: expected one file" in several.stderr


# -- databases -----------------------------------------------------------------------------------------------------


def test_homes_whose_states_are_in_a_database_become_a_verdict(tmp_path: Path) -> None:
    """The query stands in no name and no remark: a reader looks for the file."""
    sources = []
    for number in (1, 2):
        write_home(tmp_path / f"home-{number}.db", number, days=2)
        sources.append(f"sqlite:{tmp_path}/home-{number}.db?query={QUERY}")
    place = tmp_path / "homes.yaml"
    done = tried(*sources, "--target", "temperature", "--out", str(place), "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    ways = {line["way"]: float(line["in use"]) for line in found["ways"]}
    assert ways["one model"] < ways["constant"]
    assert set(found["worse_for"]) <= {"home-1.db", "home-2.db"}
    assert found["odd"]
    assert "SELECT" not in " ".join([found["sentence"], *found["odd"], place.read_text("utf-8")])
    task = load(place).task
    assert (task.target, task.times) == ("temperature", ("time",))
    words = shlex.split(found["next"][1])
    assert words[words.index("--data") + 1] == sources[0]


def test_the_simulated_devices_have_the_rows_that_the_query_gives(tmp_path: Path) -> None:
    write_home(tmp_path / "home.db", 1, days=1)
    source = f"sqlite:{tmp_path}/home.db?query={QUERY}"
    devices_in(tmp_path, [source])
    with closing(sqlite3.connect(tmp_path / "home.db")) as base:
        expected = base.execute(QUERY).fetchall()
    lines = (tmp_path / "00000.jsonl").read_text("utf-8").splitlines()
    assert [tuple(json.loads(line).values()) for line in lines] == expected
    assert len(expected) == DAY


def test_a_row_of_a_query_that_cannot_be_read_names_the_database(tmp_path: Path) -> None:
    sources = []
    for number in (1, 2):
        with closing(sqlite3.connect(tmp_path / f"home-{number}.db")) as base, base:
            base.execute("CREATE TABLE t (heat, state)")
            rows = [(f"{row / 7}", "on" if row % 3 else "off") for row in range(60)]
            rows[5] = ("loud", "on")
            base.executemany("INSERT INTO t VALUES (?, ?)", rows)
        sources.append(f"sqlite:{tmp_path}/home-{number}.db?table=t")
    done = tried(*sources, "--target", "state", "--out", str(tmp_path / "homes.yaml"))
    said = " ".join(done.stderr.split())
    assert "home-1.db: row 6" in said
    assert "covey-try" not in said


def test_two_queries_of_one_database_are_two_devices_and_one_is_one(tmp_path: Path) -> None:
    write_home(tmp_path / "home.db", 1, days=1)
    rooms = [f"sqlite:{tmp_path}/home.db?query=SELECT {number}, 1" for number in (1, 2)]
    assert sources_of(rooms) == rooms
    with pytest.raises(UserError, match="twice"):
        sources_of([*rooms, rooms[0]])
    with pytest.raises(UserError, match="there is no such file"):
        sources_of(["sqlite:away.db?table=states", rooms[0]])


def test_a_scenario_of_somebody_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "pump.yaml"
    mine.write_text("name: mine\n", "utf-8")
    done = tried(*tables(tmp_path), "--target", "state")
    assert done.exit_code == 2
    assert "pump.yaml is there already" in done.stderr
    assert mine.read_text("utf-8") == "name: mine\n"
