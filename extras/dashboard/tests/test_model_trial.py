"""Models as people write them: what needs `dashboard`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import covey
from covey.extras.dashboard.run_facts import facts_of
from tests.agent.test_model_trial import nets as nets
from tests.agent.test_model_trial import nets_of_workers as nets_of_workers
from tests.agent.test_model_trial import small

pytestmark = pytest.mark.usefixtures("single_thread", "nets")


@pytest.mark.usefixtures("nets_of_workers")
def test_a_training_without_a_step_is_no_success_and_agents_without_tests_are_named(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    result = covey.run(small("row_norm"), folder, allow=["own_nets"])
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    evaluated = next(line for line in rounds if line["phase"] == "evaluate")
    assert evaluated["untested"] == ["agent-3"]
    assert evaluated["evaluation"]["server"]["agents"] == 3
    [trained] = [line for line in rounds if line["phase"] == "train"]
    assert trained["missing"] == ["agent-0"]
    assert "the training made no step" in str(result.summary)
    samples = [(row["samples"], row["test_samples"]) for row in result.agents()]
    assert samples == [(1, 5), (11, 5), (12, 5), (12, 0)]
    trouble = facts_of(folder).trouble
    assert trouble["agent-3"] == "no test samples"
