"""The files of `deploy`: what needs `doctor`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.coordinator.cli.program import app
from covey.coordinator.odd import Odd
from tests.test_deploy import DEPLOY


def test_the_exit_codes_that_the_unit_names_are_those_of_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (DEPLOY / "systemd" / "covey-doctor.service").read_text()
    codes = re.findall(r"^#     (\d)   (.+)$", text, re.M)
    assert [code for code, _ in codes] == ["0", "1", "2"]

    async def nothing(*_: object, **__: object) -> list[Odd]:
        return []

    async def something(*_: object, **__: object) -> list[Odd]:
        return [Odd(("a",), "disk", "full", "free room")]

    for found, code in ((nothing, 0), (something, 1)):
        monkeypatch.setattr("covey.extras.doctor.command.of_broker", found)
        assert CliRunner().invoke(app, ["doctor"]).exit_code == code
    assert CliRunner().invoke(app, ["doctor", "--exec", "true"]).exit_code == 2
