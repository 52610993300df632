"""The bytes of a round under secure sums: the page has the figures of the record."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODELS = 2 * 4 * 44_426  # LeNet-5 down and up, in bytes


def test_the_page_has_the_bytes_of_a_round_with_everything_that_is_sent() -> None:
    file = ROOT / "benchmarks" / "results" / "secure_rounds.json"
    found = json.loads(file.read_text())["cells"]
    plain, secure = (
        found[f"100 agents, 0.1 s, {sums}"]["bytes_of_agent"] for sums in ("plain", "secure")
    )
    ratio = (MODELS + secure) / (MODELS + plain)
    assert ratio < 1.2
    page = (ROOT / "benchmarks" / "results" / "secure_sums.md").read_text("utf-8")
    expected = f"{(secure - plain) / 1000:.0f} kB more in such a round: {ratio:.2f} times"
    assert expected in page
