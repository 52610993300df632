"""The machines of agent and coordinator against their transcripts. To rewrite them: COVEY_REWRITE_TRANSCRIPTS=1."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.machines.player import replayed

FILES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_the_machine_acts_as_in_the_transcript(file: Path, tmp_path: Path) -> None:
    text = file.read_text()
    played = replayed(text, tmp_path)
    if os.environ.get("COVEY_REWRITE_TRANSCRIPTS"):
        file.write_text(played)
    assert played == file.read_text()


def test_there_are_transcripts_of_both_programs() -> None:
    assert {file.stem.partition("_")[0] for file in FILES} == {"agent", "coordinator"}


def test_a_wrong_effect_in_a_transcript_is_seen(tmp_path: Path) -> None:
    text = FILES[0].read_text()
    assert "start work" in text
    wrong = text.replace("start work", "start sleep")
    assert replayed(wrong, tmp_path) != wrong


def test_a_line_that_is_no_event_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no event is called ordre"):
        replayed("agent\n0 ordre 1\n", tmp_path)
