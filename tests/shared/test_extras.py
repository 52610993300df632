"""Everything that is asked of an extra which is not installed is refused by the name of the extra."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.coordinator.cli.program import CoordinatorCommands, app
from covey.shared import extras
from covey.shared.strategies.registry import BUILT_IN
from tests.kit.small_run import scenario

SUMS = {"secure": {"threshold": 3, "clip": 1.0}}
OF_COMMANDS = {entry.extra for entry in CoordinatorCommands.front.values()} - {""}


@pytest.fixture
def none_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of the extras does not exist."""
    monkeypatch.setattr(extras, "PACKAGE", "covey.gone")


def refusal(what: str, extra: str) -> str:
    return f"{what}: needs covey's extra `{extra}`, which is not installed"


@pytest.mark.usefixtures("none_installed")
def test_a_part_is_refused() -> None:
    with pytest.raises(extras.MissingExtraError, match=refusal("--track", "outlets")):
        extras.part("outlets", "tracking", "--track")


@pytest.mark.usefixtures("none_installed")
@pytest.mark.parametrize(
    ("key", "extra", "sections"),
    [
        ("privacy.secure", "secure", {"privacy": SUMS}),
        ("compare", "compare", {"compare": {"methods": ["fedavg"]}}),
    ],
)
def test_a_key_is_refused(key: str, extra: str, sections: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=refusal(key, extra)):
        scenario("fedavg", **sections)


@pytest.mark.usefixtures("none_installed")
def test_a_command_is_refused_and_not_listed() -> None:
    typed = CliRunner().invoke(app, ["compare"])
    assert refusal("the command compare", "compare") in typed.output
    listed = CliRunner().invoke(app, ["--help"]).output
    own = {name for name, entry in CoordinatorCommands.front.items() if not entry.extra}
    assert {name for name in CoordinatorCommands.front if f"\n  {name} " in listed} == own


@pytest.mark.usefixtures("none_installed")
def test_where_no_extra_is_there_none_is_installed() -> None:
    assert OF_COMMANDS
    assert not any(map(extras.has, OF_COMMANDS))


def test_a_folder_that_is_left_empty_is_no_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "extras_of_a_test" / "sums" / "__pycache__").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(extras, "PACKAGE", "extras_of_a_test")
    assert not extras.has("sums")


def test_a_method_is_refused_and_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "PACKAGE", "covey.gone")
    with pytest.raises(extras.MissingExtraError, match=refusal("method 'clove'", "papers")):
        BUILT_IN["clove"]
    assert "clove" not in BUILT_IN
    assert "fedavg" in BUILT_IN


def test_a_library_that_an_extra_lacks_is_named_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "extras_of_a_test" / "sums").mkdir(parents=True)
    (tmp_path / "extras_of_a_test" / "sums" / "noise.py").write_text(
        "import a_library_that_nobody_has"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(extras, "PACKAGE", "extras_of_a_test")
    with pytest.raises(ModuleNotFoundError, match="a_library_that_nobody_has"):
        extras.part("sums", "noise")
