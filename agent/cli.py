"""The `agent` command. Heavy modules are imported where they are used: an idle agent on a small device needs few."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.main import get_command

from covey.shared import json_text, plugins
from covey.shared.cli import (
    BROKERS,
    Allow,
    Connection,
    DataRoot,
    Json,
    program,
    with_connection,
)
from covey.shared.errors import UserError

if TYPE_CHECKING:
    from covey.agent.device.identity import Identity
    from covey.agent.device.keeper import KeepOptions
    from covey.agent.device.notices import DeviceObserver
    from covey.agent.policy import Policy, Rules
    from covey.shared.mqtt.broker_url import BrokerUrl

app = program(
    "agent",
    "Learn on this machine's data, as part of a fleet. The data never leaves the machine.",
)

Data = Annotated[
    str,
    typer.Option(
        help="your data: a table, an .npz file, a folder of images, or module:function",
        envvar="COVEY_DATA",
    ),
]
Label = Annotated[
    str | None, typer.Option(help="the column of a table to predict", envvar="COVEY_LABEL")
]
PolicyFile = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        help="YAML file with limits on what a coordinator may ask of this device",
        envvar="COVEY_POLICY",
        show_default=False,
    ),
]
Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        help="set one key of the policy, such as max_epochs=5; repeatable",
        show_default=False,
    ),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"] | None,
    typer.Option(
        help="the device that torch computes on; overrides the scenario  [default: the scenario's]",
        envvar="COVEY_DEVICE",
        show_default=False,
    ),
]
AgentId = Annotated[
    str | None,
    typer.Option("--id", help="the agent's id  [default: the host's name]", envvar="COVEY_ID"),
]
StateFolder = Annotated[
    Path | None,
    typer.Option(
        help="folder for the agent's state  [default: ~/.local/state/covey/ID]",
        envvar="COVEY_STATE",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="threads of torch; 1 gives the same bytes as a simulation  [default: the cores but one, at least 1]",
        envvar="COVEY_THREADS",
        show_default=False,
    ),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        help="memory of the training process in all, such as 512M or 2G; work that needs more is reported as failed "
        "(Linux)",
        envvar="COVEY_MEMORY_LIMIT",
        show_default=False,
    ),
]
OnlyWhen = Annotated[
    list[str] | None,
    typer.Option(
        help="begin work only when this holds: charging, idle, or hours such as 22:00-06:00 (local time); repeatable, "
        "and then all must hold",
        envvar="COVEY_ONLY_WHEN",
        show_default=False,
    ),
]
LearnerOption = Annotated[
    str | None,
    typer.Option(
        "--learner",
        help="what trains: torch; numpy, which needs no torch and knows the models linear and mlp; or the name that an "
        "installed package adds  [default: torch if it is installed, else numpy]",
        envvar="COVEY_LEARNER",
        show_default=False,
    ),
]
ModelDirOption = Annotated[
    Path | None,
    typer.Option(
        "--model-dir",
        help="folder that always has the newest model for this device; `agent predict` uses it",
        envvar="COVEY_MODEL_DIR",
        show_default=False,
    ),
]
AcceptMargin = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="keep the old model if the new one's accuracy on this device's test data is lower by more than "
        "this (for regression: if its squared error is larger by more than this share)  [default: 0.05]",
        envvar="COVEY_ACCEPT_MARGIN",
        show_default=False,
    ),
]
KeepModels = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="earlier models that stay in --model-dir  [default: 3]",
        envvar="COVEY_KEEP_MODELS",
        show_default=False,
    ),
]
OnModel = Annotated[
    str | None,
    typer.Option(
        help="command to run after each new model, without a shell; its last argument is the model's path",
        envvar="COVEY_ON_MODEL",
        show_default=False,
    ),
]
OnModelSeconds = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        help="time limit of that command, in seconds  [default: 60]",
        envvar="COVEY_ON_MODEL_SECONDS",
        show_default=False,
    ),
]
ScenarioFile = Annotated[Path, typer.Argument(help="a scenario file (.yaml)")]


def main() -> None:
    """The entry point of the `agent` command."""
    app()


@app.command()
@with_connection(BROKERS)
def start(
    data: Data,
    *,
    name: AgentId = None,
    federation: Annotated[
        str, typer.Option(help="the fleet that the agent belongs to", envvar="COVEY_FEDERATION")
    ] = "default",
    label: Label = None,
    state: StateFolder = None,
    keep_warm: Annotated[
        float,
        typer.Option(
            help="seconds that the training process stays alive after work",
            envvar="COVEY_KEEP_WARM",
        ),
    ] = 60.0,
    connection: Connection,
    allow: Allow = None,
    policy: PolicyFile = None,
    limit: Limits = None,
    device: Device = None,
    threads: Threads = None,
    memory_limit: MemoryLimit = None,
    only_when: OnlyWhen = None,
    learner: LearnerOption = None,
    model_dir: ModelDirOption = None,
    accept_margin: AcceptMargin = None,
    keep_models: KeepModels = None,
    on_model: OnModel = None,
    on_model_seconds: OnModelSeconds = None,
    as_json: Json = False,
) -> None:
    """Stay connected to a broker, and train when the coordinator asks for it.

    The agent runs until SIGTERM or Ctrl-C. SIGUSR1 prints what happened to it so far; so does an end with an error.
    """
    from covey.agent.device.display import DeviceDisplay, print_json
    from covey.agent.device.identity import Identity
    from covey.agent.device.notices import Started
    from covey.agent.learner_choice import learner_name
    from covey.agent.policy import Rules
    from covey.shared.consent import AllowedCode

    agent = _agent_id(name, connection.credentials, connection.brokers)
    _check_name("--id", agent)
    _check_name("--federation", federation)
    urls = connection.urls(agent)
    source = {"data": _resolve_data(data), "label": label}
    folder = _state_folder(state, agent)
    identity = Identity(agent, federation, source, folder)
    limits = list(limit or ())
    if device is not None:
        limits.append(f"device={device}")
    effective = _policy(policy, limits, memory_limit, only_when)
    rules = Rules(effective, AllowedCode.parse(allow), learner_name(learner))
    keep = _keep_options(model_dir, accept_margin, keep_models, on_model, on_model_seconds)
    _quiet_links()
    observer = print_json if as_json else DeviceDisplay()
    observer(Started(agent, federation, ", ".join(map(str, urls)), data))
    with contextlib.suppress(KeyboardInterrupt):
        pool = PoolOptions(keep_warm, threads or default_threads())
        asyncio.run(_start(identity, urls, pool, observer, rules, keep))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def service(
    context: typer.Context,
    user: Annotated[
        str | None,
        typer.Option(help="the user that the service runs as  [default: you]", show_default=False),
    ] = None,
) -> None:
    """Print a systemd unit that runs `agent start` whenever this machine is up. Takes the options of `agent start`.

    agent service --data ./local --credentials pi-7.pem | sudo tee /etc/systemd/system/covey-agent.service
    """
    import getpass

    from covey.agent.device.systemd import render
    from covey.shared.python_process import python

    start_command = get_command(app).commands["start"]  # type: ignore[attr-defined]
    parsed = start_command.make_context("agent start", context.args)
    given = parsed.params
    agent = _agent_id(given["name"], given["credentials"], given["broker"] or ())
    command = [*python("covey.agent.cli", "start"), *_unit_options(parsed)]
    print(render(agent, command, user or getpass.getuser()), end="")


def _unit_options(parsed: typer.Context) -> list[str]:
    """The options from the command line and the environment, for a unit file: they hold in any working directory.

    Raises UserError for a password, because everybody may read a unit file.
    """
    words: list[str] = []
    for option in parsed.command.params:
        name = option.name or ""
        value = parsed.params.get(name)
        source = parsed.get_parameter_source(name)
        is_given = source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")
        if is_given and value is not None:
            words += _words_of(name, option.opts[0], value)
    return words


def _words_of(name: str, flag: str, value: Any) -> list[str]:
    """One option with its value, as arguments of a command."""
    if name == "broker" and any(_has_password(address) for address in value):
        raise UserError(
            "--broker contains a password, and everybody may read a unit file; use --credentials instead"
        )
    if name == "data":
        value = _resolve_data(value)
    match value:
        case True:
            return [flag]
        case False:
            return []
        case Path():
            return [flag, str(value.absolute())]
        case list() | tuple():  # an option that may be repeated
            words: list[str] = []
            for one in value:
                words += [flag, str(one)]
            return words
        case _:
            return [flag, str(value)]


def _has_password(broker: str) -> bool:
    from covey.shared.mqtt.broker_url import BrokerUrl

    return BrokerUrl.parse(broker).password is not None


@app.command("policy")
def show_policy(
    policy: PolicyFile = None,
    limit: Limits = None,
    memory_limit: MemoryLimit = None,
    only_when: OnlyWhen = None,
    as_json: Json = False,
) -> None:
    """Print the policy that `agent start` enforces with the same options: what a coordinator may ask of this device."""
    effective = _policy(policy, limit, memory_limit, only_when)
    if as_json:
        print(effective.model_dump_json())
        return
    for key, field in type(effective).model_fields.items():
        value = getattr(effective, key)
        print(f"{key}: {json_text.dumps(value)}  # {field.description}")


def _policy(
    file: Path | None,
    limits: list[str] | None,
    memory_limit: str | None,
    only_when: list[str] | None,
) -> Policy:
    """The policy of the file, with the keys that options set. Raises UserError that names a wrong key or option."""
    from covey.agent.policy import Policy, memory_mb

    policy = Policy() if file is None else Policy.load(file)
    policy = policy.with_limits(limits or ())
    changes: dict[str, Any] = {}
    if memory_limit is not None:
        changes["memory_limit_mb"] = memory_mb(memory_limit)
    if only_when:
        changes["only_when"] = only_when
    if not changes:
        return policy
    return Policy.of({**policy.model_dump(mode="json"), **changes}, "--only-when or --memory-limit")


@app.command()
def check(
    data: Data,
    label: Annotated[
        str | None,
        typer.Option(
            "--label",
            "--target",
            help="the column of a table to predict",
            envvar="COVEY_LABEL",
        ),
    ] = None,
    scenario: Annotated[
        Path | None, typer.Option(help="scenario whose task to compare the data with")
    ] = None,
    propose: Annotated[
        bool,
        typer.Option(
            "--propose",
            help="print a scenario that fits the data; with --json, the description of the data that `coordinator init "
            "--from` reads: counts, and the values that occur in columns with few of them",
        ),
    ] = False,
    also: Annotated[
        list[str] | None,
        typer.Option(
            help="with --propose: data of another device of the same fleet; repeatable",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Inspect the data: print its contents, what the coordinator would receive, and errors (exit code 2)."""
    if propose:
        from covey.agent.data.check_report import show_proposal

        if scenario is not None:
            raise UserError("--propose makes a scenario: omit --scenario, or omit --propose")
        show_proposal([data, *(also or ())], label, as_json=as_json)
        return
    if also:
        raise UserError("--also needs --propose: check the data of each device by itself")
    from covey.agent.data.check_report import show

    ok = show(data, label, scenario, as_json=as_json)
    if not ok:
        raise typer.Exit(2)


