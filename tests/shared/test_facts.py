"""The facts of a method: one value, refused where it contradicts itself, and the same under secure sums."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from covey.methods import Facts, Sealed
from covey.shared.strategies.phase_names import SIGNATURE
from covey.shared.strategies.registry import BUILT_IN
from tests.kit.small_run import scenario
from tests.methods import of_each_kind

SEALED = [name for name, kind in BUILT_IN.items() if kind.facts.sealed is not None]


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"individual": True, "sealed": Sealed()}, "individual and sealed exclude each other"),
        ({"signatures": (SIGNATURE,), "sealed": Sealed()}, "name these phases in sealed.clear too"),
    ],
)
def test_facts_that_contradict_each_other_are_refused(facts: dict[str, Any], why: str) -> None:
    with pytest.raises(TypeError, match=why):
        Facts(**facts)


@pytest.mark.whole
@pytest.mark.parametrize("method", of_each_kind("facts", SEALED))
def test_under_secure_sums_every_fact_is_that_of_the_method(method: str) -> None:
    scene = scenario(method)
    sums = scene.model_copy(update={"privacy": scenario("fedavg", privacy=SUMS).privacy}).sums
    assert sums is not None
    assert [getattr(sums.facts, one.name) for one in fields(Facts)] == [
        getattr(scene.strategy.facts, one.name) for one in fields(Facts)
    ]


SUMS: dict[str, Any] = {"secure": {"clip": 1.0}}
