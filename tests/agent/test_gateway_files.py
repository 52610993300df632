"""Files as gateways and loggers write them: read as they are meant, or refused by a sentence that names what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from covey.agent.data.tables import read_table
from covey.extras.proposals.describe import describe_table
from covey.extras.proposals.proposal import checked, propose
from covey.extras.proposals.proposal_data import describe
from covey.shared.errors import DataError
from covey.shared.scenario.columns import Notation
from covey.shared.scenario.task import Task

CLOCK = [f"2025-10-01 00:{minute:02d}:00" for minute in range(60)]


def file(folder: Path, *lines: str, name: str = "gw.csv", end: str = "\n") -> str:
    path = folder / name
    path.write_text(end.join(lines) + end, "utf-8")
    return str(path)


def proposed(*sources: str, known: Notation | None = None, **options: Any) -> Task:
    described = [describe(source, known=known or Notation()) for source in sources]
    return checked(propose(described, **options)).task


def rows_of(path: str, **keys: Any) -> list[list[float]]:
    task = {"features": [1], "columns": ["temp"], "target": "state", "classes": ["ok", "worn"]}
    task |= {"model": {"name": "linear"}} | keys
    found = read_table(Path(path), task=Task.model_validate(task)).features.tolist()
    assert isinstance(found, list)
    return found


READINGS = [
    (time, f"{20 + row / 8:.2f}", "ok" if row % 3 else "worn") for row, time in enumerate(CLOCK)
]
TABLE = ["time,temp,state", *(",".join(row) for row in READINGS)]
TEMPS = [[float(temp)] for _, temp, _ in READINGS]


@pytest.mark.parametrize(
    ("lines", "width"),
    [
        ([",".join(row) for row in READINGS], 3),  # a time above times
        ([f"{float(temp) % 1:.3f},{temp},{state}" for _, temp, state in READINGS], 3),
        ([f"31,{row[2]},{4991332 + n},{row[1]};" for n, row in enumerate(READINGS)], 4),
        (
            [
                f"2025-10-01T{n // 60:02d}:{n % 60:02d}:00+0200,plant/hum,20.0{n % 9}"
                for n in range(60)
            ],
            3,
        ),
        ([f"p{row % 3},x{row % 2},s" for row in range(30)], 3),  # words alone
        ([f"{1760000000 + row}\tpump\t{20 + row % 5}\tok" for row in range(30)], 4),
        ([f"pump;{20 + row % 5},5;0,{row % 7};worn" for row in range(30)], 4),  # decimal commas
        ([f"{row % 24}:{row % 60:02d}:00,pump,{20 + row % 5}" for row in range(30)], 3),
    ],
    ids=["time", "numbers", "trailing", "mqtt", "words", "tabs", "german", "clock"],
)
def test_a_first_line_that_is_a_sample_is_refused_with_what_to_do(
    tmp_path: Path, lines: list[str], width: int
) -> None:
    path = file(tmp_path, *lines)
    for read in (lambda: describe(path), lambda: read_table(Path(path))):
        with pytest.raises(
            DataError, match=r"first line (looks like a sample|holds numbers).*--names"
        ):
            read()
    names = [f"c{place}" for place in range(width)]
    found = describe_table(Path(path), known=Notation(names=tuple(names)))
    assert (found.rows, [column.name for column in found.columns]) == (len(lines), names)
    with pytest.raises(
        DataError, match=f"first row has {len(names)} cells, and task.read.names 2 names"
    ):
        describe_table(Path(path), known=Notation(names=("a", "b")))


@pytest.mark.parametrize(
    "header",
    [
        "country,2019,2020,2021",  # years
        "sample,400.0,402.0,404.0",  # wavelengths
        "0,1,2,3,label",  # pixels
        "id,1,2,target",
        "other,name,time",
    ],
)
def test_column_names_that_are_numbers_are_names(tmp_path: Path, header: str) -> None:
    width = header.count(",")
    rows = [
        ",".join([f"r{row % 3}", *(f"{(row * place) % 7}" for place in range(width))])
        for row in range(20)
    ]
    if header.startswith("0"):
        rows = [
            ",".join([*(f"{(row * place) % 9}" for place in range(width)), "abc"[row % 3]])
            for row in range(20)
        ]
    assert describe_table(Path(file(tmp_path, header, *rows))).rows == 20


def test_a_task_may_ask_for_a_column_by_a_number(tmp_path: Path) -> None:
    path = file(tmp_path, "1,state", *(f"{row},{'ok' if row % 2 else 'worn'}" for row in range(9)))
    assert rows_of(path, columns=["1"]) == [[float(row)] for row in range(9)]


@pytest.mark.parametrize(
    ("lines", "left_out"),
    [
        (["# station 7", "# made in, Kiel, 2025", *TABLE], {"comments": 2}),
        (["# station 7", "", *TABLE], {"comments": 1}),
        (["% a", "% b", *TABLE], {"comments": 2}),
        (["// logger 3", *TABLE[:9], "// restart", *TABLE[9:]], {"comments": 2}),
        ([*TABLE[:9], "# restart", *TABLE[9:]], {"comments": 1}),
        ([*TABLE[:25], TABLE[0], *TABLE[25:]], {"repeated column names": 1}),
        ([*TABLE[:25], "", "# annotated", TABLE[0], *TABLE[25:]], {"repeated column names": 1, "comments": 1}),
        ([f"{line};" for line in TABLE], {}),
        ([TABLE[0], *(f"{line};" for line in TABLE[1:])], {}),
        ([f"{line}," for line in TABLE], {}),
        (["sep=,", *TABLE], {}),
    ],
    ids=range(11),
)  # fmt: skip
def test_lines_that_hold_no_row_are_left_out_and_counted(
    tmp_path: Path, lines: list[str], left_out: dict[str, int]
) -> None:
    path = file(tmp_path, *lines)
    found = describe_table(Path(path))
    assert {what: count for what, count in found.left_out.items() if count} == left_out
    assert [column.name for column in found.columns] == ["time", "temp", "state"]
    assert found.nameless == 0
    assert rows_of(path, ignore=["time"]) == TEMPS


def test_column_names_may_stand_in_a_comment(tmp_path: Path) -> None:
    for above in ([], ["# station 7"]):
        path = file(tmp_path, *above, "# time,temp,state", *TABLE[1:])
        assert [column.name for column in describe_table(Path(path)).columns] == [
            "# time",
            "temp",
            "state",
        ]
        assert rows_of(path, ignore=["# time"]) == TEMPS
    words = file(tmp_path, "#,name,state", *(f"a{row},b{row},ok" for row in range(9)))
    assert (describe_table(Path(words)).rows, describe_table(Path(words)).columns[0].name) == (
        9,
        "#",
    )


def test_a_second_table_below_comments_is_refused(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        "#group,false,false",
        *TABLE,
        "",
        "#group,false,false",
        "time,hum,state",
        *TABLE[1:5],
    )
    with pytest.raises(
        DataError, match=r"line 65 begins a second table, with other column names .*'hum'"
    ):
        describe(path)


def test_lines_keep_their_numbers_below_comments(tmp_path: Path) -> None:
    path = file(tmp_path, "# a", "# b", *TABLE[:3], "# c", "2025-10-01 09:00:00,high,ok")
    with pytest.raises(DataError, match=r"row 3 \(line 7\), column 'temp': 'high' is not a number"):
        rows_of(path, ignore=["time"])


def test_files_without_column_names_become_a_task_that_reads_them(tmp_path: Path) -> None:
    bare = file(tmp_path, *TABLE[1:], name="a.csv")
    newer = file(tmp_path, *TABLE, name="b.csv")  # the same logger, which writes its names by now
    names = Notation(names=("time", "temp", "state"))
    task = proposed(bare, newer, known=names)
    assert task.read.names == names.names
    for path in (bare, newer):
        assert rows_of(path, ignore=["time"], read={"names": names.names}) == TEMPS
