"""A fleet is upgraded in steps over two formats: the coordinator first, then one device after another."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from covey.extras.in_use.model_dir import Kept, read_index
from covey.extras.users.tests.enrolled import Enrolled
from covey.shared.wire.format import FORMAT
from tests.e2e.enrolled import ended
from tests.processes import ROOT, rows, until

pytestmark = pytest.mark.processes

DEVICES = ("gw-1", "gw-2")
# Every Python that finds this first, workers too, is of the next format.
NEXT = """import covey.shared.wire.format as own
own.FORMAT += 1
"""


def in_use(site: Enrolled, name: str) -> Kept:
    """The version that a device uses, once it has one."""
    found: Kept = until(lambda: read_index(site.models(name)).in_use)
    return found


def test_agents_of_the_version_before_wait_with_a_reason_and_come_back_one_by_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "next").mkdir()
    (tmp_path / "next" / "sitecustomize.py").write_text(NEXT)
    path = os.pathsep.join(map(str, (tmp_path / "next", ROOT / "src", ROOT)))
    upgraded: dict[str, Any] = {"settings": {"PYTHONPATH": path}}
    with ExitStack() as stack:
        site = Enrolled(tmp_path, stack)
        site.broker("--embedded")
        scene = site.scenario(2, rounds={"count": 1, "publish": "end"})
        agents = {name: site.agent(name) for name in DEVICES}
        assert ended(site.coordinator("before", scene)) == 0
        used = {name: in_use(site, name) for name in DEVICES}

        after = site.coordinator("after", scene, **upgraded)
        for name in DEVICES:
            why = f"agent {name} speaks format {FORMAT}"
            until(lambda why=why: why in after.output, of=after)  # type: ignore[misc]
            until(lambda name=name: f"speaks format {FORMAT + 1}" in agents[name].output)  # type: ignore[misc]
        assert "update agent gw-1" in after.output
        assert not rows(tmp_path / "after"), "nobody can take part yet"

        agents["gw-1"].stop()
        first = site.agent("gw-1", **upgraded)
        until(lambda: f"kept in format-{FORMAT}" in first.output, of=first)
        until(lambda: '"event": "data"' in first.output, of=first)
        assert after.process.poll() is None, "the quorum is two"
        agents["gw-2"].stop()
        site.agent("gw-2", **upgraded)
        assert ended(after) == 0, after.output
        for name, one in used.items():
            until(lambda name=name, one=one: in_use(site, name) != one)  # type: ignore[misc]
    phases = [row for row in rows(tmp_path / "after") if row["event"] == "phase"]
    assert all(sorted(row["reported"]) == list(DEVICES) for row in phases)
    assert "quarantine" not in after.output
