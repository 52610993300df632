"""The house plan, held to its arrows: who may import whom, and what an idle agent keeps out of memory."""

from __future__ import annotations

import ast
import graphlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from covey.shared import extras
from scripts import core
from scripts.core import (
    arrows,
    crossings,
    extras_of,
    extras_of_tests,
    needed_by_tests,
    owners_in,
    uses_of,
)
from scripts.size import TOGETHER, extra_at, limits_of, lines_of_parts, module_of, parts_of

ROOT = Path(__file__).parent.parent
PROGRAMS = ("agent", "broker", "coordinator")
FILES = sorted(file for file in parts_of(ROOT) if not file.startswith("src/"))

# The rooms of each folder, from the ground up: a room may import those before it, never one behind it.
# A module that lies in no room is a room of its own.
STAIRS = {
    "shared": [
        "candidate_names errors written seeds sentences",
        "extras",
        "commands programs storage",
        "own_code",
        "numerics",
        "privacy wire",
        "strategies mqtt",
        "scenario cli",
        "work disclosures models",
    ],
    "broker": ["limits topic_filters", "access", "programs", "cli"],
    "coordinator": [
        "engine",
        "disk",
        "checks odd",
        "fold",
        "record",
        "run",
        "view",
        "processes serve",
        "simulate report",
        "cli",
    ],
    "agent": [
        "conditions learner_choice data_place",
        "own_code policy kept",
        "data",
        "learning own_loops",
        "training",
        "worker",
        "device",
        "fleet",
        "cli",
    ],
}

# what is imported -> the only files that may
ONLY = {
    "torch": [
        "agent/training/*.py",
        "extras/in_use/program.py",
        "extras/private/private_sgd.py",
        "extras/simulate/batched.py",
    ],
    "aiomqtt": ["shared/mqtt/mqtt_link.py"],
    "distributed": [
        "extras/compare/dask_cells.py"
    ],  # it pickles: between the user's own machines alone
    "cryptography": ["extras/users/authority.py", "extras/secure/primitives.py"],
    "mlflow": ["extras/outlets/to_mlflow.py"],
    "tensorboard": ["extras/outlets/to_tensorboard.py"],
    "wandb": ["extras/outlets/to_wandb.py"],
    "matplotlib": [],  # pages draw their own SVG
    "pickle": [],
    "cloudpickle": [],
    "dill": [],
    "joblib": [],
    "marshal": [],
    "shelve": [],
}
# modules that are for one room
OWN = {"covey.coordinator.run.parts": ["coordinator/run/*.py", "extras/scale/sum_acceptance.py"]}
# who sets what a run consists of: everyone else reads it, and gives the run events
RUN = ["coordinator/run/*.py", "coordinator/record/store.py"]
PURE = [
    "agent/device/session.py",
    "agent/device/presence.py",
    "agent/device/fetching.py",
    "agent/device/delivery.py",
    "agent/device/story.py",
    "agent/device/events.py",
    "agent/conditions.py",
    "coordinator/engine/*.py",
    "coordinator/checks.py",
    "coordinator/fold/limits.py",
    "coordinator/fold/means.py",
    "coordinator/fold/statistics.py",
    "coordinator/view/*.py",
    "shared/numerics/*.py",
    "extras/secure/*.py",
    "shared/strategies/*.py",
    "shared/wire/*.py",
    "extras/kin/kin.py",
    "extras/dashboard/plots.py",
    "extras/dashboard/svg.py",
    "extras/papers/*.py",
]
NOT_PURE = ["extras/secure/secure_folder.py"]  # the secrets of a device, and until when they count
# who imports a module by a name that is no constant: by a table of names whose values are read here too, or the user's own
BY_NAME = {
    "agent/own_code.py": "code of the user's own",
    "shared/commands.py": "the function of a command",
    "shared/extras.py": "a part of an extra",
    "shared/strategies/registry.py": "a method by its name",
}
IMPORTERS = ("import_module", "__import__")
REFERENCE = re.compile(r"(covey(?:\.\w+)+):\w+")  # a function of ours, in a table of names
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
IDLE = [
    "covey.agent.device.service",
    "covey.agent.device.session",
    "covey.agent.device.outbox",
    "covey.extras.secure.agent",
    "covey.extras.secure.messages",
    "covey.shared.wire.parts",
    "covey.shared.wire.documents",
    "covey.shared.wire.messages",
    "covey.shared.mqtt.mqtt_link",
]
# modules behind doors: functions of their rooms import them where they are used, and a usual run never does
DOORS = [
    "covey.extras.formats.images",
    "covey.extras.formats.parquet_images",
    "covey.extras.formats.sounds",
    "covey.extras.formats.sqlite_rows",
    "covey.agent.data.tables",
    "covey.extras.light.estimators",
    "covey.extras.light.flower",
    "covey.extras.embedded.program",
    "covey.extras.embedded.websocket_gateway",
    "covey.extras.compare.dask_cells",
    "covey.extras.outlets.to_mlflow",
    "covey.extras.outlets.to_tensorboard",
    "covey.extras.outlets.to_wandb",
    "covey.extras.secure.on_device",
    "covey.extras.secure.secured",
]
ROUNDS = [
    "covey.coordinator.run.run",
    "covey.coordinator.serve.service",
    "covey.coordinator.engine.rounds",
]


