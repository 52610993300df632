"""The users of a broker's folder: role, federation and when each was enrolled, as JSON in one file."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, RootModel, ValidationError

from covey.broker.access.acl import ANY, Member, Role
from covey.shared.errors import UserError
from covey.shared.files import write_private
from covey.shared.wire.messages import Name
from covey.shared.wire.topics import is_name


def _federation(text: str) -> str:
    if text != ANY and not is_name(text):
        raise ValueError(f"expected a federation's name, or {ANY} for any")
    return text


class Entry(BaseModel):
    """One user. `since`: seconds of UTC in ISO 8601, when it was enrolled or got its newest password."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Role = "agent"
    federation: Annotated[str, AfterValidator(_federation)] = ANY
    since: str = ""


class _File(RootModel[dict[Name, Entry]]):
    """The whole file: a line for each user."""


def now() -> str:
    """The present, as `Entry.since` has it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def load(path: Path) -> dict[str, Entry]:
    """Every user's entry. Raises UserError for a file that is not one of ours."""
    try:
        return dict(_File.model_validate_json(path.read_bytes()).root)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(
            f"{path}: {where}: {first['msg']}; expected what `broker enroll` wrote; restore the file from a backup"
        ) from None


def read(path: Path) -> dict[str, Member]:
    """The rules' view of the file: role and federation of each user."""
    return {name: Member(entry.role, entry.federation) for name, entry in load(path).items()}


def save(path: Path, entries: Mapping[str, Entry]) -> None:
    """Replace the file, whole or not at all; its owner alone may read it."""
    text = _File(dict(entries)).model_dump_json(indent=1)
    write_private(path, f"{text}\n".encode())
