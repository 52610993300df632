"""Tables as exports and people make them: what is proposed, what is refused by its name, and which words stay on their device."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.agent.data.check import load_local
from covey.extras.proposals.check_report import show
from covey.extras.proposals.choices import Proposal
from covey.extras.proposals.describe import found_notation
from covey.extras.proposals.init import described
from covey.extras.proposals.proposal import checked, propose
from covey.extras.proposals.proposal_data import describe, describe_all
from covey.shared.errors import DataError, UserError
from covey.shared.scenario.columns import Notation
from covey.shared.scenario.task import Task

ROWS = 40
BLUE = ("blue", "green", "red")


def table(folder: Path, name: str, header: str, *rows: str, separator: str = ",") -> str:
    path = folder / name
    path.write_text(
        "\n".join(line.replace("|", separator) for line in (header, *rows)) + "\n", "utf-8"
    )
    return str(path)


def proposed(*sources: str, words: tuple[str, ...] = (), **options: Any) -> Proposal:
    return propose([describe(source, words) for source in sources], **options)


def task_of(proposal: Proposal) -> Task:
    return checked(proposal).task


def noise(row: int) -> float:
    return round(float(np.random.default_rng(row).random()), 3)


# -- words leave a device only if they are classes of things --------------------------------------------------


def person(number: int) -> str:
    return f"{('Ada', 'Bo', 'Cleo', 'Dan', 'Eve')[number % 5]} {('Smith', 'Jones', 'Wu')[number // 5 % 3]}son{'abcdef'[number // 15 % 6]}"


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("patient", person),
        ("who", person),
        ("place", lambda row: f"{row} Main Street"),
        ("code", lambda row: f"N{row % 15}K"),
        ("said", lambda row: "it was a long day, and then we went home again" + "!" * (row % 3)),
        ("employee", lambda row: ("Ann", "Ben")[row % 2]),
        ("Vorname", lambda row: ("Ann", "Ben")[row % 2]),
        ("prénom du client", lambda row: ("Ann", "Ben")[row % 2]),
        ("position", lambda row: f"52.{row % 15:02},13.4"),
        ("chassis", lambda row: f"WVW{row // 30}{row % 9:05}"),
        ("mac", lambda row: f"aa:{row // 30:02}:{row % 4:02}"),
        ("src", lambda row: f"10.0.{row // 30}.{row % 15}"),
        ("town", lambda row: f"town {'abcdefghijklmnopqrstuvwxyz'[row % 26]}"),
    ],
)
def test_keys_names_and_texts_are_no_categories_and_no_device_lists_them(
    tmp_path: Path, name: str, word: Any
) -> None:
    """One repeat on one device defeats no test: the sum over the devices counts."""
    sources = [
        table(
            tmp_path, f"{device}.csv", f"{name},a,y",
            *(f'"{word(30 * device + max(row, 1))}",{noise(row)},{row % 2}' for row in range(30)),
        )
        for device in range(3)
    ]  # fmt: skip
    proposal = proposed(*sources)
    task = task_of(proposal)
    assert task.columns == ("a",)
    assert name in task.ignore
    assert f"--words {name}" in "".join(proposal.remarks())
    if name != "town":
        assert word(31) not in proposal.to_yaml()
        assert word(31) not in describe(sources[1]).model_dump_json()


def test_the_owners_yes_lists_words_that_are_many(tmp_path: Path) -> None:
    rows = [f"town {row % 26},{noise(row)},{row % 2}" for row in range(78)]
    source = table(tmp_path, "a.csv", "town,a,y", *rows)
    proposal = proposed(source, words=("town",))
    assert len(task_of(proposal).table_columns[0].words) == 26
    assert "used, as --words asks" in "".join(proposal.remarks())


def test_the_words_of_a_category_are_shown_before_anything_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{BLUE[row % 3]},{noise(row)},{row % 2}" for row in range(ROWS)]
    source = table(tmp_path, "a.csv", "colour,a,y", *rows)
    assert "colour: [blue, green, red]" in proposed(source).to_yaml()
    assert show(source, None, None, as_json=False)
    assert "words in colour (blue, green, red)" in capsys.readouterr().out


def test_rare_words_need_a_yes(tmp_path: Path) -> None:
    rows = [f"{'abcdefgh'[row] if row < 8 else 'z'},{noise(row)},{row % 2}" for row in range(ROWS)]
    assert task_of(proposed(table(tmp_path, "a.csv", "kind,a,y", *rows))).columns == ("a",)


# -- row numbers, whatever their name ---------------------------------------------------------------------------


def shuffled(row: int) -> int:
    return sorted(range(ROWS), key=lambda one: noise(one + 7))[row]


@pytest.mark.parametrize(
    "number",
    [
        lambda row, device: row,
        lambda row, device: 1000 * device + row + 1,
        lambda row, device: 50 * device + 3 * row + row % 2,
        lambda row, device: 900 - row,
        lambda row, device: ROWS * device + shuffled(row),
    ],
)  # fmt: skip
def test_whole_numbers_that_count_the_rows_are_no_inputs(tmp_path: Path, number: Any) -> None:
    sources = [
        table(
            tmp_path, f"{device}.csv", "rownames,age,y",
            *(f"{number(row, device)},{20 + row * row % 31},{row % 2}" for row in range(ROWS)),
        )
        for device in range(3)
    ]  # fmt: skip
    assert task_of(proposed(*sources)).columns == ("age",)


def test_keys_of_64_bits_and_other_spellings_of_booleans_are_named(tmp_path: Path) -> None:
    rows = [f"{2**62 + 7**row % 10**9},{noise(row)},{('no', 'yes')[row % 2]},{row // 2 % 2}" for row in range(ROWS)]  # fmt: skip
    other = [row.replace("yes", "TRUE").replace("no", "FALSE") for row in rows]
    sources = [table(tmp_path, f"{name}.csv", "k,a,on,y", *own) for name, own in (("a", rows), ("b", other))]  # fmt: skip
    proposal = proposed(*sources)
    assert task_of(proposal).columns == ("a",)
    assert "more than 53 bits: keys" in proposal.to_yaml().replace("\n  # ", " ")
    assert "write true and false on all devices" in "".join(proposal.remarks())


def test_whole_numbers_that_never_repeat_are_worth_a_remark(tmp_path: Path) -> None:
    rows = [f"{row * 7919 % 90_001 + 10_000},{1_700_000_000 + 60 * row},{noise(row)},{row % 2}" for row in range(ROWS)]  # fmt: skip
    proposal = proposed(table(tmp_path, "a.csv", "seqn,when,a,y", *rows))
    assert "'seqn': a different whole number in every row" in "".join(proposal.remarks())
    assert (
        "seconds since 1970: then list it in task.times" in proposal.sections["task"]["ignore"].why
    )


@pytest.mark.parametrize("name", ["id", "AirlineID", "member_key", "user.uuid"])
def test_numbers_that_name_things_are_no_inputs_though_they_repeat(
    tmp_path: Path, name: str
) -> None:
    rows = [f"{row * 37 % 26 + 1000},{noise(row)},{row % 2}" for row in range(ROWS)]
    assert task_of(proposed(table(tmp_path, "a.csv", f"{name},a,y", *rows))).columns == ("a",)
    few = [f"{row % 7},{noise(row)},{row % 2}" for row in range(ROWS)]
    assert task_of(proposed(table(tmp_path, "b.csv", f"{name},a,y", *few))).columns == (name, "a")


def test_numbers_in_rising_runs_of_rows_are_worth_a_remark(tmp_path: Path) -> None:
    rows = [f"{3 + row // 3},{noise(row)},{row % 2}" for row in range(3 * ROWS)]
    proposal = proposed(table(tmp_path, "a.csv", "Subject,a,y", *rows))
    assert "'Subject': whole numbers in the order of the file" in "".join(proposal.remarks())
    assert task_of(proposal).columns == ("Subject", "a")


@pytest.mark.parametrize(
    ("last", "cell"),
    [
        ("minute", "{row}"),
        ("day_of_week", "{row}"),
        ("Month", "{row}"),
        ("spare", ""),
        ("spare", "7"),
    ],
)
def test_a_part_of_a_time_or_nothing_at_all_is_not_proposed_as_the_target(
    tmp_path: Path, last: str, cell: str
) -> None:
    rows = [f"{noise(row)},{noise(2 * row)},{cell.format(row=row % 12)}" for row in range(ROWS)]
    assert task_of(proposed(table(tmp_path, "a.csv", f"a,b,{last}", *rows))).target == "b"


def test_years_may_rise(tmp_path: Path) -> None:
    rows = [f"{1950 + row},{noise(row)}" for row in range(ROWS)]
    assert "year" in task_of(proposed(table(tmp_path, "a.csv", "year,y", *rows))).columns


# -- targets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", ["ward", "site", "label"])
def test_a_target_that_is_the_device_is_not_proposed(tmp_path: Path, last: str) -> None:
    def device(number: int) -> str:
        ward = f"ward {number}" if last == "site" else number
        rows = [f"{noise(row)},{BLUE[row % 3]},{ward}" for row in range(ROWS)]
        return table(tmp_path, f"{number}.csv", f"a,sort,{last}", *rows)

    sources = [device(number) for number in range(3)]
    assert task_of(proposed(*sources)).target == "sort"
    wished = proposed(*sources, target=last, words=(last,))
    assert "has one value on each device" in "".join(wished.warnings)


def test_rows_without_a_target_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [f"{noise(row)},{'' if row % 10 == 3 else ('n/a' if row == 5 else noise(row + 1))}" for row in range(ROWS)]  # fmt: skip
    source = table(tmp_path, "a.csv", "a,y", *rows)
    proposal = proposed(source)
    task = task_of(proposal)
    assert task.drop_unlabelled
    assert f"{source}: 5 rows without target 'y', left out" in "".join(proposal.remarks())
    data = load_local(source, task=task)
    assert len(data.targets) + len(data.test_targets) == ROWS - 5
    refused = task.model_copy(update={"drop_unlabelled": False})
    with pytest.raises(DataError, match=r"row 4 \(line 5\): no label(.|\n)*task\.drop_unlabelled"):
        load_local(source, task=refused)


# -- spellings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", ["?", "-", "#N/A", "None", "<NA>", "NaT", "..", "offline", "*"])
@pytest.mark.parametrize("every", [3, 5])
def test_marks_of_missing_cells_do_not_make_words_of_numbers(
    tmp_path: Path, mark: str, every: int
) -> None:
    rows = [f"{mark if row % every == 0 else noise(row)},{row % 2}" for row in range(ROWS)]
    source = table(tmp_path, "a.csv", "a,y", *rows)
    task = task_of(proposed(source))
    assert (task.read.missing, task.categories, task.columns) == ((mark,), {}, ("a",))
    assert len(load_local(source, task=task).features)


def with_marks(folder: Path) -> list[str]:
    """Tables of three devices, of which the first shows by its numbers that ERR stands for a missing cell."""
    return [
        table(
            folder, f"{device}.csv", "hp,a,y",
            *(f"{'ERR' if row % every == 1 else 5 + row % 9},{noise(row)},{row % 2}" for row in range(ROWS)),
        )
        for device, every in enumerate((8, ROWS, 3))
    ]  # fmt: skip


def test_a_mark_that_one_device_shows_is_one_on_all_devices(tmp_path: Path) -> None:
    sources = with_marks(tmp_path)
    proposal = propose(describe_all(sources))
    task = task_of(proposal)
    assert (task.read.missing, task.columns, proposal.remarks()) == (("ERR",), ("hp", "a"), [])
    for source in sources:
        assert len(load_local(source, task=task).features)


def test_a_mark_in_a_description_is_one_in_the_tables_that_are_read_with_it(tmp_path: Path) -> None:
    first, *others = with_marks(tmp_path)
    elsewhere = tmp_path / "0.json"
    elsewhere.write_text(describe(first).model_dump_json(), "utf-8")
    proposal = propose(described([others[0], str(elsewhere), others[1]]))
    task = task_of(proposal)
    assert (task.read.missing, task.columns, proposal.remarks()) == (("ERR",), ("hp", "a"), [])


def test_a_description_from_before_a_mark_was_known_is_asked_for_again(tmp_path: Path) -> None:
    remarks = propose([describe(source) for source in with_marks(tmp_path)]).remarks()
    assert "2.csv: described without 'ERR'" in "".join(remarks)
    assert "agent check --propose --json --also DESCRIPTION" in "".join(remarks)


def test_a_limit_of_detection_is_no_missing_cell(tmp_path: Path) -> None:
    rows = [f"{'<0.006' if row % 9 == 0 else noise(row)},{noise(row)},{row % 2}" for row in range(ROWS)]  # fmt: skip
    assert task_of(proposed(table(tmp_path, "a.csv", "a,b,y", *rows))).read.missing == ()


def test_numbers_among_words_are_worth_a_remark(tmp_path: Path) -> None:
    rows = [f"{'V27' if row % 3 == 0 else noise(row)},{noise(row)},{row % 2}" for row in range(ROWS)]  # fmt: skip
    remarks = "".join(proposed(table(tmp_path, "a.csv", "hp,a,y", *rows)).remarks())
    assert "column 'hp': 65 % numbers, else 'V27'" in remarks


@pytest.mark.parametrize(
    ("mark", "named"), [("-999", "-999"), ("-999.0", "-999"), ("99999", "99999")]
)
def test_a_number_far_from_all_others_that_is_repeated_is_worth_a_remark(
    tmp_path: Path, mark: str, named: str
) -> None:
    def remarks(cell: Any) -> str:
        rows = [f"{cell(row)},{noise(row)},{row % 2}" for row in range(ROWS)]
        return "".join(proposed(table(tmp_path, "a.csv", "flow,a,y", *rows)).remarks())

    seen = f"column 'flow': 4 of {ROWS} cells are {named}, far from all others"
    assert seen in remarks(lambda row: mark if row % 10 == 0 else noise(row))
    assert seen in remarks(lambda row: mark if row % 10 == 0 else row // 4)
    assert seen in remarks(
        lambda row: mark if row % 10 == 0 else row if row % 4 == 0 else 0
    )  # rain
    for usual in (
        lambda row: mark if row == 0 else noise(row),  # once
        lambda row: int(row % 10 == 0),  # a flag
        lambda row: max(noise(row), 0.8),  # a limit of the sensor
        lambda row: int(3 * noise(row) ** 3),  # mostly 0
        lambda row: mark if row % 10 else noise(row),  # the usual value
        lambda row: 255 if row % 10 == 0 else (row if row % 4 == 0 else 0),  # a pixel at the edge
    ):
        assert "far from all others" not in remarks(usual)
    rows = [f"{mark if row % 10 == 0 else noise(row)},{row % 2}" for row in range(ROWS)]
    notation = Notation(missing=(named,))
    task = Task(
        features=(1,), columns=("flow",), target="y", classes=2, impute="mean", read=notation
    )
    read = load_local(table(tmp_path, "b.csv", "flow,y", *rows), task=task)
    assert np.isnan(read.features).sum() == 4


@pytest.mark.parametrize("apart", [1, 3])
def test_devices_with_words_of_their_own_are_named(tmp_path: Path, apart: int) -> None:
    def device(number: int, words: tuple[str, ...]) -> str:
        rows = [f"{words[row % len(words)]},{noise(row)},{row % 2}" for row in range(ROWS)]
        return table(tmp_path, f"{number}.csv", "on,a,y", *rows)

    german = [device(number, ("ja", "nein")) for number in range(apart)]
    english = [device(number + apart, ("yes", "no")) for number in range(4)]
    [warning] = proposed(*english, *german).warnings
    assert f"no other device has the words of {', '.join(german)} (ja, nein)" in warning
    chain = [device(number, BLUE[number : number + 2]) for number in (0, 1)]
    assert not proposed(*chain).warnings
    each_its_own = [device(number, (f"site {'xyz'[number]}",)) for number in range(3)]
    assert "write the same words" not in "".join(proposed(*each_its_own).remarks())


@pytest.mark.parametrize(
    ("cells", "read", "first"),
    [
        (('"$1,200"', '"$950"', '"$12,345.50"'), {"units": ("$",), "thousands": ","}, 1200),
        (("12%", "7.5 %", "80%"), {"units": ("%",)}, 12),
        (("45 mm", "7 mm", "3.5mm"), {"units": ("mm",)}, 45),
        (("1\u202f234", "935", "12\u202f000"), {"thousands": " "}, 1234),
        (("1'234", "935", "12'000.5"), {"thousands": "'"}, 1234),
        (("\u22125", "7", "\u22122.5"), {}, -5),
        (('"=""33"""', '"=""7"""', '"=""12"""'), {}, 33),
        (("EUR 12", "EUR 7.5", "EUR 80"), {"units": ("EUR",)}, 12),
        (('"($1,200.50)"', '"$12,345"', '"$950"'), {"units": ("$",), "thousands": ","}, -1200.5),
        (("(12.5)", "7", "80"), {}, -12.5),
        (('"1,234.50-"', '"950.00"', '"12,345.00"'), {"thousands": ","}, -1234.5),
    ],
)
def test_numbers_with_something_around_them_are_read(
    tmp_path: Path, cells: tuple[str, ...], read: dict[str, Any], first: float
) -> None:
    rows = [f"{cells[row * row % 7 % 3]},{noise(row)}" for row in range(ROWS)]
    source = table(tmp_path, "a.csv", "a,y", *rows)
    task = task_of(proposed(source))
    assert task.read.model_dump(exclude_defaults=True) == read
    assert task.categories == {}
    assert (
        load_local(source, task=task.model_copy(update={"test": "latest"})).features[0, 0] == first
    )