def imported_modules(tree: ast.AST) -> set[str]:
    """The dotted name of everything that is imported anywhere in a file, with what is imported from it."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=found):
                names |= {name.name for name in found}
            case ast.ImportFrom(module=str(module), names=found, level=0):
                names |= {f"{module}.{name.name}" for name in found}
            case ast.ImportFrom():
                names.add("a relative name")
            case ast.Constant(value=str(text)) if reference := REFERENCE.fullmatch(text):
                names.add(reference[1])
            case ast.Call(args=[name, *_]) if called(node) in IMPORTERS:
                names.add(named_by(name))
    return names


def called(call: ast.Call) -> str:
    """The last part of a function's name."""
    return dotted(call.func).rpartition(".")[2]


def dotted(name: ast.expr) -> str:
    """A name with its dots; of anything else its last part."""
    match name:
        case ast.Name(id=last):
            return last
        case ast.Attribute(value=before, attr=last):
            return f"{dotted(before)}.{last}"
    return ""


def named_by(name: ast.expr) -> str:
    """The module that a call imports: of a name with gaps, such as an f-string, its package. BY_NAME for any other."""
    match name:
        case ast.Constant(value=str(module)):
            return module
        case ast.JoinedStr(values=[ast.Constant(value=str(begin)), *_]) if "." in begin:
            return begin.rpartition(".")[0]
    return "a name of its own"


def room_of(module: str) -> tuple[str, str]:
    """Folder and room of one of our modules: "covey.agent.data.fit" is in ("agent", "data"). Rooms are "" at the top."""
    _, folder, room, *_ = [*module.split("."), "", ""]
    return folder, room


def floor_of(folder: str, room: str) -> int:
    """How high a room lies in its folder."""
    for floor, rooms in enumerate(STAIRS[folder]):
        if room in rooms.split():
            return floor
    raise KeyError(f"{folder}/{room} is no room of STAIRS")


def wrong_arrows(file: str, modules: set[str]) -> list[str]:
    """Imports that leave a folder for a sibling, or go up its stairs. Who may import an extra, other tests say."""
    folder, room = room_of("covey." + file.removesuffix(".py").replace("/", "."))
    modules = {module for module in modules if room_of(module)[0] != "extras"}
    if folder == "extras":
        programs = sorted({room_of(module)[0] for module in modules} & {*PROGRAMS})
        return [f"a file is of {' and '.join(programs)}"] if len(programs) > 1 else []
    wrong = []
    for module in sorted(modules):
        if not module.startswith("covey."):
            continue
        to_folder, to_room = room_of(module)
        if to_folder not in (folder, "shared"):
            wrong.append(f"{folder} imports {to_folder}: {module}")
        elif (
            to_folder == folder
            and to_room != room
            and floor_of(folder, to_room) >= floor_of(folder, room)
        ):
            wrong.append(f"{folder}/{room} imports {to_room}, which is not below it: {module}")
    return wrong


@cache
def read(file: str) -> ast.AST:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"), filename=file)


def matches(file: str, patterns: list[str]) -> bool:
    return any(fnmatch(file, pattern) for pattern in patterns)


