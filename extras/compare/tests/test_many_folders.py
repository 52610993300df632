"""A folder among many that is torn, changed or of another version: it is left out and named once, and closes no other one."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from typer.testing import CliRunner, Result

from covey.coordinator.cli.program import CoordinatorCommands, app
from covey.coordinator.record.audit_trail import FILE
from covey.coordinator.run.result import write_all
from covey.extras.compare import comparison_files
from covey.extras.compare.grid import grid
from covey.extras.dashboard.dashboard import DashboardRequest, opened
from covey.extras.in_use.registry import registry
from covey.extras.in_use.tests.test_promote import finish
from covey.extras.runs.run_list import RunList
from covey.shared.scenario.describe import dump
from tests.kit import small_run
from tests.kit.memory_broker import MemoryBroker

MANY = re.compile(r"runs in it|has the folders of runs")
EARLIER = (  # as Covey wrote it before there were formats
    b'{"event":"publish","fields":{"federation":"default","round":5,"serial":1795892839032},'
    b'"hash":"..","previous":"","sequence":1,"time":"2026-11-28T19:07:19.065Z"}\n'
)


def readers() -> Iterator[tuple[str, ...]]:
    """The commands that take a folder with runs in it, as typed, by their own help."""
    group = typer.main.get_command(app)
    commands: list[tuple[str, ...]] = [(name,) for name in CoordinatorCommands.front]
    commands += [("lab", name) for name in CoordinatorCommands.lab]
    for words in commands:
        found: Any = group
        for word in words:
            found = found.get_command(click.Context(found), word)
        if any(MANY.search(getattr(one, "help", "") or "") for one in found.params):
            yield words


READERS = sorted(readers())


def torn(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            path.write_bytes(content[: len(content) // 2])
    with (folder / FILE).open(
        "ab"
    ) as file:  # a line that was begun before and ended after a power cut
        file.write(b'"event":"publish"\n')


def flipped(folder: Path) -> None:
    path = folder / FILE
    content = bytearray(path.read_bytes())
    content[content.index(b'"event":"promote"') + 70] ^= 1
    path.write_bytes(content)


def of_another_version(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "scenario.yaml").touch()
    (folder / FILE).write_bytes(EARLIER)


def a_folder(folder: Path) -> None:
    (folder / FILE).unlink()
    (folder / FILE).mkdir()


HARMS: tuple[Callable[[Path], None], ...] = (torn, flipped, of_another_version, a_folder)


def typed(*words: object) -> Result:
    return CliRunner().invoke(app, [*map(str, words)])


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("once")
    for name in ("bad", "a", "b"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tests.kit.local_clients.IN_PROCESS", f"run-{name}")
            finish(folder / name, key=None)
    return folder


@pytest.fixture
def runs(published: Path, tmp_path: Path, broker: MemoryBroker) -> Path:
    """Two versions in force one after the other, and a run that was promoted long before."""
    for name in ("bad", "a", "b"):
        shutil.copytree(published / name, tmp_path / name)
    for words in ("bad", "a", "b@1"):
        assert typed("promote", words, "--runs", tmp_path, "--wait", 0).exit_code == 0
    return tmp_path


ARGUMENTS: dict[tuple[str, ...], list[str]] = {  # besides the folder of runs
    ("promote",): ["a@1", "--dry-run", "--runs"],
    ("rollback",): ["--dry-run", "--runs"],
}


def shown(words: tuple[str, ...], runs: Path) -> tuple[Any, str]:
    """What a command prints of a folder of runs, and its warnings."""
    if words == ("dashboard",):
        with opened(DashboardRequest(runs, None, "default", "", 0)):
            return [{"row": list(row)} for row in RunList(runs).table().rows], ""
    done = typed(*words, "--json", *ARGUMENTS.get(words, []), runs)
    assert done.exit_code == 0, (words, done.output)
    return json.loads(done.stdout), done.stderr


def without_bad(found: Any) -> Any:
    """The same about the other runs alone."""
    if isinstance(found, dict):
        return {key: without_bad(value) for key, value in found.items()}
    if isinstance(found, list):
        return [without_bad(one) for one in found if '"bad' not in json.dumps(one)]
    return found


def test_the_commands_that_read_many_folders_are_known_by_their_help() -> None:
    assert len(READERS) >= 6, READERS


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_a_bad_folder_closes_no_other_one(
    words: tuple[str, ...], harm: Callable[[Path], None], runs: Path
) -> None:
    before, _ = shown(words, runs)
    harm(runs / "bad")
    after, warnings = shown(words, runs)
    assert without_bad(after) == without_bad(before)
    assert warnings.count("warning: ") == (words != ("dashboard",)), "it is named once"


@pytest.mark.parametrize("harm", HARMS)
def test_only_the_version_that_lies_in_it_is_refused(
    harm: Callable[[Path], None], runs: Path
) -> None:
    harm(runs / "bad")
    refused = typed("promote", "bad", "--dry-run", "--runs", runs)
    assert refused.exit_code == 2
    assert str(runs / "bad") in refused.stderr
    back = typed("rollback", "--to", "a", "--runs", runs, "--wait", 0)
    assert back.exit_code == 0, back.stderr
    kept = typed("prune", runs, "--keep", 1, "--yes")
    assert (runs / "bad").is_dir(), kept.output


def test_a_rollback_does_not_guess_over_a_version_that_it_cannot_read(
    runs: Path, broker: MemoryBroker
) -> None:
    flipped(runs / "a")
    refused = typed("rollback", "--runs", runs)
    assert refused.exit_code == 2
    assert "what was in force before b@1 is not known" in refused.stderr
    flipped(runs / "b")
    assert typed("promote", "champion", "--runs", runs).exit_code == 2
    assert "nothing to remove" in typed("prune", runs, "--keep", 1).stdout


@pytest.mark.parametrize("seed", range(20))
def test_whatever_byte_is_changed_all_other_runs_are_listed(seed: int, runs: Path) -> None:
    drawn = random.Random(seed)  # noqa: S311
    path = drawn.choice([one for one in sorted((runs / "bad").rglob("*")) if one.is_file()])
    content = bytearray(path.read_bytes())
    for _ in range(drawn.choice((1, 1, 50))):
        content[drawn.randrange(len(content))] ^= 1 << drawn.randrange(8)
    path.write_bytes(content)
    listed = json.loads(typed("ls", runs, "--json").stdout)["runs"]
    assert {one["title"] for one in listed} == {"a", "b", "bad"}
    known = registry(runs, "default")
    assert [str(one) for one in known.entries if one.name != "bad"] == ["a@2", "b@1"]
    assert typed("promote", "a", "--dry-run", "--runs", runs).exit_code == 0


def test_a_cell_that_cannot_be_read_is_left_out_of_its_comparison(tmp_path: Path) -> None:
    compare = {"methods": [{"name": "fedavg"}], "seeds": [1, 2, 3]}
    scenario = small_run.scenario("fedavg", rounds={"count": 1}, compare=compare)
    (tmp_path / "compare.yaml").write_text(dump(scenario))
    for cell in grid(scenario):
        folder = tmp_path / cell.folder
        folder.mkdir(parents=True)
        (folder / "scenario.yaml").write_text(dump(cell.scenario))
        write_all(small_run.in_process(folder, cell.scenario), None)
    assert len(comparison_files.finished_rows(scenario, tmp_path)) == 3
    cells = list(grid(scenario))
    torn(tmp_path / cells[0].folder)
    (tmp_path / cells[1].folder / "result.json").write_text("{}")
    done = typed("report", tmp_path)
    assert done.exit_code == 0, done.output
    assert done.stderr.count("cannot be read, it is left out") == 2
    assert "cannot be read" in (tmp_path / "report.html").read_text()
