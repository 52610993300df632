"""The command `coordinator`. Each command imports what it needs when it runs, so that `--help` is quick."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.coordinator.serve.signals import sigterm_as_ctrl_c
from covey.shared import json_text
from covey.shared.cli import (
    LOCAL_BROKER,
    Allow,
    Commands,
    Connection,
    DataRoot,
    Json,
    ProgramFormat,
    broker_option,
    failed,
    program,
    stopped,
    with_connection,
)
from covey.shared.consent import AllowedCode
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import DEFAULT_BROKER
from covey.shared.printable import printable_lines
from covey.shared.terminal import Terminal

if TYPE_CHECKING:
    from covey.coordinator.commands.promote import Promoted


class CoordinatorCommands(Commands):
    """The commands of this program. SIGTERM stops each of them as Ctrl-C does."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was typed."""
        with sigterm_as_ctrl_c():
            return super().invoke(ctx)


app = program(
    "coordinator",
    "Run federated training: invite agents, cluster and aggregate their models, keep checkpoints "
    "and records.",
    CoordinatorCommands,
)
out = Terminal()
if not out.is_terminal:
    out.width = 120  # a pipe or a file has no width of its own

ScenarioFile = Annotated[
    Path, typer.Argument(help="the scenario file", exists=True, dir_okay=False)
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="override a key, e.g. strategy.name=fedavg; repeatable"),
]
BROKER_OF_A_RUN = broker_option(
    f"the scenario's; else one started for a simulated fleet, {DEFAULT_BROKER} for real agents"
)
Embedded = Annotated[
    bool,
    typer.Option(
        "--embedded", help="start the embedded broker, even if another is installed or named"
    ),
]
AuditKey = Annotated[
    Path | None,
    typer.Option(
        help="file with a secret key; signs the audit log with it (HMAC-SHA256)",
        envvar="COVEY_AUDIT_KEY",
        show_default=False,
    ),
]
InProcess = Annotated[
    bool,
    typer.Option(
        "--in-process",
        help="run without a broker: identical results, faster (no faults, no timeline)",
    ),
]

Track = Annotated[
    list[str] | None,
    typer.Option(
        metavar="<tracker>",
        help="also log to an experiment tracker: mlflow, tensorboard or wandb; repeatable",
        show_default=False,
    ),
]


def resume_command(arguments: Sequence[str]) -> str:
    """The command that continues a stopped run: as typed, plus --resume, with stars for a password."""
    shown = [
        re.sub(r"((?:mqtt|ws)s?://[^:/@]*:).*@", r"\1***@", argument) for argument in arguments
    ]
    if "--resume" not in shown:
        shown.append("--resume")
    return shlex.join(["coordinator", *shown])


# An option that was typed leaves these others without effect, and why.
BROKER_OPTIONS = ("broker", "ca", "cert", "key", "insecure", "credentials")
CONTRADICTIONS = (
    ("in_process", "needs no broker", (*BROKER_OPTIONS, "embedded", "metrics")),
    ("executor", "runs without a broker", (*BROKER_OPTIONS, "embedded")),
    ("executor", "has no notices of the runs elsewhere", ("track",)),
    ("embedded", "starts its own broker", BROKER_OPTIONS),
)


def _refuse_contradictions(context: typer.Context) -> None:
    """Raise a UserError if one typed option leaves another without effect. Environment variables are mere defaults."""
    typed = set()
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            typed.add(name)
    for chosen, reason, idle in CONTRADICTIONS:
        useless = [f"--{name}" for name in idle if name in typed]
        if chosen in typed and useless:
            option = "--" + chosen.replace("_", "-")
            others = " and ".join(useless)
            raise UserError(f"{option} {reason}: omit {others}, or omit {option}")


def _complain(text: str) -> None:
    """A remark that is no part of the output."""
    Terminal(stderr=True).print(text, highlight=False, soft_wrap=True)


def _print(text: str) -> None:
    """One line of the result, however long: a program may read it."""
    out.print(text, highlight=False, soft_wrap=True)


