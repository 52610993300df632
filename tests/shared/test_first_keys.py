"""The keys that most scenarios set come first, in a dump and in the reference; the mark of a field alone decides."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from covey.shared.scenario.introspection import ANY_METHOD, fields, sections_in
from covey.shared.scenario.scenario import Scenario
from covey.shared.written import is_first

ROOT = Path(__file__).parents[2]
Section = type[BaseModel]


def sections(of: Section, *, first_alone: bool = False) -> set[Section]:
    """A section and all that it may hold, without methods; `first_alone`: only those at keys that come first."""
    found = {of}
    for key, info in fields(of).items():
        for inner in sections_in(info.annotation):
            if inner is not ANY_METHOD and (is_first(key, info) or not first_alone):
                found |= sections(inner, first_alone=first_alone)
    return found


def divided(section: Section) -> tuple[list[str], list[str]]:
    """The keys that come first, and the others; without the one that chooses a rule of a partition."""
    is_rule = section.__module__.endswith(".partition")
    known = {key: info for key, info in fields(section).items() if not (is_rule and key == "name")}
    first = [key for key, info in known.items() if is_first(key, info)]
    return first, [key for key in known if key not in first]


def test_few_keys_come_first() -> None:
    front = [key for one in sections(Scenario, first_alone=True) for key in divided(one)[0]]
    assert 60 <= len(front) <= 80, len(front)


@pytest.mark.whole
def test_the_reference_divides_each_section_as_its_fields_are_marked() -> None:
    command = [sys.executable, "scripts/docs_reference.py", "scenario"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    shown = []
    for part in re.split(r"^#+ .*$", done.stdout, flags=re.MULTILINE):
        first, _, others = part.partition("Seldom set:")
        shown.append((keys_in(first), keys_in(others)))
    for section in sections(Scenario):
        first, others = divided(section)
        assert ((first, others) if first else (others, [])) in shown, section


def keys_in(tables: str) -> list[str]:
    return re.findall(r"^\| `(\w+)`", tables, re.MULTILINE)
