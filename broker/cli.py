"""The `broker` command: run a broker here, examine one anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import signal
import sys
import tempfile
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from broker import passwords
from broker.doctor import Doctor, Finding
from broker.embedded import EmbeddedBroker, until_closed
from broker.home import Home
from broker.mosquitto import Mosquitto
from broker.options import Options
from broker.start import installed
from shared.broker_url import PORTS, BrokerUrl, Tls
from shared.credentials import COORDINATOR
from shared.errors import UserError, files_named
from shared.options import ADDRESS, Ca, Cert, Credentials, Insecure, Key

app = typer.Typer(
    help="The broker in the middle of a Covey federation.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # a bracket in a help text is a bracket
)
HOME = Path("broker-home")
HomeFolder = Annotated[Path, typer.Option("--home", help="the broker's folder")]
Names = Annotated[list[str], typer.Argument(help="the agents' ids")]
RELOAD_S = 1.0
COLOURS = {"ok": "green", "missing": "red", "note": "yellow"}


@app.command()
def up(
    host: Annotated[
        str | None,
        typer.Option(help="address to listen on  [default: 127.0.0.1; with --home 0.0.0.0, all]", show_default=False),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="0: any free port  [default: 1883, or the home's]", show_default=False),
    ] = None,
    home: Annotated[
        Path | None, typer.Option(help="a folder of `broker init`: certificate, users, retained messages")
    ] = None,
    embedded: Annotated[bool, typer.Option("--embedded", help="the pure Python broker, even beside mosquitto")] = False,
    data: Annotated[Path | None, typer.Option(help="folder that keeps retained messages over restarts")] = None,
    log: Annotated[Path | None, typer.Option(help="log file")] = None,
    user: Annotated[str | None, typer.Option(help="with --password: the one user who may connect")] = None,
    password: Annotated[str | None, typer.Option(envvar="COVEY_BROKER_PASSWORD", help="with --user")] = None,
    password_file: Annotated[
        Path | None, typer.Option(help="users as mosquitto_passwd writes them: coordinator, and one per agent id")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM certificate of this broker: listen with TLS")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="its private key")] = None,
    tls_ca: Annotated[Path | None, typer.Option(help="clients must show a certificate of this authority")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="say where it listens as one line of JSON")] = False,
    until_stdin_closes: Annotated[bool, typer.Option(help="also stop when standard input ends")] = False,
) -> None:
    """Run a broker until Ctrl-C: Mosquitto where it is installed, else the embedded one."""
    with _told(), _password_file(user, password, password_file) as users:
        kind = EmbeddedBroker if embedded else installed(_say)
        options = Options(
            host=host or "127.0.0.1",
            port=1883 if port is None else port,
            data=data,
            log=log,
            passwords=users,
            rules=password_file is not None,
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_ca=tls_ca,
        )
        if home is not None:
            if users or tls_cert or tls_ca:
                raise UserError("--home has users and certificates of its own: leave the others out")
            options = Home(home).options(options, host=host, port=port, keeps=kind.keeps)
        if data and not kind.keeps:
            raise UserError("the embedded broker keeps nothing on disk: leave --data out, or install mosquitto")
        died = asyncio.run(_run(kind(options), as_json=as_json, until_stdin_closes=until_stdin_closes))
        if died is not None:
            _say(died)
            raise typer.Exit(1)


async def _run(broker: Mosquitto | EmbeddedBroker, *, as_json: bool, until_stdin_closes: bool) -> str | None:
    """Run until told to stop (None), or until the broker ends by itself (how, in words)."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    users = broker.options.passwords
    known = _changed(users) if users else 0.0  # before it reads them
    async with broker:
        if as_json:
            print(json.dumps({"url": str(broker.url), "broker": broker.name, "pid": broker.pid}), flush=True)
        else:
            print(f"{broker.name} listens at {broker.url} (Ctrl-C stops it)", flush=True)
        ends: list[Coroutine[Any, Any, Any]] = [stop.wait()]
        if until_stdin_closes:
            ends.append(until_closed(sys.stdin))
        if users:
            ends.append(_reloads(broker, users, known))
        died = asyncio.create_task(broker.wait())
        tasks = [died, *(asyncio.create_task(end) for end in ends)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        if not died.done() or died.cancelled():
            return None
        return "\n".join(
            filter(None, [f"{broker.name} ended by itself with exit code {died.result()}", broker.last_words()])
        )


async def _reloads(broker: Mosquitto | EmbeddedBroker, users: Path, known: float) -> None:
    """For ever: tell the broker of users that were enrolled or expelled."""
    while True:
        await asyncio.sleep(RELOAD_S)
        if (now := _changed(users)) != known:
            broker.reload()
            known = now


def _changed(file: Path) -> float:
    return file.stat().st_mtime if file.exists() else 0.0


@app.command()
def init(
    host: Annotated[list[str], typer.Option(help="how devices reach this machine, a name or an address; repeatable")],
    home: HomeFolder = HOME,
    port: Annotated[int, typer.Option(min=1, max=65535)] = PORTS["mqtts"],
    days: Annotated[int, typer.Option(min=1, help="how long the certificate is good for")] = 3650,
) -> None:
    """Make a folder for a broker with TLS, passwords and access rules: certificates, and the coordinator's credentials."""
    with _told():
        made = Home.create(home, host, port, days)
    print(f"{home}: `broker up --home {home}` runs it, `broker enroll NAME --home {home}` lets an agent in")
    print(f"the coordinator's credentials: {made.file(COORDINATOR)}")


@app.command()
def enroll(names: Names, home: HomeFolder = HOME) -> None:
    """Let agents in: one file each, with all that `agent start --credentials` needs. A broker that runs takes them in."""
    with _told():
        own = Home(home)
        for name in names:
            print(own.enroll(name))


@app.command()
def expel(names: Names, home: HomeFolder = HOME) -> None:
    """Make agents' credentials void. A broker that runs ends their connections."""
    with _told():
        own = Home(home)
        for name in names:
            own.expel(name)


@app.command()
def doctor(
    broker: Annotated[str | None, typer.Argument(metavar="url", help=ADDRESS)] = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    insecure: Insecure = False,
    credentials: Credentials = None,
    patience_s: Annotated[float, typer.Option(min=0.1, help="how long to wait for each answer")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="findings as JSON")] = False,
) -> None:
    """Check that a broker does what Covey relies on. Exit code 1 where something is missing."""
    with _told():
        if broker is None:
            raise UserError(f"which broker? Give its address, {ADDRESS}, or --credentials")
        address = BrokerUrl.parse(broker, Tls(ca, cert, key, insecure))
        findings = asyncio.run(Doctor(address, patience_s=patience_s).examine())
    if as_json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    else:
        _show(address, findings)
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(1)


