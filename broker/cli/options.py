"""What the commands of `broker` share."""

from __future__ import annotations

import sys

import typer

from covey.shared.printable import printable_lines


def command_group() -> typer.Typer:
    """An empty group of commands. The program lists its groups in the order of its help."""
    return typer.Typer(rich_markup_mode=None)


def show(text: str) -> None:
    """Print a line for the operator on stderr."""
    print(printable_lines(f"broker: {text}"), file=sys.stderr, flush=True)
