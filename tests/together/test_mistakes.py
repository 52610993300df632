"""Every mistake on the page gets a message with what happened, what was expected and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.together.mistakes import Mistake, message, mistakes, workplace


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with workplace() as port:
        yield port


@pytest.mark.parametrize("mistake", mistakes(), ids=lambda one: str(one.what))
def test_a_mistake_gets_a_message_with_its_next_step(mistake: Mistake, port: int) -> None:
    shown = re.sub(r"\s+", " ", message(mistake, port))
    for words in (mistake.happened, mistake.expected, mistake.next_step):
        assert words in shown, f"{mistake.command}\n{shown}"


def test_the_page_has_mistakes_of_all_programs() -> None:
    assert len(mistakes()) >= 80
    assert {one.command.split()[0] for one in mistakes()} == {"agent", "broker", "coordinator"}
