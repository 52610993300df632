"""What was published from a run's folder: `deployments.jsonl`, one line for each publication."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from covey.coordinator.deploy.publish import Published
from covey.coordinator.disk.versions import ModelVersion
from covey.shared import json_text
from covey.shared.errors import UserError
from covey.shared.files import write_atomically

FILE = "deployments.jsonl"
Act = Literal["finish", "promote", "rollback"]


@dataclass(frozen=True)
class Publication:
    """One publication."""

    time: str  # UTC, ISO 8601
    act: Act
    round: int  # whose models were published
    serial: int
    run: str = ""  # that made the models; "" in the lines of older versions: the folder's own
    before_run: str = ""  # whose models were in use until then; "" for none
    before_round: int = 0


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


def note(folder: Path, act: Act, version: ModelVersion, published: Published) -> None:
    """Add a publication."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = Publication(now, act, version.round, published.serial, version.run)
    if published.before is not None:
        before = published.before
        line = replace(line, before_run=before.run, before_round=before.round)
    texts = [json_text.dumps(asdict(one)) + "\n" for one in [*publications(folder), line]]
    write_atomically(folder / FILE, "".join(texts).encode())


def in_force(folder: Path) -> list[Publication]:
    """What was published and not rolled back, oldest first: the last one is in force."""
    stack: list[Publication] = []
    for one in publications(folder):
        if one.act == "rollback":
            stack = stack[:-1]
        elif not stack or one.round != stack[-1].round:
            stack.append(one)
    return stack
