"""What one user of a broker needs to connect to it, in one file: who and where as JSON, then what to trust as PEM.

Readers of PEM files pass over what stands before the first certificate (RFC 7468, section 2), so the file is its own `ca`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.broker_url import BrokerUrl
from shared.errors import UserError

BEGIN = "-----BEGIN CERTIFICATE-----"
FLEET = "fleet"  # hosts the agents of a simulation
COORDINATOR = "coordinator"  # the user that no agent is


def render(name: str, url: BrokerUrl, authority: str) -> str:
    """The file's text; it holds a password. `authority`: certificates as PEM."""
    return f"{json.dumps({'id': name, 'broker': url.with_password()}, indent=1)}\n{authority}"


def read(file: Path) -> Mapping[str, str]:
    """`id`, `broker` with its password, and `ca`, the file itself. UserError where it is something else."""
    try:
        about, begin, _ = file.read_text().partition(BEGIN)
        found: dict[str, Any] = json.loads(about)
        name, broker = found["id"], found["broker"]
        BrokerUrl.parse(broker)
    except (UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError, UserError):
        begin = ""
    if not begin:
        raise UserError(f"{file}: a file is wanted that `broker enroll` wrote")
    return {"id": name, "broker": broker, "ca": str(file)}


def check_agent(file: Path, agent: str, broker: str) -> None:
    """UserError where these are not this agent's: their broker would let it in, and part with it at its first message."""
    told = read(file)
    user = told["id"]
    if broker != told["broker"]:  # the user knows better: only the authority is taken from the file
        return
    if user == COORDINATOR:
        raise UserError(f"{file}: these credentials are the coordinator's; an agent's are wanted, from `broker enroll`")
    if user != agent:
        raise UserError(
            f"{file}: these credentials are {user}'s, not {agent}'s; leave --id out, or give {agent}'s file"
        )
