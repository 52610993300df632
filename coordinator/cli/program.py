"""The command `coordinator`. Each command imports what it needs when it runs, so that `--help` is quick."""

from __future__ import annotations

from typing import Any

from covey.coordinator.cli import (
    aggregating,
    control,
    preparing,
    reference,
    results,
    running,
    watching,
)
from covey.coordinator.serve.signals import as_ctrl_c
from covey.shared.cli import Commands, program


class CoordinatorCommands(Commands):
    """The commands of this program. SIGTERM and a closed terminal stop each of them as Ctrl-C does."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was typed."""
        with as_ctrl_c():
            return super().invoke(ctx)


app = program(
    "coordinator",
    "Run federated training: invite agents, cluster and aggregate their models, keep checkpoints "
    "and records.",
    CoordinatorCommands,
)
# The help lists the commands in this order: they follow the life of a run.
for group in (running, aggregating, preparing, watching, control, results, reference):
    app.add_typer(group.commands)