@pytest.mark.parametrize("cell", ["<0.006", "~0.56"])
def test_a_spelling_that_no_rule_reads_is_named(tmp_path: Path, cell: str) -> None:
    rows = [f"{cell.replace('5', str(row % 9)).replace('6', str(row % 9))},{noise(row)},{row % 2}" for row in range(ROWS)]  # fmt: skip
    proposal = proposed(table(tmp_path, "a.csv", "a,b,y", *rows))
    assert "column 'a': " in "".join(proposal.remarks()) or "'a' is not used" in "".join(proposal.remarks())  # fmt: skip


@pytest.mark.parametrize(
    ("end", "shape"),
    [
        ("/05/2020", "99/99/9999"),
        (" lut. 2020 10:05", "99 aaa. 9999 99:99"),
        (".02.2020 10:05 früh", "99.99.9999 99:99 aaaa"),
        (" 312 €?", "99 999 €?"),
    ],
)
def test_numbers_and_times_that_no_rule_reads_are_named_by_their_shape(
    tmp_path: Path, end: str, shape: str
) -> None:
    rows = [f"{row % 12 + 1:02}{end},{noise(row)},{row % 2}" for row in range(ROWS)]
    source = table(tmp_path, "a.csv", "a,b,y", *rows)
    assert f"with something around them, such as {shape!r}" in "".join(proposed(source).remarks())


