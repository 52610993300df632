"""The tasks that docs/your-data.md shows are valid, and fit the table that it shows."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from covey.agent.data.check import load_local
from covey.shared.scenario.load import from_mapping

PAGE = Path(__file__).parents[2] / "docs" / "your-data.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_tasks_of_the_page_are_valid_and_the_first_fits_its_table(tmp_path: Path) -> None:
    contents = [yaml.safe_load(block) for block in blocks("yaml")]
    scenarios = [from_mapping(content) for content in contents if "strategy" in content]
    assert [one.name for one in scenarios] == [
        "flats",
        "pumps",
        "leaves",
        "thumbnails",
        "bearings",
        "complaints",
    ]
    table = tmp_path / "flats.csv"
    [text] = blocks("text")
    table.write_text(text)
    data = load_local(table, task=scenarios[0].task)
    assert len(data.targets) + len(data.test_targets) == 4
