"""The `coordinator` command: a user error gives one message and exit code 2."""

from __future__ import annotations

import shlex
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner, Result

from covey.coordinator.cli import run as command
from covey.coordinator.cli.program import app
from covey.coordinator.cli.run import resume_command
from covey.coordinator.record.notices import Observer
from covey.coordinator.report.odd_list import NOTHING_ODD
from covey.coordinator.run.folder import prepare, prepared
from covey.coordinator.run.options import RunOptions
from covey.extras.compare.tests.comparisons import DIGITS, written
from covey.extras.dashboard.tests.pages import run
from covey.extras.simulate import driver
from covey.extras.simulate.workers import WorkerPool
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.scenario.load import load
from covey.shared.scenario.scenario import Scenario
from covey.shared.wire.jobs import FindDevice

ROOT = Path(__file__).parents[2]


def typed(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refusal(*arguments: object) -> str:
    """The message of a command that ends with exit code 2: one error, no traceback."""
    result = typed(*arguments)
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run scenario.yaml --in-process --out file", "file: this is a file, expected a folder"),
        ("run scenario.yaml --in-process --out file/x", "file: this is a file, expected a folder"),
        ("run scenario.yaml --out file --resume", "file/checkpoint/manifest.json: this is a file"),
        (
            "compare scenario.yaml --in-process --out file",
            "file: this is a file, expected a folder",
        ),
        ("status file", "file/roster.json: this is a file"),
        ("report file", "file/result.json: this is a file"),
        ("report folder --html none/x.html", "none/x.html: no such file or folder"),
        ("report folder --html folder", "folder: this is a folder, expected a file"),
    ],
)
def test_an_unusable_path_gives_one_message_and_writes_nothing(
    line: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, DIGITS)
    Path("file").touch()
    run(Path("folder"), "fedavg")
    before = sorted(tmp_path.rglob("*"))
    assert words in refusal(*line.split())
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("run s.yaml --set strategy.name=ditto --data-root 'my data'", " --resume"),
        ("run s.yaml --resume --credentials a.pem", ""),
        ("run s.yaml --out '$x' --broker=mqtts://me@host:8883", " --resume"),
    ],
)
def test_the_resume_command_is_the_typed_command_with_resume(line: str, wanted: str) -> None:
    assert shlex.split(resume_command(shlex.split(line))) == shlex.split(
        f"coordinator {line}{wanted}"
    )


@pytest.mark.parametrize("option", ["--broker {}", "--broker={}", "--set broker={}"])
@pytest.mark.parametrize("password", ["secret", "s:e/cr@et", "%40secret"])
def test_the_resume_command_shows_no_password(option: str, password: str) -> None:
    line = resume_command(["run", "s.yaml", *option.format(f"mqtts://me:{password}@host").split()])
    assert "mqtts://me:***@host" in line
    assert password not in line


def test_a_stopped_run_prints_the_resume_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    line = [
        "run",
        str(written(tmp_path, DIGITS)),
        "--out",
        str(tmp_path),
        "--set",
        "strategy.name=ditto",
        "--in-process",
    ]
    monkeypatch.setattr("sys.argv", ["coordinator", *line])
    monkeypatch.setattr("covey.extras.simulate.driver.alone", interrupted)
    result = typed(*line)
    assert result.exit_code == 130
    assert result.stderr == f"stopped; to continue: {shlex.join(['coordinator', *line])} --resume\n"


COMPARE = f"compare {ROOT}/scenarios/fuzzy_cifar10_73.yaml --known {ROOT}/benchmarks/results/fuzzy_cifar10_73.json"
COMPARE += (
    " --no-run --set rounds.count=40 --set evaluation.every=10"  # as docs/comparisons.md has it
)


def test_no_run_prints_the_known_rows_and_writes_them_only_with_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = typed(*COMPARE.split())
    assert shown.exit_code == 0, shown.output
    assert "cells are known" in shown.stdout
    assert "fuzzy" in shown.stdout
    assert list(tmp_path.iterdir()) == []
    written = typed(*COMPARE.split(), "--out", "new/folder")
    assert (
        written.stdout == shown.stdout + "compare.json, .csv, .parquet and .md are in new/folder\n"
    )
    assert sorted(path.suffix for path in Path("new/folder").iterdir()) == [
        ".csv",
        ".json",
        ".md",
        ".parquet",
    ]


def test_tables_for_a_paper_have_all_modes_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = typed(*COMPARE.split(), "--latex", "--modes")
    assert shown.exit_code == 0, shown.output
    assert "\\begin{tabular}" in shown.stdout
    assert "fine-tuned" in shown.stdout
    assert "fine-tuned" not in typed(*COMPARE.split(), "--latex").stdout


