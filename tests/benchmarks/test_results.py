"""Tables that name a record are what `coordinator compare --known` makes of that record, and columns of `benchmarks.superclasses`.

The laboratory books next to the records have whole tables, published.md some of their columns.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import flower_page
from benchmarks.superclasses import with_columns
from covey.extras.compare.comparison_files import known_rows
from covey.shared.scenario.scenario import Scenario

ROOT = Path(__file__).parents[2]
RECORDS = sorted((ROOT / "benchmarks" / "results").glob("fe*.json"))
RECORDS += sorted((ROOT / "benchmarks" / "results").glob("fuzzy*.json"))
RECORDS += sorted((ROOT / "benchmarks" / "results").glob("own*.json"))
PUBLISHED = ROOT / "benchmarks" / "results" / "published.md"
PAGE = PUBLISHED.read_text("utf-8")
BOOKS = "\n".join(
    path.read_text("utf-8") for path in sorted(PUBLISHED.parent.glob("*.md")) if path != PUBLISHED
)
NAMED = re.findall(
    r"<!-- (benchmarks/results/[\w.-]+\.json) -->\n\n((?:\*\*.*\n\n|\|.*\n(?:(?=\|)|\n?))+)", BOOKS
)
SHORT = re.findall(r"<!-- (benchmarks/results/[\w.-]+\.json): (.+) -->\n\n((?:\|.*\n)+)", PAGE)


def rendered(record: Path) -> str:
    scenario = Scenario.model_validate(json.loads(record.read_text())["scenario"])
    rows = list(known_rows(scenario, [record]).values())
    return "\n".join(one.markdown() for one in with_columns(scenario, rows))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: str(record.stem))
def test_a_record_has_all_its_rows_known_to_its_own_scenario(record: Path) -> None:
    document = json.loads(record.read_text())
    scenario = Scenario.model_validate(document["scenario"])
    assert len(known_rows(scenario, [record])) == len(document["cells"]) > 0


@pytest.mark.parametrize(("name", "shown"), NAMED, ids=[name for name, _ in NAMED])
def test_a_laboratory_book_shows_the_figures_of_the_record(name: str, shown: str) -> None:
    assert shown.strip() == rendered(ROOT / name).strip()


@pytest.mark.parametrize(("name", "columns", "shown"), SHORT, ids=[name for name, *_ in SHORT])
def test_the_page_shows_columns_of_the_record(name: str, columns: str, shown: str) -> None:
    whole = rows(rendered(ROOT / name))
    places = [whole[0].index(column) for column in columns.split(", ")]
    first_table = whole[
        : 1 + next((i for i, row in enumerate(whole[1:]) if row == whole[0]), len(whole))
    ]
    assert rows(shown) == [[row[place] for place in places] for row in first_table]


def test_the_seconds_of_the_page_for_users_of_flower_are_those_of_a_run_of_that_page() -> None:
    record = json.loads((PUBLISHED.parent / "flower_page.json").read_text())
    parts = ", ".join(
        f"{name} {record['seconds'][part]:.0f}"
        for name, part in [
            ("clone", "clone"),
            ("environment", "environment"),
            ("installation", "install"),
            ("page", "page"),
        ]
    )
    assert record["page"] == flower_page.PAGE
    assert f"[the page](../../{record['page']})" in BOOKS
    assert (
        f"{record['seconds']['all']:.0f} s from the clone to the table of FedClust ({parts})"
        in BOOKS
    )


def rows(table: str) -> list[list[str]]:
    """The cells of the rows of one Markdown table, or of several that follow one another."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_record_that_a_page_names_is_followed_by_its_table() -> None:
    assert BOOKS.count("<!-- benchmarks/results/") == len(NAMED) > 0
    assert PAGE.count("<!-- benchmarks/results/") == len(SHORT) > 0
