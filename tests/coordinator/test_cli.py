"""The `coordinator` command: a mistake of the user's is one message and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from coordinator.cli import main
from tests.coordinator.comparisons import DIGITS, written
from tests.coordinator.test_page import run


def typed(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def refusal(*arguments: object) -> str:
    """What a command says that ends with exit code 2: one message, no traceback."""
    result = typed(*arguments)
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run scenario.yaml --in-process --out file", "file: a file stands where a folder is wanted"),
        ("run scenario.yaml --in-process --out file/x", "file/x: a file stands where a folder is wanted"),
        ("run scenario.yaml --out file --resume", "file/checkpoint/manifest.json: a file stands"),
        ("compare scenario.yaml --in-process --out file", "file: a file stands where a folder is wanted"),
        ("status file", "file/roster.json: a file stands"),
        ("report file", "file/result.json: a file stands"),
        ("report folder --html none/x.html", "none/x.html: there is no such file or folder"),
        ("report folder --html folder", "folder: a folder stands where a file is wanted"),
    ],
)
def test_a_path_that_cannot_be_is_one_message(
    line: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, DIGITS)
    Path("file").touch()
    run(Path("folder"), "fedavg")
    before = sorted(tmp_path.rglob("*"))
    assert words in refusal(*line.split())
    assert sorted(tmp_path.rglob("*")) == before