def test_feet_and_inches_are_no_number_with_a_unit(tmp_path: Path) -> None:
    rows = [f'"{row % 7}\' {row % 11}""",{noise(row)},{row % 2}' for row in range(ROWS)]
    assert task_of(proposed(table(tmp_path, "a.csv", "a,b,y", *rows))).read.units == ()


def test_points_between_thousands_are_found_or_named(tmp_path: Path) -> None:
    german = [f"{('1.234', '935', '12.500')[row % 3]}|{row % 7},5|{row % 2}" for row in range(ROWS)]
    source = table(tmp_path, "a.csv", "a|b|y", *german, separator=";")
    read = task_of(proposed(source)).read
    assert (read.decimal, read.thousands) == (",", ".")
    assert load_local(source, task=task_of(proposed(source))).features.max() == 12_500
    with_points = [f"{('1.234', '935', '12.500')[row % 3]}|{row % 7}.5|{row % 2}" for row in range(ROWS)]  # fmt: skip
    both = proposed(table(tmp_path, "b.csv", "a|b|y", *with_points, separator=";"))
    assert "'1.234' may be a thousand or have three decimals" in "".join(both.remarks())
    points = [f"{noise(row) + 0.25}|{row % 7}.5|{row % 2}" for row in range(ROWS)]
    mixed = proposed(source, table(tmp_path, "c.csv", "a|b|y", *points, separator=";"))
    assert task_of(mixed).read.thousands is None
    assert "write numbers alike on all devices" in "".join(mixed.warnings)


