"""Data that lie in a database, or in a folder to which a gateway adds a file a day: what needs `formats`."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from covey.agent.data.check import load_local
from covey.extras.formats import sqlite_rows
from covey.extras.formats.tests.test_places import database as database
from covey.extras.formats.tests.test_places import rows as rows
from covey.shared.errors import DataError


def test_a_database_that_another_program_has_locked_is_named_after_a_while(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_rows, "WAIT_S", 0.05)
    other = sqlite3.connect(database)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(DataError, match="locked; another program writes to it; try again"):
        load_local(f"sqlite:{database}?table=all readings")
    other.close()
