"""The command `coordinator`."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NoReturn, ParamSpec, TypeVar

import typer

from covey.coordinator.serve.signals import sigterm_as_ctrl_c
from covey.shared import json_text
from covey.shared.cli import ADDRESS, Allow, Ca, Cert, Credentials, Insecure, Key, ProgramFormat
from covey.shared.consent import AllowedCode
from covey.shared.errors import UserError, os_errors_as_user_errors
from covey.shared.logs import log_to_stderr
from covey.shared.mqtt.broker_url import Tls
from covey.shared.terminal import Terminal

P = ParamSpec("P")
R = TypeVar("R")

main = typer.Typer(
    name="coordinator",
    help="Owns a run: who takes part, when a round closes, clustering, aggregation, checkpoints, records.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # a bracket in a help text is a bracket
)
out, err = Terminal(), Terminal(stderr=True)
if not out.is_terminal:
    out.width = 120  # a pipe or a file has no width of its own

ScenarioFile = Annotated[
    Path, typer.Argument(help="the scenario file", exists=True, dir_okay=False)
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="override a key, e.g. strategy.name=fedavg; repeatable"),
]
Json = Annotated[bool, typer.Option("--json", help="print JSON for programs")]
Broker = Annotated[
    str | None, typer.Option(help=ADDRESS, envvar="COVEY_BROKER", show_default=False)
]
Embedded = Annotated[
    bool,
    typer.Option("--embedded", help="start the embedded broker, whatever else is here or named"),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(help="where named data sets lie", envvar="COVEY_DATA_ROOT", show_default=False),
]
AuditKey = Annotated[
    Path | None,
    typer.Option(
        help="file with a secret key: the audit log is signed with it (HMAC-SHA256)",
        envvar="COVEY_AUDIT_KEY",
        show_default=False,
    ),
]
InProcess = Annotated[
    bool,
    typer.Option(
        "--in-process", help="without a broker: the same bytes, sooner (no faults, no timeline)"
    ),
]


def mended(function: Callable[P, R]) -> Callable[P, R]:
    """Print a user's mistake as one message and end with exit code 2, without a traceback; with 130 when stopped."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        log_to_stderr()
        try:
            with os_errors_as_user_errors(), sigterm_as_ctrl_c():
                return function(*args, **kwargs)
        except UserError as error:
            _fail(str(error))
        except KeyboardInterrupt:
            _stopped()

    return call


def _stopped(text: str = "") -> NoReturn:
    err.print(
        "; ".join(filter(None, ["stopped", text])), highlight=False, markup=False, soft_wrap=True
    )
    raise typer.Exit(130)


