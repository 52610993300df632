"""The `agent` command. Its modules are imported once Ctrl-C ends it quietly."""

from __future__ import annotations

from collections.abc import Callable

from covey.shared.programs.start import run_program


def main() -> None:
    """The entry point of the `agent` command."""
    run_program(_program)


def _program() -> Callable[[], object]:
    from covey.agent.cli.program import app

    return app
