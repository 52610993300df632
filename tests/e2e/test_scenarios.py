"""Every scenario is an example that runs, and leaves the result that it promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from covey.shared.scenario.load import load
from tests.agent.real_data import data_root
from tests.e2e.conftest import finish
from tests.processes import ROOT, Program, result, rows, words

QUICK = ["rounds.count=1", "evaluation.deliver=served"]  # judging would be most of the time
SMALL = {  # the same scenario with few agents
    "fmnist_fedclust": [
        "fleet.agents=4",
        "rounds.participation=0.5",
        "training.epochs=1",
        "fleet.limit=800",
    ],
    "writers_fesem": [
        "fleet.agents=8",
        "fleet.partition.populations={hsf0: 4, hsf4: 4}",
        "training.epochs=1",
    ],
    "har_people": ["fleet.agents=6", "training.epochs=1", "rounds.participation=0.5"],
}


def run(folder: Path, name: str, *more: str) -> dict[str, Any]:
    """The result of a scenario of ours, run as a user would."""
    folder.mkdir(exist_ok=True)
    out = folder / "run"
    quick = ["fleet.workers=1"]  # one import; devices do not choose
    command = words("coordinator run", ROOT / "scenarios" / f"{name}.yaml", "--out", out, "--json")
    command += [*(word for one in quick for word in ("--set", one)), *more]
    finish(Program(command, folder / "run.log"), 240)
    return result(out)


def macro(summary: dict[str, Any], mode: str) -> float:
    return float(summary["accuracy"][mode]["accuracy"]["macro"])


@pytest.mark.usefixtures("numpy_learner")
@pytest.mark.processes
def test_the_faults_scenario_completes_and_keeps_its_quorum(tmp_path: Path) -> None:
    summary = run(tmp_path, "faults", "--set", "rounds.count=8")
    folded = [
        row for row in rows(tmp_path / "run") if row["event"] == "phase" and row["phase"] == "train"
    ]
    assert summary["rounds"] == len(folded) == 8
    assert all(len(row["reported"]) >= 3 for row in folded)
    assert any(row["missing"] for row in folded), "nobody died"
    assert {"agent-03", "agent-09"} <= set(summary["assignment"]), (
        "the newcomer or the returner has no cluster"
    )
    invited = {who for row in folded if row["round"] >= 5 for who in row["invited"]}
    assert not {"agent-07", "agent-12"} & invited, "an agent that left for good was invited"
    assert macro(summary, "server") > 0.9


@pytest.mark.whole
@pytest.mark.usefixtures("numpy_learner")
@pytest.mark.processes
def test_the_private_scenario_records_epsilon_after_every_round(tmp_path: Path) -> None:
    sets = [word for text in ("rounds.count=2", "fleet.agents=8") for word in ("--set", text)]
    summary = run(tmp_path, "private", *sets)
    accounts = [
        row["privacy"]["client"]["epsilon"]
        for row in rows(tmp_path / "run")
        if row["event"] == "phase"
    ]
    assert accounts == sorted(accounts)
    assert len(set(accounts)) == 2
    assert summary["privacy"] == {
        "randomness": "scenario seed",
        "client": {"epsilon": accounts[-1], "delta": 0.001},
    }


@pytest.mark.whole
@pytest.mark.processes
@pytest.mark.parametrize("name", SMALL)
def test_a_scenario_on_real_data_runs(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COVEY_LEARNER", raising=False)  # NumPy knows no convolutions
    fleet = load(ROOT / "scenarios" / f"{name}.yaml").fleet
    assert fleet is not None
    root = data_root(fleet.data)
    sets = [word for text in [*QUICK, *SMALL[name]] for word in ("--set", text)]
    summary = run(tmp_path, name, "--in-process", "--data-root", str(root), *sets)
    assert summary["rounds"] == 1
    assert macro(summary, "tuned") > 0.3
