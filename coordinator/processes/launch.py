"""The child processes of a run: a broker, a simulated fleet, a model builder, a test of models. Each dies with its parent.

The coordinator imports neither `broker` nor `agent`: it starts their commands, so that torch never
gets into its memory and each can be replaced by one that runs elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import zipfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from covey.coordinator.engine.sampling import expected_share
from covey.coordinator.run.folder import START
from covey.coordinator.run.rules import listed_participants
from covey.shared import json_text
from covey.shared.consent import NO_CODE, AllowedCode
from covey.shared.errors import DecodeError, UserError
from covey.shared.files import write_atomically
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.credentials import COORDINATOR, FLEET
from covey.shared.numerics.vectors import Layout
from covey.shared.python_process import environment, python
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import Setup

READY_WITHIN_S = 60.0
# what `broker up` allows by default, and what it adds for topics and digests (broker/limits.py)
USUAL_AGENTS = 1000
USUAL_PART_BYTES = 512 << 10
ROSTER_ROW_BYTES = 400
PACKET_ENVELOPE_BYTES = 16 << 10
PASSWORD_BYTES = 32
STANDS_IN = "no mosquitto is installed here: the embedded broker, in pure Python, takes its place"
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class StartedBroker:
    """A broker of our own. The addresses hold passwords of this run; shown as text, they leave them out."""

    url: BrokerUrl  # for the coordinator
    fleet_url: BrokerUrl  # for a simulated fleet, which may do what agents may
    name: str
    note: str  # a line for the user where there is something to say


@asynccontextmanager
async def broker(
    folder: Path, scenario: Scenario, *, embedded: bool
) -> AsyncIterator[StartedBroker]:
    """A broker of our own on a free port of this machine, for as long as the block lasts.

    Every user of the machine reaches that port, so the broker lets in nobody without a password. They are new for each
    run and travel through the environment, where only the same user reads them.
    """
    password, fleet_password = (secrets.token_urlsafe(PASSWORD_BYTES) for _ in range(2))
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
    command += [*_limits(scenario), *(["--embedded"] if embedded else [])]
    settings = {"COVEY_BROKER_PASSWORD": password, "COVEY_FLEET_PASSWORD": fleet_password}
    async with _child(command, folder / "broker.log", talks=True, settings=settings) as child:
        line = await _first_line(child, folder / "broker.log")
        told = json_text.loads(line)
        stands_in = told["broker"].startswith("embedded") and not embedded
        place = BrokerUrl.parse(told["url"])
        url = replace(place, user=COORDINATOR, password=password)
        fleet_url = replace(place, user=FLEET, password=fleet_password)
        yield StartedBroker(url, fleet_url, told["broker"], STANDS_IN if stands_in else "")


def _limits(scenario: Scenario) -> list[str]:
    """Options of `broker up` where the scenario needs more than its defaults: a large fleet, or large parts."""
    agents = scenario.fleet.agents if scenario.fleet is not None else 0
    options = ["--agents", str(agents)] if agents > USUAL_AGENTS else []
    if scenario.wire.part_bytes > USUAL_PART_BYTES:
        largest = max(scenario.wire.part_bytes, ROSTER_ROW_BYTES * agents)
        options += ["--max-packet", str(largest + PACKET_ENVELOPE_BYTES)]
    return options


@asynccontextmanager
async def fleet(
    folder: Path, url: BrokerUrl, data_root: Path | None, allowed: AllowedCode = NO_CODE
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The simulated agents of the scenario in `folder`, for as long as the block lasts."""
    command = ["covey.agent.cli", "fleet", str(folder / "scenario.yaml"), "--run-dir", str(folder)]
    command += ["--data-root", str(data_root)] if data_root is not None else []
    command += allowed.options()
    async with _child(
        command, folder / "fleet.log", talks=False, settings=url.environment()
    ) as child:
        yield child


async def initial(folder: Path, scenario: Scenario, allowed: AllowedCode = NO_CODE) -> Setup:
    """The initial models, built once per run by a child process and kept in `start.npz`."""
    if wants_start(folder, scenario):
        command = [
            "covey.agent.cli",
            "model",
            str(folder / "scenario.yaml"),
            "--out",
            str(folder / START),
        ]
        command += allowed.options()
        async with _child(command, folder / "model.log", talks=False) as child:
            if await child.wait() != 0:
                raise UserError(
                    f"the initial model could not be built:\n{tail(folder / 'model.log')}"
                )
    return started(folder, scenario)


def wants_start(folder: Path, scenario: Scenario) -> bool:
    """Is there neither a `start.npz` in the folder nor one that the scenario gives?"""
    path = folder / START
    return not path.exists() and not _given(scenario, path)


