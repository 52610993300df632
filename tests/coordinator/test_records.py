"""The reader of a run's files names a damaged file, the fault and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.coordinator.run import records
from covey.shared.errors import UserError


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"name": "digits", "met', "no JSON"),
        ("", "no JSON"),
        ("{}", "name, method, .* is missing"),
        ("[]", "name, method, .* is missing"),
        ("3", "name, method, .* is missing"),
    ],
)
def test_a_damaged_result_is_named_and_what_to_do(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(UserError, match=f"{tmp_path}/result.json: {why}.*run the scenario again"):
        records.finished(tmp_path)


def test_a_damaged_line_of_the_record_is_named_by_its_number(tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").write_text('{"event": "link", "up": true}\n{"event": "pha')
    with pytest.raises(UserError, match=r"rounds.jsonl, line 2: no JSON"):
        records.lines(tmp_path)
