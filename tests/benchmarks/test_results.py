"""The tables of docs/results.md that name a record are what `coordinator compare --known` makes of that record."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from covey.coordinator.commands.comparison_files import known_rows
from covey.coordinator.compare.summaries import summaries
from covey.coordinator.compare.tables import tables
from covey.shared.scenario.scenario import Scenario

ROOT = Path(__file__).parents[2]
RECORDS = sorted((ROOT / "benchmarks" / "results").glob("fe*.json"))
RECORDS += sorted((ROOT / "benchmarks" / "results").glob("fuzzy*.json"))
RECORDS += sorted((ROOT / "benchmarks" / "results").glob("own*.json"))
PAGE = (ROOT / "docs" / "results.md").read_text("utf-8")
NAMED = re.findall(
    r"<!-- (benchmarks/results/[\w.-]+\.json) -->\n\n((?:\*\*.*\n\n|\|.*\n(?:(?=\|)|\n?))+)", PAGE
)


def rendered(record: Path) -> str:
    scenario = Scenario.model_validate(json.loads(record.read_text())["scenario"])
    rows = list(known_rows(scenario, [record]).values())
    return "\n".join(one.markdown() for one in tables(scenario, summaries(scenario, rows)))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: str(record.stem))
def test_a_record_has_all_its_rows_known_to_its_own_scenario(record: Path) -> None:
    document = json.loads(record.read_text())
    scenario = Scenario.model_validate(document["scenario"])
    assert len(known_rows(scenario, [record])) == len(document["cells"]) > 0


@pytest.mark.parametrize(("name", "shown"), NAMED, ids=[name for name, _ in NAMED])
def test_the_page_shows_the_figures_of_the_record(name: str, shown: str) -> None:
    assert shown.strip() == rendered(ROOT / name).strip()


def test_every_record_that_the_page_names_is_followed_by_its_table() -> None:
    assert PAGE.count("<!-- benchmarks/results/") == len(NAMED) > 0