def test_booleans_of_all_programs_are_one_input_and_two_classes(tmp_path: Path) -> None:
    flags = (("TRUE", "FALSE"), ("True", "False"), ("1", "0"))
    sources = [
        table(
            tmp_path, f"{device}.csv", "smoker,a,alarm",
            *(f"{own[row % 2]},{noise(row)},{flags[device % 2][row // 2 % 2]}" for row in range(ROWS)),
        )
        for device, own in enumerate(flags)
    ]  # fmt: skip
    task = task_of(proposed(*sources))
    assert (task.columns, task.categories, task.classes) == (("smoker", "a"), {}, ("false", "true"))
    for source in sources:
        data = load_local(source, task=task)
        assert {*data.features[:, 0]} == {0, 1}
        assert {*data.targets.tolist()} == {0, 1}


@pytest.mark.parametrize(
    "form",
    [
        "%Y-%m-%d %H:%M:%S UTC",
        "%m/%d/%Y %I:%M %p",
        "%b %d %Y",
        "%Y%m%d%H%M%S",
        "%d-%b-%y",
        "%m/%d/%y",
        "%d/%b/%Y:%H:%M:%S +0000",
    ],
)
def test_times_are_seen_as_exports_write_them(tmp_path: Path, form: str) -> None:
    start = datetime(2025, 1, 1, 0, 5)
    rows = [f"{(start + timedelta(hours=19 * row)).strftime(form)},{noise(row)},{row % 2}" for row in range(ROWS)]  # fmt: skip
    source = table(tmp_path, "a.csv", "at,a,y", *rows)
    task = task_of(proposed(source))
    assert task.times == ("at",)
    assert len(load_local(source, task=task).features)


