"""Data that lie in a database, or in a folder to which a gateway adds a file a day: what needs `in_use` and `proposals`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from covey.agent.data.check import load_local
from covey.extras.formats.tests.test_places import TASK, Row, as_csv, daily
from covey.extras.formats.tests.test_places import database as database
from covey.extras.formats.tests.test_places import rows as rows
from covey.extras.in_use.unlabelled import cells_of, load_unlabelled
from covey.extras.proposals.proposal_data import describe
from covey.shared.errors import DataError

ALL = 'SELECT * FROM "all readings" ORDER BY time'


@pytest.mark.parametrize("kind", ["table", "query", ".csv", ".parquet"])
def test_every_source_gives_the_data_set_of_one_file_with_the_same_rows(
    tmp_path: Path, database: Path, rows: list[Row], kind: str
) -> None:
    source = {
        "table": f"sqlite:{database}?table=all readings",
        "query": f"sqlite:{database}?query={ALL}",
    }.get(kind) or str(daily(tmp_path / "daily", kind))
    whole = str(as_csv(tmp_path / "whole.csv", rows))
    for task in (TASK, TASK.model_copy(update={"test": "random"})):
        found, expected = load_local(source, task=task), load_local(whole, task=task)
        assert np.array_equal(found.features, expected.features)
        assert np.array_equal(found.targets, expected.targets)
        assert np.array_equal(found.test_features, expected.test_features)
    told, like = describe(source), describe(whole)
    assert told.columns == like.columns
    assert told.samples == like.samples
    samples = load_unlabelled(Path(source), TASK)
    assert samples.rows == load_unlabelled(Path(whole), TASK).rows
    kept = cells_of(Path(source), TASK, [1, 8], ["maker"])
    assert kept == [["ABB"], ["KSB"]]


def test_a_fault_in_a_folder_names_its_file_and_its_row(tmp_path: Path) -> None:
    folder = daily(tmp_path / "daily")
    as_csv(folder / "2026-11-03.csv", [("2026-11-03 00:00", "fast", "ABB", "ok")])  # type: ignore[list-item]
    with pytest.raises(DataError, match=r"2026-11-03.csv: .*row 1.*'fast'"):
        load_local(folder, task=TASK)
    (folder / "2026-11-03.csv").write_text("time,pace,maker,worn\n2026-11-03,1,ABB,ok\n")
    with pytest.raises(DataError, match=r"(?s)2026-11-03.csv: .*'speed'"):
        load_local(folder, task=TASK)
    with pytest.raises(DataError, match=r"2026-11-03.csv.*only one of them has 'pace', 'speed'"):
        describe(str(folder))