@app.command()
def examples(
    out: Annotated[Path, typer.Option(help="the folder to make")] = Path("examples"),
) -> None:
    """Copy small real data sets, each divided among three devices: tables, and a folder of images. Needs no network."""
    from covey.shared.examples import copy_examples

    for data in copy_examples(out):
        print(data)


@app.command()
def bench(
    data: Data,
    *,
    label: Label = None,
    scenario: Annotated[
        Path | None,
        typer.Option(help="measure the task of this scenario  [default: one that fits the data]"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="a built-in model, such as lenet5  [default: the task's]"),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="epochs of a round to expect")] = 1,
    batch: Annotated[int, typer.Option(min=1, max=1 << 20, help="samples of a mini-batch")] = 10,
    threads: Threads = None,
    learner: LearnerOption = None,
    name: AgentId = None,
    state: StateFolder = None,
    as_json: Json = False,
) -> None:
    """Measure how long the work of a round takes on this device, for some seconds. Needs no broker.

    The result is kept with the agent's state and travels in the agent's status from its next start on; `coordinator
    status --json` shows it.
    """
    from covey.agent.device import bench_file, bench_report
    from covey.agent.learner_choice import learner_name
    from covey.shared.wire.messages import Benchmark

    agent = name or default_name()
    _check_name("--id", agent)
    job = {
        "job": "bench",
        "source": {"data": _resolve_data(data), "label": label},
        "scenario": None if scenario is None else str(scenario),
        "model": model,
        "batch": batch,
        "learner": learner_name(learner),
    }
    answer = asyncio.run(_first_job(job, threads or default_threads()))
    if "failure" in answer:
        raise UserError(answer.get("detail") or answer["failure"])
    result = Benchmark.model_validate(answer)
    file = bench_file.write(_state_folder(state, agent), result)
    if as_json:
        print(bench_report.as_json(result, epochs))
        return
    print(bench_report.as_text(result, epochs))
    print(f"kept in {file}: the agent's status has it from its next start on")