def test_numbers_of_an_unlikely_year_are_no_times(tmp_path: Path) -> None:
    rows = [f"{3e8 + 1e6 * noise(row)},{row % 2}" for row in range(ROWS)]
    assert task_of(proposed(table(tmp_path, "a.csv", "timestamp,y", *rows))).times == ()


@pytest.mark.parametrize("none", ["0000-00-00 00:00:00", "0001-01-01T00:00:00", "9999-12-31"])
def test_a_date_that_stands_for_none_is_a_mark_among_times(tmp_path: Path, none: str) -> None:
    start = datetime(2025, 1, 1, 0, 5)
    rows = [f"{none if row % 5 == 1 else start + timedelta(hours=row)},{noise(row)},{row % 2}" for row in range(ROWS)]  # fmt: skip
    source = table(tmp_path, "a.csv", "at,a,y", *rows)
    task = task_of(proposed(source))
    assert (task.times, task.read.missing) == (("at",), (none,))
    assert len(load_local(source, task=task).features)


@pytest.mark.parametrize("form", ["%Y-%m-%d %H:%M", "%d.%m.%Y"])
def test_one_faulty_time_makes_no_words_of_a_column(tmp_path: Path, form: str) -> None:
    start = datetime(2025, 1, 15)
    rows = [f"{'soon' if row == 5 else (start + timedelta(hours=19 * row)).strftime(form)},{noise(row)},{row % 2}" for row in range(ROWS)]  # fmt: skip
    source = table(tmp_path, "a.csv", "at,a,y", *rows)
    proposal = proposed(source)
    assert task_of(proposal).times == ("at",)
    assert "1 cell of 'at' without a time ('soon')" in "".join(proposal.remarks())
    with pytest.raises(DataError, match=r"row 6 .*column 'at': 'soon' is not a time"):
        load_local(source, task=task_of(proposal))


