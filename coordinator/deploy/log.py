"""What was published from a run's folder: `deployments.jsonl`, one line for each publication."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

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


def note(folder: Path, act: Act, number: int, serial: int) -> None:
    """Add a publication of the models of round `number`."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    lines = [*publications(folder), Publication(now, act, number, serial)]
    texts = [json_text.dumps(asdict(one)) + "\n" for one in lines]
    write_atomically(folder / FILE, "".join(texts).encode())


def in_force(folder: Path) -> list[int]:
    """The rounds whose models were published and not rolled back, oldest first: the last one is in force."""
    rounds: list[int] = []
    for one in publications(folder):
        if one.act == "rollback":
            rounds = rounds[:-1]
        elif one.round not in rounds[-1:]:
            rounds.append(one.round)
    return rounds
