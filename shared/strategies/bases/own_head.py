"""What methods share whose agents keep the last layers, the head, and share the layers before it, the body."""

from __future__ import annotations

from pydantic import Field

from covey.shared.numerics.split import Split, last_modules
from covey.shared.numerics.vectors import Layout
from covey.shared.strategies.base import Settings
from covey.shared.strategies.bases.single import AveragedOnly


class OwnHead(AveragedOnly):
    """A single-model method whose model is the body."""

    head_layers: int = Field(
        1,
        ge=1,
        description="The number of layers of the head, counted from the last. Only modules with "
        "parameters count. If the scenario has task.keep, that is the head instead.",
    )

    def split(self, layout: Layout) -> Split:
        key = f"strategy.{getattr(self, 'name', 'own_head')}.head_layers"
        return Split.keeping(layout, last_modules(layout, self.head_layers, key))

    def refuses(self, settings: Settings) -> str:
        if isinstance(settings, Split) and not settings.keeps:
            return "it needs a head that stays on the agents, and task.keep names none"
        return super().refuses(settings)
