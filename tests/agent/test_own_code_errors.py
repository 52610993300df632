"""Own code may raise anything: wherever it is called, people get one sentence with its line."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import covey
from covey.agent.data.load import load_local
from covey.agent.learning import learner_for
from covey.agent.policy import Rules
from covey.agent.training.models import build
from covey.shared.errors import DataError, UserError, public_text
from covey.shared.own_code import faults
from covey.shared.own_code.consent import AllowedCode, consented
from covey.shared.own_code.faults import OwnCodeError, explained, own_code
from covey.shared.scenario.task import Model, Task

ERRORS = ("Odd('no moon')", "AssertionError('no moon')", "KeyError('no moon')", "SystemExit('no moon')")

CODE = '''
import numpy as np
from covey import Strategy
from covey.shared.strategies.fedavg import FedAvg
from typing import Literal

class Odd(Exception):
    pass

def fail():
    raise {error}  # HERE

def data(path):
    fail()

def net(features, outputs):
    fail()

class Loop:
    place = "none"

    def __init__(self, features, outputs, place="start"):
        self.place = place

    def start(self, seed):
        if self.place == "start":
            fail()
        return {{"w": np.zeros((4, 3), np.float32)}}

    def train(self, state, data, settings):
        if self.place == "train":
            fail()
        return state, len(data.targets), {{}}

    def evaluate(self, state, features):
        if self.place == "evaluate":
            fail()
        return features @ state["w"].T

class Failing(FedAvg):
    name: Literal["failing"] = "failing"
    place: str

    def __getattribute__(self, name):
        if name in ("init", "plan", "work", "fold") and object.__getattribute__(self, "place") == name:
            fail()
        return super().__getattribute__(name)

def points(path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    return {{"x": x, "y": (x[:, 0] > 0).astype(np.int64), "groups": np.repeat(np.arange(4), 10)}}
'''
IMPORT = "class Odd(Exception): pass\nraise {error}  # HERE\n"
number = iter(range(10_000))


@pytest.fixture(params=ERRORS)
def module(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module whose functions raise; each test imports another one."""
    name = f"own_{next(number)}"
    (tmp_path / f"{name}.py").write_text(CODE.format(error=request.param))
    (tmp_path / f"broken_{name}.py").write_text(IMPORT.format(error=request.param))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # of workers
    monkeypatch.chdir(tmp_path)
    return name


def task_of(name: str, **options: Any) -> Task:
    return Task(features=(3,), classes=4, model=Model(name=name, options=options))


def start_of_loop(module: str) -> None:
    learner_for(task_of(f"{module}:Loop"), rules(module)).layout(task_of(f"{module}:Loop"), allowed(module))


def allowed(module: str) -> AllowedCode:
    return AllowedCode(frozenset({module, f"broken_{module}"}))


def rules(module: str) -> Rules:
    return Rules(allowed=allowed(module))


CALLS: dict[str, Callable[[str], object]] = {
    "data": lambda module: load_local(f"{module}:data", None, None, allowed(module)),
    "data, import": lambda module: load_local(f"broken_{module}:f", None, None, allowed(module)),
    "model": lambda module: build(task_of(f"{module}:net"), 0, allowed(module)),
    "model, import": lambda module: build(task_of(f"broken_{module}:f"), 0, allowed(module)),
    "loop": start_of_loop,
}


@pytest.mark.parametrize("call", CALLS)
def test_an_error_of_own_code_is_one_sentence_with_its_line(module: str, call: str) -> None:
    file = f"broken_{module}.py" if "import" in call else f"{module}.py"
    line = Path(file).read_text().splitlines().index(next(
        one for one in Path(file).read_text().splitlines() if "# HERE" in one
    )) + 1
    with pytest.raises(UserError) as caught, own_code():
        CALLS[call](module)
    text = str(caught.value)
    assert f"{file}, line {line}" in text
    assert "no moon" in text
    assert "\n" not in text
    assert "no moon" not in public_text(caught.value), "it may quote data"