# -- files that are not what their name claims, and headers ----------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"PK\x03\x04rest", "an Excel workbook"),
        (b"\xd0\xcf\x11\xe0rest", "an old Excel workbook"),
        (b"  <!DOCTYPE html><html>", "a web page"),
        (b"<html><body>login", "a web page"),
        (b"<head>\n<title>login", "a web page"),
        (b"<!-- made by a gateway -->\n<table>", "a web page"),
        (b'[{"a": 1}]', "JSON"),
        (b"PAR1", "a Parquet file"),
        (b"SQLite format 3\0", "a SQLite database"),
        (b"\x1f\x8b\x08", "compressed with gzip"),
        (b"<script>location='login'</script>\n<p>x,y</p>", "a web page"),
        (b'[\n {"a": 1, "y": 2},\n {"a": 2, "y": 3}\n]', "JSON"),
        (b"@relation iris\n@data\n1,p\n", "Weka"),
        (b"version https://git-lfs.github.com/spec/v1\noid 4d\n", "Git LFS"),
        ("a,b,y\n1,2,3\n4,5,6\n".encode("utf-16-le"), "UTF-16 or UTF-32 without its mark"),
        ("a,b,y\n1,2,3\n4,5,6\n".encode("utf-32"), "UTF-16 or UTF-32 without its mark"),
        (b"\x93NUMPY\x01\x00v\x00", "binary data"),
        (b"BZh91AY&SY\x00\x01", "binary data"),
    ],
)
def test_another_kind_of_file_is_refused_by_its_name(
    tmp_path: Path, content: bytes, what: str
) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(content)
    for read in (lambda: describe(str(path)), lambda: load_local(path)):
        with pytest.raises(DataError, match=what):
            read()


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("d.csv.gz", b"\x1f\x8b\x08", "compressed with gzip; unpack it"),
        (
            "d.xlsx",
            b"PK\x03\x04",
            "an Excel workbook, or another zip archive; save its sheet as CSV",
        ),
        ("d.db", b"SQLite format 3\0", "of which no table is named; expected sqlite:"),
        ("d.bin", b"\x93x\x00", "unknown kind of file '.bin'; expected a table"),
    ],
)
def test_a_file_of_no_known_name_is_named_by_its_first_bytes(
    tmp_path: Path, name: str, content: bytes, what: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=what):
        load_local(tmp_path / name)


