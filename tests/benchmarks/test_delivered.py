"""E-delivered of our defaults: how a fleet is judged, and the book shows the figures of the record."""

from __future__ import annotations

import json

from benchmarks.delivered import DEFAULTS, METHODS, OUT, SHARES, rows_of, summary, table

RECORD = json.loads(OUT.read_text())["cells"]
BOOK = OUT.with_suffix(".md").read_text("utf-8")


def test_the_book_shows_the_figures_of_the_record() -> None:
    shown = [share for share in SHARES if any(rows_of(RECORD, share))]
    assert shown
    for share in shown:
        assert table(RECORD, share) in BOOK
        assert summary(RECORD, share) in BOOK


def test_what_a_page_for_users_claims_of_the_defaults_is_in_the_record() -> None:
    rows = [*rows_of(RECORD, "all")]
    page = (OUT.parents[2] / "docs" / "comparisons.md").read_text("utf-8")
    lost = {row.fleet for row in rows for one in DEFAULTS for other in ("none", "trees") if row.loses(one, other)}  # fmt: skip
    assert f"On {len(rows) - len(lost)} of {len(rows)} fleets no default was worse" in page
    assert all(f"*{fleet}*" in page for fleet in lost)


def test_a_fleet_is_judged_by_the_best_of_all_and_by_doing_nothing() -> None:
    cell = {"server": 70.0, "tuned": 80.0, "delivered": 79.0, "none": 60.0, "trees": 81.0}
    ahead = {"ahead of none": [19.0, 1.0], "ahead of trees": [-2.0, 1.5]}
    cells = {f"even/all/{method}/1": cell | ahead for method in DEFAULTS}
    assert not [*rows_of(cells, "all")], "Local is missing"
    [row] = rows_of(cells | {"even/all/local/1": cell | {"server": 82.0}}, "all")
    assert (row.best(), row.behind("kin")) == (("local", "server"), 3.0)
    assert row.loses("kin", "trees")
    assert not row.loses("kin", "none")
    assert len(METHODS) == len(DEFAULTS) + 1
