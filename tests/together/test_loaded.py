"""Which modules of ours each process of a usual run loads: a needless import at the top of a module is paid by every run.

Four kinds of processes write down what they import: a coordinator, its broker, its simulated fleet and the agent of a
device, with their workers. `loaded.json` lists what they may load; COVEY_REWRITE_LOADED=1 writes it again. Prefer an import
where the thing is used: the list grows only by what every such run needs.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from scripts.core import extras_of
from scripts.size import imported_by, watched
from tests.e2e.conftest import coordinator, finish
from tests.e2e.test_devices import NUMPY, as_npz, start
from tests.processes import ROOT, Program, free_port, mosquitto, needs_mosquitto, program, until

pytestmark = [pytest.mark.processes, pytest.mark.broker, needs_mosquitto]

LIST = Path(__file__).with_name("loaded.json")

# a process by a module that it alone loads, the first one that fits
MARKS = {
    "coordinator run": "covey.coordinator.cli.run",
    "broker up": "covey.broker.cli",
    "agent lab fleet": "covey.agent.fleet.fleet",
    "agent start": "covey.agent.device.service",
    "worker of a fleet": "covey.agent.training.learner",
    "worker of a device": "covey.extras.light.numpy_learner",
}
# extras that travel along with a usual run
RIDERS = ("doctor", "judge", "light")
# what an extra brings
IS_DATA = re.compile(r"covey\.extras(\.\w+)?")
# rooms of which no process of the kind loads anything, whatever the list has
NEVER = {
    "coordinator run": " ".join(
        (
            "agent broker coordinator.simulate",
            *(f"extras.{extra}" for extra in extras_of(ROOT) if extra not in RIDERS),
        )
    ),
    "broker up": "agent coordinator extras shared.numerics shared.strategies shared.scenario",
    "agent lab fleet": "broker coordinator agent.data agent.training extras shared.work",
    "agent start": "broker coordinator agent.data agent.training agent.fleet extras shared.numerics shared.scenario shared.work",
    "worker of a device": "broker coordinator agent.training agent.fleet agent.data.partition extras.in_use extras.secure "
    "shared.scenario.scenario",
    "worker of a fleet": "broker coordinator agent.fleet extras.secure",
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """By kind of process, the modules that a run with a simulated fleet and one with a device load."""
    folder = tmp_path_factory.mktemp("loaded")
    port = free_port()
    with pytest.MonkeyPatch.context() as environment:
        for name, value in watched(folder, ROOT).items():
            environment.setenv(name, value)
        smoke = str(ROOT / "scenarios" / "smoke.yaml")
        command = ["covey.coordinator.cli", "run", smoke, "--out", str(folder / "smoke")]
        finish(Program(command, folder / "smoke.log"))
        agent = start(folder, "one", as_npz(folder / "digits.npz"), port, *NUMPY)
        sections: dict[str, Any] = {
            "task": {"scale": 1 / 240},
            "strategy": {"name": "fedavg"},
            "rounds": {"count": 1, "start_agents": 1, "publish": "never"},
        }
        with mosquitto(folder, port), program(*agent, log=folder / "agent.log") as device:
            until(lambda: "connected" in device.output, of=device)
            finish(coordinator(folder, port, **sections))
    kinds: dict[str, set[str]] = defaultdict(set)
    for modules in imported_by(folder).values():
        kinds[kind_of(modules)] |= modules
    kinds.pop("", None)  # helpers that Python starts
    if os.environ.get("COVEY_REWRITE_LOADED"):
        LIST.write_text(
            json.dumps({kind: rooms_of(kinds[kind]) for kind in MARKS}, indent=1) + "\n"
        )
    return kinds


def kind_of(modules: set[str]) -> str:
    for kind, mark in MARKS.items():
        if mark in modules:
            return kind
    return ""


def files_among(modules: set[str]) -> set[str]:
    """The modules that are files of the tree: neither packages nor names of things in a module."""
    return {
        name
        for name in modules
        if (ROOT / name.removeprefix("covey.").replace(".", "/")).with_suffix(".py").is_file()
    }


def rooms_of(modules: set[str]) -> dict[str, str]:
    """The names of modules by room, on one line each."""
    rooms: dict[str, list[str]] = defaultdict(list)
    for name in sorted(files_among(modules)):
        room, _, module = name.removeprefix("covey.").rpartition(".")
        rooms[room].append(module)
    return {room: " ".join(names) for room, names in sorted(rooms.items())}


@pytest.mark.parametrize("kind", MARKS)
def test_a_process_of_a_usual_run_loads_what_the_list_has(
    kind: str, loaded: dict[str, set[str]]
) -> None:
    listed: dict[str, str] = json.loads(LIST.read_text())[kind]
    further = [
        f"{room}.{name}"
        for room, names in rooms_of(loaded[kind]).items()
        for name in names.split()
        if name not in listed.get(room, "").split()
    ]
    assert further == [], f"`{kind}` loads more than {LIST.name} has; import it where it is used"


def test_the_list_names_modules_that_are_there() -> None:
    listed: dict[str, dict[str, str]] = json.loads(LIST.read_text())
    names = {
        f"covey.{room}.{name}"
        for rooms in listed.values()
        for room, modules in rooms.items()
        for name in modules.split()
    }
    assert names - files_among(names) == set()


@pytest.mark.parametrize("kind", MARKS)
def test_a_process_of_a_usual_run_loads_nothing_of_a_room_that_it_has_no_use_for(
    kind: str, loaded: dict[str, set[str]]
) -> None:
    never = NEVER[kind].split()
    assert all(
        (ROOT / room.replace(".", "/")).exists() or (ROOT / f"{room.replace('.', '/')}.py").exists()
        for room in never
    )
    found = [
        name
        for name in sorted(loaded[kind])
        if not IS_DATA.fullmatch(name)
        and any(f"{name}.".startswith(f"covey.{room}.") for room in never)
    ]
    assert found == []
