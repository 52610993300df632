"""One shell for the commands of all three programs.

It turns user errors into a message and an exit code, and it defines the options that several commands take:
how to reach the broker, which code may run, where data sets lie.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer
from typer.core import TyperGroup

from covey.shared.consent import AllowedCode, consented
from covey.shared.errors import UserError, bare_errors, os_errors_as_user_errors
from covey.shared.logs import log_to_stderr
from covey.shared.mqtt.broker_url import ADDRESS, DEFAULT_BROKER, SYSTEM_TLS, BrokerUrl, Tls
from covey.shared.printable import printable_lines
from covey.shared.start import INTERRUPTED, raise_interrupts
from covey.shared.version import version

R = TypeVar("R")
ProgramFormat = Literal["pt2", "onnx"]  # the formats that a model can be exported to

FAILED = 1  # exit codes
USER_ERROR = 2


# -- errors ------------------------------------------------------------------------------------------------------------


@contextmanager
def user_errors() -> Iterator[None]:
    """Print a user error as one message on stderr and exit with code 2, without a traceback.

    OSErrors that name a file are user errors too, also in a group of tasks. Ctrl-C prints "stopped" and exits with code 130.
    """
    try:
        with os_errors_as_user_errors(), bare_errors():
            yield
    except UserError as error:
        typer.secho(printable_lines(f"error: {error}"), err=True, fg=typer.colors.RED)
        raise typer.Exit(USER_ERROR) from None
    except KeyboardInterrupt:
        raise stopped() from None


def stopped(hint: str = "") -> typer.Exit:
    """Print that the user stopped the command, with a hint how to continue; returns the exit to raise."""
    text = f"stopped; {hint}" if hint else "stopped"
    typer.echo(printable_lines(text), err=True)
    return typer.Exit(INTERRUPTED)


def failed(text: str) -> typer.Exit:
    """Print why a command that ran to its end did not achieve its purpose; returns the exit to raise, with code 1."""
    typer.secho(printable_lines(f"error: {text}"), err=True, fg=typer.colors.RED)
    return typer.Exit(FAILED)


class Commands(TyperGroup):
    """The commands of one program. Each of them runs inside `user_errors`, with warnings logged to stderr."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was typed."""
        log_to_stderr()
        with user_errors():
            raise_interrupts()
            return super().invoke(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with the first sentence of each, whole: click cuts it to one line."""
        rows: list[tuple[str, str]] = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(formatter.width * 9)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def program(name: str, about: str, commands: type[Commands] = Commands) -> typer.Typer:
    """An empty program to add commands to; `about` is the first line of its help."""
    app = typer.Typer(
        name=name,
        cls=commands,
        help=about,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # a bracket in a help text is a bracket
    )

    @app.callback(help=about)
    def options_of_the_program(version: Version = False) -> None:
        """The options that come before a command; those for the completion of commands are Typer's own."""

    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"covey {version()}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", callback=_print_version, is_eager=True, help="print the version and exit"
    ),
]


def check_name(option: str, name: str) -> None:
    """Raise a UserError unless this is a valid name of an agent or a federation."""
    from covey.shared.wire.topics import is_name

    if not is_name(name):
        raise UserError(
            f"{option} {name!r}: invalid name; use 1-64 letters, digits, '.', '_' or '-'"
        )


# -- options of several commands ---------------------------------------------------------------------------------------

Json = Annotated[bool, typer.Option("--json", help="print JSON instead of text")]


def _consent(context: typer.Context, names: list[str] | None) -> list[str] | None:
    """Let the user's consent take effect before the scenario is read, until the command ends."""
    context.with_resource(consented(AllowedCode.parse(names)))
    return names


Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        callback=_consent,
        help="allow code of your own to run: the exact name of a module (not a prefix), one "
        "function such as my_pkg.models:net, or an installed entry point; repeatable",
        show_default=False,
    ),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        help="folder that holds the named data sets", envvar="COVEY_DATA_ROOT", show_default=False
    ),
]


