"""Text for people: numbers with their nouns, the first of many names, and text of others made safe for a terminal."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

MAX_NAMES = 4
# what a value should have been, by the type of pydantic's error
EXPECTED = {
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "dict_type": "expected a section with keys of its own",
    "finite_number": "expected a finite number",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected at least {ge}",
    "int_from_float": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_type": "expected a whole number",
    "less_than": "expected less than {lt}",
    "less_than_equal": "expected at most {le}",
    "list_type": "expected a list",
    "literal_error": "expected {expected}",
    "model_type": "expected a section with keys of its own",
    "string_type": "expected text",
    "tuple_type": "expected a list",
}


def counted(number: int, noun: str) -> str:
    """A number with its noun, which takes an s in the plural."""
    if number != 1:
        noun += "s"
    return f"{number} {noun}"


def some(names: Sequence[str], at_most: int = MAX_NAMES) -> str:
    """The first of several names, and how many more there are."""
    shown = ", ".join(names[:at_most])
    rest = len(names) - at_most
    return f"{shown} and {rest} more" if rest > 0 else shown


def expectation(fault: Mapping[str, Any]) -> str:
    """What a value should have been, from an error of pydantic."""
    form = EXPECTED.get(fault["type"])
    if form is None:
        return str(fault["msg"]).removeprefix("Input ").removeprefix("Value error, ")
    return form.format_map({key: _plain(value) for key, value in fault.get("ctx", {}).items()})


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# -- text from other machines and files, made safe for a terminal, and warnings on stderr, which quote it --------------
#
# Texts from agents, brokers and files may contain control characters. An escape sequence can rename the window, clear
# earlier lines or type an answer for the user; an override of the writing direction shows a name backwards. These functions
# replace each such character with its number, as in "\x1b", so that a person sees that it was there.


# C0 and C1 controls, marks and overrides of the writing direction, line separators, lone surrogates, invisible tags
_UNSAFE = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f"
_LINE = re.compile(f"[{_UNSAFE}]")
_LINES = re.compile(f"(?![\n\t])[{_UNSAFE}]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    """The text on one line; each character that a terminal would obey is replaced with its number."""
    return _LINE.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines: it keeps its line ends and tabs."""
    return _LINES.sub(_escaped, text)


LONG = 400  # characters of a message that is broken into lines


def in_lines(text: str) -> str:
    """A long message in three lines or so, each of whole clauses: what happened, what was expected, what to do."""
    if len(text) <= LONG:
        return text
    lines = [""]
    for clause in re.split(r"(?<=[.;:]) ", text):
        if lines[-1] and len(lines) < 3 and len(lines[-1]) + len(clause) > len(text) / 3:
            lines.append(" ")
        lines[-1] += f"{' ' * bool(lines[-1])}{clause}"
    return "\n".join(lines)


def _escaped(match: re.Match[str]) -> str:
    """The character as a string literal of Python would have it."""
    character = match[0]
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"


class PrintableFormatter(logging.Formatter):
    """A formatter that replaces each character that a terminal would obey by its number."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def log_to_stderr(line: str = "%(asctime)s %(message)s") -> None:
    """Show warnings and errors on stderr, one line each; `line` is the format of `logging`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter(line))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
