"""Data that lie in a database, or in a folder to which a gateway adds a file a day: the same rows as one file has."""

from __future__ import annotations

import csv
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.agent.cli.options import resolve_data
from covey.agent.data import tables
from covey.agent.data.check import load_local
from covey.agent.data_place import DataWatch, fingerprint, place_of
from covey.extras.formats import growing
from covey.extras.formats.growing import GrowingFolder, daily_files
from covey.shared.errors import DataError, UserError
from covey.shared.own_code.plugins import data_code
from covey.shared.scenario.task import Task

NAMES = ("time", "speed", "maker", "worn")
DAYS = 4
TASK = Task.model_validate(
    {
        "features": [8],
        "classes": ["ok", "worn"],
        "columns": ["time", "speed", "maker"],
        "times": ["time"],
        "categories": {"maker": ["ABB", "KSB"]},
        "target": "worn",
        "model": {"name": "linear"},
    }
)
Row = tuple[str, float, str, str]


def rows_of(day: int) -> list[Row]:
    """Six readings of a day. A maker of its own comes with each day."""
    return [
        (
            f"2026-11-{day:02d} {4 * hour:02d}:00:00",
            10.5 * day + hour,
            ("ABB", "KSB", f"maker-{day}")[hour % 3],
            ("ok", "worn")[hour % 2],
        )
        for hour in range(6)
    ]


