"""Command-line options that commands of more than one program take: where the broker is, and how it is trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ADDRESS = "mqtt[s]://[user:password@]host[:port]"

Ca = Annotated[
    Path | None,
    typer.Option(help="mqtts: certificates to trust instead of the system's", envvar="COVEY_CA", show_default=False),
]
Cert = Annotated[
    Path | None,
    typer.Option(help="mqtts: our certificate, for a broker that wants one", envvar="COVEY_CERT", show_default=False),
]
Key = Annotated[Path | None, typer.Option(help="mqtts: our certificate's key", envvar="COVEY_KEY", show_default=False)]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="mqtts: do not check who the broker is", envvar="COVEY_INSECURE")
]
