"""Benchmarks whose question is answered have left: their records and tables stay as they were, and pages name the commit that has the code."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ANSWERED = json.loads((ROOT / "benchmarks" / "results" / "answered.json").read_text())


@pytest.mark.parametrize(("name", "kept"), ANSWERED.items(), ids=list(ANSWERED))
def test_the_figures_of_an_answered_benchmark_stay(name: str, kept: dict[str, Any]) -> None:
    for file, digest in kept["files"].items():
        assert sha256((ROOT / file).read_bytes()).hexdigest() == digest, file
    for page, digests in kept["tables"].items():
        assert set(digests) <= tables_of((ROOT / page).read_text("utf-8")), page


@pytest.mark.parametrize(("name", "kept"), ANSWERED.items(), ids=list(ANSWERED))
def test_a_page_names_the_commit_of_an_answered_benchmark(name: str, kept: dict[str, Any]) -> None:
    assert not (ROOT / "benchmarks" / f"{name}.py").exists()
    pages = "".join((ROOT / page).read_text("utf-8") for page in kept["tables"])
    assert f"`{name}` of commit {kept['commit']}" in pages


def tables_of(page: str) -> set[str]:
    """The digest of each table of a page."""
    tables = re.findall(r"(?:^\|.*(?:\n|\Z))+", page, re.MULTILINE)
    return {sha256(table.strip().encode()).hexdigest() for table in tables}
