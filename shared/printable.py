"""Text that others wrote, made safe for a terminal.

What agents, brokers and files say may hold control characters: an escape sequence renames the window, clears lines that
were there, or answers in the user's place; an override of the writing direction shows a name backwards. Here each of them
becomes its number, as "\\\\x1b", so that a person sees that it was there.
"""

from __future__ import annotations

import re

# C0 and C1 controls, marks and overrides of the writing direction, separators of lines, lone surrogates, invisible tags
_UNSAFE = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f"
_LINE = re.compile(f"[{_UNSAFE}]")
_LINES = re.compile(f"(?![\n\t])[{_UNSAFE}]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    """The text on one line, with every character that a terminal would obey as its number."""
    return _LINE.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines: line ends and tabs stay."""
    return _LINES.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
