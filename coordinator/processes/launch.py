"""The child processes of a run: a broker, a simulated fleet, a model builder, a test of models.

The coordinator imports neither `broker` nor `agent`. It starts their commands, so that torch never enters
its memory and each child can be replaced by a program elsewhere. Children die with their parent.
"""

from __future__ import annotations

import asyncio
import secrets
import zipfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from covey.coordinator.disk.versions import START, read_start
from covey.coordinator.engine.cohort import expected_share
from covey.coordinator.run.rules import listed_participants
from covey.shared.errors import DecodeError, UserError
from covey.shared.models.starts import starts_of, write_starts
from covey.shared.mqtt.broker_url import BrokerUrl, environment_of
from covey.shared.mqtt.credentials import COORDINATOR, FLEET
from covey.shared.numerics.vectors import Layout
from covey.shared.own_code.consent import NO_CODE, AllowedCode
from covey.shared.programs.child import end, environment, first_line, python
from covey.shared.scenario.base import base_vector
from covey.shared.scenario.scenario import Scenario
from covey.shared.storage import json_text
from covey.shared.storage.files import write_atomically
from covey.shared.strategies.base import Setup
from covey.shared.strategies.part_local import divided
from covey.shared.work.order_settings import split_by

SCENARIO = "scenario.yaml"  # of a run's folder
READY_WITHIN_S = 60.0
END_WITHIN_S = 15.0  # after SIGTERM; then the child is killed
# The defaults of `broker up`, and what it adds for topics and digests (broker/limits.py)
USUAL_AGENTS = 1000
USUAL_PART_BYTES = 512 << 10
ROSTER_ROW_BYTES = 400
PACKET_ENVELOPE_BYTES = 16 << 10
PASSWORD_BYTES = 32
EMBEDDED_INSTEAD = "mosquitto is not installed: using the embedded broker, in pure Python"
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class StartedBroker:
    """A broker that this run started. Its addresses hold passwords, which their text form omits."""

    url: BrokerUrl  # for the coordinator
    fleet_url: BrokerUrl  # for a simulated fleet, with an agent's rights
    name: str
    note: str  # a line for the user, or empty


@asynccontextmanager
async def broker(
    folder: Path, scenario: Scenario, *, embedded: bool
) -> AsyncIterator[StartedBroker]:
    """Run a broker on a free port of this machine for as long as the block lasts.

    Every user of the machine can reach that port, so the broker requires passwords. They are new for each
    run and travel through the environment, which no other user can read.
    """
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    fleet_password = secrets.token_urlsafe(PASSWORD_BYTES)
    command = [
        "covey.broker.cli",
        "up",
        "--port",
        "0",
        "--json",
        "--until-stdin-closes",
        "--user",
        COORDINATOR,
    ]
    command += _limits(scenario)
    if embedded:
        command.append("--embedded")
    settings = {"COVEY_BROKER_PASSWORD": password, "COVEY_FLEET_PASSWORD": fleet_password}
    async with _child(command, folder / "broker.log", talks=True, settings=settings) as child:
        line = await first_line(child.process, READY_WITHIN_S)
        if not line:
            raise UserError(f"the broker did not start; its last messages:\n{child.messages()}")
        ready = json_text.loads(line)
        name = ready["broker"]
        address = BrokerUrl.parse(ready["url"])
        url = replace(address, user=COORDINATOR, password=password)
        fleet_url = replace(address, user=FLEET, password=fleet_password)
        note = EMBEDDED_INSTEAD if name.startswith("embedded") and not embedded else ""
        yield StartedBroker(url, fleet_url, name, note)


def _limits(scenario: Scenario) -> list[str]:
    """Options of `broker up` for a scenario that exceeds its defaults: a large fleet, or large parts."""
    agents = scenario.fleet.agents if scenario.fleet is not None else 0
    options = ["--agents", str(agents)] if agents > USUAL_AGENTS else []
    if scenario.wire.part_bytes > USUAL_PART_BYTES:
        largest = max(scenario.wire.part_bytes, ROSTER_ROW_BYTES * agents)
        options += ["--max-packet", str(largest + PACKET_ENVELOPE_BYTES)]
    return options


@asynccontextmanager
async def fleet(
    folder: Path, urls: Sequence[BrokerUrl], data_root: Path | None, allowed: AllowedCode = NO_CODE
) -> AsyncIterator[Child]:
    """Run the simulated agents of the scenario in `folder` for as long as the block lasts, or those of further ones after them.

    Args:
        folder: of the run.
        urls: the brokers, by their numbers.
        data_root: the folder of named data sets.
        allowed: the code of the user's own that may run.
    """
    command = ["covey.agent.cli", "lab", "fleet", str(folder / SCENARIO), "--more"]
    command += ["--run-dir", str(folder)]
    command += ["--data-root", str(data_root)] if data_root is not None else []
    command += allowed.options()
    async with _child(
        command, folder / "fleet.log", talks=False, settings=environment_of(urls)
    ) as child:
        yield child