def broken(file: str, tree: ast.AST) -> list[str]:
    """Every rule of the house that a file breaks, in words."""
    modules = imported_modules(tree)
    packages = {module.split(".")[0] for module in modules}
    wrong = wrong_arrows(file, modules)
    if (
        file.startswith("shared/")
        and "asyncio" in packages
        and not matches(file, ["shared/mqtt/*.py", "shared/programs/child.py"])
    ):
        wrong.append("asyncio belongs to the mqtt room of shared, and to child.py")
    for name, allowed in ONLY.items():
        if name in packages and not matches(file, allowed):
            wrong.append(f"{name} may be imported by {allowed or 'nobody'} only")
    if matches(file, PURE) and not matches(file, NOT_PURE):
        wrong += [
            f"a pure file imports {name}"
            for name in sorted(packages & {"asyncio", "socket", "time", "aiomqtt"})
        ]
    for name, room in OWN.items():
        if any(module.startswith(name) for module in modules) and not matches(file, room):
            wrong.append(f"{name} is for {' and '.join(room)} alone")
    if not matches(file, RUN):
        wrong += [f"a run is changed without an event, line {line}" for line in meddles(tree)]
    strange = {"tests", "a relative name"}
    if file not in BY_NAME:
        strange.add("a name of its own")
        wrong += [
            "an import is a statement, and here a call"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and called(node) in IMPORTERS
        ]
    wrong += [f"{name} is imported" for name in sorted(packages & strange)]
    return wrong + [f"line {line}: {call}" for line, call in unsafe(tree)]


