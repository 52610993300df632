"""Every mistake of `tests/mistakes.py` gets a message with what happened, what was expected and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.mistakes import MISTAKES, PAGE, Mistake, message, page, workplace


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with workplace() as port:
        yield port


@pytest.mark.parametrize("mistake", MISTAKES, ids=[one.what for one in MISTAKES])
def test_a_mistake_gets_a_message_with_its_next_step(mistake: Mistake, port: int) -> None:
    shown = re.sub(r"\s+", " ", message(mistake, port))
    for words in (mistake.happened, mistake.expected, mistake.next_step):
        assert words in shown, f"{mistake.command}\n{shown}"


def test_there_are_as_many_mistakes_as_the_page_has_and_it_is_up_to_date() -> None:
    assert len(MISTAKES) >= 80
    assert PAGE.read_text() == page(), "write it again: python -m tests.mistakes --write"
