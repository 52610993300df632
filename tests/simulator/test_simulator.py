"""Histories with faults, each on one seed: the run ends with the bytes of a calm one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.simulator.plan import KINDS, plan
from tests.simulator.world import play

METHODS = ("fedavg", "fedclust", "ifca")
ROOT = Path(__file__).parents[2]


def test_runs_with_faults_have_the_bytes_of_calm_ones() -> None:
    struck: Counter[str] = Counter()
    for seed in range(40):
        history = play(plan(seed, METHODS))
        assert not history.failure, f"python -m tests.simulator --seed {seed}: {history.failure}"
        struck += history.struck
    assert {kind for kind in KINDS if not struck[kind]} == set()


def test_a_seed_has_one_history_in_any_process_and_under_any_hash_seed() -> None:
    def told(hash_seed: str) -> str:
        command = [sys.executable, "-m", "tests.simulator", "--seed", "3", "--methods", "fedavg"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
        ).stdout

    first = told("1")
    assert "\nhistory " in first
    assert told("2") == first
