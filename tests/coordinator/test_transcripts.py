"""The round engine against its transcripts. To rewrite them after a change: COVEY_REWRITE_TRANSCRIPTS=1."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.coordinator.transcript_player import replayed

FILES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_the_engine_acts_as_in_the_transcript(file: Path) -> None:
    text = file.read_text()
    played = replayed(text)
    if os.environ.get("COVEY_REWRITE_TRANSCRIPTS"):
        file.write_text(played)
    assert played == file.read_text()


def test_there_are_transcripts() -> None:
    assert len(FILES) >= 12


def test_a_wrong_action_in_a_transcript_is_seen() -> None:
    text = FILES[0].read_text()
    assert "Open step=1" in text
    wrong = text.replace("Open step=1", "Open step=2")
    assert replayed(wrong) != wrong


def test_a_line_that_is_no_event_is_named() -> None:
    with pytest.raises(ValueError, match="no event is called jioned"):
        replayed("rules\n0 jioned a\n")