def lines(separator: str = ",") -> list[str]:
    return [
        separator.join([str(noise(row)), str(noise(row + 1)), str(row % 2)]) for row in range(ROWS)
    ]


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        ("sep=;\na;b;y", lines(";")),
        ("a,b,y,,", [f"{line},," for line in lines()]),
        ("a,b,y", [f"{line}," for line in lines()]),
        (",a,b,y", [f"{row},{line}" for row, line in enumerate(lines())]),
        ("a,b,y,", lines()),
        ("a,b,y,,", lines()),
    ],
)
def test_what_spreadsheets_add_is_left_out(tmp_path: Path, header: str, rows: list[str]) -> None:
    source = table(tmp_path, "a.csv", header, *rows)
    task = task_of(proposed(source))
    assert (task.columns, task.target, task.ignore) == (("a", "b"), "y", ())
    assert load_local(source, task=task).features.shape == (32, 2)


@pytest.mark.parametrize(
    ("header", "rows", "fault"),
    [
        ("Report of May,2025\na,b,y", lines(), "41 of 41 rows do not fit.*remove the lines above"),
        ("a,b", lines(), "40 of 40 rows do not fit.*3 cells, the header has 2 columns"),
        ("a,b,y\n°C,mm,-", lines(), r"a second header \('°C', 'mm'"),
        ("a,b,y\n°C,%,", lines(), r"a second header \('°C'"),
        ("a b y", lines(" "), r"one column only \('a b y'\)(.|\n)*with commas, semicolons"),
    ],
)
def test_lines_that_do_not_fit_are_named(
    tmp_path: Path, header: str, rows: list[str], fault: str
) -> None:
    source = table(tmp_path, "a.csv", header, *rows)
    with pytest.raises((DataError, UserError), match=fault):
        proposed(source)
    with pytest.raises((DataError, UserError)):
        load_local(source)


