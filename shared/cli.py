"""One shell for the commands of all three programs.

It turns user errors into a message and an exit code, and it defines the options that several commands take:
how to reach the broker, which code may run, where data sets lie.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial, wraps
from pathlib import Path
from traceback import walk_tb
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from covey.shared import extras
from covey.shared.commands import Entries, with_extras
from covey.shared.errors import UserError, bare_errors, install, os_errors_as_user_errors
from covey.shared.mqtt.broker_url import DEFAULT_BROKER, SHORT_ADDRESS, BrokerUrl
from covey.shared.own_code.consent import AllowedCode, consented
from covey.shared.own_code.faults import own_code
from covey.shared.programs.start import INTERRUPTED, raise_interrupts
from covey.shared.programs.version import version
from covey.shared.sentences import in_lines, log_to_stderr, printable_lines

R = TypeVar("R")
ProgramFormat = Literal["pt2", "onnx"]  # the formats that a model can be exported to

FAILED = 1  # exit codes
USER_ERROR = 2
PROGRAMS = tuple(f"covey.{name}." for name in ("agent", "broker", "coordinator"))


# -- errors ------------------------------------------------------------------------------------------------------------


@contextmanager
def user_errors() -> Iterator[None]:
    """Print a user error as one message on stderr and exit with code 2, without a traceback.

    OSErrors that name a file are user errors too, also in a group of tasks. Ctrl-C prints "stopped" and exits with code 130.
    """
    try:
        with os_errors_as_user_errors(), own_code(), bare_errors():
            yield
    except UserError as error:
        typer.secho(printable_lines(in_lines(f"error: {error}")), err=True, fg=typer.colors.RED)
        raise typer.Exit(USER_ERROR) from None
    except ModuleNotFoundError as error:
        places = [frame.f_globals["__name__"] for frame, _ in walk_tb(error.__traceback__)]
        programs = [place.split(".")[1] for place in places if place.startswith(PROGRAMS)]
        if not (programs and places[-1].startswith("covey.")):
            raise
        failed(f"the package {error.name} is not installed; {install(programs[-1])}")
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
    typer.secho(printable_lines(in_lines(f"error: {text}")), err=True, fg=typer.colors.RED)
    return typer.Exit(FAILED)


NOTHING: Entries = MappingProxyType({})
LAB = "lab"
ABOUT_LAB = "More commands, for experiments and for maintenance"


FROM_CREDENTIALS = ("name", "federation")  # options whose defaults a credentials file has
# what Python calls types and ranges in a help text -> what people do
PLAIN = {
    r"<(str|list\[str\])>": "<text>",
    r"<list\[Path\]>": "<path>",
    r"<(int|float)( range)?>": "<n>",
    r"(\d)\.0(?=[];])": r"\1",
    r"([\d.]+)<=x<=([\d.]+)": r"\1 to \2",
    r"x>=([\d.]+)": r"at least \1",
    r"(default: [^]]*)\]\s+\[": r"\1; ",
    r"default: \((.*)\)": r"default: \1",
}


def _in_plain_words(record: Callable[[Any], Any], context: Any) -> Any:
    """The help of an argument or option: its names and type, and what it does."""
    found = record(context)
    for of_python, plain in PLAIN.items():
        found = found and tuple(re.sub(of_python, plain, text) for text in found)
    return found


class OneCommand(TyperCommand):
    """A command whose help is in plain words."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        params: list[Any] = self.params
        has_credentials = any(one.name == "credentials" for one in params)
        for one in params:
            one.show_envvar = False
            if one.param_type_name == "argument":
                one.metavar = one.metavar or one.name.upper()  # as on the pages
            if has_credentials and one.name in FROM_CREDENTIALS:
                without = one.show_default if isinstance(one.show_default, str) else one.default
                one.show_default = f"that of --credentials, else {without}"
            one.get_help_record = partial(_in_plain_words, one.get_help_record)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words after the command, without Typer's braces."""
        return [re.sub("[{}]", "", one) for one in super().collect_usage_pieces(ctx)]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The variables at the end of the help, rather than one next to each option."""
        variables = [one.envvar for one in self.params if isinstance(one.envvar, str)]
        if variables:
            formatter.write_paragraph()
            formatter.write_text(f"Variables in place of options: {', '.join(variables)}")


class _Loaded(Mapping[str, Any]):
    """Commands by name, each of which is imported when it is looked up for the first time."""

    def __init__(self, entries: Entries, known: Mapping[str, Any]) -> None:
        self._entries = entries
        self._known = dict(known)

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            entry = self._entries[name]
            self._known[name] = command_of(name, entry.load(), passes_on=entry.passes_on)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys((*self._entries, *self._known))

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._known

    def __len__(self) -> int:
        return len(list(iter(self)))


def command_of(name: str, function: Callable[..., Any], *, passes_on: bool = False) -> Any:
    """The command that a function is.

    Args:
        name: of the command.
        function: with an annotation for each argument and option.
        passes_on: let it take options that it does not know.
    """
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    settings = {"allow_extra_args": passes_on, "ignore_unknown_options": passes_on}
    app.command(name, cls=OneCommand, context_settings=settings)(function)
    return get_command(app)


class Level(TyperGroup):
    """Commands in the order of a list. The help shows a line for each, without importing it."""

    front: ClassVar[Entries] = NOTHING
    moved: ClassVar[Entries] = NOTHING  # commands of the level above, which have been here

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _Loaded(self.front, {})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of the first word. One of the level above is named with its place, one of an extra that is gone with it."""
        if args[0] in self.moved and args[0] not in self.front and not ctx.resilient_parsing:
            path = ctx.command_path
            raise UserError(f"`{path} {args[0]}` is now `{path.removesuffix(f' {LAB}')} {args[0]}`")
        if args[0] not in self.commands and not ctx.resilient_parsing:
            typed = f"{ctx.command_path} {args[0]}"
            extras.find("COMMANDS", typed, f"`{typed}`")
        return super().resolve_command(ctx, args)

    def rows(self) -> list[tuple[str, str]]:
        """The lines of the list."""
        return [(name, entry.about) for name, entry in self.front.items()]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands."""
        with formatter.section("Commands"):
            formatter.write_dl(self.rows())


class Commands(Level):
    """The commands of one program. Each of them runs inside `user_errors`, with warnings logged to stderr.

    Those in `front` are what people type most; those in `lab` follow the word lab.
    """

    lab: ClassVar[Entries] = NOTHING

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        kind = type("Lab", (Level,), {"front": self.lab, "moved": self.front})
        lab = kind(name=LAB, help=ABOUT_LAB, no_args_is_help=True, rich_markup_mode=None)
        self.commands = _Loaded(self.front, {LAB: lab})

    def rows(self) -> list[tuple[str, str]]:
        """The lines of the list; the last one leads to the lab."""
        return [*super().rows(), (LAB, ABOUT_LAB)]

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was typed."""
        log_to_stderr()
        with user_errors():
            raise_interrupts()
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of the first word. One that is in the lab is named with its place."""
        if args[0] in self.lab and not ctx.resilient_parsing:
            name = ctx.info_name
            raise UserError(f"`{name} {args[0]}` is now `{name} {LAB} {args[0]}`")
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The commands first. The options take one line, so that the whole fits a terminal of 24 lines."""
        self.format_commands(ctx, formatter)
        spellings = ", ".join(max(one.opts, key=len) for one in self.get_params(ctx))
        formatter.write_paragraph()
        formatter.write_text(f"Options: {spellings}")


