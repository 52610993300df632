"""What was published from a run's folder: `deployments.jsonl`, one line for each publication."""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from covey.coordinator.deploy.publish import Published
from covey.coordinator.disk.versions import ModelVersion
from covey.shared import json_text
from covey.shared.errors import UserError
from covey.shared.files import write_atomically

FILE = "deployments.jsonl"
Act = Literal["finish", "promote", "rollback"]
Version = tuple[str, int]  # a run's id and a round


@dataclass(frozen=True)
class Publication:
    """One publication. The defaults are those of lines that earlier versions have written."""

    time: str  # UTC, ISO 8601
    act: Act
    round: int  # whose models were published
    serial: int
    run: str = ""  # that made the models
    federation: str = ""
    who: str = ""  # user and host
    figure: Mapping[str, Any] = field(default_factory=dict)  # metric and value; empty if unknown
    devices: Sequence[str] = ()  # that try a candidate; empty: it is for all
    alias: str = ""  # the operator's own name of the version
    before_run: str = ""  # whose models were in use until then; "" for none
    before_round: int = 0

    @property
    def version(self) -> Version:
        return self.run, self.round

    @property
    def before(self) -> Version | None:
        """The version that all devices used until then."""
        return (self.before_run, self.before_round) if self.before_run else None


def publications(folder: Path) -> list[Publication]:
    """All publications from a run's folder, oldest first. Raises UserError for a damaged file."""
    path = folder / FILE
    if not path.exists():
        return []
    found: list[Publication] = []
    for line in path.read_text().splitlines():
        try:
            found.append(Publication(**json_text.loads(line)))
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}: a line is damaged ({error}); restore the file") from None
    return found


def note(
    folder: Path,
    act: Act,
    version: ModelVersion,
    published: Published,
    federation: str,
    figure: Mapping[str, Any],
    alias: str = "",
) -> None:
    """Add a publication."""
    before = published.before.all_devices
    line = Publication(
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        act=act,
        round=version.round,
        serial=published.serial,
        run=version.run,
        federation=federation,
        who=_who(),
        figure=dict(figure),
        devices=published.devices,
        alias=alias,
        before_run=before.run if before is not None else "",
        before_round=before.round if before is not None else 0,
    )
    texts = [json_text.dumps(asdict(one)) + "\n" for one in [*publications(folder), line]]
    write_atomically(folder / FILE, "".join(texts).encode())


def _who() -> str:
    """The user of this process, and the host. A container may have a user without a name."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
