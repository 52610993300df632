"""Command-line options that commands of more than one program take: where the broker is, and how it is trusted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from covey.shared.consent import AllowedCode, consented
from covey.shared.errors import UserError

ProgramFormat = Literal["pt2", "onnx"]  # what a model can be exported as
ADDRESS = "mqtt[s]://[user:password@]host[:port]"

Ca = Annotated[
    Path | None,
    typer.Option(
        help="mqtts: certificates to trust instead of the system's",
        envvar="COVEY_CA",
        show_default=False,
    ),
]


def _consent(context: typer.Context, words: list[str] | None) -> list[str] | None:
    """What the owner allows is in effect until the command ends, from before its scenario is read."""
    try:
        allowed = AllowedCode.parse(words)
    except UserError as error:
        raise typer.BadParameter(str(error)) from None
    context.with_resource(consented(allowed))
    return words


Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        callback=_consent,
        help="code of your own that may run here: the exact name of a module (not a prefix), one function as "
        "my_pkg.models:net, or an installed entry point; repeatable",
        show_default=False,
    ),
]
Cert = Annotated[
    Path | None,
    typer.Option(
        help="mqtts: our certificate, for a broker that wants one",
        envvar="COVEY_CERT",
        show_default=False,
    ),
]
Key = Annotated[
    Path | None,
    typer.Option(help="mqtts: our certificate's key", envvar="COVEY_KEY", show_default=False),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="mqtts: do not check who the broker is", envvar="COVEY_INSECURE"
    ),
]


def _known_by(context: typer.Context, file: Path | None) -> Path | None:
    """Defaults for the options `--broker`, `--ca` and `--id` of this command."""
    if file is None:
        return None
    from covey.shared.mqtt.credentials import read

    if "COVEY_BROKER" in os.environ:
        raise typer.BadParameter(
            "COVEY_BROKER names a broker too: unset it, or leave --credentials out"
        )
    try:
        told = read(file)
    except (UserError, OSError) as error:
        raise typer.BadParameter(str(error)) from None
    defaults = {"broker": told["broker"], "ca": told["ca"], "name": told["id"]}
    if told["federation"]:
        defaults["federation"] = told["federation"]
    context.default_map = defaults
    return file


Credentials = Annotated[
    Path | None,
    typer.Option(
        help="what `broker enroll` wrote for us: the broker, our password, whom to trust",
        envvar="COVEY_CREDENTIALS",
        show_default=False,
        is_eager=True,  # before the options that it has defaults for
        callback=_known_by,
    ),
]