def test_a_quotation_mark_that_is_not_closed_is_named(tmp_path: Path) -> None:
    rows = lines()
    rows[5] = '0.5,"oops,1'
    source = table(tmp_path, "a.csv", "a,b,y", *rows)
    with pytest.raises(DataError, match=r"row 6 .*close the quotation mark"):
        load_local(source)
    rows[6:] = ["x" * 200_000]
    with pytest.raises(DataError, match="close every quotation mark"):
        load_local(table(tmp_path, "a.csv", "a,b,y", *rows))


def test_signs_in_quotes_do_not_separate_cells(tmp_path: Path) -> None:
    source = table(tmp_path, "a.csv", '"a, left, upper";b;y', *lines(";"))
    assert task_of(proposed(source)).columns == ("a, left, upper", "b")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_names_and_words_between_apostrophes_are_without_them(
    tmp_path: Path, separator: str
) -> None:
    """As R and Stata may write them."""
    rows = [
        f"{line[:-1]}{chr(39)}{'worn' if row % 2 else 'as good'}{chr(39)}"
        for row, line in enumerate(lines(separator))
    ]
    source = table(tmp_path, "a.csv", f"'a'{separator}'b'{separator}'y'", *rows)
    task = task_of(proposed(source))
    assert (task.columns, task.target) == (("a", "b"), "y")
    assert task.classes == ("as good", "worn")


@pytest.mark.parametrize("name", ["'24 sales", "driver's age", "'"])
def test_an_apostrophe_within_a_name_is_part_of_it(tmp_path: Path, name: str) -> None:
    source = table(tmp_path, "a.csv", f"{name},b,y", *lines())
    assert task_of(proposed(source)).columns == (name, "b")


def test_the_target_in_another_spelling_is_no_input(tmp_path: Path) -> None:
    rows = [f"{noise(row)},{row % 2},{row % 2}" for row in range(ROWS)]
    assert task_of(proposed(table(tmp_path, "a.csv", "a,Is_Worn,is worn", *rows))).columns == ("a",)


def test_one_column_is_a_table_for_anomalies(tmp_path: Path) -> None:
    source = table(tmp_path, "a.csv", "vibration", *(str(noise(row)) for row in range(ROWS)))
    task = task_of(proposed(source, anomalies=True))
    assert task.columns == ("vibration",)
    assert load_local(source, task=task).features.shape[1] == 1


def test_bytes_are_named_and_ignored(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    content = {"raw": [b"\x01\x02"] * ROWS, "a": [noise(row) for row in range(ROWS)], "y": [row % 2 for row in range(ROWS)]}  # fmt: skip
    pq.write_table(pa.table(content), path)
    proposal = proposed(str(path))
    assert (task_of(proposal).columns, task_of(proposal).ignore) == (("a",), ("raw",))
    assert "raw (bytes, or" in " ".join(proposal.to_yaml().replace("#", "").split())
    task = Task(features=(2,), columns=("raw", "a"), target="y", classes=2)
    with pytest.raises(DataError, match="holds bytes or a list, not a number"):
        load_local(path, task=task)


# -- the devices next to each other ------------------------------------------------------------------------------------


def test_devices_that_measure_otherwise_are_named(tmp_path: Path) -> None:
    def device(number: int) -> str:
        scale = 1000 if number == 2 else 1
        name = "bp" if number == 1 else "BP"
        rows = [f"{scale * (20 + row % 7)},{1 if number == 0 else row % 5},{noise(row)},{row % 2}" for row in range(ROWS)]  # fmt: skip
        return table(tmp_path, f"{number}.csv", f"level,flow,{name},y", *rows)

    remarks = "\n".join(proposed(*(device(number) for number in range(4))).remarks())
    assert "'BP' and 'bp' seem to be one column" in remarks


def test_only_text_columns_have_a_notation(tmp_path: Path) -> None:
    source = table(tmp_path, "a.csv", "a,y", *(f"{noise(row)},{row % 2}" for row in range(ROWS)))
    assert found_notation(Path(source)).notation.model_dump(exclude_defaults=True) == {}