def _show(address: BrokerUrl, findings: list[Finding]) -> None:
    table = Table("check", "", "seen", "what it means", title=str(address))
    for finding in findings:
        table.add_row(finding.check, Text(finding.state, COLOURS[finding.state]), finding.seen, finding.means)
    Console(markup=False, emoji=False).print(table)


@contextlib.contextmanager
def _password_file(user: str | None, password: str | None, file: Path | None) -> Iterator[Path | None]:
    """The file given, or one that holds the one user and goes away afterwards."""
    if (user is None) != (password is None):
        raise UserError("--user and --password belong together: give both or neither")
    if user is None or password is None:
        yield file
        return
    if file is not None:
        raise UserError("give either --user and --password or --password-file, not both")
    with tempfile.TemporaryDirectory(prefix="covey-broker-") as folder:
        path = Path(folder) / "passwords"
        passwords.write(path, {user: password})
        yield path


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """One message and exit code 2 for what the user can mend."""
    try:
        with files_named():
            yield
    except UserError as error:
        _say(str(error))
        raise typer.Exit(2) from None


def _say(text: str) -> None:
    print(f"broker: {text}", file=sys.stderr, flush=True)


def main() -> None:
    """The entry point of the `broker` command."""
    app()


if __name__ == "__main__":
    main()