def _fail(text: str) -> NoReturn:
    err.print(f"error: {text}", style="red", highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(2)


def going_on(arguments: Sequence[str]) -> str:
    """The line that goes on where a run was stopped: as it was typed, with --resume, and stars for a password."""
    shown = [re.sub(r"(mqtts?://[^:/@]*:).*@", r"\1***@", argument) for argument in arguments]
    return shlex.join(["coordinator", *shown, *([] if "--resume" in shown else ["--resume"])])


TLS = ("ca", "cert", "key", "insecure")


def _refuse_contradictions(context: typer.Context) -> None:
    """UserError where an option was typed that another one leaves without effect. The environment's are mere defaults."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    typed = {
        name
        for name, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    }
    for chosen, does, idle in (
        ("in_process", "needs no broker", ("broker", *TLS, "credentials", "embedded", "metrics")),
        ("embedded", "starts a broker of its own", ("broker", *TLS, "credentials")),
    ):
        both = [f"--{name}" for name in idle if name in typed]
        if chosen in typed and both:
            option = "--" + chosen.replace("_", "-")
            raise UserError(f"{option} {does}: leave out {' and '.join(both)}, or {option}")


@main.command()
@mended
def run(
    context: typer.Context,
    scenario: ScenarioFile,
    folder: Annotated[
        Path | None, typer.Option("--out", help="the run's folder  [default: runs/<name>]")
    ] = None,
    broker: Broker = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    insecure: Insecure = False,
    credentials: Credentials = None,
    embedded: Embedded = False,
    overrides: Set = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on from the folder's checkpoint")
    ] = False,
    in_process: InProcess = False,
    data_root: DataRoot = None,
    metrics: Annotated[
        str | None,
        typer.Option(help="answer Prometheus at [HOST:]PORT, /metrics", show_default=False),
    ] = None,
    audit_key: AuditKey = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Run a scenario to its end and leave models, records and results in a folder.

    With a fleet section the simulated agents are started here; without one it waits for `agent start`.
    Ctrl-C stops cleanly: the run goes on with --resume.
    """
    from covey.coordinator.commands import run as command
    from covey.coordinator.report import display
    from covey.coordinator.run.options import Options
    from covey.coordinator.simulate import driver
    from covey.shared.scenario.load import load

    _refuse_contradictions(context)
    scraped = None
    if metrics is not None:
        from covey.coordinator.serve.prometheus import address

        scraped = address(metrics)
    loaded = load(scenario, overrides or [])
    options = Options(
        folder or Path("runs") / loaded.name,
        resume,
        broker,
        embedded,
        data_root,
        Tls(ca, cert, key, insecure),
        scraped,
        audit_key,
        AllowedCode.parse(allow),
    )
    result = None
    with (
        suppress(KeyboardInterrupt),
        nullcontext(display.json_line)
        if as_json
        else display.Progressing(out, loaded.rounds.count) as watch,
    ):
        if in_process:
            result = driver.alone(loaded, options, watch)
        else:
            result = asyncio.run(command.run(loaded, options, watch))
    if result is None:
        if not options.folder.exists():
            _stopped("nothing was begun")
        _stopped(f"go on with: {going_on(sys.argv[1:])}")
    if as_json:
        display.json_line({"event": "result", **result})
        return
    display.show(out, display.results_table([result]))
    for remark in filter(None, (display.participation(result), display.newcomers(result))):
        out.print(remark, highlight=False, soft_wrap=True)
    out.print(
        f"models, records and the result are in {options.folder}", highlight=False, soft_wrap=True
    )


@main.command()
@mended
def compare(
    context: typer.Context,
    scenario: ScenarioFile,
    folder: Annotated[
        Path | None, typer.Option("--out", help="the comparison's folder  [default: runs/<name>]")
    ] = None,
    cells: Annotated[
        list[str] | None,
        typer.Option(help="run only these, e.g. fedavg/1,fedclust; repeatable", show_default=False),
    ] = None,
    known: Annotated[
        list[Path] | None,
        typer.Option(
            help="compare.json of an earlier comparison: its cells are finished; repeatable",
            show_default=False,
        ),
    ] = None,
    run: Annotated[
        bool,
        typer.Option(
            "--run/--no-run",
            help="run what is missing, or only print what is there (and write it where --out says)",
        ),
    ] = True,
    in_process: InProcess = False,
    broker: Broker = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    insecure: Insecure = False,
    credentials: Credentials = None,
    embedded: Embedded = False,
    overrides: Set = None,
    data_root: DataRoot = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Run every method of the scenario's compare section on every partition and seed, and print tables of means.

    Finished cells are kept and interrupted ones resumed: the same command goes on where it was stopped. With --known
    also those count that were run elsewhere. The tables are also written to the comparison's folder; with --no-run only
    where --out names one.
    """
    from covey.coordinator.commands import compare as compare_command
    from covey.coordinator.run.options import Options
    from covey.shared.scenario.load import load

    _refuse_contradictions(context)
    loaded = load(scenario, overrides or [])
    options = Options(
        folder or Path("runs") / loaded.name,
        False,
        broker,
        embedded,
        data_root,
        Tls(ca, cert, key, insecure),
        allowed=AllowedCode.parse(allow),
    )

    wanted = compare_command.Wanted(
        cells or [], known or [], run=run, in_process=in_process, write=run or folder is not None
    )
    done = False
    with suppress(KeyboardInterrupt):
        done = compare_command.compare(loaded, options, wanted, None if as_json else out)
    if not done:
        _stopped("the same command goes on from here")


@main.command()
@mended
def validate(scenario: ScenarioFile, overrides: Set = None, as_json: Json = False) -> None:
    """Check a scenario and print it with every default spelled out; a wrong key is named with its line."""
    from covey.shared.scenario.describe import dump
    from covey.shared.scenario.load import load

    loaded = load(scenario, overrides or [])
    print(
        json_text.dumps(loaded.model_dump(mode="json")) if as_json else dump(loaded),
        end="\n" if as_json else "",
    )


@main.command()
@mended
def plan(
    scenario: ScenarioFile, overrides: Set = None, allow: Allow = None, as_json: Json = False
) -> None:
    """What a run will cost, before anything starts: traffic per agent and in all, memory, disk, rounds."""
    import tempfile

    from covey.coordinator.plan.plan import plan as planned
    from covey.coordinator.processes import launch
    from covey.shared.files import write_atomically
    from covey.shared.scenario.code import check_code
    from covey.shared.scenario.describe import dump
    from covey.shared.scenario.load import load

    loaded, allowed = load(scenario, overrides or []), AllowedCode.parse(allow)
    check_code(loaded, allowed)
    with tempfile.TemporaryDirectory() as folder:
        write_atomically(Path(folder) / "scenario.yaml", dump(loaded).encode())
        setup = asyncio.run(launch.initial(Path(folder), loaded, allowed))
    figures = planned(loaded, setup)
    if as_json:
        print(json_text.dumps(figures.to_json()))
        return
    _print_rows(f"{loaded.name}: {loaded.strategy.name}", figures.rows())


@main.command()
@mended
def status(
    folder: Annotated[
        Path | None, typer.Argument(help="a run's folder; without it a running fleet is asked")
    ] = None,
    broker: Broker = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    insecure: Insecure = False,
    credentials: Credentials = None,
    federation: Annotated[str, typer.Option(help="the federation to ask for")] = "default",
    as_json: Json = False,
) -> None:
    """Who is there: cluster, last seen, samples, refused messages by reason, and why an agent stays out."""
    from covey.coordinator.commands import status as watch
    from covey.coordinator.report import display

    if folder is not None:
        seen = watch.from_folder(folder)
    else:
        seen = asyncio.run(watch.from_broker(broker, federation, Tls(ca, cert, key, insecure)))
    if as_json:
        display.json_line(seen)
        return
    for line in display.standing(seen):
        out.print(line, highlight=False, soft_wrap=True)
    display.show(out, display.roster_table(seen["roster"]))
    refusals = ", ".join(
        f"{reason}: {count}" for reason, count in seen["roster"]["refusals"].items()
    )
    out.print(f"refused messages: {refusals or 'none'}", highlight=False, soft_wrap=True)


@main.command()
@mended
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
            help="NUMBER:HASH of a line that an earlier check printed: it must still be there"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a run's audit log line by line. Exit code 1 where it was changed, with the first line that is wrong."""
    from covey.coordinator.report import display
    from covey.coordinator.run import audit_trail
    from covey.shared.audit import read_key

    secret = read_key(key) if key is not None else None
    known = audit_trail.parse_head(head) if head is not None else None
    found = audit_trail.summary(audit_trail.check(folder, key=secret, head=known))
    if as_json:
        display.json_line(found)
    else:
        for line in display.audit_lines(found):
            out.print(line, highlight=False, soft_wrap=True)
        display.show(out, display.audit_table(found))
    if not found["whole"]:
        raise typer.Exit(1)


@main.command()
@mended
def release(
    agent: Annotated[str, typer.Argument(help="the agent's id, as `coordinator status` shows it")],
    broker: Broker = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    insecure: Insecure = False,
    credentials: Credentials = None,
    federation: Annotated[str, typer.Option(help="the federation of the agent")] = "default",
) -> None:
    """Invite an agent again that is in quarantine because its reports were refused."""
    from covey.coordinator.commands.release import release as released

    asyncio.run(released(broker, federation, Tls(ca, cert, key, insecure), agent))
    out.print(f"{agent} is out of quarantine; it is invited again", highlight=False, soft_wrap=True)


@main.command()
@mended
def report(
    folders: Annotated[list[Path], typer.Argument(help="folders of finished runs")],
    html: Annotated[
        Path | None,
        typer.Option(
            help="also write a page with curves and clusters to this file", show_default=False
        ),
    ] = None,
    svg: Annotated[
        list[str] | None,
        typer.Option(
            help="also write one picture of that page to a file: NAME=FILE, e.g. accuracy=a.svg; repeatable",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the results of finished runs side by side."""
    from covey.coordinator.report import display
    from covey.coordinator.run.records import finished

    results = [finished(folder) for folder in folders]
    if html is not None or svg:
        from covey.coordinator.report.curves import curves
        from covey.coordinator.report.html_report import page, write_pictures
        from covey.shared.files import write_atomically

        runs = curves(folders, results)
        if html is not None:
            write_atomically(html, page(runs).encode())
        write_pictures(runs, svg or [])
    if as_json:
        for result in results:
            display.json_line(result)
        return
    display.show(out, display.results_table(results, display.labels(folders, results)))


@main.command()
@mended
def export(
    folder: Annotated[Path, typer.Argument(help="the folder of a finished run")],
    to: Annotated[
        Path | None,
        typer.Option(
            "--out", help="where to write  [default: <folder>/export]", show_default=False
        ),
    ] = None,
    kind: Annotated[
        ProgramFormat, typer.Option("--format", help="pt2 for PyTorch, or onnx")
    ] = "pt2",
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Write each cluster's model as a program that needs no Covey: features as they are in the data in, logits or values out."""
    from covey.coordinator.processes import launch
    from covey.coordinator.report import display
    from covey.coordinator.run.records import finished
    from covey.shared.model_files import model_files

    allowed = AllowedCode.parse(allow)
    finished(folder)
    models = model_files(folder / "models")
    if not models:
        raise UserError(f"{folder}: no models are in it; its method leaves none on the server")
    for model in models:
        written = (to or folder / "export") / f"{model.stem}.{kind}"
        with nullcontext() if as_json else out.status(f"{model.name}: loading torch"):
            asyncio.run(launch.exported(model, written, folder / "export.log", allowed))
        if as_json:
            display.json_line(
                {"cluster": model.stem.removeprefix("cluster-"), "file": str(written)}
            )
        else:
            out.print(str(written), highlight=False, soft_wrap=True)


@main.command()
def methods(as_json: Json = False) -> None:
    """List every training method with its hyper-parameters and defaults."""
    from covey.shared.scenario.describe import methods as listed

    rows = listed()
    if as_json:
        print(json_text.dumps(rows))
        return
    for row in rows:
        out.print(
            row["name"], f" {row['summary']} ({row['source']})", highlight=False, soft_wrap=True
        )
        for parameter in row["parameters"]:
            text = f"    {parameter['name']}: {parameter['type']} = {json_text.dumps(parameter['default'])}"
            out.print(
                text + (f"   {parameter['description']}" if parameter["description"] else ""),
                highlight=False,
            )


@main.command()
def schema() -> None:
    """Print the JSON schema of a scenario, for editors."""
    from covey.shared.scenario.describe import schema as made

    print(json_text.dumps(made(), indent=1))


def _print_rows(title: str, rows: Any) -> None:
    from rich.table import Table

    table = Table(title=title, show_header=False)
    for row in rows:
        table.add_row(*map(str, row))
    out.print(table)


if __name__ == "__main__":
    main()
