"""The users of a broker's folder: role, federation and time of enrolment, in one JSON file."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, RootModel, ValidationError

from covey.broker.access.acl import ANY, AclUser, Role, is_user
from covey.shared.errors import UserError
from covey.shared.storage.files import write_private
from covey.shared.wire.topics import is_name


def _federation(text: str) -> str:
    if text != ANY and not is_name(text):
        raise ValueError(f"expected the name of a federation, or {ANY} for any")
    return text


class StoredUser(BaseModel):
    """One user, as stored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Role = "agent"
    federation: Annotated[str, AfterValidator(_federation)] = ANY
    since: str = ""  # when the password was made: UTC in ISO 8601, to the second


def _user(text: str) -> str:
    if not is_user(text):
        raise ValueError("expected the name of a user")
    return text


class _File(RootModel[dict[Annotated[str, AfterValidator(_user)], StoredUser]]):
    """The whole file: an entry for each user."""


def now() -> str:
    """The present time in the format of `StoredUser.since`."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def load(path: Path) -> dict[str, StoredUser]:
    """Every user's entry. Raises UserError if the file is not as `save` writes it."""
    try:
        file = _File.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        problem = first["msg"]
        raise UserError(
            f"{path}: {place}: {problem}; expected what `broker enroll` writes; restore the file from a backup"
        ) from None
    return dict(file.root)


def read(path: Path) -> dict[str, AclUser]:
    """Role and federation of each user, as the access rules need them."""
    return {name: AclUser(entry.role, entry.federation) for name, entry in load(path).items()}


def save(path: Path, entries: Mapping[str, StoredUser]) -> None:
    """Replace the file, whole or not at all. Only its owner may read it."""
    text = _File(dict(entries)).model_dump_json(indent=1)
    write_private(path, f"{text}\n".encode())