@app.command()
@with_connection(BROKER_OF_A_RUN)
def run(
    context: typer.Context,
    scenario: ScenarioFile,
    *,
    folder: Annotated[
        Path | None, typer.Option("--out", help="the run's folder  [default: runs/<name>]")
    ] = None,
    connection: Connection,
    embedded: Embedded = False,
    overrides: Set = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="continue from the checkpoint in the folder")
    ] = False,
    origin: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="folder of a finished run: begin with its models and clusters, for more rounds or with other settings",
            show_default=False,
        ),
    ] = None,
    in_process: InProcess = False,
    data_root: DataRoot = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="serve Prometheus metrics at [HOST:]PORT, path /metrics", show_default=False
        ),
    ] = None,
    audit_key: AuditKey = None,
    track: Track = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Run a scenario to its end, and write models, records and results to a folder.

    A scenario with a fleet section starts its simulated agents. Without one, the run waits for
    agents that `agent start` runs. Ctrl-C stops the run; --resume continues it.
    """
    from covey.coordinator.commands import run as command
    from covey.coordinator.report.progress import ProgressBar
    from covey.coordinator.report.tables import (
        newcomers,
        nobody_evaluated,
        participation,
        regression,
        results,
        unevaluated,
    )
    from covey.coordinator.report.text_table import (
        json_line,
        json_notice,
        results_table,
        show_words,
    )
    from covey.coordinator.run.notices import Observer
    from covey.coordinator.run.options import Options
    from covey.coordinator.simulate import driver
    from covey.coordinator.track.tracking import check_trackers, tracking
    from covey.shared.scenario.load import load

    _refuse_contradictions(context)
    trackers = track or []
    check_trackers(trackers)
    metrics_address = None
    if metrics is not None:
        from covey.coordinator.serve.prometheus import address

        metrics_address = address(metrics)
    loaded = load(scenario, overrides or [])
    options = Options(
        folder or Path("runs") / loaded.name,
        resume,
        connection.broker,
        embedded,
        data_root,
        connection.tls,
        metrics_address,
        audit_key,
        origin,
        AllowedCode.parse(allow),
    )
    observing: AbstractContextManager[Observer]
    observing = nullcontext(json_notice) if as_json else ProgressBar(out, loaded.rounds.count)
    result = None
    with (
        suppress(KeyboardInterrupt),
        tracking(trackers, loaded, options.folder, _complain) as tracked,
        observing as shown,
    ):
        observer = tracked.before(shown)
        if in_process:
            result = driver.alone(loaded, options, observer)
        else:
            result = asyncio.run(command.run(loaded, options, observer))
        if result is not None:
            tracked.finished(result)
    if result is None:
        if not options.folder.exists():
            raise stopped("nothing was started yet")
        raise stopped(f"to continue: {resume_command(sys.argv[1:])}")
    if as_json:
        json_line({"event": "result", **result})
    else:
        show_words(out, results([result]), results_table)
        for remark in (regression(result), participation(result), newcomers(result)):
            if remark:
                _print(remark)
        if missing := unevaluated(result):
            _print(missing)
        _print(f"models, records and the result are in {options.folder}")
    if problem := nobody_evaluated(result):
        raise failed(problem)


@app.command()
@with_connection(BROKER_OF_A_RUN)
def compare(
    context: typer.Context,
    scenario: ScenarioFile,
    *,
    folder: Annotated[
        Path | None, typer.Option("--out", help="the comparison's folder  [default: runs/<name>]")
    ] = None,
    cells: Annotated[
        list[str] | None,
        typer.Option(
            help="run these cells only, e.g. fedavg/1,fedclust; repeatable", show_default=False
        ),
    ] = None,
    known: Annotated[
        list[Path] | None,
        typer.Option(
            help="compare.json of an earlier comparison, whose cells count as finished; repeatable",
            show_default=False,
        ),
    ] = None,
    run: Annotated[
        bool,
        typer.Option(
            "--run/--no-run",
            help="run the missing cells, or only print the finished ones (written only if --out is given)",
        ),
    ] = True,
    in_process: InProcess = False,
    executor: Annotated[
        str,
        typer.Option(
            metavar="<address>",
            help="run the cells on a Dask cluster, dask://host:port of its scheduler, instead of on this machine; "
            "without a broker, as --in-process",
            show_default=False,
        ),
    ] = "",
    html: Annotated[
        bool,
        typer.Option(
            "--html", help="also write a page with tables and curves, report.html, to the folder"
        ),
    ] = False,
    track: Track = None,
    connection: Connection,
    embedded: Embedded = False,
    overrides: Set = None,
    data_root: DataRoot = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Run every method of a scenario's compare section, and print tables of mean results.

    A cell is one run: one method, one partition, one seed. Finished cells are kept, interrupted
    cells resume: type the same command to continue. --known adds cells that were run elsewhere.
    The tables are also written to the comparison's folder; with --no-run, only if --out names one.
    """
    from covey.coordinator.commands import compare as command
    from covey.coordinator.run.options import Options
    from covey.shared.scenario.load import load

    _refuse_contradictions(context)
    loaded = load(scenario, overrides or [])
    options = Options(
        folder or Path("runs") / loaded.name,
        False,
        connection.broker,
        embedded,
        data_root,
        connection.tls,
        allowed=AllowedCode.parse(allow),
    )
    if executor and not executor.startswith("dask://"):
        raise UserError(f"--executor {executor}: expected dask://host:port of a Dask scheduler")
    request = command.Request(
        cells or [],
        known or [],
        run=run,
        in_process=in_process,
        executor=executor,
        write=run or folder is not None,
        html=html,
        track=track or [],
    )
    done = False
    with suppress(KeyboardInterrupt):
        done = command.compare(loaded, options, request, None if as_json else out)
    if not done:
        raise stopped("the same command continues")