def meddles(tree: ast.AST) -> Iterator[int]:
    """The lines that set something of a run, or give its engine an event past it."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.Attribute(value=of, ctx=ast.Store() | ast.Del())
                | ast.Subscript(value=of, ctx=ast.Store() | ast.Del())
            ):
                names = dotted(of).split(".")
                if {"run", "_run"}.intersection(names) and names[-1] != "room":  # it is of the disk
                    yield node.lineno
            case ast.Call() if dotted(node.func).endswith("run.engine.handle"):
                yield node.lineno


def unsafe(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Calls that could run code from a file or a peer."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if (name := dotted(node.func)) in UNSAFE_CALLS:
                yield node.lineno, name
            for keyword in node.keywords:
                match keyword:
                    case ast.keyword(arg="allow_pickle" | "shell", value=ast.Constant(value=True)):
                        yield node.lineno, f"{keyword.arg}=True"


def test_every_file_keeps_the_rules_of_the_house() -> None:
    assert {file: found for file in FILES if (found := broken(file, read(file)))} == {}


def test_tests_import_public_names_alone() -> None:
    """A test that needs a private name shows where the product lacks a seam."""
    imports = re.compile(r"^from covey[\w.]* import (\([^)]*\)|.*)$", re.MULTILINE)
    private = {
        f"{path.name}: {name}"
        for folder in core.folders_of_tests(ROOT)
        for path in folder.rglob("*.py")
        for names in imports.findall(path.read_text(encoding="utf-8"))
        for name in re.findall(r"\b_\w+", names)
    }
    assert private == set()


def test_every_room_has_its_place_on_the_stairs() -> None:
    rooms = {room_of("covey." + file.removesuffix(".py").replace("/", ".")) for file in FILES}
    drawn = {
        (folder, room) for folder, floors in STAIRS.items() for room in " ".join(floors).split()
    }
    assert {
        (folder, room) for folder, room in rooms if room != "__init__" and folder != "extras"
    } == drawn


@pytest.mark.parametrize(
    "pattern", [*PURE, *(pattern for patterns in ONLY.values() for pattern in patterns)]
)
def test_a_rule_for_some_files_has_files(pattern: str) -> None:
    assert any(fnmatch(file, pattern) for file in FILES)


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Neither when they are imported, nor for types alone: two files that need each other are one file, or three."""
    files = {"covey." + file.removesuffix(".py").replace("/", "."): file for file in FILES}
    arrows = {}
    for module, file in files.items():
        found = imported_modules(read(file))
        arrows[module] = with_packages(found) & files.keys() - {module}
    graphlib.TopologicalSorter(arrows).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize(
    ("file", "source", "why"),
    [
        ("shared/errors.py", "import covey.agent.device.session", "shared imports agent"),
        ("shared/errors.py", "def f():\n    from covey.coordinator.run import run", "shared imports coordinator"),
        ("shared/errors.py", "import asyncio", "asyncio belongs to the mqtt room of shared"),
        ("shared/errors.py", "import torch.nn", "torch may be imported by"),
        ("coordinator/run/x.py", "from torch import nn", "torch may be imported by"),
        ("agent/device/service.py", "import torch", "torch may be imported by"),
        ("agent/cli/device.py", "from covey.broker.programs.run import find", "agent imports broker"),
        ("agent/data/x.py", "from covey.agent.training.models import build", "agent/data imports training"),
        ("coordinator/run/x.py", "from covey.coordinator.serve import service", "coordinator/run imports serve"),
        ("coordinator/disk/x.py", "from covey.coordinator.fold import folding", "coordinator/disk imports fold"),
        ("coordinator/fold/x.py", "from covey.coordinator.record import records", "coordinator/fold imports record"),
        ("shared/numerics/x.py", "from covey.shared.wire import codec", "shared/numerics imports wire"),
        ("shared/wire/x.py", "from covey.shared.privacy import noise", "shared/wire imports privacy"),
        ("coordinator/serve/x.py", "from covey.coordinator.run.parts import Parts", "covey.coordinator.run.parts is for"),
        ("coordinator/serve/x.py", "self._run.engine.stage = Stage.DONE", "a run is changed without an event"),
        ("coordinator/serve/x.py", "run.traffic['up'] += 1", "a run is changed without an event"),
        ("coordinator/serve/x.py", "desk.run.engine.handle(event, now)", "a run is changed without an event"),
        ("coordinator/run/x.py", "from ..agent import session", "a relative name is imported"),
        (
            "agent/learning.py",
            "def f():\n    return importlib.import_module('covey.agent.training.models')",
            "agent/learning imports training, which is not below it",
        ),
        ("shared/own_code/plugins.py", "import_module('covey.agent.data.tables')", "shared imports agent"),
        (
            "agent/learner_choice.py",
            "BUILT_IN = {'torch': 'covey.agent.training.torch_learner:LEARNER'}",
            "agent/learner_choice imports training, which is not below it",
        ),
        (
            "shared/strategies/registry.py",
            "import_module(f'covey.shared.scenario.{name}')",
            "shared/strategies imports scenario, which is not below it",
        ),
        ("shared/own_code/plugins.py", "import_module(DOORS[name])", "a name of its own is imported"),
        ("agent/data/load.py", "__import__('json')", "an import is a statement, and here a call"),
        (
            "extras/sums/x.py",
            "from covey.agent import policy\nfrom covey.broker import limits",
            "a file is of agent and broker",
        ),
        ("agent/cli/device.py", "import aiomqtt", "aiomqtt may be imported by"),
        ("agent/cli/device.py", "import pickle", "pickle may be imported by nobody only"),
        ("coordinator/engine/rounds.py", "import time", "a pure file imports time"),
        ("agent/training/models.py", "import torch\ntorch.load('x')", "line 2: torch.load"),
        ("shared/cli.py", "import yaml\nyaml.load(f, Loader=yaml.Loader)", "line 2: yaml.load"),
        ("agent/cli/device.py", "np.load(path, allow_pickle=True)", "line 1: allow_pickle=True"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_seen(file: str, source: str, why: str) -> None:
    assert any(said.startswith(why) for said in broken(file, ast.parse(source)))


def loaded_with(modules: str, *unwanted: str) -> list[str]:
    """Which of the unwanted modules lie in memory after a fresh interpreter has imported modules of ours."""
    code = f"import sys, {modules}; print(*[name for name in {unwanted!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_an_idle_agent_has_neither_numpy_nor_torch_in_memory() -> None:
    assert loaded_with(", ".join(IDLE), "numpy", "torch", "scipy", "sklearn") == []


def test_the_coordinator_runs_rounds_without_torch() -> None:
    assert loaded_with(", ".join(ROUNDS), "torch") == []


def test_the_core_names_no_extra_and_its_tests_need_none() -> None:
    """Neither by an import, also in a function, nor in a string; `shared/extras.py` alone looks them up."""
    assert crossings(ROOT) == []


@pytest.mark.parametrize("place", TOGETHER)
def test_a_place_for_tests_of_several_extras_has_some(place: str) -> None:
    needed = extras_of_tests(ROOT)
    assert any(len(extras) > 1 for file, extras in needed.items() if file.startswith(place))


def test_an_extra_names_the_core_and_what_its_readme_has_alone() -> None:
    uses = {extra: uses_of(ROOT, extra) for extra in extras_of(ROOT)}
    found = {
        extra: set[str]().union(*map(owners_in, files.values()))
        for extra, files in arrows(ROOT).items()
    }
    assert found == {extra: used for extra, used in uses.items() if used}
    graphlib.TopologicalSorter(uses).prepare()  # raises CycleError, which names the circle


def test_a_test_of_an_extra_needs_what_the_extra_uses_alone() -> None:
    needed = {extra: needed_by_tests(ROOT, extra) for extra in extras_of(ROOT)}
    too_many = {
        file: found - needed[extra]
        for file, found in extras_of_tests(ROOT).items()
        if (extra := extra_at(Path(file))) and not found <= needed[extra]
    }
    assert too_many == {}


def test_a_module_of_an_extra_runs_in_one_program() -> None:
    """A device that has no libraries of a coordinator can import all that is for devices."""
    files = {module_of(file): file for file in FILES}
    owned = {module for module in files if owners_in([module])}
    found = {
        module: {room_of(name)[0] for name in reached(module, owned, files)} for module in owned
    }
    programs = {module: sorted(folders & {*PROGRAMS}) for module, folders in found.items()}
    assert {module: several for module, several in programs.items() if len(several) > 1} == {}


def reached(module: str, through: set[str], files: dict[str, str]) -> set[str]:
    """All that a module imports, and what that imports where it is one of `through`."""
    found, open_ = set[str](), [module]
    while open_:
        one = open_.pop()
        if one in through:
            names = with_packages(imported_modules(read(files[one]))) & files.keys()
            open_ += names - found
            found |= names
    return found


def asked_of_extras() -> dict[tuple[str, str], str]:
    """Extra and module of each call of `extras.part`, and where."""
    asked = dict[tuple[str, str], str]()
    for file, part in parts_of(ROOT).items():
        if part == "core":
            for node in ast.walk(read(file)):
                match node:
                    case ast.Call(
                        args=[ast.Constant(value=str(extra)), ast.Constant(value=module), *_]
                    ) if dotted(node.func) == "extras.part":
                        asked[extra, str(module)] = file
    return asked


def test_the_core_asks_extras_for_modules_that_they_have() -> None:
    asked = asked_of_extras()
    brought = [
        one
        for what in ("COMMANDS", "METHODS", "COMPANIONS")
        for one in extras.brought(what).values()
    ]
    assert {extra for extra, _ in [*asked, *brought]} == {*extras_of(ROOT)}
    gone = {
        one: file
        for one, file in asked.items()
        if not (ROOT / "extras" / one[0] / f"{one[1]}.py").exists()
    }
    assert gone == {}


def test_names_that_extras_bring_are_known_without_them() -> None:
    """A command or a method that is asked for is refused by its extra."""
    place = ROOT / "shared" / "brought.json"
    kinds = ("COMMANDS", "COMPANIONS", "DATA_SETS", "METHODS")
    found = {
        kind: {name: extra for name, (extra, _) in sorted(extras.brought(kind).items())}
        for kind in kinds
    }
    if os.environ.get("COVEY_REWRITE_BROUGHT"):
        place.write_text(json.dumps(found, indent=1) + "\n")
    assert json.loads(place.read_text("utf-8")) == found, "COVEY_REWRITE_BROUGHT=1 writes it again"


def test_no_part_is_larger_than_its_number() -> None:
    lines, limits = lines_of_parts(ROOT), limits_of(ROOT)
    assert lines.keys() == limits.keys()
    larger = [
        f"{part}: {count} code lines, {count - limits[part]} more than size.toml allows"
        for part, count in lines.items()
        if count > limits[part]
    ]
    assert not larger, "; ".join(larger)


EXTRA = "covey.extras.sums.noise"
SMALL_TREE = {
    "extras/sums/README.md": "",
    "extras/sums/noise.py": "",
    "extras/sums/tests/kit.py": "",
    "agent/start.py": "",
    "extras/sums/__init__.py": "",
    "scripts/__init__.py": "",
    "src/covey/api.py": "",
    "tests/kit.py": f"def one():\n    from {EXTRA} import draw",
    "tests/together/kit.py": f"import {EXTRA}",
    "tests/test_start.py": "from tests.kit import one",
}


def written(root: Path, **changes: str) -> Path:
    """A small tree with an extra, and these files in place of its own."""
    for file, source in {**SMALL_TREE, **changes}.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(source)
    return root


NAMES_IT = [
    f"import {EXTRA}",
    f"from {EXTRA} import draw",
    "from covey.extras.sums import noise",
    "from covey.extras import sums",
    f"def f():\n    from {EXTRA} import draw",
    f"import_module('{EXTRA}')",
    f"COMMAND = '{EXTRA}:draw'",
    f"subprocess.run([sys.executable, '-c', 'import {EXTRA}'])",
]


@pytest.mark.parametrize("source", NAMES_IT)
def test_a_core_that_names_an_extra_is_seen(tmp_path: Path, source: str) -> None:
    (said,) = crossings(written(tmp_path, **{"agent/start.py": source}))
    assert said.startswith("agent/start.py names covey.extras.sums")


def test_a_type_of_an_extra_is_no_arrow(tmp_path: Path) -> None:
    source = f"if TYPE_CHECKING:\n    from {EXTRA} import Noise"
    assert crossings(written(tmp_path, **{"agent/start.py": source})) == []


@pytest.mark.parametrize(
    "source",
    [
        *NAMES_IT,
        f"@patch('{EXTRA}.draw')\ndef test(): ...",
        "from covey.extras.sums.tests.kit import one",
        "from tests.together.kit import one",
    ],
)
def test_a_test_of_the_core_that_needs_an_extra_is_seen(tmp_path: Path, source: str) -> None:
    tree = written(tmp_path, **{"tests/test_start.py": source})
    (said,) = crossings(tree)
    assert said.startswith("tests/test_start.py needs sums: ")
    assert core.files_of_tests(tree) == []


def test_a_kit_asks_for_an_extra_where_a_test_asks_it(tmp_path: Path) -> None:
    tree = written(tmp_path)
    assert crossings(tree) == []
    assert core.files_of_tests(tree) == ["tests/test_start.py"]


def test_a_kit_of_the_core_that_needs_an_extra_is_seen(tmp_path: Path) -> None:
    (said,) = crossings(written(tmp_path, **{"tests/kit.py": f"import {EXTRA}"}))[:1]
    assert said.startswith("tests/kit.py needs sums: ")


def test_a_test_of_several_extras_has_its_place(tmp_path: Path) -> None:
    assert crossings(written(tmp_path, **{"tests/together/test_all.py": f"import {EXTRA}"})) == []


def test_tests_of_the_core_are_known_where_the_extras_were_deleted_by_hand(tmp_path: Path) -> None:
    tree = written(tmp_path, **{"tests/together/test_all.py": f"import {EXTRA}"})
    shutil.rmtree(tree / "extras")
    assert core.files_of_tests(tree) == ["tests/test_start.py"]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("agent/start.py", f"from {EXTRA} import draw"),
        ("agent/start.py", f"COMMAND = '{EXTRA}:draw'"),
        ("tests/test_start.py", f"from {EXTRA} import draw"),
    ],
)
def test_the_deletion_test_fails_where_the_border_is_crossed(
    tmp_path: Path, file: str, source: str
) -> None:
    """The command itself, in a tree that a line breaks."""
    tree = written(tmp_path, **{file: source})
    for script in ("core.py", "size.py"):
        shutil.copy(ROOT / "scripts" / script, tree / "scripts")
    done = subprocess.run(
        [sys.executable, "-m", "scripts.core", "--no-fleet"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(file)


def with_packages(names: set[str]) -> set[str]:
    """Names that are imported, and the modules that they may be imported from."""
    return names | {name.rpartition(".")[0] for name in names}


@pytest.mark.parametrize(
    "module",
    [
        "covey.agent.worker.sources",
        "covey.broker.cli.program",
        "covey.coordinator.cli.run",
        "covey.coordinator.cli.program",
    ],
)
def test_a_usual_run_opens_no_door(module: str) -> None:
    assert loaded_with(module, *DOORS) == []


def test_a_door_leads_to_a_module_of_ours() -> None:
    files = {"covey." + file.removesuffix(".py").replace("/", ".") for file in FILES}
    assert set(DOORS) <= files


def test_the_look_into_memory_sees_what_is_there() -> None:
    assert loaded_with("covey.shared.numerics.vectors", "numpy", "torch") == ["numpy"]


@pytest.mark.parametrize(
    "file", [name for name in FILES if "Console(" in (ROOT / name).read_text("utf-8")]
)
def test_a_console_shows_text_as_it_is(file: str) -> None:
    """What agents, files and brokers say must not be read as markup: it could end the program that shows it."""
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    made = [
        call
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Console"
    ]
    for call in made:
        options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        assert (options.get("markup"), options.get("emoji")) == ("False", "False"), (
            f"{file}:{call.lineno}"
        )
