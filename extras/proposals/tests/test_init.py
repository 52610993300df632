"""`coordinator init`: descriptions of several devices become one scenario."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from covey.coordinator.cli.program import app
from covey.extras.proposals.proposal_data import describe
from covey.shared.scenario.load import load

ROWS = [f"{index * 0.5},{index % 2}" for index in range(20)]


def table(path: Path, header: str) -> Path:
    path.write_text("\n".join([header, *ROWS]) + "\n", "utf-8")
    return path


def test_a_file_and_a_description_become_a_valid_scenario(tmp_path: Path) -> None:
    here = table(tmp_path / "pump-1.csv", "vibration,y")
    elsewhere = tmp_path / "pump-2.json"
    description = describe(str(table(tmp_path / "pump-2.csv", "vibration,y")))
    elsewhere.write_text(description.model_dump_json(), "utf-8")
    options = ["--from", str(here), "--from", str(elsewhere)]
    done = CliRunner().invoke(app, ["init", *options, "--agents", "6", "--name", "pumps"])
    assert done.exit_code == 0, done.output
    path = tmp_path / "pumps.yaml"
    path.write_text(done.stdout, "utf-8")
    scenario = load(path)
    assert (scenario.name, scenario.rounds.start_agents) == ("pumps", 6)
    assert scenario.task.columns == ("vibration",)
    assert CliRunner().invoke(app, ["validate", str(path)]).exit_code == 0


def test_a_proposal_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "pumps.yaml"
    path.write_text("name: mine\n", "utf-8")
    source = table(tmp_path / "pump.csv", "vibration,y")
    words = ["init", "--from", str(source), "--out", str(path)]
    assert CliRunner().invoke(app, [*words, "--target", "none"]).exit_code == 2
    assert path.read_text("utf-8") == "name: mine\n"
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout) == (0, "")
    assert load(path).task.columns == ("vibration",)


def test_data_that_cannot_be_read_is_an_error_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    path.write_text('{"form": "covey data description 1"}')
    done = CliRunner().invoke(app, ["init", "--from", str(path)])
    assert done.exit_code == 2
    assert "expected what `agent check --propose --json` prints" in done.stderr
