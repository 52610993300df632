"""An agent as a systemd service: the unit file, as text."""

from __future__ import annotations

from collections.abc import Sequence

from covey.shared.errors import UserError

UNIT = """\
[Unit]
Description=Covey agent {name}
Wants=network-online.target
After=network-online.target

[Service]
ExecStart={command}
User={user}
Restart=always
RestartSec=5
# a mistake in the options, or another agent of this id: to try again would not help
RestartPreventExitStatus=2
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=full

[Install]
WantedBy=multi-user.target
"""


def render(name: str, command: Sequence[str], user: str) -> str:
    """Run `command` (the program's path first) as `user` whenever the machine is up."""
    return UNIT.format(name=_plain(name), command=" ".join(map(quoted, command)), user=_plain(user))


def quoted(word: str) -> str:
    """One argument of ExecStart (systemd.service, "Command lines"): in quotes, nothing in it is expanded."""
    escaped = _plain(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{escaped}"' if escaped != word or not word or set(word) & set(" \t;'") else word


def _plain(text: str) -> str:
    """The text where systemd expands nothing in it. Raises UserError for one that would end its line."""
    if any(not letter.isprintable() for letter in text):
        raise UserError(
            f"{text!r}: a unit file cannot hold line breaks or control characters; choose another name or path"
        )
    return text.replace("%", "%%")
