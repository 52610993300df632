"""A scenario imports the method that it names, and no other."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter

from covey.shared.strategies.base import Strategy
from covey.shared.strategies.method_names import SECOND_NAMES, places
from covey.shared.strategies.registry import BUILT_IN, AnyStrategy

LOADED = """
import sys
from pathlib import Path
from covey.shared.scenario.load import load
load(Path("scenarios/digits.yaml"), ["strategy.name=fedavg", "strategy.server.name=adam"])
from covey.shared.strategies.method_names import places
print(*(name for name, (module, _) in places().items() if module in sys.modules))
"""


def test_a_scenario_with_one_method_imports_one_method() -> None:
    command = [sys.executable, "-c", LOADED]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["fedavg"]


def names_of(kind: type[Strategy[Any]]) -> tuple[str, ...]:
    return get_args(kind.model_fields["name"].annotation)


@pytest.mark.whole
@pytest.mark.parametrize("name", places())
def test_the_name_of_a_method_is_that_of_its_class(name: str) -> None:
    assert BUILT_IN[name].model_fields["name"].default == name


@pytest.mark.whole
def test_each_name_that_a_class_accepts_chooses_it() -> None:
    names = {name: kind for kind in BUILT_IN.values() for name in names_of(kind)}
    assert set(names) == {*places(), *SECOND_NAMES}
    methods: TypeAdapter[Any] = TypeAdapter(AnyStrategy)
    assert type(methods.validate_python({"name": "hypocluster", "n_clusters": 2})) is names["ifca"]
