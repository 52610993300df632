"""The `agent` command. Its modules are imported once Ctrl-C ends it quietly."""

from __future__ import annotations

from covey.shared.programs.start import run_program


def main() -> None:
    """The entry point of the `agent` command."""
    run_program("covey.agent.cli.program")
