"""The house plan, held to its arrows: who may import whom, and what an idle agent keeps out of memory."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("agent", "broker", "coordinator", "shared")
FILES = sorted(path.relative_to(ROOT).as_posix() for room in ROOMS for path in (ROOT / room).rglob("*.py"))

# what is imported -> the only files that may
ONLY = {
    "torch": [
        "agent/learner*.py",
        "agent/models*.py",
        "agent/data*.py",
        "agent/data/*.py",
        "agent/worker*.py",
        "agent/views*.py",
        "agent/contrast*.py",
        "agent/export*.py",
    ],
    "aiomqtt": ["shared/mqtt_link.py"],
    "amqtt": ["broker/*.py"],
    "matplotlib": ["coordinator/page.py", "coordinator/pictures.py"],  # a device never draws
    "pickle": [],
    "cloudpickle": [],
    "dill": [],
    "joblib": [],
    "marshal": [],
    "shelve": [],
}
SIBLINGS = {"agent", "broker", "coordinator"}
PURE = ["agent/session.py", "agent/events.py", "coordinator/rounds.py", "coordinator/sampling.py", "shared/topics.py"]
UNSAFE_CALLS = {
    "torch.load",
    "yaml.load",
    "yaml.load_all",
    "yaml.full_load",
    "yaml.unsafe_load",
    "os.system",
    "eval",
    "exec",
}

# what a waiting agent has in memory, and what a coordinator needs to run rounds
IDLE = ["agent.service", "agent.session", "agent.outbox", "shared.parts", "shared.messages", "shared.mqtt_link"]
ROUNDS = ["coordinator.run", "coordinator.service", "coordinator.rounds"]


def imports(tree: ast.AST) -> set[str]:
    """The first name of everything that is imported anywhere in a file."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=found):
                names |= {name.name.split(".")[0] for name in found}
            case ast.ImportFrom(module=str(module), level=0):
                names.add(module.split(".")[0])
            case ast.ImportFrom():
                names.add("a relative name")
    return names


def read(file: str) -> ast.AST:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"), filename=file)


def broken(file: str, tree: ast.AST) -> list[str]:
    """Every rule of the house that a file breaks, in words."""
    room, imported = file.split("/")[0], imports(tree)
    wrong = []
    if room == "shared":
        wrong += [f"shared imports {name}" for name in sorted(imported & SIBLINGS)]
        if "asyncio" in imported and not fnmatch(Path(file).name, "*link*.py"):
            wrong.append("asyncio belongs to the link files of shared")
    else:
        wrong += [f"{room} imports its sibling {name}" for name in sorted(imported & (SIBLINGS - {room}))]
    for name, allowed in ONLY.items():
        if name in imported and not any(fnmatch(file, pattern) for pattern in allowed):
            wrong.append(f"{name} may be imported by {allowed or 'nobody'} only")
    if file in PURE:
        wrong += [f"a pure file imports {name}" for name in sorted(imported & {"asyncio", "socket", "time", "aiomqtt"})]
    wrong += [f"{name} is imported" for name in sorted(imported & {"tests", "a relative name"})]
    return wrong + [f"line {line}: {call}" for line, call in unsafe(tree)]


def unsafe(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Calls that run what a file or a peer says."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if ast.unparse(node.func) in UNSAFE_CALLS:
                yield node.lineno, ast.unparse(node.func)
            for keyword in node.keywords:
                if (keyword.arg, ast.unparse(keyword.value)) in {("allow_pickle", "True"), ("shell", "True")}:
                    yield node.lineno, f"{keyword.arg}=True"


@pytest.mark.parametrize("file", FILES)
def test_a_file_keeps_the_rules_of_the_house(file: str) -> None:
    assert broken(file, read(file)) == []


@pytest.mark.parametrize("room", ["agent", "broker", "coordinator"])
def test_every_room_stands_on_shared(room: str) -> None:
    assert any("shared" in imports(read(file)) for file in FILES if file.startswith(f"{room}/"))


@pytest.mark.parametrize(
    ("file", "source", "why"),
    [
        ("shared/x.py", "import agent.session", "shared imports agent"),
        ("shared/x.py", "def f():\n    from coordinator import run", "shared imports coordinator"),
        ("shared/x.py", "import asyncio", "asyncio belongs to the link files of shared"),
        ("shared/x.py", "import torch.nn", "torch may be imported by"),
        ("coordinator/x.py", "from torch import nn", "torch may be imported by"),
        ("agent/service.py", "import torch", "torch may be imported by"),
        ("agent/x.py", "from broker.start import installed", "agent imports its sibling broker"),
        ("coordinator/x.py", "from ..agent import session", "a relative name is imported"),
        ("agent/x.py", "import aiomqtt", "aiomqtt may be imported by"),
        ("agent/x.py", "import pickle", "pickle may be imported by nobody only"),
        ("coordinator/rounds.py", "import time", "a pure file imports time"),
        ("agent/models.py", "import torch\ntorch.load('x')", "line 2: torch.load"),
        ("shared/x.py", "import yaml\nyaml.load(f, Loader=yaml.Loader)", "line 2: yaml.load"),
        ("agent/x.py", "np.load(path, allow_pickle=True)", "line 1: allow_pickle=True"),
    ],
)
def test_a_broken_rule_is_seen(file: str, source: str, why: str) -> None:
    assert any(said.startswith(why) for said in broken(file, ast.parse(source)))


def loaded_with(module: str, *unwanted: str) -> list[str]:
    """Which of the unwanted modules lie in memory after a fresh interpreter has imported a module."""
    code = f"import sys, {module}; print(*[name for name in {unwanted!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("module", IDLE)
def test_an_idle_agent_has_neither_numpy_nor_torch_in_memory(module: str) -> None:
    assert loaded_with(module, "numpy", "torch", "scipy", "sklearn") == []


@pytest.mark.parametrize("module", ROUNDS)
def test_the_coordinator_runs_rounds_without_torch(module: str) -> None:
    assert loaded_with(module, "torch") == []


def test_the_look_into_memory_sees_what_is_there() -> None:
    assert loaded_with("shared.vectors", "numpy", "torch") == ["numpy"]


@pytest.mark.parametrize("file", [name for name in FILES if "Console(" in (ROOT / name).read_text("utf-8")])
def test_a_console_shows_text_as_it_is(file: str) -> None:
    """What agents, files and brokers say must not be read as markup: it could end the program that shows it."""
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    made = [call for call in ast.walk(tree) if isinstance(call, ast.Call) and ast.unparse(call.func) == "Console"]
    for call in made:
        options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        assert (options.get("markup"), options.get("emoji")) == ("False", "False"), f"{file}:{call.lineno}"