def test_an_executor_and_a_cluster_need_addresses(tmp_path: Path) -> None:
    path = written(tmp_path, DIGITS)
    said = refusal("compare", path, "--executor", "tcp://x", "--out", tmp_path / "out")
    assert "--executor tcp://x: expected dask://host:port of a Dask scheduler" in said
    said = refusal("run", path, "--cluster", "--out", tmp_path / "out")
    assert "--cluster: expected several addresses of --broker" in said


def test_no_run_reports_that_no_row_is_known(tmp_path: Path) -> None:
    path = written(tmp_path, DIGITS)
    said = refusal("compare", path, "--no-run", "--out", tmp_path / "none")
    assert "no cell that is asked for is finished" in said
    assert "run some of them first" in said
    assert not (tmp_path / "none").exists()


def test_a_report_takes_a_run_once(tmp_path: Path) -> None:
    one = run(tmp_path / "one", "fedavg")
    for options in ([], ["--json"], ["--html", tmp_path / "page.html"]):
        said = refusal("report", one, tmp_path / "." / "one", *options)
        assert "one: this run is named twice; name each run once" in said


def test_no_run_names_the_cells_of_other_seeds_that_are_finished(tmp_path: Path) -> None:
    path = written(tmp_path, DIGITS)
    result = tmp_path / "out" / "fedavg" / "seed-99" / "result.json"
    result.parent.mkdir(parents=True)
    result.write_text("{}")
    said = refusal("compare", path, "--no-run", "--out", tmp_path / "out")
    assert "finished are fedavg/seed-99: ask for the seeds and methods of" in said
    assert "run some" not in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            "--in-process --broker mqtt://host",
            "--in-process needs no broker: omit --broker, or omit --in-process",
        ),
        ("--in-process --embedded", "omit --embedded, or omit --in-process"),
        (
            "--embedded --broker mqtt://host --in-process",
            "omit --broker and --embedded, or omit --in-process",
        ),
        (
            "--embedded --broker mqtt://host",
            "--embedded starts its own broker: omit --broker, or omit --embedded",
        ),
        (
            "--broker mqtt://host --broker mqtt://host",
            "the same broker is given twice; give each of the brokers once",
        ),
    ],
)
@pytest.mark.parametrize("verb", ["run", "compare"])
def test_contradicting_options_are_refused(
    verb: str, options: str, words: str, tmp_path: Path
) -> None:
    path = written(tmp_path, DIGITS)
    assert words in refusal(verb, path, "--out", tmp_path / "out", *options.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("named", ["in the environment", "in the scenario"])
@pytest.mark.parametrize("option", ["--in-process", "--embedded"])
def test_a_typed_option_overrides_a_broker_from_the_environment_or_the_scenario(
    option: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses, alone = list[list[BrokerUrl]](), list[Scenario]()

    async def over_a_broker(scenario: Scenario, options: RunOptions, _: object) -> None:
        addresses.append(command.addresses(scenario, options))

    monkeypatch.setattr("covey.coordinator.cli.run.run", over_a_broker)
    monkeypatch.setattr(
        "covey.extras.simulate.driver.alone", lambda scenario, *_: alone.append(scenario)
    )
    elsewhere = {"broker": "mqtt://elsewhere"}
    if named == "in the environment":
        monkeypatch.setenv("COVEY_BROKER", elsewhere.pop("broker"))
    assert typed("run", written(tmp_path, {**DIGITS, **elsewhere}), option).exit_code == 130
    assert (addresses, len(alone)) == (([[]], 0) if option == "--embedded" else ([], 1))


def test_a_run_that_never_began_leaves_its_folder_to_the_corrected_command(tmp_path: Path) -> None:
    one, out = Scenario.model_validate(DIGITS), tmp_path / "out"
    prepare(one, RunOptions(out))
    (out / "start.npz").write_bytes(b"cut short")
    (out / "model.log").write_text("why it failed")
    corrected = one.model_copy(update={"seed": 2})
    prepare(corrected, RunOptions(out))
    assert sorted(path.name for path in out.iterdir()) == ["model.log", "scenario.yaml"]
    assert load(out / "scenario.yaml") == corrected


@pytest.mark.parametrize("name", ["scenario.yaml", "notes.txt"])
def test_a_folder_with_the_users_own_files_is_left_unchanged(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("# mine\n" + yaml.safe_dump(DIGITS))
    with pytest.raises(
        UserError, match="files that do not belong to a run; choose another with --out"
    ):
        prepare(Scenario.model_validate(DIGITS), RunOptions(tmp_path))
    assert (tmp_path / name).read_text().startswith("# mine")


def test_a_quorum_that_the_fleet_cannot_meet_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    message = refusal(
        "validate",
        written(tmp_path, DIGITS),
        "--set",
        f"rounds.quorum={DIGITS['fleet']['agents'] + 1}",
    )
    assert "lower the quorum" in message


@pytest.mark.parametrize(("method", "models"), [("fedavg", 1), ("ifca", 3)])
def test_validate_ends_with_what_models_weigh_in_all_rounds(
    tmp_path: Path, method: str, models: int
) -> None:
    """650 values of four bytes, to half of the agents and back."""
    options = {"n_clusters": models} if models > 1 else {}
    scene = {
        **DIGITS,
        "task": {"features": [1, 8, 8], "classes": 10, "model": {"name": "linear"}},
        "strategy": {"name": method, **options},
        "rounds": {"count": 5, "participation": 0.5},
        "fleet": {"agents": 8},
    }
    done = CliRunner().invoke(app, ["validate", str(written(tmp_path, scene))])
    assert done.stderr.splitlines()[-1] == (
        f"about {0.052 * (models + 1):.3g} MB of models: 4 agents x 5 rounds x 0.0026 MB, {models} to each agent and 1 back"
    )


def test_a_start_that_waits_for_more_agents_than_the_fleet_has_is_refused(tmp_path: Path) -> None:
    """The run waited a minute for agents that could not come."""
    agents = DIGITS["fleet"]["agents"]
    scenario = written(tmp_path, DIGITS)
    more = f"rounds.start_agents={agents + 1}"
    message = refusal("validate", scenario, "--set", more)
    assert f"rounds.start_agents is {agents + 1}, but the fleet has {agents} agents" in message


def test_a_folder_belongs_to_one_coordinator_at_a_time(tmp_path: Path) -> None:
    one, out = Scenario.model_validate(DIGITS), tmp_path / "out"
    with prepared(one, RunOptions(out)) as resume:
        assert not resume
        for again in (False, True):
            with (
                pytest.raises(UserError, match="another coordinator is at work in it"),
                prepared(one, RunOptions(out, resume=again)),
            ):
                raise AssertionError
        result = typed("run", written(tmp_path, DIGITS), "--in-process", "--out", str(out))
        assert (result.exit_code, "another coordinator is at work" in result.stderr) == (2, True)
    with prepared(one, RunOptions(out)):
        pass


def test_other_users_cannot_read_a_runs_folder(tmp_path: Path) -> None:
    """It holds the fleet's models and the reports of its agents."""
    out = tmp_path / "runs" / "out"
    with prepared(Scenario.model_validate(DIGITS), RunOptions(out)):
        assert stat.S_IMODE(out.stat().st_mode) == 0o700


@pytest.mark.parametrize("sign", ["checkpoint/manifest.json", "result.json"])
def test_a_run_that_began_keeps_its_folder(sign: str, tmp_path: Path) -> None:
    one, out = Scenario.model_validate(DIGITS), tmp_path / "out"
    prepare(one, RunOptions(out))
    (out / sign).parent.mkdir(exist_ok=True)
    (out / sign).touch()
    with pytest.raises(UserError, match="a run folder is already there"):
        prepare(one, RunOptions(out))


@pytest.mark.processes
def test_the_command_with_the_right_data_root_replaces_a_wrong_one(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "toy.npz", x=np.arange(120.0).reshape(60, 2), y=np.arange(60) % 2)
    toy = {"fleet": {"agents": 2, "data": "toy.npz", "workers": 1}, "rounds": {"count": 1}}
    task = {"features": [2], "classes": 2, "model": {"name": "linear"}}
    path = written(tmp_path, {"name": "toy", "task": task, "strategy": {"name": "fedavg"}, **toy})
    line = ["run", path, "--in-process", "--out", tmp_path / "out", "--data-root"]
    assert "toy.npz" in refusal(*line, tmp_path / "wrong")
    corrected = typed(*line, tmp_path / "data")
    assert corrected.exit_code == 0, corrected.output
    status = refusal("status", tmp_path / "out")
    assert f"It is finished: `coordinator report {tmp_path / 'out'}` shows its result" in status
    assert "expected the folder of a run" in refusal("status", tmp_path / "data")


def test_a_run_without_evaluated_agents_does_not_end_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = {
        **{"name": "x", "method": "fedavg", "agents": 6, "clusters": 1, "ari": None},
        **{"rounds": 2, "seconds": 1.0, "bytes": {"wire_up": 0, "wire_down": 0}},
        **{"accuracy": {"server": {"agents": 0}}, "never_trained": [], "took_part": []},
        "failures": {"agent-0": {"times": 3, "round": 2, "why": "the training diverged"}},
    }

    def alone(scenario: Scenario, options: RunOptions, observer: Observer) -> dict[str, Any]:
        return nothing

    monkeypatch.setattr(driver, "alone", alone)
    line = ["run", written(tmp_path, DIGITS), "--in-process", "--out", tmp_path / "out"]
    result = typed(*line)
    assert result.exit_code == 1
    assert "error: no agent was evaluated" in result.stderr
    assert "agent-0 could not do its work 3 times, last in round 2" in result.stdout
    assert typed(*line, "--json").exit_code == 1


def test_a_run_whose_rounds_were_all_passed_over_ends_with_the_reason(tmp_path: Path) -> None:
    fleet = {
        "rounds": {"count": 2, "participation": 1.0},
        "fleet": {"agents": 4, "data": "digits", "workers": 1},
    }
    secure = {"privacy": {"secure": {"clip": 1.0, "least": 5}}, "compare": None}
    path = written(tmp_path, {**DIGITS, **fleet, **secure})
    result = typed("run", path, "--in-process", "--out", tmp_path / "out")
    assert result.exit_code == 1, result.output
    assert "error: no sum of updates was opened in 2 rounds" in result.stderr
    assert NOTHING_ODD not in result.stdout


def test_a_port_that_does_not_exist_is_refused_before_a_dashboard_begins(tmp_path: Path) -> None:
    shown = typed("dashboard", tmp_path, "--port", 99999)
    assert shown.exit_code == 2
    assert "less than or equal to 65535" in shown.stderr


def test_clips_without_a_limit_on_weights_are_remarked_on(tmp_path: Path) -> None:
    scenario = written(tmp_path, DIGITS)
    clips = ("--set", "aggregation.clip.times_median=1")
    assert "warning" not in typed("validate", scenario, *clips).stderr
    remarked = typed("validate", scenario, *clips, "--set", "aggregation.max_samples.share=null")
    assert remarked.exit_code == 0
    assert "warning: aggregation.clip shortens steps, but one report" in remarked.stderr
    ruled = ("--set", "aggregation.max_samples.times_median=1")
    more = (*clips, *ruled, "--set", "aggregation.max_samples.share=null")
    assert "warning" not in typed("validate", scenario, *more).stderr


def test_a_run_that_is_given_up_ends_with_one_message_that_has_the_command_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def given_up(_: Scenario, options: RunOptions, *__: object) -> None:
        raise command.RunGivenUpError(f"given up after {options.give_up_after_s:g} s")

    monkeypatch.setattr(command, "run", given_up)
    monkeypatch.setattr("sys.argv", ["coordinator", "run", "s.yaml"])
    message = refusal("run", written(tmp_path, DIGITS), "--give-up-after", "60")
    assert "given up after 60 s; to continue: coordinator run s.yaml --resume" in message
    assert "needs no broker" in refusal(
        "run", written(tmp_path, DIGITS), "--in-process", "--give-up-after", "60"
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("report none", "none: no such folder; expected the folder of a run"),
        ("doctor none", "none: no such folder; expected the folder of a run"),
        ("advise none.yaml", "none.yaml: this file does not exist; expected the YAML file"),
        ("advise --from one.csv", "repeat --from for the data of each; expected at least two"),
        ("validate folder", "cannot be read as text (Is a directory)"),
        ("validate cut.yaml", "cut.yaml: not YAML: "),
        ("validate scenario.yaml --set rounds=", "rounds: no value, override rounds="),
        ("validate scenario.yaml --set strategy.name=mine --allow mine", "no installed method has this name; known: "),
    ],
)  # fmt: skip
def test_a_refusal_is_true_and_names_what_was_typed(
    line: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, DIGITS)
    (tmp_path / "folder").mkdir()
    (tmp_path / "cut.yaml").write_text("name: [x\n")
    (tmp_path / "one.csv").write_text("a,label\n1,0\n2,1\n")
    assert words in refusal(*line.split())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ls .", ".: no run has begun in this folder"),
        ("prune .", ".: nothing to remove; "),
        ("versions .", ".: no run in this folder has published models"),
    ],
)
def test_an_empty_list_is_a_sentence(
    line: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = typed(*line.split())
    assert shown.exit_code == 0
    assert shown.output.startswith(words)


def test_a_dead_worker_names_its_end_and_no_empty_log(tmp_path: Path) -> None:
    died = r"job \(exit code 3\); Type the same command"
    with (
        WorkerPool(1, tmp_path / "log", [sys.executable, "-c", "exit(3)"]) as pool,
        pytest.raises(UserError, match=died),
    ):
        pool.call(FindDevice(wanted="cpu"))