@app.command()
def init(
    sources: Annotated[
        list[str],
        typer.Option(
            "--from",
            help="data of one device, as for `agent start --data`, or a .json file that `agent check --propose --json` "
            "wrote on a device; repeatable",
        ),
    ],
    target: Annotated[
        str | None,
        typer.Option(
            help="the column of a table to predict  [default: a usual name, else the last]",
            show_default=False,
        ),
    ] = None,
    agents: Annotated[
        int | None,
        typer.Option(
            min=1, help="number of devices  [default: one per --from]", show_default=False
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="the scenario's name  [default: after the data]", show_default=False),
    ] = None,
) -> None:
    """Propose a scenario for your own data, with the reason of each choice next to it.

    Prints YAML: `coordinator init --from pi-1.csv --from pi-2.csv > scenario.yaml`. Differences between the devices
    are named in the file and on stderr.
    """
    from covey.coordinator.commands import init as command

    proposal = command.init(command.Request(sources, target, agents, name))
    print(proposal.to_yaml(), end="")
    for remark in proposal.remarks():
        typer.echo(printable_lines(remark), err=True)


@app.command()
def validate(
    scenario: ScenarioFile, overrides: Set = None, allow: Allow = None, as_json: Json = False
) -> None:
    """Check a scenario and print it with all defaults; unknown keys are reported with their lines."""
    from covey.shared.scenario.code import check_model_name
    from covey.shared.scenario.describe import dump
    from covey.shared.scenario.load import load

    loaded = load(scenario, overrides or [])
    check_model_name(loaded, AllowedCode.parse(allow))
    if as_json:
        print(json_text.dumps(loaded.model_dump(mode="json")))
    else:
        print(dump(loaded), end="")


@app.command()
def plan(
    scenario: ScenarioFile, overrides: Set = None, allow: Allow = None, as_json: Json = False
) -> None:
    """Estimate what a run costs before it starts: traffic per agent and in total, memory, disk."""
    import tempfile

    from covey.coordinator.plan.plan import plan as planned
    from covey.coordinator.processes import launch
    from covey.shared.files import write_atomically
    from covey.shared.scenario.code import check_code
    from covey.shared.scenario.describe import dump
    from covey.shared.scenario.load import load

    loaded = load(scenario, overrides or [])
    allowed = AllowedCode.parse(allow)
    check_code(loaded, allowed)
    with tempfile.TemporaryDirectory() as folder:
        write_atomically(Path(folder) / "scenario.yaml", dump(loaded).encode())
        setup = asyncio.run(launch.initial(Path(folder), loaded, allowed))
    figures = planned(loaded, setup)
    if as_json:
        print(json_text.dumps(figures.to_json()))
        return
    from rich.table import Table

    table = Table(title=f"{loaded.name}: {loaded.strategy.name}", show_header=False)
    for label, text in figures.rows():
        table.add_row(label, text)
    out.print(table)