def _defaults_from_credentials(context: typer.Context, file: Path | None) -> Path | None:
    """Let the credentials file supply the defaults of `--broker`, `--ca`, `--id` and `--federation`."""
    if file is None:
        return None
    from covey.shared.mqtt.credentials import read

    if "COVEY_BROKER" in os.environ:
        raise typer.BadParameter(
            "COVEY_BROKER names a broker as well: unset it, or omit --credentials"
        )
    try:
        credentials = read(file)
    except (UserError, OSError) as error:
        raise typer.BadParameter(str(error)) from None
    repeatable = {option.name for option in context.command.params if _is_repeatable(option)}
    broker = [credentials.broker] if "broker" in repeatable else credentials.broker
    defaults = {"broker": broker, "ca": credentials.ca, "name": credentials.id}
    if credentials.federation:
        defaults["federation"] = credentials.federation
    context.default_map = defaults
    return file


def _is_repeatable(option: Any) -> bool:
    return bool(getattr(option, "multiple", False)) or option.nargs == -1


SEPARATOR = re.compile(r",(?=[a-z]+://)")  # a password may contain a comma


def _single_addresses(texts: list[str] | None) -> list[str] | None:
    """One address per item: the variable COVEY_BROKER holds several with commas between them."""
    if not texts:
        return None
    addresses: list[str] = []
    for text in texts:
        addresses += SEPARATOR.split(text.strip(","))
    return addresses


def broker_option(default: str, more: str = "") -> Any:
    """The option `--broker`.

    Every command accepts it several times, so that one that connects to a single broker can refuse the others
    (`Connection.url`) instead of dropping them.

    Args:
        default: describes which broker the command uses without it.
        more: what the command does with several addresses; empty if it accepts one.
    """
    option = typer.Option(
        help=f"{ADDRESS}{more}  [default: {default}]",
        envvar="COVEY_BROKER",
        show_default=False,
        callback=_single_addresses,
    )
    return Annotated[list[str] | None, option]


LOCAL_BROKER = broker_option(DEFAULT_BROKER)
BROKERS = broker_option(
    DEFAULT_BROKER,
    "; repeatable: the agent goes to the next one when it cannot connect (in COVEY_BROKER, put commas between them)",
)

_TLS_AND_CREDENTIALS: dict[str, Any] = {
    "ca": Annotated[
        Path | None,
        typer.Option(
            help="mqtts, wss: trust these certificates instead of the system's (PEM)",
            envvar="COVEY_CA",
            show_default=False,
        ),
    ],
    "cert": Annotated[
        Path | None,
        typer.Option(
            help="mqtts, wss: client certificate, for a broker that requires one (PEM)",
            envvar="COVEY_CERT",
            show_default=False,
        ),
    ],
    "key": Annotated[
        Path | None,
        typer.Option(
            help="mqtts, wss: private key of the client certificate (PEM)",
            envvar="COVEY_KEY",
            show_default=False,
        ),
    ],
    "insecure": Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="mqtts, wss: do not verify the broker's certificate",
            envvar="COVEY_INSECURE",
        ),
    ],
    "credentials": Annotated[
        Path | None,
        typer.Option(
            help="credentials file from `broker enroll` (address, password, CA)",
            envvar="COVEY_CREDENTIALS",
            show_default=False,
            is_eager=True,  # parsed before the options that it supplies defaults for
            callback=_defaults_from_credentials,
        ),
    ],
}