def as_csv(path: Path, rows: Sequence[Row]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([NAMES, *rows])
    return path


def as_parquet(path: Path, rows: Sequence[Row]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = dict(zip(NAMES, map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table(columns), path)
    return path


def as_database(path: Path, rows: Sequence[Row]) -> Path:
    with sqlite3.connect(path) as base:
        base.execute('CREATE TABLE "all readings" (time TEXT, speed REAL, maker TEXT, worn TEXT)')
        base.executemany('INSERT INTO "all readings" VALUES (?, ?, ?, ?)', rows)
    base.close()
    return path


@pytest.fixture
def rows() -> list[Row]:
    return [row for day in range(1, DAYS + 1) for row in rows_of(day)]


@pytest.fixture
def database(tmp_path: Path, rows: list[Row]) -> Path:
    return as_database(tmp_path / "plant.db", rows)


def daily(folder: Path, suffix: str = ".csv", days: int = DAYS) -> Path:
    folder.mkdir()
    write = {".csv": as_csv, ".parquet": as_parquet}[suffix]
    for day in range(1, days + 1):
        write(folder / f"2026-11-{day:02d}{suffix}", rows_of(day))
    return folder


@pytest.mark.whole
@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("sqlite:{}?table=none", "no table 'none'; the database has 'all readings'"),
        ("sqlite:{}x?table=none", "no such file"),
        ("sqlite:{}", "expected sqlite:FILE[?]table=NAME or"),
        ("sqlite:{}?rows=3", "expected sqlite:FILE[?]table=NAME or"),
        ('sqlite:{}?query=DELETE FROM "all readings"', "may only read: begin it with SELECT"),
        ("sqlite:{}?query=ATTACH 'other.db' AS other", "may only read: begin it with SELECT"),
        ("sqlite:{}?query=PRAGMA journal_mode=WAL", "may only read: begin it with SELECT"),
        ("sqlite:{}?query=SELECT 1; SELECT 2", "give one query"),
        ("sqlite:{}?query=SELECT speeds FROM 'all readings'", "no such column: speeds"),
        ("sqlite:{}?query=SELECT 1 AS a, 2 AS a, 3 AS b", "columns occur twice: 'a'"),
        ("{}", "a SQLite database of which no table is named; expected sqlite:FILE"),
    ],
)
def test_a_mistake_about_a_database_is_one_sentence_that_shows_nothing_of_it_elsewhere(
    database: Path, source: str, why: str
) -> None:
    before = database.read_bytes()
    with pytest.raises(DataError, match=why) as caught:
        load_local(source.format(database))
    assert len(str(caught.value).splitlines()) == 1
    assert not any(word in caught.value.public for word in ("readings", "speeds", str(database)))
    assert database.read_bytes() == before
    assert sorted(path.name for path in database.parent.iterdir()) == ["plant.db"]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The names of the files whose cells were read since the last call."""
    monkeypatch.setattr(growing, "KEPT", growing.KeptParts())
    names: list[str] = []
    real: Any = tables._read

    def noted(path: Path, *arguments: Any) -> Any:
        names.append(path.name)
        return real(path, *arguments)

    monkeypatch.setattr(tables, "_read", noted)

    def taken() -> list[str]:
        found = list(names)
        names.clear()
        return found

    return taken


def test_only_what_is_new_in_a_folder_is_read_again(
    tmp_path: Path, read: Callable[[], list[str]]
) -> None:
    folder = daily(tmp_path / "daily", days=3)
    load_local(folder, task=TASK)
    assert read() == ["2026-11-01.csv", "2026-11-02.csv", "2026-11-03.csv"]
    as_csv(folder / "2026-11-04.csv", rows_of(4))
    grown = load_local(folder, task=TASK)
    assert read() == ["2026-11-04.csv"]
    as_csv(folder / "2026-11-04.csv", rows_of(4)[:3])
    load_local(folder, task=TASK)
    assert read() == ["2026-11-04.csv"], "a day that is still written"
    as_csv(folder / "2026-11-04.csv", rows_of(4))
    os.utime(folder / "2026-11-02.csv", (1, 1))
    again = load_local(folder, task=TASK)
    assert read() == ["2026-11-02.csv", "2026-11-03.csv", "2026-11-04.csv"]
    assert np.array_equal(again.features, grown.features)
    assert again.columns is not None
    assert grown.columns is not None
    assert again.columns.words == grown.columns.words, "words of files that were not read again"


def test_files_that_a_gateway_has_just_made_do_not_keep_the_device_out(tmp_path: Path) -> None:
    folder = daily(tmp_path / "daily", days=2)
    count = len(load_local(folder, task=TASK).targets)
    (folder / "2026-11-03.csv").touch()
    assert len(load_local(folder, task=TASK).targets) == count
    as_csv(folder / "2026-11-03.csv", [])
    assert len(load_local(folder, task=TASK).targets) == count
    for name in ("2026-11-04.csv.tmp", ".2026-11-04.csv.swp"):
        (folder / name).write_text("time,sp")
        assert len(load_local(folder, task=TASK).targets) == count
    (folder / "2026-11-01.csv.gz").touch()
    with pytest.raises(DataError, match=r"2026-11-01\.csv\.gz is compressed; unpack it"):
        load_local(folder, task=TASK)


@pytest.mark.parametrize("cut", [2, 4, 9, 200])
def test_a_line_that_is_still_being_written_waits_for_its_end(
    tmp_path: Path, read: Callable[[], list[str]], cut: int
) -> None:
    """Programs that write in blocks leave a half row, whose last cell may be 12.5 of 12.57."""
    folder = daily(tmp_path / "daily", days=2)
    whole = load_local(folder, task=TASK)
    newest = folder / "2026-11-02.csv"
    text = newest.read_bytes()
    newest.write_bytes(text[:-cut])
    found = load_local(folder, task=TASK)
    full = text[:-cut].count(b"\n")
    assert len(found.targets) + len(found.test_targets) == 6 + max(full - 1, 0)
    newest.write_bytes(text)
    read()
    assert np.array_equal(load_local(folder, task=TASK).features, whole.features)
    newest.write_bytes(text.removesuffix(b"\r\n"))
    load_local(folder, task=TASK)
    as_csv(folder / "2026-11-03.csv", rows_of(3))
    read()
    grown = load_local(folder, task=TASK)
    assert read() == ["2026-11-02.csv", "2026-11-03.csv"], "its last line counts from now on"
    assert len(grown.targets) + len(grown.test_targets) == 18


def test_a_folder_of_devices_is_not_taken_for_one_that_grows(tmp_path: Path) -> None:
    for name in ("device-1.csv", "device-2.csv", "device-20261.csv"):
        as_csv(tmp_path / name, rows_of(1))
    assert daily_files(tmp_path) == ()
    with pytest.raises(DataError, match="3 files"):
        load_local(tmp_path)


@pytest.mark.parametrize(
    "name", ["2026-11-27", "readings_20261127", "202611", "plant.2026.11.27T0900", "27_2026-11"]
)
def test_names_with_a_date_make_a_folder_that_grows(tmp_path: Path, name: str) -> None:
    for text in (name, name.replace("2026", "2025")):
        as_csv(tmp_path / f"{text}.csv", rows_of(1))
    place = place_of(tmp_path)
    assert isinstance(place, GrowingFolder)
    assert [path.stem for path in place.parts] == sorted([name, name.replace("2026", "2025")])


@pytest.mark.whole
def test_a_database_that_gets_rows_is_noticed_and_found_from_any_folder(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(database.parent)
    source = resolve_data("sqlite:plant.db?table=all readings")
    assert source == f"sqlite:{database.resolve()}?table=all readings"
    assert data_code(source) is None
    watch = DataWatch(source)
    assert not watch.has_changed()
    base = sqlite3.connect(database)
    base.execute("PRAGMA journal_mode=WAL")
    base.executemany('INSERT INTO "all readings" VALUES (?, ?, ?, ?)', rows_of(9))
    base.commit()  # into the file of newest rows, while another program has the database open
    assert watch.has_changed(at_once=True)
    assert len(load_local(source, task=TASK).targets) + 6 == (DAYS + 1) * 6
    base.close()
    assert not watch.is_gone
    database.unlink()
    database.with_name(f"{database.name}-wal").unlink(missing_ok=True)
    assert watch.has_changed(at_once=True)
    assert watch.is_gone
    assert fingerprint("sqlite:none.db?table=t") == (0, 0, 0)
    with pytest.raises(UserError, match="sqlite:FILE"):
        resolve_data("sqlite:none.db?table=t")
