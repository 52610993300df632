"""Every target with inputs that Hypothesis chooses: some hundred in the suite, a million with `make fuzz`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from covey.shared.errors import DecodeError
from tests.fuzz.mutate import mutated, mutated_tree
from tests.fuzz.target import Target
from tests.fuzz.targets import targets

FEWEST = 12
SLOW_S = 20.0  # of the processor, for one input


@pytest.mark.parametrize("name", sorted(targets()))
def test_hostile_input_is_taken_or_refused_by_name(name: str, tmp_path: Path) -> None:
    this = targets()[name]
    fails_unless_hostile(this, attacked(this, this.ready(tmp_path)))


def attacked(this: Target, run: Callable[[Any], str]) -> Counter[str]:
    """How often each outcome came of inputs of the profile's number; any other outcome is an error of the test."""
    outcomes: Counter[str] = Counter()
    assert settings.default is not None
    examples = max(FEWEST, int(settings.default.max_examples * this.share))

    @settings(max_examples=examples, database=None, suppress_health_check=list(HealthCheck))
    @given(seed=st.integers(0, 2**64 - 1))
    def try_one(seed: int) -> None:
        data = this.make(Random(seed))
        began = time.process_time()
        outcomes[outcome(this, run, data)] += 1
        assert time.process_time() - began < SLOW_S

    try_one()
    return outcomes


def outcome(this: Target, run: Callable[[Any], str], data: Any) -> str:
    """What becomes of an input: a name, of its refusal where it was refused as the target promises."""
    try:
        return run(data) or "accepted"
    except this.allowed as error:
        return error.reason if isinstance(error, DecodeError) else type(error).__name__


def fails_unless_hostile(this: Target, outcomes: Counter[str]) -> None:
    """A target that refused nothing, although it refuses some kinds, was not attacked: what it was fed was not hostile."""
    refused = outcomes.total() - outcomes["accepted"] - outcomes["honest"]
    assert refused or not this.allowed, f"{this.name} refused none of {outcomes.total()} inputs"


def test_mutations_change_a_sample_and_never_the_sample_itself() -> None:
    tree = {"a": [1, 2, {"b": b"bytes"}], "c": "text"}
    kept = {"a": [1, 2, {"b": b"bytes"}], "c": "text"}
    rng = Random(1)
    changed = [mutated_tree(rng, tree) for _ in range(50)]
    assert tree == kept
    assert sum(one != tree for one in changed) > 40
    assert len({mutated(rng, [b"some sample"]) for _ in range(50)}) > 40


# -- the campaign notices what it should -------------------------------------------------------------------------------


def broken(act: Callable[[int], str]) -> Target:
    return Target("broken", lambda rng: rng.randrange(10), lambda _: act, (ValueError,))


def test_any_other_exception_is_an_error_and_a_promised_one_is_not() -> None:
    def act(number: int) -> str:
        raise {True: ValueError, False: KeyError}[number != 3]("told")

    with pytest.raises(KeyError):
        attacked(broken(act), act)
    assert outcome(broken(act), act, 1) == "ValueError"


def test_a_target_that_refused_nothing_was_not_attacked() -> None:
    calm, none = broken(lambda number: ""), Counter[str]()
    for outcomes in (attacked(calm, lambda number: ""), none):
        with pytest.raises(AssertionError, match="refused none of"):
            fails_unless_hostile(calm, outcomes)
