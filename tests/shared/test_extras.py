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


@pytest.fixture
def none_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every extra has the modules of a package that does not exist."""
    gone = {
        extra: tuple(name.replace("covey.", "covey.gone.") for name in names)
        for extra, names in extras.PARTS.items()
    }
    monkeypatch.setattr(extras, "PARTS", gone)


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
def test_an_extra_that_is_not_there_is_none() -> None:
    assert not any(map(extras.has, extras.PARTS))


def test_a_method_is_refused_and_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "has", lambda extra: extra != "papers")
    with pytest.raises(extras.MissingExtraError, match=refusal("method 'clove'", "papers")):
        BUILT_IN["clove"]
    assert "clove" not in BUILT_IN
    assert "fedavg" in BUILT_IN


def test_a_library_that_an_extra_lacks_is_named_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sums_of_a_test").mkdir()
    (tmp_path / "sums_of_a_test" / "noise.py").write_text("import a_library_that_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(extras, "PARTS", {"sums": ("sums_of_a_test.noise",)})
    with pytest.raises(ModuleNotFoundError, match="a_library_that_nobody_has"):
        extras.part("sums", "noise")
