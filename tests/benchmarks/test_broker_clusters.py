"""The table of clusters of brokers is that of its record, and a stand lasts from a fold to the next one."""

from __future__ import annotations

import json

from benchmarks.broker_clusters import OUT, table
from tests.processes import ROOT


def test_the_page_has_the_table_of_the_record() -> None:
    found = json.loads((ROOT / OUT).read_text())["cells"]
    assert table(found) in (ROOT / "benchmarks" / "results" / "brokers.md").read_text("utf-8")
