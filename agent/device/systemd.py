"""The systemd unit file of an agent, as text."""

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
# exit code 2: an error in the options, or another agent with this id; a restart would not help
RestartPreventExitStatus=2
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=full

[Install]
WantedBy=multi-user.target
"""


def render(name: str, command: Sequence[str], user: str) -> str:
    """A unit file that runs a command whenever the machine is up.

    Args:
        name: the agent's id, for the description.
        command: the program's path and its arguments.
        user: who the command runs as.

    Raises:
        UserError: a word contains a line break or a control character.
    """
    words = [quoted(word) for word in command]
    return UNIT.format(name=_plain(name), command=" ".join(words), user=_plain(user))


def quoted(word: str) -> str:
    """One argument of ExecStart (systemd.service, "Command lines"). Quotes keep systemd from expanding it."""
    escaped = _plain(word)
    for special, replacement in (("\\", "\\\\"), ('"', '\\"'), ("$", "$$")):
        escaped = escaped.replace(special, replacement)
    has_separator = any(letter in " \t;'" for letter in word)
    needs_quotes = escaped != word or word == "" or has_separator
    return f'"{escaped}"' if needs_quotes else word


def _plain(text: str) -> str:
    """The text with its specifiers escaped. Raises UserError if it would end its line."""
    if not text.isprintable():
        raise UserError(
            f"{text!r}: a unit file cannot contain line breaks or control characters; choose another name or path"
        )
    return text.replace("%", "%%")
