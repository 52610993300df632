"""Tables as CSV text, with words from elsewhere made safe for the spreadsheet that opens them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

# A spreadsheet computes a cell that begins so. Some also cut lines at semicolons, in countries with decimal commas.
_FORMULA = re.compile(r"(^|[;\t\r\n])(?=\s*[=+\-@＝＋－＠])")
_NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)


def dumps(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table whose rows have the same columns.

    A word that a spreadsheet would take for a formula has an apostrophe before it. Numbers stay as they are.
    """
    text = io.StringIO(newline=None)  # each end of a line is "\n", also within a cell
    writer = csv.writer(text)  # which so puts quotes around a cell with "\r" as well
    for row in [*rows[:1], *rows]:
        writer.writerow(map(_safe, row.values() if text.tell() else row))
    return text.getvalue()


def _safe(cell: Any) -> Any:
    if not isinstance(cell, str) or _NUMBER.fullmatch(cell):
        return cell
    return _FORMULA.sub(r"\1'", cell)