async def _first_job(job: dict[str, Any], threads: int) -> dict[str, Any]:
    """The answer of a new worker process."""
    from covey.agent.worker.pool import Pool

    async with Pool(1, threads=threads) as pool:
        return await pool.call(job)


@app.command()
@with_connection()
def fleet(
    scenario: ScenarioFile,
    *,
    run_dir: Annotated[
        Path, typer.Option(help="folder for the agents' state and partition.npz")
    ] = Path(),
    start: Annotated[
        Path | None,
        typer.Option(
            help="also write the initial weights to this .npz file, as `agent model` does, before the agents join"
        ),
    ] = None,
    data_root: DataRoot = None,
    connection: Connection,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Run the simulated agents of a scenario. Ends on SIGTERM and with the process that started it."""
    from covey.agent.device.display import print_json, show_fleet
    from covey.agent.fleet.fleet import host
    from covey.shared.consent import AllowedCode

    url = connection.url()
    allowed = AllowedCode.parse(allow)
    _quiet_links()
    observer = print_json if as_json else show_fleet
    asyncio.run(host(scenario, url, run_dir, data_root, observer, allowed, start=start))


@app.command()
def model(
    scenario: ScenarioFile,
    out: Annotated[
        Path, typer.Option(help="the .npz file to write: starts (k, d) float32, layout as JSON")
    ],
    allow: Allow = None,
) -> None:
    """Write the initial weights of a scenario, drawn from its seed."""
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
        Path, typer.Argument(help="models/cluster-0.safetensors of a finished run", exists=True)
    ],
    out: Annotated[Path, typer.Option(help="the .pt2 or .onnx file to write")],
    allow: Allow = None,
) -> None:
    """Write a cluster's model as a program that runs without Covey. It maps raw features to logits or values."""
    from covey.agent.training.export import export as written
    from covey.shared.consent import AllowedCode

    written(model, out, AllowedCode.parse(allow))


@app.command()
def predict(
    data: Annotated[
        Path, typer.Option(help="new samples: a table or an .npz file, with or without targets")
    ],
    *,
    model_dir: Annotated[
        Path | None,
        typer.Option(
            help="folder of `agent start --model-dir`: use the model in use",
            envvar="COVEY_MODEL_DIR",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="one model file, such as models/cluster-0.safetensors of a run", show_default=False
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(help="the column of a table that holds targets; it is left out"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="the file to write  [default: print]", show_default=False)
    ] = None,
    device: Device = None,
    learner: LearnerOption = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Predict the targets of new samples with the model in use. Needs no broker and no network.

    Prints a table with the columns row, prediction and, for classes, probability.
    """
    from covey.agent.learner_choice import learner_name
    from covey.agent.policy import DEFAULT, Rules
    from covey.agent.training.predict import as_csv, as_json_lines, model_in_use
    from covey.agent.training.predict import predict as predicted
    from covey.shared.consent import AllowedCode
    from covey.shared.files import write_atomically

    if model is None and model_dir is None:
        raise UserError(
            "no model: name the agent's folder with --model-dir, or a file with --model"
        )
    file = model
    if file is None and model_dir is not None:
        file = model_in_use(model_dir)
    assert file is not None  # noqa: S101 - one of the two was given
    policy = DEFAULT if device is None else DEFAULT.with_limits([f"device={device}"])
    rules = Rules(policy, AllowedCode.parse(allow), learner_name(learner))
    predictions = predicted(file, data, label, rules)
    text = as_json_lines(predictions) if as_json else as_csv(predictions)
    if out is None:
        print(text, end="")
        return
    write_atomically(out, text.encode())


@app.command()
def superclasses(
    scenario: ScenarioFile,
    models: Annotated[
        Path, typer.Option(help="folder with cluster-0.safetensors, cluster-1.safetensors, ...")
    ],
    data_root: DataRoot = None,
    scaling: Annotated[
        str | None,
        typer.Option(
            help="JSON with the run's mean and std per channel, if its standardisation is federated"
        ),
    ] = None,
    allow: Allow = None,
) -> None:
    """Test models on the test data of each super-class of a simulated fleet. Prints JSON: a row of accuracies per model."""
    from covey.agent.training.superclasses import accuracies
    from covey.shared.consent import AllowedCode
    from covey.shared.scenario.load import load_without_files

    known_scaling = None if scaling is None else _scaling(scaling)
    plan = load_without_files(scenario)
    allowed = AllowedCode.parse(allow)
    table = accuracies(plan, models, data_root, known_scaling, allowed)
    print(json_text.dumps(table))


def _scaling(text: str) -> dict[str, list[float]]:
    from pydantic import ValidationError

    from covey.shared.scenario.task import Standardise

    try:
        return Standardise.model_validate_json(text).model_dump(mode="json")
    except ValidationError:
        raise UserError(
            f'--scaling {text}: expected JSON such as {{"mean": [0.5], "std": [0.25]}}'
        ) from None


def _keep_options(
    folder: Path | None,
    margin: float | None,
    previous: int | None,
    hook: str | None,
    hook_seconds: float | None,
) -> KeepOptions | None:
    """How the device keeps models; None without `--model-dir`. Raises UserError for options that need it."""
    given = {
        "--accept-margin": margin,
        "--keep-models": previous,
        "--on-model": hook,
        "--on-model-seconds": hook_seconds,
    }
    if folder is None:
        idle = [option for option, value in given.items() if value is not None]
        if idle:
            names = " and ".join(idle)
            raise UserError(f"{names} without --model-dir has no effect; add --model-dir")
        return None
    from covey.agent.device.hook import parse_hook
    from covey.agent.device.keeper import KeepOptions

    options = KeepOptions(folder)
    if margin is not None:
        options = replace(options, margin=margin)
    if previous is not None:
        options = replace(options, previous=previous)
    if hook is not None:
        options = replace(options, hook=parse_hook(hook))
    if hook_seconds is not None:
        options = replace(options, hook_limit_s=hook_seconds)
    return options


async def _start(
    identity: Identity,
    urls: Sequence[BrokerUrl],
    workers: PoolOptions,
    observer: DeviceObserver,
    rules: Rules,
    keep: KeepOptions | None,
) -> None:
    from covey.agent.device.service import Agent
    from covey.agent.worker.pool import Pool, check_device
    from covey.shared.mqtt.mqtt_link import MqttLink

    loop = asyncio.get_running_loop()
    pool = Pool(1, keep_warm_s=workers.keep_warm_s, threads=workers.threads)
    agent = Agent(identity, pool, observer=observer, rules=rules, keep=keep)
    if hasattr(signal, "SIGUSR1"):
        loop.add_signal_handler(signal.SIGUSR1, agent.show_story)
    async with Pool(1) as short_lived:  # its worker ends before the agent waits for orders
        await check_device(short_lived, rules.policy.device or "cpu", rules)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.stop)
    async with pool, MqttLink(urls, client_id=agent.client_id, will=agent.will) as link:
        try:
            await agent.run(link)
        except Exception:
            agent.show_story()
            raise


def _agent_id(name: str | None, credentials: Path | None, brokers: Sequence[str]) -> str:
    """The id that was given, or the default. Raises UserError if the credentials belong to somebody else."""
    agent = name or default_name()
    if credentials is not None:
        from covey.shared.mqtt.credentials import check_agent

        check_agent(credentials, agent, brokers)
    return agent


def _check_name(option: str, name: str) -> None:
    from covey.shared.wire.topics import is_name

    if not is_name(name):
        raise UserError(
            f"{option} {name!r}: invalid name; use 1-64 letters, digits, '.', '_' or '-'"
        )


def _state_folder(given: Path | None, agent: str) -> Path:
    """Where an agent keeps its state."""
    return given or Path("~/.local/state/covey").expanduser() / agent


@dataclass(frozen=True)
class PoolOptions:
    """How the training process of a device runs."""

    keep_warm_s: float  # seconds that it stays alive after work
    threads: int  # of torch


def default_threads() -> int:
    """The cores that this process may use, but one: the device has other work, too."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) - 1)


def default_name() -> str:
    """The host's name as an agent's id."""
    host = socket.gethostname()
    valid = re.sub(r"[^A-Za-z0-9._-]+", "-", host).strip("-._")
    return valid[:64] or "agent"


def _resolve_data(data: str) -> str:
    """The data for any working directory. Raises UserError now where the path does not exist.

    A worker judges the contents later.
    """
    if Path(data).exists():
        return str(Path(data).resolve())
    if plugins.data_code(data) is not None:
        return data
    raise UserError(
        f"--data {data}: no such file or folder; expected a table, an .npz file, a folder, module:function, "
        "or a data source that an installed package adds"
    )


def _quiet_links() -> None:
    logging.getLogger("asyncio").setLevel(logging.ERROR)


if __name__ == "__main__":
    main()