async def initial(folder: Path, scenario: Scenario, allowed: AllowedCode = NO_CODE) -> Setup:
    """Build the initial models once per run, in a child process, and keep them in `start.npz`.

    Raises UserError if they cannot be built, or if `task.init` does not fit the method.
    """
    if wants_start(folder, scenario):
        command = [
            "covey.agent.cli",
            "lab",
            "model",
            str(folder / SCENARIO),
            "--out",
            str(folder / START),
        ]
        command += allowed.options()
        async with _child(command, folder / "model.log", talks=False) as child:
            if await child.process.wait() != 0:
                raise UserError(f"the initial model could not be built:\n{child.messages()}")
    return started(folder, scenario)


def wants_start(folder: Path, scenario: Scenario) -> bool:
    """Whether a child must build the initial models, which imports torch for them.

    Not if the folder has a `start.npz`, the scenario names one, or the model is built in: then they are written here.
    """
    path = folder / START
    return not (path.exists() or _given(scenario, path) or _drawn(scenario, path))


def _drawn(scenario: Scenario, path: Path) -> bool:
    """Draw the initial models of a built-in model."""
    found = starts_of(scenario)
    if found is None:
        return False
    write_starts(path, *found)
    return True


def started(folder: Path, scenario: Scenario) -> Setup:
    """The setup of a run whose folder has a `start.npz`. Raises UserError if that file is damaged."""
    starts, layout = read_start(folder)
    return setup_of(scenario, [np.ascontiguousarray(start, np.float32) for start in starts], layout)


async def exported(model: Path, out: Path, log: Path, allowed: AllowedCode = NO_CODE) -> None:
    """Export a model file of a finished run as a program, in a child process (`agent lab export`)."""
    command = [
        "covey.agent.cli",
        "lab",
        "export",
        str(model),
        "--out",
        str(out),
        *allowed.options(),
    ]
    async with _child(command, log, talks=False) as child:
        if await child.process.wait() != 0:
            raise UserError(f"{model} could not be exported:\n{child.messages()}")


def _given(scenario: Scenario, path: Path) -> bool:
    """Copy the initial models from task.init, which `agent lab model` made elsewhere: no torch is needed here."""
    given = scenario.task.init
    if given is None:
        return False
    try:
        with np.load(given, allow_pickle=False) as file:
            starts, layout = file["starts"], Layout.from_wire(json_text.loads(str(file["layout"])))
    except (OSError, ValueError, KeyError, DecodeError, zipfile.BadZipFile):
        return False  # `agent lab model` judges other contents and reports what is wrong
    expected = (scenario.strategy.starts, layout.size)
    if starts.shape != expected:
        raise UserError(
            f"task.init {given}: starts has shape {starts.shape}, expected {expected}; "
            "create it again with `agent lab model`"
        )
    write_atomically(path, Path(given).read_bytes())
    return True


def setup_of(scenario: Scenario, starts: Sequence[np.ndarray], layout: Layout) -> Setup:
    """The setup that a scenario gives its strategy.

    Args:
        scenario: what to run.
        starts: the initial models, float32 (d,) each.
        layout: of a whole model.

    Raises:
        PublicError: the model cannot be split as the scenario asks.
    """
    setup = Setup(
        tuple(starts),
        layout,
        scenario.seed,
        scenario.rounds.count,
        expected_share(scenario, listed_participants(scenario)),
        scenario.training,
        private=scenario.privacy is not None,
    )
    task = scenario.task
    split = split_by(scenario.strategy, layout, task.share, task.keep, task.freeze)
    if task.base is not None and split is not None:
        setup = replace(setup, base=base_vector(task.base.content(), layout))
    return divided(setup, split, scenario.strategy)


def tail(path: Path, lines: int = 12, since: int = 0) -> str:
    """The last lines of a child's log, for an error message; none from before the byte `since`."""
    if not path.exists():
        return ""
    return "\n".join(path.read_bytes()[since:].decode(errors="replace").splitlines()[-lines:])


@dataclass(frozen=True)
class Child:
    """A child process, and where its own messages begin in a log that has those of earlier commands too."""

    process: asyncio.subprocess.Process
    log: Path
    since: int  # bytes

    def messages(self) -> str:
        """The last lines that it wrote."""
        return tail(self.log, since=self.since)

    def play(self, folder: Path) -> None:
        """Have a fleet end its agents and bring up those of the scenario in this folder."""
        assert self.process.stdin is not None  # noqa: S101 - it is a pipe
        self.process.stdin.write(f"{folder / SCENARIO}\n".encode())


@asynccontextmanager
async def _child(
    command: Sequence[str], log: Path, *, talks: bool, settings: Mapping[str, str] = NO_SETTINGS
) -> AsyncIterator[Child]:
    """Run `python -m command` for as long as the block lasts; then close its stdin and send SIGTERM.

    Args:
        command: a module, then its arguments
        log: receives stderr, and stdout unless the child talks
        talks: give us the child's stdout as a pipe
        settings: for the child's environment, which no other user can read
    """
    with log.open("ab") as file:
        since = file.tell()
        child = await asyncio.create_subprocess_exec(
            *python(*command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE if talks else file,
            stderr=file,
            env=environment(**settings),
            start_new_session=True,  # Ctrl-C must reach us alone: we end our children
        )
    try:
        yield Child(child, log, since)
    finally:
        await end(child, END_WITHIN_S)
