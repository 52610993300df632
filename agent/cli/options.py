"""Options and small helpers that several commands of the agent share."""

from __future__ import annotations

import logging
import os
import re
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from covey.agent.data_place import FORM, Source, place_of
from covey.shared import extras
from covey.shared.cli import BrokerAddresses
from covey.shared.errors import UserError
from covey.shared.own_code import plugins
from covey.shared.own_code.consent import framework_of
from covey.shared.programs.child import cores

if TYPE_CHECKING:
    from covey.agent.policy import Policy
    from covey.extras.in_use.keeper import KeepOptions

Data = Annotated[
    str,
    typer.Option(
        help="your data: a table, sqlite:FILE?table=NAME, a folder of daily tables or of images, an .npz file, or module:function",
        envvar="COVEY_DATA",
    ),
]
Label = Annotated[
    str | None, typer.Option(help="the column of a table to predict", envvar="COVEY_LABEL")
]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"] | None,
    typer.Option(
        metavar="<device>",
        help="where torch computes: auto, cpu, cuda or mps  [default: the scenario's]",
        envvar="COVEY_DEVICE",
    ),
]
DEFAULT_FEDERATION = "default"
AgentId = Annotated[
    str | None,
    typer.Option("--id", help="the agent's id", envvar="COVEY_ID", show_default="the host's name"),
]
StateFolder = Annotated[
    Path | None,
    typer.Option(
        help="folder for the agent's state  [default: covey/ID[@FEDERATION] in XDG_STATE_HOME or ~/.local/state]",
        envvar="COVEY_STATE",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1024,
        help="threads of torch; 1 gives the figures of a simulation exactly  [default: the cores but one]",
        envvar="COVEY_THREADS",
    ),
]
LearnerOption = Annotated[
    str | None,
    typer.Option(
        "--learner",
        help="torch, numpy (models linear and mlp), flower:MODULE:client_fn, sklearn:MODULE:make_estimator  "
        "[default: torch if it is installed]",
        envvar="COVEY_LEARNER",
    ),
]
ScenarioFile = Annotated[Path, typer.Argument(help="a scenario file (.yaml)")]

# keys of the policy -> the options that set them
LIMITS_BY_OPTION = {
    "memory_limit_mb": "--memory-limit",
    "max_base_mb": "--max-base",
    "only_when": "--only-when",
}


@dataclass(frozen=True)
class PolicyOptions:
    """What a coordinator may ask of this device."""

    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy",
            help="YAML file with limits on what a coordinator may ask",
            envvar="COVEY_POLICY",
        ),
    ] = None
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit", metavar="<k=v>", help="one of these limits, e.g. max_epochs=5; repeatable"
        ),
    ] = None
    memory_limit: Annotated[
        str | None,
        typer.Option(
            help="memory that training may take: 512M, 2G (Linux)", envvar="COVEY_MEMORY_LIMIT"
        ),
    ] = None
    max_base: Annotated[
        str | None,
        typer.Option(
            help="disk space for weights of task.base  [default: 1000M]", envvar="COVEY_MAX_BASE"
        ),
    ] = None
    only_when: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<when>",
            help="train only while charging, idle, or in hours such as 22:00-06:00; repeatable: all must hold",
            envvar="COVEY_ONLY_WHEN",
        ),
    ] = None

    def effective(self, device: str | None = None) -> Policy:
        """The policy of the file, with the keys that options set. Raises UserError that names a wrong key or option."""
        from covey.agent.policy import Policy, memory_mb

        limits = list(self.limit or ())
        if device is not None:
            limits.append(f"device={device}")
        policy = Policy() if self.policy is None else Policy.load(self.policy)
        policy = policy.with_limits(limits)
        changes: dict[str, Any] = {}
        if self.memory_limit is not None:
            changes["memory_limit_mb"] = memory_mb(self.memory_limit)
        if self.max_base is not None:
            changes["max_base_mb"] = memory_mb(self.max_base, "--max-base")
        if self.only_when:
            changes["only_when"] = self.only_when
        if not changes:
            return policy
        whole = {**policy.model_dump(mode="json"), **changes}
        return Policy.of(whole, " or ".join(LIMITS_BY_OPTION[key] for key in changes))


