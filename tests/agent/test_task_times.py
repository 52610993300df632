"""Points in time as inputs: their position in the day and in the week."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from covey.agent.data import load, with_test
from covey.agent.data.local import circular, prepared
from covey.agent.data.survey import DataSurvey
from covey.agent.data.table_columns import second_of_week
from covey.shared.errors import DataError
from covey.shared.scenario.columns import DAY_S
from covey.shared.scenario.task import Task
from tests.agent.test_task_columns import written

NOON_OF_THURSDAY = 3 * DAY_S + DAY_S // 2


def task(**keys: Any) -> Task:
    base: dict[str, Any] = {"features": (5,), "classes": 2, "columns": ("when", "x")}
    return Task(**(base | {"times": ("when",)} | keys))


@pytest.mark.parametrize(
    "cell",
    [
        "2026-01-01 12:00",
        "2026-01-01T12:00:00Z",
        "2026-01-01T12:00:00+09:00",  # the clock as written
        "1767268800",
        1767268800,
        1767268800.0,
        1767268800_000,
        1767268800_000_000,
        1767268800_000_000_000,
        datetime(2026, 1, 1, 12, tzinfo=UTC),
    ],
)
def test_times_are_read_as_people_and_machines_write_them(cell: object) -> None:
    assert second_of_week(cell) == NOON_OF_THURSDAY


@pytest.mark.parametrize("cell", ["soon", "2026-13-01", True, b"x", "1e300", float("inf")])
def test_anything_else_is_no_time(cell: object) -> None:
    assert second_of_week(cell) is None


def test_a_date_is_its_midnight() -> None:
    assert second_of_week(date(2026, 1, 1)) == 3 * DAY_S
    assert second_of_week("2026-01-01") == 3 * DAY_S


def test_the_inputs_are_sines_and_cosines_and_zeros_for_a_missing_time() -> None:
    seconds = np.array([0, DAY_S / 4, 3.5 * DAY_S, np.nan], np.float32)
    assert circular(seconds) == pytest.approx(
        np.array(
            [
                [0, 1, 0, 1],
                [1, 0, np.sin(2 * np.pi / 28), np.cos(2 * np.pi / 28)],
                [0, -1, 0, -1],
                [0, 0, 0, 0],
            ]
        ),
        abs=1e-6,
    )
    assert circular(np.zeros((2, 6), np.float32)).shape == (2, 4, 6)


def test_with_its_season_a_time_has_its_place_in_the_year_to_half_a_week_and_all_else_as_before() -> (
    None
):
    days = [date(2024, 1, 1) + timedelta(days=day) for day in range(3 * 365)]
    plain = np.array([second_of_week(day) for day in days], np.float32)
    seasonal = np.array([second_of_week(day, seasonal=True) for day in days], np.float32)
    inputs = circular(seasonal, seasonal=True)
    assert inputs.shape == (len(days), 6)
    assert inputs[:, :4] == pytest.approx(circular(plain), abs=1e-3)
    found = np.arctan2(inputs[:, 4], inputs[:, 5])
    true = np.array([2 * np.pi * (day.timetuple().tm_yday - 1) / 365.2425 for day in days])
    away = np.abs((found - true + np.pi) % (2 * np.pi) - np.pi)
    assert away.max() <= 2 * np.pi * 3.6 / 365.2425


def test_what_follows_the_season_is_learnt_from_daily_rows_with_seasons_alone(
    tmp_path: Path,
) -> None:
    days = [date(2024, 1, 1) + timedelta(days=day) for day in range(700)]
    warm = [-np.cos(2 * np.pi * (day.timetuple().tm_yday - 20) / 365) for day in days]
    rows = [f"{day},{value:.4f}" for day, value in zip(days, warm, strict=True)]
    path = written(tmp_path, "when,y", *rows)

    def explained(**keys: Any) -> float:
        own = task(columns=("when",), classes=None, target="y", **keys)
        data = prepared(with_test(load(path, task=own)), own)
        with_one = np.c_[data.features, np.ones(len(data.features))]
        weights, *_ = np.linalg.lstsq(with_one, data.targets, rcond=None)
        guess = np.c_[data.test_features, np.ones(len(data.test_features))] @ weights
        return float(1 - np.mean((guess - data.test_targets) ** 2) / np.var(data.test_targets))

    assert explained(features=(4,)) < 0.1
    assert explained(features=(6,), seasons=("when",)) > 0.98


@pytest.mark.parametrize("name", ["data.csv", "data.parquet"])
def test_times_of_a_table_become_four_inputs(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, "x,when,label", "7,2026-01-01 12:00:00,0", "8,,1", name=name)
    own = task(impute={"x": 0.0})
    data = prepared(load(path, task=own), own)
    assert data.features[0] == pytest.approx([0, -1, 0, -1, 7], abs=1e-6)
    assert data.features[1].tolist() == [0, 0, 0, 0, 8]
    asking = task(impute="mean", standardise="federated")
    assert DataSurvey(load(path, task=asking), asking).statistics()["count"] == [2]


def in_no_order(folder: Path) -> Path:
    """Thirty days, the even ones first; x is the number of the day. One row has no x."""
    days = [*range(2, 31, 2), *range(1, 31, 2)]
    rows = [f"2026-01-{day:02},{'' if day == 29 else day},{day % 3 % 2}" for day in days]
    return written(folder, "when,x,y", *rows)


def days_that_test(path: Path, own: Task) -> list[int]:
    data = with_test(load(path, task=own))
    days = [int(x) for x in data.test_features[:, -1]]
    trained = [int(x) for x in data.features[:, -1] if np.isfinite(x)]
    assert not {*days} & {*trained}
    return sorted(days)


def test_the_latest_rows_of_a_table_with_times_test_whatever_their_order(tmp_path: Path) -> None:
    path = in_no_order(tmp_path)
    assert days_that_test(path, task(impute="drop")) == [24, 25, 26, 27, 28, 30]
    assert days_that_test(path, task(impute="drop", test="random")) != [24, 25, 26, 27, 28, 30]


def test_the_last_rows_of_a_table_without_times_test_on_request(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"features": (1,), "columns": ("x",), "times": (), "impute": "drop"}
    path = in_no_order(tmp_path)
    ignore = {"ignore": ("when",)}
    assert days_that_test(path, task(**keys, **ignore, test="latest")) == [17, 19, 21, 23, 25, 27]
    assert days_that_test(path, task(**keys, **ignore)) != [17, 19, 21, 23, 25, 27]


def test_cells_that_are_no_times_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, "x,when,label", "7,soon,0", "8,,1")
    with pytest.raises(DataError, match="2 faults") as caught:
        load(path, task=task())
    assert "'soon' is not a time" in str(caught.value)
    assert "soon" not in caught.value.public


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"times": ("then",)}, "are not in columns"),
        ({"categories": {"when": 3}}, "have another role too"),
        ({"features": (2,)}, r"set features to \[5\]"),
        ({"seasons": ("when",)}, r"set features to \[7\]"),
        ({"seasons": ("x",)}, "expected columns of task.times"),
    ],
)
def test_times_that_do_not_go_with_the_task_are_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        task(**keys)


def test_elapsed_days_are_a_number_behind_the_columns(tmp_path: Path) -> None:
    path = written(
        tmp_path, "when,x,y", "2000-01-02 12:00,1,0", "20000111,2,1", "2026-01-01T00:00Z,3,1"
    )
    own = task(features=(6,), target="y", elapsed=("when",), standardise="federated")
    data = load(path, task=own)
    assert data.features[:, 2].tolist() == [1.5, 10, 9497]
    assert prepared(data, own).features.shape == (3, 6)
    assert len(DataSurvey(data, own).statistics()["sum"]) == own.number_columns == 2
    with pytest.raises(
        ValidationError, match=r"elapsed names \['x'\], expected columns of task\.times"
    ):
        task(features=(6,), elapsed=("x",))
