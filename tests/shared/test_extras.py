"""Everything that is asked of an extra which is not installed is refused by the name of the extra."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.coordinator.cli.program import app
from covey.shared import extras
from covey.shared.cli import Commands, program
from covey.shared.commands import CommandEntry, with_extras
from covey.shared.errors import UserError
from covey.shared.scenario.companion import companion
from covey.shared.scenario.load import load
from covey.shared.strategies.method_names import METHODS, places
from covey.shared.strategies.registry import BUILT_IN
from tests.kit.small_run import scenario

SUMS = {"secure": {"threshold": 3, "clip": 1.0}}
CORE = {name: CommandEntry(f"covey.core:{name}", "") for name in ("run", "ls")}


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
        ("evaluation.deliver", "judge", {"evaluation": {"deliver": {"single": True}}}),
    ],
)
def test_a_key_is_refused(key: str, extra: str, sections: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=refusal(key, extra)):
        scenario("fedavg", **sections)


@pytest.mark.parametrize("evaluation", ["{every: 2}", "{deliver: served}"])
def test_without_a_judge_devices_use_what_they_are_served_and_a_warning_states_it(
    evaluation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = tmp_path / "scenario.yaml"
    written.write_text(
        "name: example\ntask: {features: [2], classes: 2, model: {name: linear}}\n"
        f"strategy: {{name: fedavg}}\nevaluation: {evaluation}\n"
    )
    with monkeypatch.context() as installed:
        installed.setattr(extras, "has", lambda extra: extra == "judge")
        done = CliRunner().invoke(app, ["validate", str(written)])
        assert (done.exit_code, done.stderr) == (0, "")
    monkeypatch.setattr(extras, "PACKAGE", "covey.gone")
    assert load(written).evaluation.deliver == "served"
    assert CliRunner().invoke(app, ["validate", str(written)]).stderr.splitlines() == [
        "warning: devices use what they are served; evaluation.deliver other than served: needs covey's extra `judge`, "
        "which is not installed"
    ]


@pytest.mark.usefixtures("none_installed")
def test_commands_and_methods_are_those_of_the_core() -> None:
    assert extras.installed() == []
    assert with_extras("coordinator", CORE) == CORE
    assert places().keys() == METHODS.keys()
    assert "clove" not in BUILT_IN
    assert "fedavg" in BUILT_IN


@pytest.mark.usefixtures("none_installed")
@pytest.mark.parametrize(
    ("typed", "named", "extra"),
    [
        (["promote"], "`coordinator promote`", "in_use"),
        (["lab", "audit"], "`coordinator lab audit`", "audit"),
    ],
)
def test_a_command_is_refused(
    typed: list[str], named: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = program("coordinator", "", type("Core", (Commands,), {}))
    done = CliRunner().invoke(group, typed, prog_name="coordinator")
    assert (done.exit_code, done.stderr) == (2, f"error: {refusal(named, extra)}\n")


@pytest.mark.usefixtures("none_installed")
def test_a_method_is_refused_by_its_line(tmp_path: Path) -> None:
    written = tmp_path / "scenario.yaml"
    written.write_text(
        "name: example\ntask: {features: [2], classes: 2, model: {name: linear}}\n"
        "strategy: {name: clove}\n"
    )
    with pytest.raises(UserError, match=f"line 3.*{refusal('method clove', 'papers')}"):
        load(written)


@pytest.mark.usefixtures("none_installed")
def test_a_companion_is_refused() -> None:
    needs = refusal("evaluation.deliver.companion: trees", "trees")
    with pytest.raises(extras.MissingExtraError, match=needs):
        companion("trees")


@pytest.mark.parametrize("program", ["coordinator", "coordinator lab"])
def test_a_name_that_no_extra_has_is_unknown(program: str) -> None:
    done = CliRunner().invoke(app, [*program.split()[1:], "promot"], prog_name="coordinator")
    assert done.exit_code == 2
    assert "No such command 'promot'" in done.stderr


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An extra `sums`, alone in the package of the extras."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(extras, "PACKAGE", f"extras_of_{tmp_path.name}".replace("-", "_"))
    made = tmp_path / extras.PACKAGE / "sums"
    made.mkdir(parents=True)
    return made


def test_a_folder_that_is_left_empty_is_no_extra(folder: Path) -> None:
    (folder / "__pycache__").mkdir()
    assert not extras.has("sums")


def test_a_folder_alone_brings_commands_and_methods(folder: Path) -> None:
    (folder / "__init__.py").write_text(
        "from covey.shared.commands import CommandEntry\n"
        "COMMANDS = {\n"
        "    'coordinator add': CommandEntry('adding:add', '', before='ls'),\n"
        "    'coordinator last': CommandEntry('adding:add', ''),\n"
        "    'agent add': CommandEntry('adding:add', ''),\n"
        "}\n"
        "METHODS = {'mine': 'Mine'}\n"
    )
    (folder / "adding.py").write_text("def add(): ...\n")
    (folder / "mine.py").write_text("class Mine: ...\n")
    commands = with_extras("coordinator", CORE)
    assert list(commands) == ["run", "add", "ls", "last"]
    assert commands["add"].load().__name__ == "add"
    assert BUILT_IN["mine"].__name__ == "Mine"
    assert list(BUILT_IN) == sorted([*METHODS, "mine"])


def test_a_library_that_an_extra_lacks_is_named_itself(folder: Path) -> None:
    (folder / "noise.py").write_text("import a_library_that_nobody_has")
    with pytest.raises(ModuleNotFoundError, match="a_library_that_nobody_has"):
        extras.part("sums", "noise")