@dataclass(frozen=True)
class ModelOptions:
    """How the device keeps models for its own use."""

    model_dir: Annotated[
        Path | None,
        typer.Option(
            "--model-dir",
            help="folder for the newest model of this device; `agent predict` uses it",
            envvar="COVEY_MODEL_DIR",
        ),
    ] = None
    accept_margin: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="refuse a model less accurate here by more than this (of numbers: squared error, as a share)  [default: 0.05]",
            envvar="COVEY_ACCEPT_MARGIN",
        ),
    ] = None
    keep_models: Annotated[
        int | None,
        typer.Option(
            min=0, help="runs whose models are kept  [default: 3]", envvar="COVEY_KEEP_MODELS"
        ),
    ] = None
    on_model: Annotated[
        str | None,
        typer.Option(
            help="command to run after each new model, with its path", envvar="COVEY_ON_MODEL"
        ),
    ] = None
    on_model_seconds: Annotated[
        float | None,
        typer.Option(
            min=0.1, help="seconds that it may take  [default: 60]", envvar="COVEY_ON_MODEL_SECONDS"
        ),
    ] = None

    def keep(self) -> KeepOptions | None:
        """None without `--model-dir`. Raises UserError for options that need it."""
        given = {
            "--accept-margin": self.accept_margin,
            "--keep-models": self.keep_models,
            "--on-model": self.on_model,
            "--on-model-seconds": self.on_model_seconds,
        }
        if self.model_dir is None:
            idle = [option for option, value in given.items() if value is not None]
            if idle:
                names = " and ".join(idle)
                raise UserError(f"{names} without --model-dir has no effect; add --model-dir")
            return None
        keeper = extras.part("in_use", "keeper", "--model-dir")

        changes: dict[str, Any] = {
            "margin": self.accept_margin,
            "runs": self.keep_models,
            "hook": None if self.on_model is None else keeper.parse_hook(self.on_model),
            "hook_limit_s": self.on_model_seconds,
        }
        set_ones = {name: value for name, value in changes.items() if value is not None}
        kept: KeepOptions = replace(keeper.KeepOptions(self.model_dir), **set_ones)
        return kept


def agent_id(name: str | None, federation: str, connection: BrokerAddresses) -> str:
    """The id that was given, or the default. Raises UserError if the credentials belong to another agent or broker."""
    agent = name or default_name()
    if len(connection.credentials) > 1:
        raise UserError("--credentials: an agent has one file; name others with --also")
    for file in connection.in_use:
        from covey.shared.mqtt.credentials import check_agent, check_federation

        check_agent(file, agent)
        check_federation(file, federation, "--federation (or COVEY_FEDERATION)")
    return agent


def state_folder(given: Path | None, agent: str, federation: str = DEFAULT_FEDERATION) -> Path:
    """Where an agent keeps its state: the folder given, or one below XDG_STATE_HOME, if that is absolute.

    Agents of one id in two federations on one machine have two folders.
    """
    states = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not states.is_absolute():
        states = Path("~/.local/state").expanduser()
    name = agent if federation == DEFAULT_FEDERATION else f"{agent}@{federation}"
    return given or states / "covey" / name


@dataclass(frozen=True)
class PoolOptions:
    """How the training process of a device runs."""

    keep_warm_s: float  # seconds that it stays alive after work
    threads: int  # of torch


def default_threads() -> int:
    """The cores that this process may use, but one: the device has other work, too."""
    return max(1, cores() - 1)


def default_name() -> str:
    """The host's name as an agent's id."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", socket.gethostname()).strip("-._")[:64] or "agent"


def resolve_data(data: str, learner: str = "") -> str:
    """The data for any working directory. Raises UserError now where the path does not exist.

    A worker judges the contents later. A client of Flower gets pairs such as "partition-id=0".
    """
    if framework_of(learner) == "flower" and all("=" in word for word in data.split()):
        return data
    place = place_of(data) if data.startswith(plugins.SQLITE) else None
    if isinstance(place, Source) and place.is_file():
        return place.typed
    if Path(data).exists():
        return str(Path(data).resolve())
    if plugins.data_code(data) is not None:
        return data
    is_folder = not Path(data).suffix
    example = f"; to try it without data of your own: `agent examples {data}`" if is_folder else ""
    raise UserError(
        f"--data {data}: no such file or folder; expected a table, an .npz file, a folder, {FORM}, module:function, "
        f"or a data source that an installed package adds{example}"
    )


def quiet_links() -> None:
    logging.getLogger("asyncio").setLevel(logging.ERROR)
