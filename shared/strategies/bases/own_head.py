"""What methods share whose agents keep the last layers, the head, and share the layers before it, the body."""

from __future__ import annotations

from covey.shared.numerics.split import Split, last_modules
from covey.shared.numerics.vectors import Layout
from covey.shared.strategies.base import Settings
from covey.shared.strategies.bases.single import AveragedOnly


class OwnHead(AveragedOnly):
    """A single-model method whose model is the body. The head is the last layer, or what `task.keep` names."""

    def split(self, layout: Layout) -> Split:
        return Split.keeping(layout, last_modules(layout, 1, "the head"))

    def refuses(self, settings: Settings) -> str:
        if isinstance(settings, Split) and not settings.keeps:
            return "it needs a head that stays on the agents, and task.keep names none"
        return super().refuses(settings)
