"""The command `agent join`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from covey.extras.joining.codes import JoinCode, redeem
from covey.shared.errors import UserError
from covey.shared.mqtt.credentials import parse
from covey.shared.storage.files import write_private

MOST_INPUT = 1 << 12  # characters of a code


def join(
    code: Annotated[
        str,
        typer.Argument(
            help="as `broker enroll --join` printed it; - reads it from standard input, which keeps it out of the list of "
            "processes and of the shell's history"
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="the credentials file  [default: ID.pem]")
    ] = None,
) -> None:
    """Get this device's credentials from the broker's machine with a one-time code, and write them to a file."""
    wanted = JoinCode.parse(_line_of_input() if code == "-" else code)
    if out is not None and out.exists():
        raise UserError(f"--out {out}: the file exists; name a new one. The code was not used")
    content = redeem(wanted)
    file = out or _new_file(parse(content, Path("the answer")).id)
    write_private(file, content)
    print(f"wrote {file}; run `agent start --credentials {shlex.quote(str(file))} --data DATA`")


def _line_of_input() -> str:
    """The first line of standard input, for which a person at a terminal is asked."""
    if sys.stdin.isatty():
        print("the code: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline(MOST_INPUT).strip()


def _new_file(agent: str) -> Path:
    """A file for an agent's credentials that does not exist yet: a code works only once."""
    file, number = Path(f"{agent}.pem"), 2
    while file.exists():
        file, number = Path(f"{agent}-{number}.pem"), number + 1
    return file
