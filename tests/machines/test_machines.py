"""The machines of agent and coordinator against their transcripts. To rewrite them: COVEY_REWRITE_TRANSCRIPTS=1."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from covey.coordinator.run.effects import Effect
from covey.shared.mqtt.link import Up
from tests.machines.player import CoordinatorPlayer, replayed

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


def test_the_link_is_read_while_the_run_works_and_not_while_the_rest_of_the_service_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = CoordinatorPlayer(tmp_path).machine
    reading: list[threading.Thread] = []

    def read(patience_s: float) -> bool:
        """Whether another thread has read something within this time."""
        thread = threading.Thread(target=service.read, args=(Up(), 0.0), daemon=True)
        reading.append(thread)
        thread.start()
        thread.join(patience_s)
        return not thread.is_alive()

    has_read: dict[str, bool] = {}

    def work(events: Any, now: float) -> list[list[Effect]]:
        has_read["run"] = read(10.0)
        return [[] for _ in events]

    def publish(now: float) -> list[Any]:
        has_read["roster"] = read(0.2)
        return []

    monkeypatch.setattr(service.run, "handle_all", work)
    monkeypatch.setattr(service.desk.show, "publish", publish)
    service.handle([], 0.0)
    assert has_read == {"run": True, "roster": False}
    for thread in reading:
        thread.join(10.0)
        assert not thread.is_alive()
