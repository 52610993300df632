"""What the commands of `broker` share."""

from __future__ import annotations

import sys

from covey.shared.sentences import printable_lines


def show(text: str) -> None:
    """Print a line for the operator on stderr."""
    print(printable_lines(f"broker: {text}"), file=sys.stderr, flush=True)
