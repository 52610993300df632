"""The `agent` command. Nothing heavy is imported here: an idle agent on a small device pays for what it uses."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.main import get_command

from covey.shared import json_text, plugins
from covey.shared.cli import (
    Allow,
    Connection,
    DataRoot,
    Json,
    program,
    with_connection,
)
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import DEFAULT_BROKER
from covey.shared.printable import printable

app = program(
    "agent",
    "Learn on this machine's data, as part of a fleet. The data never leaves the machine.",
)

Data = Annotated[
    str,
    typer.Option(
        help="a table, an .npz, a folder of images, or module:function", envvar="COVEY_DATA"
    ),
]
Label = Annotated[
    str | None, typer.Option(help="the target column of a table", envvar="COVEY_LABEL")
]
PolicyFile = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        help="YAML: what a coordinator may ask of this device",
        envvar="COVEY_POLICY",
        show_default=False,
    ),
]
Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--limit", help="one key of the policy, e.g. max_epochs=5; repeatable", show_default=False
    ),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"] | None,
    typer.Option(
        help="what torch computes on, whatever a scenario says  [default: as the scenario says]",
        envvar="COVEY_DEVICE",
        show_default=False,
    ),
]
ScenarioFile = Annotated[Path, typer.Argument(help="a scenario file (.yaml)")]


def main() -> None:
    """The entry point of the `agent` command."""
    app()


@app.command()
@with_connection()
def start(
    data: Data,
    *,
    name: Annotated[
        str | None, typer.Option("--id", help="[default: the host's name]", envvar="COVEY_ID")
    ] = None,
    federation: Annotated[
        str, typer.Option(help="the fleet to be part of", envvar="COVEY_FEDERATION")
    ] = "default",
    label: Label = None,
    state: Annotated[
        Path | None, typer.Option(help="[default: ~/.local/state/covey/ID]", envvar="COVEY_STATE")
    ] = None,
    keep_warm: Annotated[
        float,
        typer.Option(
            help="seconds that the training process lives on after work", envvar="COVEY_KEEP_WARM"
        ),
    ] = 60.0,
    connection: Connection,
    allow: Allow = None,
    policy: PolicyFile = None,
    limit: Limits = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Stay connected to a broker and train when the coordinator orders it. Ends on SIGTERM or Ctrl-C."""
    from covey.agent.device.service import Identity
    from covey.agent.policy import Rules
    from covey.shared.consent import AllowedCode
    from covey.shared.wire.topics import is_name

    name = _named(name, connection.credentials, connection.broker)
    for what, text in (("--id", name), ("--federation", federation)):
        if not is_name(text):
            raise UserError(
                f"{what} {text!r}: letters, digits, '.', '_' and '-', at most 64, are wanted"
            )
    url = connection.url()
    source = {"data": _existing(data), "label": label}
    folder = state or Path("~/.local/state/covey").expanduser() / name
    identity = Identity(name, federation, source, folder)
    limits = [*(limit or ()), *([f"device={device}"] if device is not None else [])]
    rules = Rules(_policy(policy, limits), AllowedCode.parse(allow))
    _quiet_links()
    tell = _json_lines if as_json else Lines(name, str(url))
    tell(
        {
            "event": "start",
            "agent": name,
            "federation": federation,
            "broker": str(url),
            "data": data,
        }
    )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_start(identity, url, keep_warm, tell, rules))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def service(
    context: typer.Context,
    user: Annotated[
        str | None, typer.Option(help="whom it runs as  [default: you]", show_default=False)
    ] = None,
) -> None:
    """Print a systemd unit that runs `agent start` whenever this machine is up. It takes the options of `agent start`.

    agent service --data ./local --credentials pi-7.pem | sudo tee /etc/systemd/system/covey-agent.service
    """
    import getpass

    from covey.agent.device.systemd import render
    from covey.shared.python_process import python

    parsed = get_command(app).commands["start"].make_context("agent start", context.args)  # type: ignore[attr-defined]
    name = _named(*(parsed.params[option] for option in ("name", "credentials", "broker")))
    print(
        render(
            name, [*python("covey.agent.cli", "start"), *_again(parsed)], user or getpass.getuser()
        ),
        end="",
    )


