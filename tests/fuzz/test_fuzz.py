"""The short form of the campaign: every target, a few hundred inputs on a seed and some that Hypothesis chooses."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.__main__ import not_attacked
from tests.fuzz.campaign import Crash, Figures, campaign, one, rng_of
from tests.fuzz.mutate import mutated, mutated_tree
from tests.fuzz.target import Target
from tests.fuzz.targets import shares, target, targets

NAMES = sorted(targets())
COUNT = 150
FEW = {"scenario.yaml": 40, "run.accept": 100}  # slow ones


@pytest.mark.parametrize("name", NAMES)
def test_hostile_input_is_taken_or_refused_by_name(name: str, tmp_path: Path) -> None:
    this = targets()[name]
    run = this.ready(tmp_path)
    outcomes = set()
    for index in range(FEW.get(name, COUNT)):
        data = this.make(rng_of(0, name, index))
        outcome, crash = one(this, run, data)
        assert crash is None, f"input {index}: {crash}"
        outcomes.add(outcome)
    assert len(outcomes) > 1 or not this.allowed, "all inputs end alike: they reach nothing"


@pytest.mark.parametrize("name", [name for name in NAMES if name not in FEW])
def test_input_that_hypothesis_chooses_is_taken_or_refused_by_name(
    name: str, tmp_path: Path
) -> None:
    this = targets()[name]
    run = this.ready(tmp_path)

    @settings(
        max_examples=15,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(rng=st.randoms(use_true_random=False))
    def try_one(rng: Random) -> None:
        _, crash = one(this, run, this.make(rng))
        assert crash is None, crash

    try_one()


def test_an_input_can_be_made_again_by_its_number() -> None:
    for name in ("message.order", "scenario.yaml", "data.npz"):
        first, again = (target(name).make(rng_of(3, name, 7)) for _ in range(2))
        assert first == again
        assert first != target(name).make(rng_of(3, name, 8))


def test_the_inputs_of_a_campaign_are_divided_without_a_rest() -> None:
    counts = shares(100_000)
    assert sum(counts.values()) == 100_000
    assert set(counts) == set(targets())
    assert min(counts.values()) > 100
    assert shares(100, ("message.order",)) == {"message.order": 100}


def test_mutations_change_a_sample_and_never_the_sample_itself() -> None:
    tree = {"a": [1, 2, {"b": b"bytes"}], "c": "text"}
    kept = {"a": [1, 2, {"b": b"bytes"}], "c": "text"}
    rng = Random(1)
    changed = [mutated_tree(rng, tree) for _ in range(50)]
    assert tree == kept
    assert sum(one != tree for one in changed) > 40
    assert len({mutated(rng, [b"some sample"]) for _ in range(50)}) > 40


# -- the campaign notices what it should -------------------------------------------------------------------------------


def broken_target(act: Any) -> Target:
    return Target("broken", lambda rng: rng.randrange(10), lambda _: act, (ValueError,))


def test_any_other_exception_is_a_crash_with_its_place() -> None:
    def act(number: int) -> str:
        raise {0: ValueError, 1: KeyError}[number]("told")

    assert one(broken_target(act), act, 0) == ("ValueError", None)
    outcome, crash = one(broken_target(act), act, 1)
    assert outcome == "crash"
    assert crash is not None
    assert "KeyError" in crash.what
    assert "test_fuzz.py" in crash.where


@pytest.mark.processes
def test_a_process_that_dies_is_a_crash_and_the_campaign_continues_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import os
    import signal

    def act(number: int) -> str:
        if number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return ""

    monkeypatch.setattr("tests.fuzz.campaign.target", lambda name: broken_target(act))
    done = Figures("broken")
    list(campaign("broken", 1, done, 60))
    lost = [index for index in range(60) if rng_of(1, "broken", index).randrange(10) == 3]
    assert [crash.index for crash in done.crashes] == lost
    assert done.inputs == 60
    assert Figures.from_json(done.to_json()) == done
    assert isinstance(done.crashes[0], Crash)


def test_a_target_that_refused_nothing_was_not_attacked() -> None:
    """Without hostile input no refusal: the campaign then fails, as it does without a single input."""
    name = next(name for name in NAMES if targets()[name].allowed)
    calm = Figures(name, inputs=100)
    calm.reasons["accepted"] = 100
    assert not_attacked([name], {name: calm}) == [name]
    assert not_attacked([name], {}) == [name]
    calm.reasons["DecodeError"] = 1
    assert not_attacked([name], {name: calm}) == []
