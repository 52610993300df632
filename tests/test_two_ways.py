"""docs/architecture.md follows an order and a report through the product: a small fleet goes the same ways."""

from __future__ import annotations

import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.kit.small_fleet import over_the_wire
from tests.kit.small_run import scenario

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROOMS = ("agent", "coordinator", "shared")
# a small fleet learns in numpy, in this process, and has one broker; jobs are data without functions
ELSEWHERE = {"agent/training/learner.py", "coordinator/serve/placement.py", "shared/wire/jobs.py"}
Call = tuple[str, str]  # a file and a function of it


@cache
def trail() -> list[Call]:
    """The calls of a whole run in their order, where one file calls another."""
    calls: list[Call] = []

    @cache
    def file(name: str) -> str:
        return str(Path(name).resolve()).removeprefix(f"{ROOT.resolve()}/")

    def entered(frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.endswith(".py"):
            call = (file(name), frame.f_code.co_name)
            if not calls or calls[-1] != call:
                calls.append(call)

    before = sys.getprofile()
    threading.setprofile(entered)
    sys.setprofile(entered)
    try:
        with tempfile.TemporaryDirectory() as folder:
            over_the_wire(Path(folder), scenario("fedavg", rounds={"count": 1}))
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return calls


def steps(title: str) -> list[list[str]]:
    """The files and rooms that each step of a way names, in their order."""
    section = PAGE.split(f"## {title}")[1].split("\n## ")[0]
    found = []
    for step in re.split(r"^\d+\. ", section, flags=re.MULTILINE)[1:]:
        found.append(list(places(step.split("\n\n")[0])))
    return found


def places(step: str) -> Iterator[str]:
    """A file that is named without its room is in that of the one before."""
    room = ""
    for word in re.findall(r"`([^`]+)`", step):
        path, _, name = word.rpartition("/")
        if word.split("/")[0] in ROOMS:
            room = path if name.endswith(".py") else word
            yield word
        elif re.fullmatch(r"[a-z_]+\.py", word):
            yield f"{room}/{word}"


def is_at(place: str, call: Call) -> bool:
    return call[0] == place or call[0].startswith(f"{place}/")


def between(first: str, last: str, count: int = 1) -> list[Call]:
    """The calls from the first one of a function, with what called it, to the n-th one of another after it."""
    calls = trail()
    start = next(place for place, call in enumerate(calls) if call[1] == first)
    start = next(place for place in range(start, 0, -1) if calls[place][0] != calls[start][0])
    ends = [place for place, call in enumerate(calls) if call[1] == last and place > start]
    return calls[start : ends[count - 1] + 1]


def missed(way: Sequence[Sequence[str]], calls: Sequence[Call]) -> str:
    """The first step whose files are not reached after all those before; empty if the calls go this way."""
    at = 0
    for number, named in enumerate(way, start=1):
        wanted = [place for place in named if place not in ELSEWHERE]
        reached = [at]
        for place in wanted:
            later = [i for i, call in enumerate(calls) if i >= at and is_at(place, call)]
            if not later:
                return f"step {number}: {place}"
            reached.append(later[0])
        at = max(reached)
    return ""


WAYS = {
    "The way of one order, from plan to training": ("_plan", "train", 1),
    "The way of one report, from training to fold": ("train", "_plan", 2),
}


@pytest.mark.parametrize("title", WAYS)
def test_a_fleet_goes_the_way_that_the_page_describes(title: str) -> None:
    way = steps(title)
    assert len(way) >= 10
    for place in (place for step in way for place in step):
        assert (ROOT / place).exists(), place
    calls = between(*WAYS[title])
    assert missed(way, calls) == ""
    assert missed(way[::-1], calls) != "", "any order would do"
