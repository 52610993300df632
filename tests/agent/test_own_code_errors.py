"""Own code may raise anything: wherever it is called, people get one sentence with its line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import covey
from covey.agent.data.arrays import load_function
from covey.agent.policy import OwnersRules
from covey.agent.training.models import build
from covey.agent.worker.learners import learner_for
from covey.shared.errors import UserError, public_text
from covey.shared.own_code.consent import AllowedCode, consented
from covey.shared.own_code.faults import own_code
from covey.shared.scenario.task import Model, Task
from covey.shared.strategies.registry import installed_method

ERRORS = (
    "Odd('no moon')",
    "AssertionError('no moon')",
    "KeyError('no moon')",
    "SystemExit('no moon')",
)

CODE = """
from typing import ClassVar, Literal

import numpy as np
from covey.methods import AveragedOnly

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

class Failing(AveragedOnly):
    summary: ClassVar[str] = "fails at one place"
    source: ClassVar[str] = "a test"
    name: Literal["failing"] = "failing"
    place: str = "none"

    def init(self, *given):
        return self.at("init", super().init, given)

    def plan(self, *given):
        return self.at("plan", super().plan, given)

    def work(self, *given):
        return self.at("work", super().work, given)

    def fold(self, *given):
        return self.at("fold", super().fold, given)

    def at(self, place, then, given):
        if self.place == place:
            fail()
        return then(*given)


def points(path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    return {{"x": x, "y": (x[:, 0] > 0).astype(np.int64), "groups": np.repeat(np.arange(4), 10)}}
"""
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
    monkeypatch.setenv("COVEY_LEARNER", "numpy")  # they import no torch
    monkeypatch.chdir(tmp_path)
    return name


def task_of(name: str, **options: Any) -> Task:
    return Task(features=(3,), classes=4, model=Model(name=name, options=options))


def start_of_loop(module: str) -> None:
    learner_for(task_of(f"{module}:Loop"), rules(module)).layout(
        task_of(f"{module}:Loop"), allowed(module)
    )


def method_of(module: str) -> None:
    """The method `failing` of a package that is installed in the working directory."""
    install("failing", f"{module}:Failing")
    with consented(AllowedCode(frozenset({"failing"}))):
        installed_method("failing")


def install(name: str, value: str) -> None:
    metadata = Path(f"{name}-1.0.dist-info")
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[covey.strategies]\n{name} = {value}\n")


def allowed(module: str) -> AllowedCode:
    return AllowedCode(frozenset({module, f"broken_{module}"}))


def rules(module: str) -> OwnersRules:
    return OwnersRules(allowed=allowed(module))


CALLS: dict[str, Callable[[str], object]] = {
    "data": lambda module: load_function(f"{module}:data", allowed(module)),
    "data, import": lambda module: load_function(f"broken_{module}:f", allowed(module)),
    "model": lambda module: build(task_of(f"{module}:net"), 0, allowed(module)),
    "model, import": lambda module: build(task_of(f"broken_{module}:f"), 0, allowed(module)),
    "loop": start_of_loop,
    "method, import": lambda module: method_of(f"broken_{module}"),
}


def line_in(file: str) -> int:
    lines = Path(file).read_text().splitlines()
    return 1 + next(place for place, line in enumerate(lines) if line.endswith("# HERE"))


@pytest.mark.whole
@pytest.mark.parametrize("call", CALLS)
def test_an_error_of_own_code_is_one_sentence_with_its_line(module: str, call: str) -> None:
    file = f"broken_{module}.py" if "import" in call else f"{module}.py"
    with pytest.raises(UserError) as caught, own_code():
        CALLS[call](module)
    text = str(caught.value)
    assert f"{file}, line {line_in(file)}" in text
    assert "no moon" in text
    assert "\n" not in text
    assert "no moon" not in public_text(caught.value), "it may quote data"


@pytest.mark.whole
@pytest.mark.parametrize("module", ["Odd('no moon')"], indirect=True)
@pytest.mark.parametrize("place", ["init", "plan", "fold", "work", "train", "evaluate"])
def test_a_run_whose_own_code_fails_ends_with_its_line(module: str, place: str) -> None:
    install("failing", f"{module}:Failing")
    is_loop = place in ("train", "evaluate")
    scenario = {
        "name": "odd",
        "seed": 1,
        "rounds": {"count": 1},
        "strategy": {"name": "failing", "place": place},
        "training": {"epochs": 1, "batch": 5, "lr": 0.1},
        "task": {
            "features": [3],
            "classes": 4,
            "model": {"name": f"{module}:Loop", "options": {"place": place}}
            if is_loop
            else {"name": "linear"},
        },
        "fleet": {
            "agents": 2,
            "data": f"{module}:points",
            "partition": {"name": "by_group"},
            "workers": 1,
        },
    }
    with pytest.raises(UserError) as caught:
        covey.run(scenario, "run", allow=[module, "failing"])
    text = str(caught.value)
    assert "Odd: no moon" in text
    assert f"{module}.py, line {line_in(f'{module}.py')}" in text
    assert "\n" not in text
