"""Files of packages as fleets, small: a proposal, a run and scikit-learn next to it; and the page shows its record."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.real_files import RECORD, alone, counts, facts_of, page
from benchmarks.real_files_side import devices_of
from covey.extras.proposals.proposal import propose
from covey.extras.proposals.proposal_data import describe_all


def test_the_page_shows_the_record_and_counts_over_it() -> None:
    record = json.loads(RECORD.read_text())
    text = RECORD.with_suffix(".md").read_text("utf-8")
    for shown in (page(record), *counts(record)):
        assert shown in text


def test_a_file_becomes_devices_that_scikit_learn_trains_on(tmp_path: Path) -> None:
    rows = [f"{row},{'ab'[row % 2]},{row % 7},{row % 7 > 3}\n" for row in range(100)]
    texts = devices_of("rownames,shop,size,sold\n" + "".join(rows), "shop")
    for number, text in enumerate(texts):
        (tmp_path / f"device-{number}.csv").write_text(text)
    scenario = propose(describe_all(sorted(map(str, tmp_path.iterdir())))).content()
    facts = facts_of(scenario)
    assert (facts["target"], facts["numbers"], facts["words"]) == ("sold", ["size"], {})
    assert alone(scenario, tmp_path)["linear"] > 80
