"""`coordinator lab new-method` writes a package whose method, test and scenario belong together."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.coordinator.cli.new_method import TEMPLATE, write_method
from covey.shared.errors import UserError


def test_the_name_replaces_that_of_the_template_everywhere(tmp_path: Path) -> None:
    folder = write_method("by_season", tmp_path)
    names = {file.name for file in folder.iterdir()}
    assert names == {"pyproject.toml", "by_season.py", "by_season.yaml", "test_by_season.py"}
    texts = "".join(file.read_text("utf-8") for file in folder.iterdir())
    assert "my_method" not in texts
    assert "MyMethod" not in texts
    assert "class BySeason(HardClustered[State]):" in texts


def test_the_template_imports_nothing_but_the_public_names() -> None:
    lines = (TEMPLATE / "my_method.py").read_text("utf-8").splitlines()
    imported = {line.split()[1] for line in lines if line.startswith(("from ", "import "))}
    assert {name for name in imported if name.startswith("covey")} == {"covey.methods"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("My-Method", "expected a name of small letters"),
        ("fedavg", "is a built-in method"),
        ("there", "exists already"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(UserError, match=why):
        write_method(name, tmp_path)
