"""The data sets in `examples/`: small, readable, and a proposal for each."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from covey.agent.cli.options import resolve_data
from covey.agent.cli.program import app
from covey.shared.errors import UserError


def test_data_that_is_missing_names_the_command_that_makes_some() -> None:
    with pytest.raises(UserError, match=r"`agent examples \./local`$"):
        resolve_data("./local")


@pytest.mark.whole
def test_a_command_that_left_the_lab_is_named_with_its_place() -> None:
    done = CliRunner().invoke(app, ["lab", "examples"])
    assert done.exit_code == 2
    assert done.stderr == "error: `agent lab examples` is now `agent examples`\n"