def program(name: str, about: str, commands: type[Commands]) -> typer.Typer:
    """A program with these commands and those of extras; `about` is the first line of its help."""
    commands.front = with_extras(name, commands.front)
    commands.lab = dict(sorted(with_extras(f"{name} {LAB}", commands.lab).items()))
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
            f"{option} {name!r}: expected a name of 1-64 letters, digits, '.', '_' or '-'"
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
        metavar="<name>",
        help="your own code that may run: the exact name of a module, one function such as my_pkg.models:net, or an installed "
        "entry point; repeatable",
    ),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(help="folder of the data sets that a scenario names", envvar="COVEY_DATA_ROOT"),
]


def _defaults_from_credentials(context: typer.Context, files: list[Path] | None) -> Any:
    """Let the first credentials file supply the defaults of `--id` and `--federation`."""
    if not files:
        return None
    from covey.shared.mqtt.credentials import read

    source = context.get_parameter_source("credentials")
    is_typed = source is not None and source.name == "COMMANDLINE"
    if is_typed and "COVEY_BROKER" in os.environ:
        raise typer.BadParameter(
            "--credentials names a broker, and COVEY_BROKER another one: unset COVEY_BROKER, or omit --credentials"
        )
    try:
        first, *_ = [read(file) for file in files]
    except UserError as error:
        raise typer.BadParameter(str(error)) from None
    except OSError as error:
        raise typer.BadParameter(
            f"{error.filename}: {error.strerror}; expected the file that `broker enroll` wrote for this program"
        ) from None
    context.default_map = {"name": first.id}
    if first.federation:
        context.default_map["federation"] = first.federation
    return files


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
    (`BrokerAddresses.url`) instead of dropping them.

    Args:
        default: describes which broker the command uses without it.
        more: what the command does with several addresses; empty if it accepts one.
    """
    option = typer.Option(
        metavar="<url>",
        help=f"the broker: {SHORT_ADDRESS}{more}  [default: that of --credentials, else {default}]",
        envvar="COVEY_BROKER",
        show_default=False,
        callback=_single_addresses,
    )
    return Annotated[list[str] | None, option]


LOCAL_BROKER = broker_option(DEFAULT_BROKER)
BROKERS = broker_option(
    DEFAULT_BROKER,
    "; repeatable: the next one is tried when one cannot be reached (COVEY_BROKER: commas between them)",
)


def _credentials_option(more: str = "") -> Any:
    """The option `--credentials`; every command accepts it several times, as it does `--broker`.

    Args:
        more: what the command does with several files; empty if it accepts one.
    """
    option = typer.Option(
        metavar="<file>",
        help=f"file from `broker enroll`: address, id and password{more}",
        envvar="COVEY_CREDENTIALS",
        show_default=False,
        is_eager=True,  # parsed before the options that it supplies defaults for
        callback=_defaults_from_credentials,
    )
    return Annotated[list[Path] | None, option]


ONE_FILE = _credentials_option()
A_FILE_FOR_EACH = _credentials_option(
    "; repeat it for several independent brokers (shards), in the order of their numbers"
)


@dataclass(frozen=True)
class BrokerAddresses:
    """The brokers that a command connects to, as the options or the environment name them."""

    brokers: tuple[str, ...] = ()  # addresses; they replace those in the credentials
    credentials: tuple[Path, ...] = ()

    @property
    def is_named(self) -> bool:
        """Whether any broker is named."""
        return bool(self.brokers or self.credentials)

    @property
    def in_use(self) -> tuple[Path, ...]:
        """The credentials files whose own address the command connects to.

        If the user has named another address than that of a file, only the certificates come from it.
        """
        from covey.shared.mqtt.credentials import read

        if not self.brokers:
            return self.credentials
        return tuple(file for file in self.credentials if read(file).broker in self.brokers)

    def url(self) -> BrokerUrl:
        """The broker's address, by default one on this machine. Raises UserError if it is malformed, or one of several."""
        count = len(self.brokers or self.credentials)
        if count > 1:
            raise UserError(
                f"{count} brokers: this command connects to one; give --broker or --credentials once, or one address in "
                "COVEY_BROKER (`agent start` and the commands that run or publish models take several)"
            )
        return self.urls()[0]

    def urls(self, user: str = "") -> list[BrokerUrl]:
        """The addresses of all brokers, by default one on this machine.

        An encrypted address without a login gets the one in the credentials, if they belong to this user: one password
        file opens all brokers of a federation. A password never goes to an address without encryption in this way.

        Args:
            user: the name of the user who connects.

        Raises:
            UserError: an address is malformed, or several files do not match the addresses.
        """
        from covey.shared.mqtt.credentials import read

        files = [read(file) for file in self.credentials]
        if not self.brokers and files:
            return [one.url for one in files]
        brokers = self.brokers or (DEFAULT_BROKER,)
        if not files:
            return [BrokerUrl.parse(text) for text in brokers]
        if len(files) == 1:
            files *= len(brokers)
        if len(files) != len(brokers):
            raise UserError(
                f"--credentials is given {len(files)} times and --broker {len(brokers)} times: give one file for each address, "
                "or one file for all"
            )
        urls = []
        for text, one in zip(brokers, files, strict=True):
            url = BrokerUrl.parse(text, one.tls)
            needs_login = url.tls is not None and url.user is None and one.cert is None
            if needs_login and one.id == user:
                url = replace(url, user=one.url.user, password=one.url.password)
            urls.append(url)
        return urls


def with_connection(
    broker: Any = LOCAL_BROKER, *, several: bool = False
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Give a command the options `--broker` and `--credentials`.

    The command receives them as one argument, `connection`; its help lists them in that place.

    Args:
        broker: the annotation of the address, for a command whose default differs or that takes an argument.
        several: a credentials file may be given for each of several brokers.
    """
    options = {"broker": broker, "credentials": A_FILE_FOR_EACH if several else ONE_FILE}

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        @wraps(command)
        def call(**arguments: Any) -> R:
            given = {name: tuple(arguments.pop(name) or ()) for name in options}
            return command(
                connection=BrokerAddresses(given["broker"], given["credentials"]), **arguments
            )

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
        if is_dataclass(parameter.annotation) and parameter.annotation is not BrokerAddresses
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
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=None, annotation=option)
