"""The value of a cell: the same, whatever spells it and whatever type holds it."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.agent.data import load
from covey.agent.data.table_columns import NUMERIC_TYPES, all_numbers
from covey.agent.data.values import (
    MISSING_WORDS,
    MONTHS,
    is_missing,
    moment_counted,
    moment_of,
    spelled,
    value_of,
)
from covey.shared.scenario.task import Task

TYPED = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=True),
    st.floats(width=16),
    st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**9), max_value=10**9),
    st.datetimes(datetime(1700, 1, 1), datetime(2100, 1, 1)),
    st.datetimes(datetime(1700, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
    st.dates(date(1700, 1, 1), date(2100, 1, 1)),
    st.times(),
    st.timedeltas(timedelta(days=-900), timedelta(days=900)),
)  # fmt: skip


@given(TYPED)
def test_a_typed_value_and_its_text_are_one_value(cell: Any) -> None:
    typed, written = value_of(cell), value_of(str(cell))
    assert typed.kind == written.kind
    if typed.kind == "number":
        assert written.number == pytest.approx(typed.number, rel=1e-12, abs=1e-6)
    else:
        assert written == typed


@given(st.one_of(st.booleans(), st.integers(-(2**63), 2**64), st.decimals(places=2, allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9), st.text(max_size=8)))  # fmt: skip
def test_a_word_is_spelled_in_one_way(cell: Any) -> None:
    word = spelled(cell)
    assert spelled(str(cell)) == word == spelled(word)
    if isinstance(cell, bool):
        assert {spelled(text) for text in (str(cell), str(cell).upper(), str(cell).lower())} == {
            word
        }


@given(st.lists(st.one_of(st.booleans(), st.integers(), st.floats(), st.text("0123456789.eE+-_ ", max_size=6)), min_size=1))  # fmt: skip
def test_the_fast_way_to_numbers_gives_what_the_function_gives(cells: list[Any]) -> None:
    fast = all_numbers(cells)
    assert {type(cell) for cell in cells} <= NUMERIC_TYPES
    if fast is not None:
        assert fast.tolist() == [value_of(cell).number for cell in cells]


@pytest.mark.parametrize("cell", [None, float("nan"), Decimal("nan"), *sorted(MISSING_WORDS), " NA ", "N/A", "NaN"])  # fmt: skip
def test_a_cell_without_a_value_is_missing(cell: object) -> None:
    assert is_missing(cell)


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("\u22125.5", -5.5),
        ('="33"', 33),
        ("13:45", 49_500),
        ("1:05 PM", 47_100),
        ("1 days 01:00:00", 90_000),
        (time(13, 45), 49_500),
        (Decimal("0.09"), 0.09),
        (True, 1),
        ("FALSE", 0),
    ],
)
def test_numbers_are_read_in_their_disguises(cell: object, number: float) -> None:
    assert value_of(cell).number == number


@pytest.mark.parametrize("end", ["", "x", " days", ",5", "e", "-"])
def test_a_cell_of_many_digits_is_read_in_one_pass(end: str) -> None:
    """One of 40 000 took 20 s of a processor, and its text as a word was an error."""
    cell = "1" * 40_000 + end
    began = process_time()
    assert value_of(cell).kind == ("number" if end in ("", "-") else "word")
    assert spelled(cell).strip("-") == cell.strip("-")
    assert process_time() - began < 2


@pytest.mark.parametrize("cell", ["1_033", "2021_03", "12%", "A12", "3:75", "25:00 PM", "0x1f"])
def test_codes_are_words(cell: str) -> None:
    assert value_of(cell).kind == "word"


@pytest.mark.parametrize(
    "cell",
    [
        "2025-10-25 13:05:00 UTC",
        "2025-10-25 1:05 PM",
        "2025-10-25T13:05:00+02:00[Europe/Berlin]",
        "2025-10-25 13:05:00 +0100",
        "2025/10/25 13:05",
        "Oct 25 2025 13:05",
        "25. Oktober 2025 13:05 Uhr",
        "25-Oct-25 13:05",
        "October 25, 2025 1:05 p.m.",
        "Sat Oct 25 13:05:00 2025",
        "Sat, 25 Oct 2025 13:05:00 GMT",
        "20251025130500",
        "202510251305",
        20251025130500,
    ],
)
def test_a_point_in_time_has_many_spellings(cell: object) -> None:
    moment = moment_of(cell)
    assert moment is not None
    assert moment.replace(tzinfo=None) == datetime(2025, 10, 25, 13, 5)


@pytest.mark.parametrize(
    ("cell", "moment"),
    [
        ("1949-02", datetime(1949, 2, 1)),
        ("Feb 1949", datetime(1949, 2, 1)),
        ("Jan 1 2000", datetime(2000, 1, 1)),
        ("19580329", datetime(1958, 3, 29)),
        ("2016-12-31 23:59:60", datetime(2017, 1, 1)),
        ("2024-12-31 24:00", datetime(2025, 1, 1)),
        ("2024-12-31 24:01", None),
        ("0001-01-01 00:00", None),
        ("9999-12-31", None),
        (date(1, 1, 1), None),
        (datetime(9999, 12, 31), None),
        ("2024Q3", datetime(2024, 7, 1)),
        ("2024-q3", datetime(2024, 7, 1)),
        ("2024 Q3", datetime(2024, 7, 1)),
        ("Q3/2024", datetime(2024, 7, 1)),
        ("3Q2024", datetime(2024, 7, 1)),
        ("2024M03", datetime(2024, 3, 1)),
        ("H2 2024", datetime(2024, 7, 1)),
        ("03/2024", datetime(2024, 3, 1)),
        (202403, datetime(2024, 3, 1)),
        ("2024-W05", datetime(2024, 1, 29)),
        ("2024Q5", None),
        ("2024-Q0", None),
        ("4711Q3", None),
        ("13/2024", None),
        (202413, None),
        ("03/04/2025", None),
        ("Route 2025", None),
        ("May 5", None),
        ("2025-13", None),
    ],
)
def test_a_date_counts_if_it_has_one_reading(cell: object, moment: datetime | None) -> None:
    assert moment_of(cell) == moment


@pytest.mark.parametrize(
    ("cell", "day"),
    [
        ("1. März 2025", (3, 1)),
        ("Ma\u0308rz 2025", (3, 1)),  # as macOS writes an ä
        ("Mrz 2025", (3, 1)),
        ("3. Juni 2025", (6, 3)),
        ("Dienstag, 3. Juni 2025", (6, 3)),
        ("Di., 3. Juni 2025", (6, 3)),
        ("24-Okt-25", (10, 24)),
        ("1. Dez. 2025", (12, 1)),
        ("3 juin 2025", (6, 3)),
        ("12 août 2025", (8, 12)),
        ("15 févr. 2025", (2, 15)),
        ("2 de enero de 2025", (1, 2)),
        ("10 set 2025", (9, 10)),
        ("1 de março de 2025", (3, 1)),
        ("2025 mei 3", (5, 3)),
        ("JUN-05-2025", (6, 5)),
        ("June, 2025", (6, 1)),
        ("jui 2025", None),  # juin or juillet
        ("Hund 2025", None),
        ("Posten, 2025", None),
    ],
)
def test_a_month_is_read_in_the_languages_of_many_gateways(
    cell: str, day: tuple[int, int] | None
) -> None:
    assert moment_of(cell) == (None if day is None else datetime(2025, *day))
    assert moment_of(f"{cell} 13:05") == (None if day is None else datetime(2025, *day, 13, 5))


def test_no_name_of_a_month_begins_as_that_of_another_month() -> None:
    for number, names in enumerate(MONTHS, 1):
        for name in names.split():
            assert moment_of(f"1 {name} 2025") == datetime(2025, number, 1)


@given(st.floats())
def test_a_number_is_a_time_of_a_likely_year_or_none(number: float) -> None:
    moment = moment_counted(number)
    assert moment is None or 1700 <= moment.year <= 2100
    assert moment_counted(3e8) is None  # 1979


def test_neighbouring_counters_stay_apart_until_they_are_standardised(tmp_path: Path) -> None:
    from covey.agent.data.local import prepared
    from covey.agent.data.scaling import Scaling
    from covey.agent.data.survey import DataSurvey
    from tests.agent.test_task_columns import written

    start = 1_700_000_000
    rows = [f"{start + 7 * i % 60},{i % 2}" for i in range(60)]
    path = written(tmp_path, "meter,y", *rows)
    task = Task(features=(1,), columns=("meter",), target="y", classes=2, standardise="federated")
    data = load(path, task=task)
    assert len(np.unique(data.features)) == 60
    sums = DataSurvey(data, task).statistics()
    mean = sums["sum"][0] / 60
    own = task.model_copy(
        update={
            "standardise": Task(
                features=(1,), standardise={"mean": [mean], "std": [17.3]}
            ).standardise
        }
    )
    inputs = Scaling.of(own).apply(prepared(data, own).features)
    assert len(np.unique(inputs)) == 60
    assert float(inputs.std()) == pytest.approx(1, abs=0.02)