def started(folder: Path, scenario: Scenario) -> Setup:
    """The setup of a run whose `start.npz` lies in the folder. Raises UserError where it is damaged."""
    starts, layout = _read_start(folder / START)
    return setup_of(
        scenario, tuple(np.ascontiguousarray(start, np.float32) for start in starts), layout
    )


def _read_start(path: Path) -> tuple[np.ndarray, Layout]:
    """The initial models (starts, d) and their layout. Raises UserError for a damaged file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return file["starts"], Layout.from_wire(json_text.loads(str(file["layout"])))
    except (
        Exception
    ) as error:  # numpy, zipfile and zlib raise a dozen types for a file that is not what it was
        raise UserError(
            f"{path}: the initial models are missing or damaged ({type(error).__name__}: {error}). "
            "Remove the file and run the same command again: it is built again from the scenario"
        ) from None


async def superclass_accuracies(
    folder: Path,
    data_root: Path | None,
    scaling: Mapping[str, Sequence[float]] | None,
    allowed: AllowedCode = NO_CODE,
) -> list[list[float]]:
    """Accuracy of each model in `folder`/models (rows) on each super-class of the fleet's test data (columns).

    Measured by a child process. Empty where a super-class has no test data.
    """
    command = [
        "covey.agent.cli",
        "superclasses",
        str(folder / "scenario.yaml"),
        "--models",
        str(folder / "models"),
    ]
    command += ["--data-root", str(data_root)] if data_root is not None else []
    command += ["--scaling", json.dumps(scaling)] if scaling is not None else []
    command += allowed.options()
    log = folder / "superclasses.log"
    async with _child(command, log, talks=True) as child:
        told, _ = await child.communicate()
        if child.returncode != 0:
            raise UserError(f"the clusters could not be tested on the super-classes:\n{tail(log)}")
    table: list[list[float]] = json_text.loads(told)
    return table


async def exported(model: Path, out: Path, log: Path, allowed: AllowedCode = NO_CODE) -> None:
    """Write a model file of a finished run as a program, by a child process: `agent export`."""
    command = ["covey.agent.cli", "export", str(model), "--out", str(out), *allowed.options()]
    async with _child(command, log, talks=False) as child:
        if await child.wait() != 0:
            raise UserError(f"{model} could not be exported:\n{tail(log)}")


def _given(scenario: Scenario, path: Path) -> bool:
    """Take the models that `agent model` has made elsewhere from task.init: then no torch is needed here."""
    given = scenario.task.init
    if given is None:
        return False
    try:
        with np.load(given, allow_pickle=False) as file:
            starts, layout = file["starts"], Layout.from_wire(json_text.loads(str(file["layout"])))
    except (OSError, ValueError, KeyError, DecodeError, zipfile.BadZipFile):
        return False  # other contents, and what is wrong with them, are for `agent model`
    wanted = (scenario.strategy.starts, layout.size)
    if starts.shape != wanted:
        raise UserError(
            f"task.init {given}: starts has shape {starts.shape}, {wanted} is wanted; make it anew with `agent model`"
        )
    write_atomically(path, Path(given).read_bytes())
    return True


def setup_of(scenario: Scenario, starts: Sequence[np.ndarray], layout: Layout) -> Setup:
    """What the scenario tells its strategy."""
    return Setup(
        tuple(starts),
        layout,
        scenario.seed,
        scenario.rounds.count,
        expected_share(scenario, listed_participants(scenario)),
        scenario.training,
    )


def tail(path: Path, lines: int = 12) -> str:
    """The end of a child's log, for an error message."""
    return (
        "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""
    )


@asynccontextmanager
async def _child(
    command: Sequence[str], log: Path, *, talks: bool, settings: Mapping[str, str] = NO_SETTINGS
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`python -m command`; stopped by closing its standard input and SIGTERM when the block ends.

    The first word of `command` is a module. `settings` go into its environment, which no other user may read.
    """
    with log.open("ab") as file:
        child = await asyncio.create_subprocess_exec(
            *python(*command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE if talks else file,
            stderr=file,
            env=environment(**settings),
            start_new_session=True,  # Ctrl-C is for us; we end our children ourselves
        )
    try:
        yield child
    finally:
        await _end(child)


async def _end(child: asyncio.subprocess.Process) -> None:
    if child.stdin is not None:
        child.stdin.close()
    with contextlib.suppress(ProcessLookupError):
        child.terminate()
    try:
        async with asyncio.timeout(15):
            await child.wait()
    except TimeoutError:
        child.kill()
        await child.wait()


async def _first_line(child: asyncio.subprocess.Process, log: Path) -> bytes:
    assert child.stdout is not None  # noqa: S101 - asked for with talks=True
    try:
        async with asyncio.timeout(READY_WITHIN_S):
            line = await child.stdout.readline()
    except TimeoutError:
        line = b""
    if not line:
        raise UserError(f"the broker did not start:\n{tail(log)}")
    return line
