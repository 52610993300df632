"""The `coordinator` command. Its modules are imported once Ctrl-C ends it quietly."""

from __future__ import annotations

from covey.shared.programs.start import starting


def main() -> None:
    """The entry point of the `coordinator` command."""
    with starting(one_heap=True):
        from covey.coordinator.cli.program import app

        app()
