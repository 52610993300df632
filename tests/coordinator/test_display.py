"""What a person sees is what was said: text from agents, files and brokers is never read as markup."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from coordinator import display

ODD = "[/odd]/one.csv [red]:smile:"
ROW = {"online": True, "problem": ODD, "takes_part": False, "busy": False, "seen": 0.0, "refusals": {ODD: 1}}
ROW |= {"cluster": None, "samples": 0, "test_samples": 0, "labels": 0}
PHASE = {"phase": ODD, "reported": [], "invited": [], "cluster_sizes": {}, "round": 0, "ends_round": True}


def console() -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=400, markup=False, emoji=False), text  # as every console of ours: test_house.py


@pytest.mark.parametrize(
    "row",
    [
        {"event": "problem", "agent": "a", "why": ODD},
        {"event": "failed", "agent": "a", "why": ODD},
        {"event": "refused", "agent": "a", "why": ODD},
        {"event": "void", "round": 0, "why": ODD},
        {"event": "link", "up": False, "why": ODD},
        {"event": "broker", "broker": "theirs", "url": "mqtt://x", "note": ODD},
        {"event": "phase", **PHASE, "notes": {"warning": ODD}},
    ],
    ids=lambda row: str(row["event"]),
)
def test_a_line_of_the_record_is_shown_as_it_is(row: dict[str, Any]) -> None:
    plain, text = console()
    with display.Progressing(plain, 3) as progress:
        progress(row)
    assert ODD in text.getvalue()


def test_the_roster_shows_names_and_problems_as_they_are() -> None:
    plain, text = console()
    plain.print(display.roster_table({"run": ODD, "agents": {ODD: ROW}}))
    assert text.getvalue().count(ODD) == 4  # title, agent, refusals, problem