@dataclass(frozen=True)
class Connection:
    """The broker that a command connects to, as the options or the environment name it."""

    brokers: tuple[str, ...] = ()  # addresses; empty where none is named
    tls: Tls = SYSTEM_TLS
    credentials: Path | None = None  # already read: it supplied the defaults of the others

    @property
    def broker(self) -> str | None:
        """The only address; None where none is named. Raises UserError if several are named."""
        if len(self.brokers) > 1:
            raise UserError(
                f"{len(self.brokers)} brokers: this command connects to one; give --broker once, or one address in "
                "COVEY_BROKER (`agent start` and the commands that run or publish models take several)"
            )
        return self.brokers[0] if self.brokers else None

    def url(self) -> BrokerUrl:
        """The broker's address, by default one on this machine. Raises UserError if it is malformed, or one of several."""
        return BrokerUrl.parse(self.broker or DEFAULT_BROKER, self.tls)

    def urls(self, user: str) -> list[BrokerUrl]:
        """The addresses of all brokers, by default one on this machine.

        An encrypted address without a login gets the one in the credentials, if they belong to this user: one password
        file opens all brokers of a federation. A password never goes to an address without encryption in this way.

        Args:
            user: the name of the user who connects.

        Raises:
            UserError: an address is malformed.
        """
        urls = [BrokerUrl.parse(text, self.tls) for text in self.brokers or (DEFAULT_BROKER,)]
        if self.credentials is None or self.tls.cert is not None:
            return urls
        from covey.shared.mqtt.credentials import read

        credentials = read(self.credentials)
        if credentials.id != user:
            return urls
        own = BrokerUrl.parse(credentials.broker)
        complete = []
        for url in urls:
            needs_login = url.tls is not None and url.user is None
            complete.append(
                replace(url, user=own.user, password=own.password) if needs_login else url
            )
        return complete


def with_connection(broker: Any = LOCAL_BROKER) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Give a command the options `--broker`, `--ca`, `--cert`, `--key`, `--insecure` and `--credentials`.

    The command receives them as one argument, `connection`; its help lists them in that place.

    Args:
        broker: the annotation of the address, for a command whose default differs or that takes an argument
    """
    options = {"broker": broker, **_TLS_AND_CREDENTIALS}

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        @wraps(command)
        def call(**arguments: Any) -> R:
            given = {name: arguments.pop(name) for name in options}
            tls = Tls(given["ca"], given["cert"], given["key"], given["insecure"])
            connection = Connection(_as_tuple(given["broker"]), tls, given["credentials"])
            return command(connection=connection, **arguments)

        signature = inspect.signature(command, eval_str=True)
        call.__signature__ = _expanded(signature, options)  # type: ignore[attr-defined]
        return call

    return decorate


def with_options(command: Callable[..., R]) -> Callable[..., R]:
    """Give a command the options that dataclasses among its parameters list as fields.

    The command receives each dataclass as one argument; its help lists the options in that place.
    """
    signature = inspect.signature(command, eval_str=True)
    models: dict[str, Any] = {
        parameter.name: parameter.annotation
        for parameter in signature.parameters.values()
        if is_dataclass(parameter.annotation) and parameter.annotation is not Connection
    }

    @wraps(command)
    def call(**arguments: Any) -> R:
        for name, model in models.items():
            given = {field.name: arguments.pop(field.name) for field in fields(model)}
            arguments[name] = model(**given)
        return command(**arguments)

    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        own = [parameter]
        if parameter.name in models:
            model = inspect.signature(models[parameter.name], eval_str=True)
            own = list(model.parameters.values())
        parameters += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call


def _as_tuple(brokers: str | list[str] | None) -> tuple[str, ...]:
    """The addresses that an option, or the argument of one command, holds."""
    if isinstance(brokers, str):
        return (brokers,)
    return tuple(brokers or ())


def _expanded(signature: inspect.Signature, options: dict[str, Any]) -> inspect.Signature:
    """The signature with these options in the place of its parameter `connection`."""
    parameters = []
    for parameter in signature.parameters.values():
        if parameter.name == "connection":
            parameters += [_keyword(name, option) for name, option in options.items()]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    return signature.replace(parameters=parameters)


def _keyword(name: str, option: Any) -> inspect.Parameter:
    default = False if name == "insecure" else None
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=option)
