"""Data files that claim or unpack to more than any machine has, and images that are none: what needs `formats`."""

from __future__ import annotations

import json
import sqlite3
import tracemalloc
from pathlib import Path

import pytest

from covey.agent.data import load
from covey.agent.data.limits import LIMIT_VARIABLE, MAX_CELL_BYTES, STEP_BYTES
from covey.extras.formats.sqlite_place import database
from covey.extras.formats.sqlite_rows import STEPS
from covey.shared.errors import DataError
from tests.attacks.test_data_bombs import SMALL

ENDLESS = """CREATE VIEW rows AS
WITH RECURSIVE t(a) AS (SELECT 1.0 UNION ALL SELECT a + 1 FROM t) SELECT a, a AS b FROM t"""


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        (  # before: 2.0 GB
            "CREATE TABLE t (a, b); INSERT INTO t VALUES (1, 2);"
            "CREATE VIEW rows AS SELECT a, b, hex(zeroblob(400000000)) AS c FROM t",
            f"more than {MAX_CELL_BYTES} bytes",
        ),
        (ENDLESS, f"more than {SMALL} bytes"),
        (  # no row ever comes
            f"{ENDLESS} WHERE a < 0",
            "too many steps",
        ),
        (
            "CREATE VIEW rows AS SELECT 1 AS a, hex(zeroblob(60000)) LIKE '%0' || "
            "hex(zeroblob(20000)) || '%1' AS b",
            "pattern too complex",
        ),
    ],
    ids=["a long text", "rows without end", "no row without end", "a long pattern"],
)
def test_a_database_that_computes_more_than_its_limit_is_given_up(
    schema: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them take 8 kB; before, three had no end in 40 s."""
    limit = 4 * STEPS * STEP_BYTES if "steps" in fault else SMALL
    monkeypatch.setenv(LIMIT_VARIABLE, str(limit))
    file = tmp_path / "a.sqlite"
    with sqlite3.connect(file) as base:
        base.executescript(schema)
    base.close()
    place = database(f"sqlite:{file}?table=rows")
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=fault):
            load(place)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20, f"{peak >> 20} MiB were set aside"


def test_a_long_name_above_an_object_is_not_repeated_for_each_cell_in_it(tmp_path: Path) -> None:
    """693 kB took 2.3 GB."""
    row = {"k" * 30_000: {f"a{n}": 1 for n in range(1000)}, "age": 3}
    (tmp_path / "t.jsonl").write_text("\n".join([json.dumps(row)] * 3))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"column"):
        load(tmp_path / "t.jsonl")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30_000 * 1000
