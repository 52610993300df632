"""Control characters become their numbers, everything else stays."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from covey.shared.programs.terminal import Terminal
from covey.shared.sentences import printable, printable_lines
from covey.shared.wire.documents import AgentStatus


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, büro, 東京, שלום", "plain, büro, 東京, שלום"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("\x1b[2J\x9b2J\x7f", "\\x1b[2J\\x9b2J\\x7f"),
        ("a\nb\rc\td", "a\\nb\\rc\\td"),
        ("user\u202egnp.exe\u2066", "user\\u202egnp.exe\\u2066"),
        ("\ud800\U000e0041\ufeff", "\\ud800\\U000e0041\\ufeff"),
        ("[red]markup[/red] \\x1b", "[red]markup[/red] \\x1b"),
    ],
)
def test_printable_shows_control_characters_by_their_number(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_no_control_character_is_left_and_a_second_time_changes_nothing(text: str) -> None:
    once = printable(text)
    assert once.isprintable() or all(
        ord(character) > 0x9F for character in once if not character.isprintable()
    )
    assert printable(once) == once
    assert printable_lines(text).count("\n") == text.count("\n")


def test_a_console_escapes_lines_and_cells() -> None:
    console = Terminal()
    console.file = io.StringIO()
    table = Table("a\x1b]0;column\x07")
    table.add_row("\x1b[31mcell")
    console.print(table)
    console.print("two\nlines\x1b]0;x\x07", style="red", soft_wrap=True)
    assert "\x1b" not in console.file.getvalue()
    assert "\\x1b[31mcell" in console.file.getvalue()
    assert "two\nlines\\x1b]0;x\\x07" in console.file.getvalue()


def test_texts_of_messages_are_escaped_where_they_enter() -> None:
    payload = AgentStatus(agent="a", session="s", online=True).model_copy(
        update={
            "problem": "\x1b]0;owned\x07",
            "version": "\u202e1",
            "labels": ["\x9b2J"],
            "dropped": {"\x1bc": 1},
        }
    )
    status = AgentStatus.from_bytes(payload.to_bytes())
    assert status.problem == "\\x1b]0;owned\\x07"
    assert (status.version, status.labels, status.dropped) == (
        "\\u202e1",
        ["\\x9b2J"],
        {"\\x1bc": 1},
    )