@app.command()
@with_connection()
def status(
    folder: Annotated[
        Path | None,
        typer.Argument(help="a run's folder  [default: ask the broker about a running fleet]"),
    ] = None,
    *,
    connection: Connection,
    federation: Annotated[str, typer.Option(help="the federation to show")] = "default",
    watch: Annotated[
        bool, typer.Option("--watch", help="show rounds and figures until the run is over")
    ] = False,
    as_json: Json = False,
) -> None:
    """List a run's agents with cluster, last contact and samples, and why an agent is excluded.

    With --watch, show the rounds instead, as they end: figures by cluster, reports, faults, and the time that is left.
    """
    if watch:
        _watch(folder, connection, federation, as_json=as_json)
        return
    from covey.coordinator.commands import status as command
    from covey.coordinator.report.roster import roster_table, status_lines
    from covey.coordinator.report.text_table import json_line, show

    if folder is not None:
        seen = command.from_folder(folder)
    else:
        seen = asyncio.run(command.from_broker(connection.url(), federation))
    if as_json:
        json_line(seen)
        return
    for line in status_lines(seen):
        _print(line)
    roster = seen["roster"]
    show(out, roster_table(roster))
    counts = [f"{reason}: {count}" for reason, count in roster["refusals"].items()]
    _print(f"refused messages: {', '.join(counts) or 'none'}")


def _watch(folder: Path | None, connection: Connection, federation: str, *, as_json: bool) -> None:
    from covey.coordinator.commands import watch as command
    from covey.coordinator.report.text_table import json_line

    url = None
    if connection.broker is not None or folder is None:
        url = connection.url()
    with suppress(KeyboardInterrupt), command.opened(folder, url, federation) as hub:
        command.watch(hub, out, json_line if as_json else None)


@app.command()
@with_connection(broker_option("none with RUN, else " + DEFAULT_BROKER))
def dashboard(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="a run's folder  [default: ask the broker]"),
    ] = None,
    *,
    connection: Connection,
    federation: Annotated[str, typer.Option(help="the federation to show")] = "default",
    port: Annotated[int, typer.Option(help="port on 127.0.0.1; 0 takes any free one")] = 8470,
) -> None:
    """Show a run in a browser while it happens: rounds, figures by cluster, agents, faults.

    The page is served on this machine only and needs no internet. It reads the run's folder, the broker, or both.
    With the coordinator's credentials it has buttons: pause, resume, stop, forget.
    """
    from covey.coordinator.commands.dashboard import Request, serve
    from covey.shared.mqtt.credentials import read

    url = None
    if connection.broker is not None or folder is None:
        url = connection.url()
    role = read(connection.credentials).role if connection.credentials is not None else ""
    with suppress(KeyboardInterrupt):
        serve(Request(folder, url, federation, role, port), _print)


