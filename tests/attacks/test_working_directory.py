"""No file of the working directory is imported: neither by a program nor by any process that it starts.

Before, `python -m` put the working directory first on the import path of every child: a planted `torch.py` ran with
the rights of the person who started a coordinator there.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from covey.shared.programs.child import HOME, environment, python
from scripts.size import ROOT, parts_of
from tests.attacks import rogue
from tests.e2e.conftest import SIMULATED
from tests.processes import Program, until

pytestmark = pytest.mark.processes

PLANTED = (
    "torch",
    "numpy",
    "yaml",
    "msgpack",
    "pydantic",
    "json",
    "paho",
    "agent",
    "broker",
    "shared",
)


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder with modules that leave `marker` where they are imported."""
    folder = tmp_path / "somewhere"
    folder.mkdir()
    trap = f"import pathlib, sys\npathlib.Path({str(folder / 'marker')!r}).write_text(__name__)\nraise SystemExit(99)\n"
    for name in PLANTED:
        (folder / f"{name}.py").write_text(trap)
    return folder


def start(folder: Path, module: str, *words: str, log: Path) -> Program:
    """As the installed command would be started there: the interpreter itself does not look into the folder."""
    return Program([sys.executable, "-P", "-m", module, *words], log, module=False, cwd=folder)


@pytest.mark.whole
def test_a_run_started_among_planted_modules_imports_none(planted: Path, tmp_path: Path) -> None:
    """Its broker, its fleet and their workers, too."""
    path = SIMULATED.written(tmp_path, rounds={"count": 1})
    run = start(
        planted,
        "covey.coordinator.cli",
        "run",
        str(path),
        "--out",
        "run",
        "--json",
        "--embedded",
        log=tmp_path / "run.log",
    )
    try:
        assert run.process.wait(120) == 0, run.output
    finally:
        run.stop()
    assert not (planted / "marker").exists()


@pytest.mark.whole
def test_an_agent_started_among_planted_modules_imports_none(planted: Path, tmp_path: Path) -> None:
    order = rogue.order()
    data = tmp_path / "data.csv"
    data.write_text("a,b,c,d,label\n" + "1,2,3,4,0\n5,6,7,8,1\n" * 10)
    with rogue.open_broker() as url:
        words = [
            "start",
            "--data",
            str(data),
            "--broker",
            url,
            "--id",
            "victim",
            "--state",
            str(tmp_path / "state"),
        ]
        agent = start(planted, "covey.agent.cli", *words, log=tmp_path / "agent.log")
        try:
            until(lambda: "connected" in agent.output, of=agent)
            heard = rogue.attack(
                url, {rogue.TOPICS.order("victim"): order.to_bytes()}, enough=lambda h: h.reports
            )  # its worker started, and said why it could not train without a model
        finally:
            agent.stop()
    assert heard.reports
    assert not (planted / "marker").exists()


def test_a_childs_path_has_no_empty_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ":/opt/mine::")
    found = environment(KEY="value")
    assert found["PYTHONPATH"] == f"{HOME}:/opt/mine"
    assert (found["PYTHONSAFEPATH"], found["KEY"]) == ("1", "value")
    assert python("covey.agent.worker.worker", "--warm") == (
        sys.executable,
        "-P",
        "-m",
        "covey.agent.worker.worker",
        "--warm",
    )


def test_no_file_of_ours_starts_python_without_the_safe_path() -> None:
    files = [ROOT / file for file in parts_of(ROOT)]
    starters = [file.name for file in files if "sys.executable" in file.read_text(encoding="utf-8")]
    assert starters == ["child.py"]
