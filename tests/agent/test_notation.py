"""Files whose numbers, times and letters are not spelled as most programs spell them."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.agent.data.tables import load_table
from covey.shared.errors import DataError
from covey.shared.scenario.task import Task
from tests.agent.test_task_columns import written

GERMAN = (
    "zeit;größe;stück;wert",
    *(f"{day}.12.2025 13:45;{day},5;{day};{2 * day},25" for day in range(1, 25)),
)
USUAL = (
    "zeit,größe,stück,wert",
    *(f"2025-12-{day:02} 13:45,{day}.5,{day},{2 * day}.25" for day in range(1, 25)),
)


def task(**read: object) -> Task:
    content = {
        "features": [6],
        "columns": ["zeit", "größe", "stück"],
        "times": ["zeit"],
        "target": "wert",
        "read": read,
    }
    return Task.model_validate(content)


def encoded(folder: Path, lines: tuple[str, ...], encoding: str) -> Path:
    path = folder / f"{encoding}.csv"
    path.write_bytes("\n".join([*lines, ""]).encode(encoding))
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_a_table_in_another_notation_gives_the_same_data(tmp_path: Path, encoding: str) -> None:
    usual = load_table(written(tmp_path, *USUAL), task=task())
    read = {"decimal": ",", "dates": ["%d.%m.%Y %H:%M"], "encoding": "cp1252"}
    other = load_table(encoded(tmp_path, GERMAN, encoding), task=task(**read))
    assert (other.features == usual.features).all()
    assert (other.targets == usual.targets).all()


def test_the_usual_notation_is_read_with_the_declared_one(tmp_path: Path) -> None:
    """One task serves a fleet in which a single device writes decimal commas."""
    read = {"decimal": ",", "dates": ["%d.%m.%Y %H:%M"]}
    plain = load_table(written(tmp_path, *USUAL), task=task())
    assert (
        load_table(written(tmp_path, *USUAL), task=task(**read)).features == plain.features
    ).all()


def test_a_cell_in_another_notation_is_named_with_the_key_that_reads_it(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"'1,5' is not a number(.|\n)*task\.read\.decimal"
    ) as fault:
        load_table(written(tmp_path, *GERMAN), task=task())
    assert "task.read.dates" in str(fault.value)
    with pytest.raises(DataError, match=r"not UTF-8 text (.|\n)*task\.read\.encoding"):
        load_table(encoded(tmp_path, GERMAN, "cp1252"), task=task())


def test_signs_between_thousands_are_refused(tmp_path: Path) -> None:
    rows = ("1.234,5;1", "2,5;2")
    path = written(tmp_path, "a;y", *rows)
    small = {"features": [1], "columns": ["a"], "target": "y", "read": {"decimal": ","}}
    with pytest.raises(DataError, match=r"'1\.234,5' is not a number"):
        load_table(path, task=Task.model_validate(small))


@pytest.mark.parametrize(
    ("read", "fault"),
    [
        ({"dates": ["%d %B %Y"]}, "%d, %m, %Y or %y"),
        ({"dates": ["%H:%M"]}, "a day, a month and a year"),
        ({"dates": ["%d%m%Y"]}, "a sign between"),
        ({"encoding": "latin-99"}, "unknown encoding"),
        ({"encoding": "rot13"}, "unknown encoding"),
        ({"decimal": ";"}, "decimal"),
    ],
)
def test_a_notation_that_no_file_can_have_is_refused(read: dict[str, object], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        task(**read)
