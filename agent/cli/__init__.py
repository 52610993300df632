"""The `agent` command. Its modules are imported once Ctrl-C ends it quietly."""

from __future__ import annotations

from covey.shared.programs.start import starting


def main() -> None:
    """The entry point of the `agent` command."""
    with starting():
        from covey.agent.cli.program import app

        app()
