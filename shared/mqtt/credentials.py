"""What one user of a broker needs to connect to it, in one file: who and where as JSON, then what to trust as PEM.

Readers of PEM files pass over what stands before the first certificate (RFC 7468, section 2), so the file is its own `ca`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covey.shared import json_text
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.wire.topics import is_name

BEGIN = "-----BEGIN CERTIFICATE-----"
FLEET = "fleet"  # hosts the agents of a simulation
COORDINATOR = "coordinator"  # the user that no agent is


def render(
    name: str, url: BrokerUrl, authority: str, *, role: str = "", federation: str = ""
) -> str:
    """The file's text; it holds a password. `authority`: certificates as PEM. `federation` empty: any."""
    about = {"id": name, "broker": url.with_password()}
    if role:
        about["role"] = role
    if federation:
        about["federation"] = federation
    return f"{json_text.dumps(about, indent=1)}\n{authority}"


def read(file: Path) -> Mapping[str, str]:
    """`id`, `broker` with its password, `ca` (the file itself), and `role` and `federation`, empty where none is named.

    Raises UserError for a file that is something else, or whose names are none: an id ends up in a unit file, in topics
    and in the terminal.
    """
    try:
        about, begin, _ = file.read_text().partition(BEGIN)
        found: dict[str, Any] = json_text.loads(about)
        told = {key: found.get(key, "") for key in ("id", "broker", "role", "federation")}
        BrokerUrl.parse(told["broker"])
        names = [told["id"], *filter(None, (told["role"], told["federation"]))]
        valid = bool(begin) and all(isinstance(name, str) and is_name(name) for name in names)
    except (ValueError, TypeError, AttributeError, RecursionError, UserError):
        valid = False
    if not valid:
        raise UserError(f"{file}: expected a file that `broker enroll` wrote; ask for it again")
    return told | {"ca": str(file)}


def check_agent(file: Path, agent: str, broker: str) -> None:
    """UserError where these are not this agent's: their broker would let it in, and part with it at its first message."""
    told = read(file)
    user, role = told["id"], told["role"]
    if broker != told["broker"]:  # the user knows better: only the authority is taken from the file
        return
    if user == COORDINATOR or role == COORDINATOR:
        raise UserError(
            f"{file}: these credentials are the coordinator's; expected an agent's, from `broker enroll`"
        )
    if role not in ("", "agent"):
        raise UserError(
            f"{file}: these credentials are an {role}'s; expected an agent's, from `broker enroll`"
        )
    if user != agent:
        raise UserError(
            f"{file}: these credentials are {user}'s, not {agent}'s; leave --id out, or give {agent}'s file"
        )
