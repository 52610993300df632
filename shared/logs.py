"""Warnings of our programs, on stderr. They quote text that others chose: client ids, topics, addresses."""

from __future__ import annotations

import logging
import sys

from covey.shared.printable import printable_lines


class PrintableFormatter(logging.Formatter):
    """A formatter that replaces each character that a terminal would obey by its number."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def log_to_stderr(line: str = "%(asctime)s %(message)s") -> None:
    """Show warnings and errors on stderr, one line each; `line` is the format of `logging`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter(line))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
