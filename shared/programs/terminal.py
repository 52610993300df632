"""The terminal of our programs: text is shown as it is, neither as markup nor as control characters."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from covey.shared.sentences import printable_lines


class Terminal(Console):
    """A rich console for text that others wrote, in lines and in the cells of tables."""

    def __init__(self, *, stderr: bool = False, soft_wrap: bool = False) -> None:
        super().__init__(stderr=stderr, soft_wrap=soft_wrap, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Escape a string; every string that is printed passes through here."""
        return super().render_str(printable_lines(text), **options)
