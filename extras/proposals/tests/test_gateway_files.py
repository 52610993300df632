"""Files as gateways and loggers write them: read as they are meant, or refused by a sentence that names what to do."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.agent.data.cells import BadCells
from covey.agent.data.table_files import open_table
from covey.agent.data.tables import read_table
from covey.agent.data_place import place_of
from covey.extras.proposals.describe import describe_table
from covey.extras.proposals.init import described
from covey.extras.proposals.proposal import checked, propose
from covey.extras.proposals.proposal_data import describe, describe_all
from covey.shared.errors import DataError, UserError
from covey.shared.scenario.columns import Notation, Pivot
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
        ([f"{1 + n // 24:02d}.10.2025 {n % 24:02d}:00;20,{n % 9};ok" for n in range(60)], 3),
    ],
    ids=["time", "numbers", "trailing", "mqtt", "words", "tabs", "german", "clock", "dates"],
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


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('weather,station=s1 temp=22.5,vib=0.7,state="ok" 1760000000000000000', "line protocol of InfluxDB"),
        ("cpu,host=a,cpu=cpu0 usage_idle=97.2 1760000000000000000", "line protocol of InfluxDB"),
        ("room temp=22.5", "line protocol of InfluxDB"),
        ('plant/gw1/pump {"temp": 22.5, "state": "ok"}', "a log of MQTT"),
        ('2025-10-01T00:00:00 plant/gw1/pump {"temp": 22.5}', "a log of MQTT"),
        ('1760000000 plant/gw1/pump {"temp": 22.5}', "a log of MQTT"),
        ('2025-10-01 00:00:00+0200 plant/gw1 {"temp": 22.5}', "a log of MQTT"),
        ("plant/gw1/pump/temp 22.5", "a log of MQTT"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", ["csv", "txt", "log"])
def test_lines_of_another_program_are_named_with_what_to_do(
    tmp_path: Path, line: str, words: str, suffix: str
) -> None:
    path = file(tmp_path, *[line] * 40, name=f"gw.{suffix}")
    for read in (lambda: describe(path), lambda: read_table(Path(path))):
        with pytest.raises(DataError, match=f"not a table but .*{words}; "):
            read()


@pytest.mark.parametrize("header", ["km/h wind,state", "a b=c,d", "time,m/s 10 min,state"])
def test_names_with_signs_are_names(tmp_path: Path, header: str) -> None:
    width = header.count(",")
    rows = [",".join(["1.5", *(f"{row % 7}" for _ in range(width))]) for row in range(20)]
    assert describe_table(Path(file(tmp_path, header, *rows))).rows == 20


def test_files_without_column_names_become_a_task_that_reads_them(tmp_path: Path) -> None:
    bare = file(tmp_path, *TABLE[1:], name="a.csv")
    newer = file(tmp_path, *TABLE, name="b.csv")  # the same logger, which writes its names by now
    names = Notation(names=("time", "temp", "state"))
    task = proposed(bare, newer, known=names)
    assert task.read.names == names.names
    for path in (bare, newer):
        assert rows_of(path, ignore=["time"], read={"names": names.names}) == TEMPS


# -- other layouts than a sample in each row ------------------------------------------------------------------


def readings(home: int, *, every_s: int = 600) -> list[str]:
    """Of three entities, as a history of Home Assistant has them: one after the other, with words for those that were away."""
    start, lines = datetime(2025, 10, 1), ["entity_id,state,last_changed"]
    for place, entity in enumerate(
        ("sensor.temperature", "sensor.humidity", "binary_sensor.motion")
    ):
        for row in range(90):
            at = start + timedelta(seconds=row * every_s + 7 * place + row % 3)
            value = {
                0: f"{20 + home + (row % 7) / 4}",
                1: f"{50 + row % 5}",
                2: ("on", "off")[row % 2],
            }[place]
            lines.append(f"{entity},{'unavailable' if row % 15 == 9 else value},{at.isoformat()}Z")
    return lines


def test_a_row_per_reading_becomes_a_column_per_quantity(tmp_path: Path) -> None:
    homes = [file(tmp_path, *readings(home), name=f"home{home}.csv") for home in range(3)]
    proposal = propose(describe_all(homes), target="binary_sensor.motion")
    task = checked(proposal).task
    assert task.read.pivot == Pivot(
        name="entity_id", value="state", time="last_changed", every="10min"
    )
    assert task.columns == ("last_changed", "sensor.humidity", "sensor.temperature")
    assert task.read.missing == ("unavailable",)
    found = read_table(Path(homes[1]), task=task)
    assert len(found.rows) == 84, "six rows have no target"
    assert found.features[:3, 1:].tolist() == [[50.0, 21.0], [51.0, 21.25], [52.0, 21.5]]
    assert found.spelled[:3] == ["on", "off", "on"]


@pytest.mark.parametrize(
    ("lines", "pivot", "columns"),
    [
        (  # several readings in the time of a row: the mean of numbers, the last word
            ["name,value,time", "a,1,2025-10-01 00:00:10", "a,3,2025-10-01 00:00:50", "b,on,2025-10-01 00:00:30",
             "b,off,2025-10-01 00:00:20", "a,7,2025-10-01 00:01:00"],
            {"every": "1min"},
            {"time": ["2025-10-01 00:00:00", "2025-10-01 00:01:00"], "a": ["2", "7"], "b": ["on", None]},
        ),
        (  # a column for each type, and names of the fleet's topics
            ["name,dbl,str,time", "plant/7/t,1.5,,1760000000000", "plant/7/s,,ok,1760000000000"],
            {"value": ["dbl", "str"]},
            {"time": ["2025-10-09 08:53:20"], "t": ["1.5"], "s": ["ok"]},
        ),
        (  # things with rows of their own
            ["name,value,time,room", "t,1,2025-10-01,x", "t,2,2025-10-01,y", "h,5,2025-10-02,x"],
            {"by": "room"},
            {"time": ["2025-10-01 00:00:00", "2025-10-02 00:00:00", "2025-10-01 00:00:00"], "room": ["x", "x", "y"],
             "t": ["1", None, "2"], "h": [None, "5", None]},
        ),
    ],
)  # fmt: skip
def test_readings_of_a_time_are_one_row(
    tmp_path: Path, lines: list[str], pivot: dict[str, Any], columns: dict[str, list[Any]]
) -> None:
    keys = {"name": "name", "value": "value", "time": "time"} | pivot
    notation = Notation.model_validate({"pivot": keys})
    path = Path(file(tmp_path, *lines))
    with open_table(path, notation=notation) as table:
        assert {*table.columns} == {*columns}
        [block] = table.blocks(table.columns, BadCells(path))
    assert {name: list(cells) for name, cells in block.cells.items()} == columns


def test_a_reading_without_a_time_is_named_and_so_is_a_lacking_column(tmp_path: Path) -> None:
    path = Path(file(tmp_path, *readings(0)[:20], "sensor.humidity,50,never"))
    notation = Notation(pivot=Pivot(name="entity_id", value="state", time="last_changed"))
    task = {
        "features": [5],
        "columns": ["last_changed", "sensor.temperature"],
        "target": "sensor.humidity",
    }
    task |= {
        "classes": None,
        "model": {"name": "linear"},
        "ignore": ["*"],
        "times": ["last_changed"],
        "impute": "mean",
    }
    with pytest.raises(
        DataError, match=r"row 20 \(line 21\), column 'last_changed': the cell is not a time"
    ):
        read_table(
            path,
            task=Task.model_validate(task | {"read": notation.model_dump(exclude_defaults=True)}),
        )
    with (
        pytest.raises(DataError, match=r"no column 'at', which task\.read\.join names"),
        open_table(path, notation=Notation(join=("last_changed", "at"))),
    ):
        pass


@pytest.mark.parametrize(
    "header",
    ["machine,time,temp", "shop,date,sales"],  # one quantity of several things
)
def test_things_of_one_kind_stay_rows(tmp_path: Path, header: str) -> None:
    rows = [
        f"{thing},{time},{10 * place + row % 4}"
        for place, thing in enumerate("abc")
        for row, time in enumerate(CLOCK)
    ]
    found = describe(file(tmp_path, header, *rows))
    assert found.read.pivot is None
    assert any("R2 is high for that alone" in remark for remark in found.remarks)


def of_sensors(folder: Path, name: str, ids: str, levels: str, *, at_once: bool = False) -> str:
    """A reading of each of three sensors an hour, one after the other."""
    rows = [
        f"2025-10-{1 + hour // 24:02d} {hour % 24:02d}:{0 if at_once else place:02d}:00,{own},{float(level) + (hour * 7 + place) % 5 / 4}"
        for hour in range(96)
        for place, (own, level) in enumerate(zip(ids.split(), levels.split(), strict=True))
    ]
    return file(folder, f"time,{name},{'value' if name == 'sensor_id' else 'temp'}", *rows)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("ids", ["sa sb sc", "101 102 103"])
@pytest.mark.parametrize("name", ["sensor_id", "device", "pump"])
def test_series_of_several_sensors_are_forecast_apart(
    tmp_path: Path, name: str, ids: str, at_once: bool
) -> None:
    """Numbers name things as words do, and a window holds rows of one of them, also where they take turns."""
    path = of_sensors(tmp_path, name, ids, "20 21 20.5", at_once=at_once)
    task = proposed(path)
    assert task.window is not None
    assert task.window.group == name
    assert name not in task.columns
    assert len(read_table(Path(path), task=task).rows) > 50


@pytest.mark.parametrize("ids", ["sa sb sc", "101 102 103"])
def test_sensors_of_unlike_levels_have_a_column_each(tmp_path: Path, ids: str) -> None:
    path = of_sensors(tmp_path, "sensor_id", ids, "20 50 1000")
    task = proposed(path)
    assert task.read.pivot == Pivot(name="sensor_id", value="value", time="time", every="1h")
    assert {*task.columns, task.target} == {"time", *ids.split()}
    assert read_table(Path(path), task=task).features.shape == (96, 3)


@pytest.mark.parametrize(
    ("name", "category"),
    [("node", True), ("sensor_id", True), ("StoreID", True), ("cylinders", False), ("id", False)],
)
def test_numbers_that_name_a_few_things_are_words(
    tmp_path: Path, name: str, category: bool
) -> None:
    """Node 3 is not three times node 1; of many things, or of each row, an id is none of them."""
    few = [1 + row % 3 if name != "id" else 500 + 3 * row for row in range(60)]
    rows = [f"{one},{20 + row % 7},{'ab'[row % 2]}" for row, one in enumerate(few)]
    path = file(tmp_path, f"{name},temp,state", *rows)
    task = proposed(path)
    assert (name in task.categories) == category
    if category:
        assert task.categories[name] == ("1", "2", "3")
        assert read_table(Path(path), task=task).features.shape[0] == 60


@pytest.mark.parametrize(
    ("header", "times"),
    [
        ("Date,Time,temp,state", [f"{1 + row // 24}.10.2025,{row % 24}:00" for row in range(72)]),
        ("Time,Date,temp,state", [f"{row % 24}:30:00,2025-10-{1 + row // 24:02d}" for row in range(72)]),
        ("day,hhmm,temp,state", [f"202510{1 + row // 24:02d},{100 * (row % 24) + 5}" for row in range(72)]),
        ("date,time,temp,state", [f"2025/10/{1 + row // 24:02d},{row % 12 or 12}:00 {'ap'[row % 24 // 12]}m" for row in range(72)]),
        ("YYYYMMDD,HH,temp,state", [f"202510{1 + row // 24:02d},{1 + row % 24}" for row in range(72)]),
        ("year,month,day,hour,temp,state", [f"2025,10,{1 + row // 24},{row % 24}" for row in range(72)]),
        ("stamp,temp,state", [f"202510{1 + row // 24:02d}{row % 24:02d}05" for row in range(72)]),
        ("date,temp,state", [f"2510{1 + row // 3:02d}" for row in range(72)]),
    ],
)  # fmt: skip
def test_a_time_in_parts_or_digits_is_a_time(tmp_path: Path, header: str, times: list[str]) -> None:
    names = header.split(",")[:-2]
    path = file(
        tmp_path,
        header,
        *(f"{time},{20 + row % 5},{'ok' if row % 3 else 'worn'}" for row, time in enumerate(times)),
    )
    task = proposed(path)
    assert (task.columns[-1], len(task.times), task.tests_latest) == ("temp", 1, True)
    assert {*task.read.join} in ({*names}, set())
    found = read_table(Path(path), task=task)
    assert found.moments == sorted(found.moments)
    assert len({*found.moments}) in (72, 24 if len(names) == 1 else 72)


@pytest.mark.parametrize(
    ("name", "days"),
    [
        ("date", [f"{45931 + row / 24:.6f}" for row in range(72)]),
        ("Datum", [f"{45931 + row}" for row in range(72)]),
        ("timestamp", [f"{45931.5 + row / 96}" for row in range(72)]),
        ("time", [f"{45931 + row / 1440:.8f}" for row in range(72)]),
        ("Zeitpunkt", [f"{45931 + row / 24:.5f}" for row in range(72)]),
    ],
)
def test_days_as_a_spreadsheet_counts_them_are_times(
    tmp_path: Path, name: str, days: list[str]
) -> None:
    rows = [f"{day},{20 + row % 5},{'ok' if row % 3 else 'worn'}" for row, day in enumerate(days)]
    path = file(tmp_path, f"{name},temp,state", *rows)
    task = proposed(path)
    assert (task.times, task.tests_latest) == ((name,), True)
    moments = read_table(Path(path), task=task).moments
    assert str(datetime.fromtimestamp(moments[0], UTC))[:10] == "2025-10-01"
    assert moments == sorted(moments)
    assert round(moments[24] - moments[0]) == round(86_400 * (float(days[24]) - float(days[0])))


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("time", [f"{45000 + row / 2}" for row in range(72)]),  # seconds of a day
        ("time", [f"{45000 + 10 * row}" for row in range(72)]),
        ("runtime", [f"{45000 + 7 * row}" for row in range(72)]),
        ("price", [f"{45931 + row / 24:.6f}" for row in range(72)]),
    ],
)
def test_other_numbers_of_that_size_are_numbers(
    tmp_path: Path, name: str, numbers: list[str]
) -> None:
    rows = [
        f"{one},{20 + row % 5},{'ok' if row % 3 else 'worn'}" for row, one in enumerate(numbers)
    ]
    assert proposed(file(tmp_path, f"{name},temp,state", *rows)).times == ()


@pytest.mark.parametrize("clock", ["counts", "date"])
def test_a_file_whose_clock_counts_its_rows_is_in_the_order_of_time(
    tmp_path: Path, clock: str
) -> None:
    name = {"counts": "Time", "date": "Date"}[clock]
    path = file(
        tmp_path,
        f"{name},temp,state",
        *(
            f"{row if clock == 'counts' else f'{1 + row // 24}/10/2025'},{20 + row % 5},{'ok' if row % 3 else 'worn'}"
            for row in range(72)
        ),
    )
    task = proposed(path)
    assert (name in task.ignore, task.times, task.test) == (True, (), "latest")


# -- JSON -----------------------------------------------------------------------------------------------------


def objects(count: int = 60) -> list[dict[str, Any]]:
    return [
        {
            "at": f"2025-10-01T00:{row:02d}:00Z",
            "payload": {"temp": 20 + row / 8, "state": "ok" if row % 3 else "worn"},
        }
        for row in range(count)
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gw.jsonl", "\n".join(map(json.dumps, objects())) + "\n"),
        ("gw.ndjson", "\r\n".join(map(json.dumps, objects()))),
        ("gw.json", json.dumps(objects())),
        ("gw.json", json.dumps([objects()[:30], objects()[30:]], indent=1)),
        ("gw.json", "\n".join(map(json.dumps, objects()))),
        (
            "gw.jsonl",
            "\n".join(
                json.dumps({**one, "payload": json.dumps(one["payload"])}) for one in objects()
            ),
        ),
    ],
)
def test_objects_of_json_are_rows(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    task = proposed(str(path))
    assert (task.target, task.columns, task.times) == (
        "payload.state",
        ("at", "payload.temp"),
        ("at",),
    )
    found = read_table(path, task=task)
    assert found.features[:, 1].tolist() == [20 + row / 8 for row in range(60)]
    assert described([str(path)])[0].samples == 60, (
        "`coordinator init` takes it for data, not for a description"
    )


def columns_of(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {key: [row[key] for row in rows] for key in rows[0]}


FLAT = [{"at": one["at"], **one["payload"]} for one in objects()]
LISTS = columns_of(FLAT)


@pytest.mark.parametrize(
    "content",
    [
        LISTS,
        {"unit": "C", **LISTS},  # what all rows have in common
        {key: dict(enumerate(own)) for key, own in LISTS.items()},  # as pandas writes it
        {"columns": [*LISTS], "index": [*range(60)], "data": [[*one.values()] for one in FLAT]},
        {"count": 60, "readings": FLAT},  # the answer of a web service
        {"at": LISTS["at"], "payload": columns_of([one["payload"] for one in objects()])},
    ],
    ids=["lists", "common", "pandas", "split", "answer", "nested"],
)
@pytest.mark.parametrize("indent", [None, 1])
def test_an_object_of_columns_in_json_is_a_table(
    tmp_path: Path, content: dict[str, Any], indent: int | None
) -> None:
    path = tmp_path / "gw.json"
    path.write_text(json.dumps(content, indent=indent), "utf-8")
    [found] = described([str(path)])
    assert found.samples == 60
    names = [column.name.removeprefix("payload.") for column in found.columns]
    assert [name for name in names if name != "unit"] == ["at", "temp", "state"]
    task = proposed(str(path), target=found.columns[-1].name)
    temps = read_table(path, task=task).features[:, task.columns.index(found.columns[-2].name)]
    assert temps.tolist() == [20 + row / 8 for row in range(60)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"name": "gw", "port": 1883}', "one object of JSON"),
        ('{"a": [1, 2, 3], "b": [1, 2]}', "lists of 2 to 3 values"),
        ('{\n "a": [1, 2,\n', "not JSON, or cut short"),
    ],
)
def test_another_object_of_json_is_refused_with_the_forms_that_are_read(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "gw.json"
    path.write_text(text, "utf-8")
    for read in (lambda: described([str(path)]), lambda: read_table(path)):
        with pytest.raises(UserError, match=words) as caught:
            read()
        assert "cut short" in words or "an object in each line" in str(caught.value)


def test_numbers_in_a_list_of_json_are_cells_of_their_own(tmp_path: Path) -> None:
    """An accelerometer sends its axes so; without them the time alone would be an input."""
    path = tmp_path / "gw.jsonl"
    rows = [{"axes": [row % 7, row / 4], "state": "ok" if row % 3 else "worn"} for row in range(60)]
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    task = proposed(str(path))
    assert (task.target, task.columns) == ("state", ("axes.0", "axes.1"))
    found = read_table(path, task=task)
    assert found.features[:, 1].tolist() == [row / 4 for row in range(60)]


def test_a_key_that_a_protocol_leaves_out_is_zero(tmp_path: Path) -> None:
    rows = [
        {"count": row % 4, "door": bool(row % 3), "hum": 40 + row % 9, "state": "ab"[row % 2]}
        for row in range(48)
    ]
    path = tmp_path / "node.jsonl"
    kept = [{key: value for key, value in one.items() if value or key == "hum"} for one in rows]
    for key, zeros in (("up.decoded_payload", ("count", "door")), ("payload", ("door",))):
        path.write_text(
            "".join(json.dumps({key: one}) + "\n" for one in kept).replace("up.", ""), "utf-8"
        )
        found = describe(str(path))
        names = [f"{key.removeprefix('up.')}.{zero}" for zero in zeros]
        assert {*found.read.zeros} == {*names}
        assert any("never 0" in remark for remark in found.remarks) == (key == "payload")
    task = proposed(str(path), target="payload.state")
    doors = read_table(path, task=task).features[:, task.columns.index("payload.door")]
    assert doors.tolist() == [float(bool(row % 3)) for row in range(48)]


@pytest.mark.parametrize(
    ("text", "words"),
    [('[{"a": 1}', "not JSON, or cut short"), ('{"a": 1, "b": 2}\n[3]\n', r"row 2 \(line 2\): no object of JSON"), ("[1, 2]", "0 columns")],
)  # fmt: skip
def test_a_fault_in_json_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / ("x.jsonl" if text.startswith("{") else "x.json")
    path.write_text(text, "utf-8")
    with pytest.raises(DataError, match=words):
        read_table(path)


def test_a_folder_with_readings_of_each_day_is_one_table(tmp_path: Path) -> None:
    lines = readings(0)
    for day, part in (("01", slice(1, None, 2)), ("02", slice(2, None, 2))):
        file(tmp_path, lines[0], *lines[part], name=f"2025-10-{day}.csv")
    task = proposed(str(tmp_path), target="binary_sensor.motion")
    assert task.read.pivot is not None
    assert len(read_table(place_of(str(tmp_path)), task=task).rows) > 80


# -- rows that follow one another without a column of times ---------------------------------------------------------


ACTIVITIES = ("still", "walking", "running")


def samples_of(draws: np.random.Generator, count: int, level: float) -> list[list[float]]:
    """Two axes of a sensor that swing, in samples far shorter than a swing."""
    at = np.arange(count) / 4 + draws.random() * 6
    axes = (level + np.sin(at), np.cos(at * (1 + level / 4)))
    noisy: list[list[float]] = (
        (np.stack(axes, 1) + draws.normal(0, 0.05, (count, 2))).round(3).tolist()
    )
    return noisy


def recordings(folder: Path, name: str, *, columns: str, count: int = 24) -> str:
    """Recordings one after the other, each of one activity, of which the last are like all others."""
    draws = np.random.default_rng(len(name))
    lines = [columns]
    for number in range(count):
        for x, y in samples_of(draws, 160, number % 3):
            cells = {
                "recording": number,
                "turn": x,
                "tilt": y,
                "activity": ACTIVITIES[number % 3],
                "speed": number % 3 + x,
            }
            lines.append(",".join(str(cells[one]) for one in columns.split(",")))
    return file(folder, *lines, name=name)  # fmt: skip


def test_samples_of_recordings_are_windows_of_each(tmp_path: Path) -> None:
    """Random rows lie between rows of the same second, and the number of a recording gives its activity away."""
    columns = "recording,turn,tilt,activity"
    task = proposed(*(recordings(tmp_path, name, columns=columns) for name in ("a.csv", "bb.csv")))
    assert task.window is not None
    assert (task.window.group, task.columns) == ("recording", ("turn", "tilt"))


@pytest.mark.parametrize(
    ("columns", "target"), [("recording,turn,tilt,speed", "speed"), ("turn,tilt,speed", "speed")]
)
def test_the_latest_of_rows_that_follow_one_another_test(
    tmp_path: Path, columns: str, target: str
) -> None:
    sources = [recordings(tmp_path, name, columns=columns, count=9) for name in ("a.csv", "b.csv")]
    task = proposed(*sources, target=target)
    assert (task.test, task.window) == ("latest", None)
    assert task.columns == ("turn", "tilt")


def test_rows_that_follow_one_another_and_end_with_one_class_have_a_remark(tmp_path: Path) -> None:
    """The last rows would test one class alone."""
    draws = np.random.default_rng(1)
    rows = [(x, y, kind) for kind in ACTIVITIES for x, y in samples_of(draws, 200, 1)]
    source = file(tmp_path, "turn,tilt,activity", *(f"{x},{y},{word}" for x, y, word in rows))
    found = propose([describe(source)] * 2)
    assert checked(found).task.test is None
    assert any("neighbouring rows are alike" in remark for remark in found.warnings)


@pytest.mark.parametrize(("newest_first", "window"), [(False, True), (True, False)])
def test_a_time_that_is_missing_does_not_turn_the_order_round(
    tmp_path: Path, *, newest_first: bool, window: bool
) -> None:
    """Windows have the order of the file: with the newest row first, the oldest rows would test."""
    draws = np.random.default_rng(1)
    rows = [(x, y, n % 3) for n in range(12) for x, y in samples_of(draws, 160, n % 3)]
    times = [datetime(2026, 1, 1) + timedelta(minutes=number) for number in range(len(rows))]
    lines = [
        f"{'' if number == 700 else at},{x},{y},{ACTIVITIES[word]}"
        for number, (at, (x, y, word)) in enumerate(zip(times, rows, strict=True))
    ]
    lines = lines[::-1] if newest_first else lines
    task = proposed(*[file(tmp_path, "at,turn,tilt,activity", *lines)] * 2)
    assert (task.window is not None, task.test) == (window, None if window else "latest")


def rows_in_no_time(kind: str) -> list[str]:
    """Rows in an order that is none in time."""
    draws = np.random.default_rng(3)
    numbers = draws.normal(size=(600, 3))
    words = (numbers[:, 0] + numbers[:, 1] > 0).astype(int)
    order = np.arange(600)
    match kind:
        case "sorted by class":
            numbers[words == 1, 0] += 4
            order = np.argsort(words, kind="stable")
        case "sorted by an amount":
            numbers[:, 1] += 3 * numbers[:, 0]
            order = np.argsort(numbers[:, 0])
        case "rows of people":
            numbers[:, :2] = np.repeat(draws.normal(size=(120, 2)), 5, axis=0)
            numbers[:, 2] = np.repeat(numbers[::5, 2], 5) + draws.normal(size=600)
    rows = zip(numbers[order].round(4).tolist(), words[order].tolist(), strict=True)
    return ["a,b,c,state", *(f"{a},{b},{c},{'no' if word else 'ok'}" for (a, b, c), word in rows)]


@pytest.mark.parametrize(
    "kind", ["shuffled", "sorted by class", "sorted by an amount", "rows of people"]
)
def test_rows_in_another_order_are_drawn_for_the_test(tmp_path: Path, kind: str) -> None:
    found = propose([describe(file(tmp_path, *rows_in_no_time(kind)))] * 2)
    assert (checked(found).task.test, checked(found).task.window, found.warnings) == (
        None,
        None,
        [],
    )