@app.command()
def audit(
    folder: Annotated[Path, typer.Argument(help="a run's folder")],
    key: Annotated[
        Path | None,
        typer.Option(
            help="file with the key that the log was signed with",
            envvar="COVEY_AUDIT_KEY",
            show_default=False,
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            help="NUMBER:HASH that an earlier audit printed; the log must still contain that line"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a run's audit log line by line. If it was changed, print the first wrong line and exit with code 1."""
    from covey.coordinator.report.audit import audit_lines, audit_table
    from covey.coordinator.report.text_table import json_line, show
    from covey.coordinator.run import audit_trail
    from covey.shared.audit import read_key

    secret = read_key(key) if key is not None else None
    known = audit_trail.parse_head(head) if head is not None else None
    found = audit_trail.summary(audit_trail.check(folder, key=secret, head=known))
    if as_json:
        json_line(found)
    else:
        for line in audit_lines(found):
            _print(line)
        show(out, audit_table(found))
    if not found["whole"]:
        raise typer.Exit(1)


@app.command()
def story(
    agent: Annotated[str, typer.Argument(help="the agent's id, as `coordinator status` shows it")],
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="a run's folder")],
    as_json: Json = False,
) -> None:
    """Print what happened to one agent in a run, in order: invitations, reports, refusals, quarantine."""
    from covey.coordinator.commands.story import story_of
    from covey.coordinator.report.text_table import json_line

    found = story_of(agent, folder)
    if as_json:
        json_line(found.to_json())
        return
    for sentence in found.sentences:
        _print(f"{sentence.time}  {sentence.text}")


AgentId = Annotated[
    str, typer.Argument(help="the agent's id, as `coordinator status` shows it", metavar="AGENT")
]
RunFederation = Annotated[str, typer.Option(help="the run's federation")]


def _send(connection: Connection, federation: str, command: str, agent: str | None = None) -> bool:
    """Send a command to the running coordinator; False if the run was in that state already."""
    from covey.coordinator.commands.control import send
    from covey.shared.wire.messages import Control

    control = Control.model_validate({"command": command, "agent": agent})
    return asyncio.run(send(connection.url(), federation, control))


@app.command()
@with_connection(LOCAL_BROKER)
def pause(*, connection: Connection, federation: RunFederation = "default") -> None:
    """Pause the running coordinator: the open phase ends, and no new one starts.

    A pause lasts until `coordinator resume`, also if the coordinator is killed and continued with --resume.
    """
    is_new = _send(connection, federation, "pause")
    _print("paused; `coordinator resume` continues" if is_new else "it is paused already")


@app.command()
@with_connection(LOCAL_BROKER)
def resume(*, connection: Connection, federation: RunFederation = "default") -> None:
    """Continue after `coordinator pause`."""
    is_new = _send(connection, federation, "resume")
    _print("resumed" if is_new else "it is not paused")


@app.command()
@with_connection(LOCAL_BROKER)
def stop(*, connection: Connection, federation: RunFederation = "default") -> None:
    """Stop the running coordinator, as Ctrl-C does; `coordinator run --resume` continues the run."""
    _send(connection, federation, "stop")
    _print("stopped; `coordinator run ... --resume` continues the run")


@app.command()
@with_connection(LOCAL_BROKER)
def release(
    agent: AgentId, *, connection: Connection, federation: RunFederation = "default"
) -> None:
    """Release an agent from quarantine, so that it is invited again.

    Agents whose reports were refused in several steps are in quarantine.
    """
    _send(connection, federation, "release", agent)
    _print(f"{agent} is out of quarantine; it is invited again")


@app.command()
@with_connection(LOCAL_BROKER)
def forget(
    agent: AgentId, *, connection: Connection, federation: RunFederation = "default"
) -> None:
    """Remove an agent from the run: from the roster, its cluster and all future phases.

    Its retained messages are cleared. An agent that connects again later is a newcomer; to keep it out, revoke its
    credentials with `broker expel`.
    """
    _send(connection, federation, "forget", agent)
    _print(f"{agent} is forgotten; if it connects again, it is a newcomer")


RunFolder = Annotated[Path, typer.Argument(help="the folder of the run", metavar="RUN")]
DeviceFederation = Annotated[
    str | None,
    typer.Option(help="the devices' federation  [default: the run's]", show_default=False),
]


@app.command()
@with_connection(LOCAL_BROKER)
def promote(
    folder: RunFolder,
    *,
    number: Annotated[
        int | None,
        typer.Option("--round", help="publish the models of this round  [default: the last one]"),
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="publish the models with the best evaluation of the run")
    ] = False,
    connection: Connection,
    federation: DeviceFederation = None,
    as_json: Json = False,
) -> None:
    """Publish a version of a run's models for use on the devices.

    Devices that run `agent start --model-dir` fetch the model of their cluster, compare it with the one in use, and take
    it over unless it is worse. Those that are offline do so when they connect.
    """
    from covey.coordinator.commands import promote as command

    version = command.chosen(folder, number, best=best)
    sent = command.send(folder, version, "promote", connection.url(), federation)
    _show_promoted(asyncio.run(sent), as_json=as_json)


