"""A scenario imports the method that it names, and no other."""

from __future__ import annotations

import subprocess
import sys

import pytest

from covey.shared.strategies.method_names import METHODS
from covey.shared.strategies.registry import BUILT_IN

LOADED = """
import sys
from pathlib import Path
from covey.shared.scenario.load import load
load(Path("scenarios/digits.yaml"), ["strategy.name=fedavg", "strategy.server.name=adam"])
from covey.shared.strategies.method_names import METHODS
print(*(name for name in METHODS if f"covey.shared.strategies.{name}" in sys.modules))
"""


def test_a_scenario_with_one_method_imports_one_method() -> None:
    command = [sys.executable, "-c", LOADED]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["fedavg"]


@pytest.mark.parametrize("name", METHODS)
def test_the_name_of_a_method_is_that_of_its_class(name: str) -> None:
    assert BUILT_IN[name].model_fields["name"].default == name
