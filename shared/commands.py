"""The commands of a program: its own, and those that extras bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from covey.shared import extras


@dataclass(frozen=True)
class CommandEntry:
    """A command in the list of a program. Its module is imported only when somebody types it."""

    function: str  # such as "covey.agent.cli.join:join"; an extra that brings it names the module in its folder
    about: str  # one line of the list; the function's docstring is the help of the command itself
    passes_on: bool = False  # it takes options that it does not know, for another command
    before: str = ""  # of an extra: the command that follows it in the list; "" at the end

    def load(self) -> Callable[..., Any]:
        """Its function."""
        module, _, function = self.function.partition(":")
        command: Callable[..., Any] = getattr(import_module(module), function)
        return command


Entries = Mapping[str, CommandEntry]


def with_extras(typed: str, own: Entries) -> Entries:
    """The commands of a program and those that extras bring for it, in the order of the list.

    Args:
        typed: what people type before the name, such as "coordinator lab".
        own: those of the core.
    """
    found, order = dict(own), list(own)
    brought = extras.brought("COMMANDS").items()
    for path, (extra, entry) in sorted(brought, key=lambda one: bool(one[1][1].before)):
        before, _, name = path.rpartition(" ")
        if before == typed:
            found[name] = replace(entry, function=f"{extras.PACKAGE}.{extra}.{entry.function}")
            order.insert(order.index(entry.before) if entry.before in order else len(order), name)
    return {name: found[name] for name in order}