@app.command()
@with_connection(LOCAL_BROKER)
def rollback(
    folder: RunFolder,
    *,
    connection: Connection,
    federation: DeviceFederation = None,
    as_json: Json = False,
) -> None:
    """Publish the version of a run's models that was published before the present one.

    Repeat it to go back further. deployments.jsonl in the run's folder lists what was published.
    """
    from covey.coordinator.commands import promote as command

    version = command.before(folder)
    sent = command.send(folder, version, "rollback", connection.url(), federation)
    _show_promoted(asyncio.run(sent), as_json=as_json)


def _show_promoted(promoted: Promoted, *, as_json: bool) -> None:
    if as_json:
        print(json_text.dumps(promoted.to_json()))
    else:
        _print(promoted.sentence)


@app.command()
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(help="folders of finished runs, or the folder of one comparison"),
    ],
    html: Annotated[
        Path | None,
        typer.Option(
            help="write the page to this file  [default: report.html in the folder, if it is a single one]",
            show_default=False,
        ),
    ] = None,
    svg: Annotated[
        list[str] | None,
        typer.Option(
            help="also write one picture of that page: NAME=FILE, e.g. accuracy=a.svg; repeatable",
            show_default=False,
        ),
    ] = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Print the results of finished runs in one table, and write a page with curves, clusters and agents.

    A comparison may be unfinished: its report shows the cells that are there. With --json, a page is written only if
    --html names its file.
    """
    from covey.coordinator.commands import report as command

    request = command.Request(folders, html, svg or [], as_json)
    command.report(request, out)


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="the folder of a finished run")],
    to: Annotated[
        Path | None,
        typer.Option("--out", help="output folder  [default: <folder>/export]", show_default=False),
    ] = None,
    kind: Annotated[
        ProgramFormat, typer.Option("--format", help="pt2 for PyTorch, or onnx")
    ] = "pt2",
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Write each cluster's model as a program that runs without Covey.

    The input is a batch of features as they are in the data. The output is logits, or values for
    a regression task.
    """
    from covey.coordinator.processes import launch
    from covey.coordinator.report.text_table import json_line
    from covey.coordinator.run.records import finished
    from covey.shared.model_files import model_files

    allowed = AllowedCode.parse(allow)
    finished(folder)
    models = model_files(folder / "models")
    if not models:
        raise UserError(
            f"{folder}: this run has no models to export; its method keeps none on the server"
        )
    for model in models:
        written = (to or folder / "export") / f"{model.stem}.{kind}"
        with nullcontext() if as_json else out.status(f"{model.name}: loading torch"):
            asyncio.run(launch.exported(model, written, folder / "export.log", allowed))
        if as_json:
            cluster = model.stem.removeprefix("cluster-")
            json_line({"cluster": cluster, "file": str(written)})
        else:
            _print(str(written))


@app.command()
def methods(allow: Allow = None, as_json: Json = False) -> None:
    """List the training methods with their hyper-parameters and defaults.

    A method of another installed package is imported, and its hyper-parameters are listed, only if --allow names it.
    """
    from covey.shared.scenario.describe import methods as described
    from covey.shared.scenario.describe import methods_to_allow

    rows = described()
    if as_json:
        print(json_text.dumps(rows))
        return
    for row in rows:
        _print(f"{row['name']}  {row['summary']} ({row['source']})")
        for parameter in row["parameters"]:
            default = json_text.dumps(parameter["default"])
            text = f"    {parameter['name']}: {parameter['type']} = {default}"
            if parameter["description"]:
                text += f"   {parameter['description']}"
            out.print(text, highlight=False)
    for name in methods_to_allow():
        _print(
            f"{name}  a method of an installed package; --allow {name} lists its hyper-parameters"
        )


@app.command()
def schema() -> None:
    """Print the JSON schema of a scenario, for editors and other tools."""
    from covey.shared.scenario.describe import schema as described

    print(json_text.dumps(described(), indent=1))


def main() -> None:
    """The entry point of the `coordinator` command."""
    app()


if __name__ == "__main__":
    main()