def _again(parsed: typer.Context) -> list[str]:
    """The options that were typed, or stood in the environment, for another working directory. No secrets: UserError."""
    words: list[str] = []
    for option in parsed.command.params:
        value, source = (
            parsed.params.get(option.name or ""),
            parsed.get_parameter_source(option.name or ""),
        )
        if value is None or source is None or source.name not in ("COMMANDLINE", "ENVIRONMENT"):
            continue
        if option.name == "broker" and _has_password(value):
            raise UserError(
                "--broker has a password, and everybody may read a unit file: use --credentials instead"
            )
        if option.name == "data":
            value = _existing(value)
        if isinstance(value, Path):
            value = value.absolute()
        if isinstance(value, list | tuple):  # an option that may be repeated
            for one in value:
                words += [option.opts[0], str(one)]
        elif value is not False:
            words += [option.opts[0]] if value is True else [option.opts[0], str(value)]
    return words


def _has_password(broker: str) -> bool:
    from covey.shared.mqtt.broker_url import BrokerUrl

    return BrokerUrl.parse(broker).password is not None


@app.command("policy")
def show_policy(policy: PolicyFile = None, limit: Limits = None, as_json: Json = False) -> None:
    """Print what a coordinator may ask of this device, as `agent start` with the same options would hold it to."""
    effective: Any = _policy(policy, limit)
    if as_json:
        print(effective.model_dump_json())
        return
    for key, field in type(effective).model_fields.items():
        value = getattr(effective, key)
        print(f"{key}: {json_text.dumps(value)}  # {field.description}")


def _policy(file: Path | None, limits: list[str] | None) -> Any:
    """The policy of the file, with the keys that `--limit` sets. UserError names the wrong one."""
    from covey.agent.policy import Policy

    policy = Policy() if file is None else Policy.load(file)
    return policy.with_limits(limits or ())


@app.command()
def check(
    data: Data,
    label: Label = None,
    scenario: Annotated[
        Path | None, typer.Option(help="compare the data with this scenario's task")
    ] = None,
    as_json: Json = False,
) -> None:
    """Look at the data: what was found, what the coordinator would be told, what is wrong (exit code 2)."""
    from covey.agent.data.check_report import show

    ok = show(data, label, scenario, as_json=as_json)
    if not ok:
        raise typer.Exit(2)


@app.command()
@with_connection()
def fleet(
    scenario: ScenarioFile,
    *,
    run_dir: Annotated[
        Path, typer.Option(help="where the agents' state and partition.npz go")
    ] = Path(),
    data_root: DataRoot = None,
    connection: Connection,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Host the simulated fleet of a scenario. Ends on SIGTERM and with the process that started it."""
    from covey.agent.fleet.fleet import host
    from covey.shared.consent import AllowedCode

    url = connection.url()
    allowed = AllowedCode.parse(allow)
    _quiet_links()
    asyncio.run(
        host(scenario, url, run_dir, data_root, _json_lines if as_json else _fleet_lines, allowed)
    )


@app.command()
def model(
    scenario: ScenarioFile,
    out: Annotated[
        Path, typer.Option(help="the .npz to write: starts (k, d) float32, layout as JSON")
    ],
    allow: Allow = None,
) -> None:
    """Write the initial weights of a scenario, drawn on its seed."""
    from covey.shared.consent import AllowedCode
    from covey.shared.scenario.code import check_code
    from covey.shared.scenario.load import load_without_files

    allowed = AllowedCode.parse(allow)
    plan = load_without_files(scenario)
    check_code(plan, allowed)

    from covey.agent.training.start_models import write_start

    write_start(plan, out, allowed)


@app.command()
def export(
    model: Annotated[
        Path, typer.Argument(help="a finished run's models/cluster-0.safetensors", exists=True)
    ],
    out: Annotated[Path, typer.Option(help="the .pt2 or .onnx to write")],
    allow: Allow = None,
) -> None:
    """Write a cluster's model as a program that needs no Covey: features as they are in the data in, logits or values out."""
    from covey.agent.training.export import export as written
    from covey.shared.consent import AllowedCode

    written(model, out, AllowedCode.parse(allow))


@app.command()
def superclasses(
    scenario: ScenarioFile,
    models: Annotated[Path, typer.Option(help="a folder with cluster-0.safetensors and so on")],
    data_root: DataRoot = None,
    scaling: Annotated[
        str | None,
        typer.Option(help="JSON: the run's mean and std per channel, where they are federated"),
    ] = None,
    allow: Allow = None,
) -> None:
    """Test models on all test data of each super-class of a simulated fleet; prints JSON, a row of accuracies per model."""
    from covey.agent.training.superclasses import accuracies
    from covey.shared.consent import AllowedCode
    from covey.shared.scenario.load import load_without_files

    known = None if scaling is None else _scaling(scaling)
    print(
        json_text.dumps(
            accuracies(
                load_without_files(scenario), models, data_root, known, AllowedCode.parse(allow)
            )
        )
    )


def _scaling(text: str) -> dict[str, list[float]]:
    from pydantic import ValidationError

    from covey.shared.scenario.task import Standardise

    try:
        return Standardise.model_validate_json(text).model_dump(mode="json")
    except ValidationError:
        raise UserError(
            f'--scaling {text}: JSON such as {{"mean": [0.5], "std": [0.25]}} is wanted'
        ) from None


async def _start(identity: Any, url: Any, keep_warm_s: float, tell: Any, rules: Any) -> None:
    from covey.agent.device.service import Agent
    from covey.agent.worker.pool import Pool, check_device
    from covey.shared.mqtt.mqtt_link import MqttLink

    agent = Agent(identity, (pool := Pool(1, keep_warm_s=keep_warm_s)), tell=tell, rules=rules)
    async with Pool(1) as first:  # gone before we wait for orders
        await check_device(first, rules.policy.device or "cpu", rules)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.stop)
    async with pool, MqttLink(url, client_id=agent.client_id, will=agent.will) as link:
        await agent.run(link)


def _named(name: str | None, credentials: Path | None, broker: str | None) -> str:
    """Who we are. Raises UserError where it is with somebody else's credentials that we would connect."""
    name = name or default_name()
    if credentials is not None:
        from covey.shared.mqtt.credentials import check_agent

        check_agent(credentials, name, broker or DEFAULT_BROKER)
    return name


def default_name() -> str:
    """The host's name as an agent's id."""
    short = re.sub(r"[^A-Za-z0-9._-]+", "-", socket.gethostname()).strip("-._")[:64]
    return short or "agent"


def _existing(data: str) -> str:
    """Found out now, not by a worker at the first order; what is in the data is the worker's to judge."""
    if Path(data).exists():
        return str(Path(data).resolve())
    if ":" in data and "/" not in data.split(":")[0]:
        return data
    if data in plugins.installed(plugins.DATA):
        return data
    raise UserError(
        f"--data {data}: no such file or folder; expected a table, an .npz, a folder, module:function, "
        "or a data source that an installed package adds"
    )


def _quiet_links() -> None:
    logging.getLogger("asyncio").setLevel(logging.ERROR)


def _json_lines(event: Mapping[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json_text.dumps(dict(event)) + "\n")
        sys.stdout.flush()


def _fleet_lines(event: Mapping[str, Any]) -> None:
    if event["event"] == "fleet":
        print(
            f"{event['agents']} agents, {event['workers']} workers, at {event['broker']}",
            flush=True,
        )
    elif event["event"] == "fleet down":
        print(
            printable(f"no connection to {event['why']}; trying again until it works"),
            file=sys.stderr,
            flush=True,
        )
    elif event["event"] == "fleet up":
        print("connected", flush=True)
    elif event["event"] in ("problem", "failed"):
        print(printable(f"{event['agent']}: {event['why']}"), file=sys.stderr, flush=True)


class Lines:
    """Events as lines for a person: what went wrong on stderr, and each trouble once."""

    def __init__(self, name: str, broker: str) -> None:
        self._name, self._broker = name, broker
        self._down = ""  # why, as it was said

    def __call__(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "start":
                self._say(
                    f"agent {self._name} of federation {event['federation']}, broker {self._broker}"
                )
            case "up":
                self._say(f"connected to {self._broker}")
                self._down = ""
            case "down" if event["why"] != self._down:
                self._down = event["why"]
                self._complain(f"no connection to {self._down}; trying again until it works")
            case "data":
                self._say(
                    f"data fits the task: {event['samples']} training, {event['test_samples']} test samples"
                )
            case "problem":
                self._complain(f"staying out of this run: {event['why']}")
            case "work":
                self._say(f"step {event['step']}: {event['phase']}")
            case "failed":
                self._complain(f"step {event['step']} failed: {event['why']}")
            case "accepted":
                self._say(f"step {event['step']}: report accepted")

    def _say(self, text: str) -> None:
        print(printable(text), flush=True)

    def _complain(self, text: str) -> None:
        print(printable(text), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
