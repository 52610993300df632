"""A proposal as sections of choices, each with its reason, and its text as YAML with the reasons as comments. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from covey.shared.sentences import printable

WIDTH = 80  # of a line of the scenario
LIST_WIDTH = 72  # of a line with items of a list
SHORT_ITEM = 12  # characters; items up to this are written several on a line
MANY_ITEMS = 20  # and so are more items than these, whatever their length
INDENT = "  "
NESTED = 2 * INDENT


@dataclass(frozen=True)
class Choice:
    """A value of a scenario, and why it was chosen."""

    value: Any
    why: str = ""


@dataclass
class Proposal:
    """The keys of a scenario in order, with reasons, and what the user has to know before it runs."""

    about: list[str]  # lines of the heading
    name: str
    seed: int = 1
    sections: dict[str, dict[str, Choice]] = field(default_factory=dict)
    differences: list[str] = field(
        default_factory=list
    )  # between devices; the proposal copes with these
    warnings: list[str] = field(default_factory=list)  # faults to correct before a run
    odd: list[str] = field(default_factory=list)  # devices to look at first

    def content(self) -> dict[str, Any]:
        """The scenario as plain data."""
        content: dict[str, Any] = {"name": self.name, "seed": self.seed}
        for section, choices in self.sections.items():
            content[section] = {key: choice.value for key, choice in choices.items()}
        return content

    def remarks(self) -> list[str]:
        """Differences and warnings, one a line."""
        remarks: list[str] = []
        for text in self.differences:
            remarks.append(f"different: {text}")
        for text in self.warnings:
            remarks.append(f"wrong: {text}")
        for text in self.odd:
            remarks.append(f"odd: {text}")
        return remarks

    def to_yaml(self) -> str:
        """The scenario file."""
        lines = _comments(self.about, "")
        lines += _remarks("the devices differ", self.differences)
        lines += _remarks("correct this first", self.warnings)
        lines += _remarks("look at these devices first", self.odd)
        lines.append(_entry("name", self.name))
        lines.append(_entry("seed", self.seed))
        for section, choices in self.sections.items():
            lines += ["", f"{section}:"]
            for key, choice in choices.items():
                lines += _choice_lines(key, choice)
        return "\n".join(lines) + "\n"


def _remarks(heading: str, remarks: Sequence[str]) -> list[str]:
    if not remarks:
        return []
    lines = ["#", f"# {heading}:"]
    for remark in remarks:
        lines += _wrapped(f"- {remark}", "# ", "#   ")
    return lines


def _comments(sentences: Sequence[str], indent: str) -> list[str]:
    lines: list[str] = []
    for sentence in sentences:
        lines += _wrapped(sentence, f"{indent}# ", f"{indent}# ")
    return lines


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    """A comment in lines of at most WIDTH characters. Names of columns may hold anything: it stays a comment."""
    return textwrap.wrap(
        printable(text),
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _choice_lines(key: str, choice: Choice) -> list[str]:
    """A key with its reason: on the same line if there is room, else above it."""
    entry = INDENT + _entry(key, choice.value)
    if not choice.why:
        return _entry_lines(key, choice.value)
    one_line = f"{entry}  # {printable(choice.why)}"
    if len(one_line) <= WIDTH:
        return [one_line]
    return [*_comments([choice.why], INDENT), *_entry_lines(key, choice.value)]


def _entry_lines(key: str, value: Any) -> list[str]:
    """A key of a section, over several lines if it is long."""
    entry = INDENT + _entry(key, value)
    if len(entry) <= WIDTH:
        return [entry]
    lines = [f"{INDENT}{key}:"]
    match value:
        case Mapping():
            for name, inner in value.items():
                lines.append(NESTED + f"{_flow(name)}: {_flow(inner)}")
        case _ if _are_short(value):
            lines = _wrapped_list(key, value)
        case _:
            for item in value:
                lines.append(f"{NESTED}- {_flow(item)}")
    return lines


def _are_short(items: Sequence[Any]) -> bool:
    """Whether items of a list share lines: short ones, such as the names of pixels, or very many."""
    lengths = [len(_flow(item)) for item in items]
    return max(lengths) <= SHORT_ITEM or len(items) > MANY_ITEMS


def _wrapped_list(key: str, items: Sequence[Any]) -> list[str]:
    """A list in brackets over several lines, which are filled."""
    words: list[str] = []
    for item in items:
        text = _flow([item])  # quoted as it must be inside brackets
        words.append(text[1:-1])
    lines = [f"{INDENT}{key}: ["]
    line = NESTED
    for word in words:
        if len(line) + len(word) > LIST_WIDTH:
            lines.append(line.rstrip())
            line = NESTED
        line += f"{word}, "
    lines.append(line.rstrip(", ") + "]")
    return lines


def _entry(key: str, value: Any) -> str:
    return f"{key}: {_flow(value)}"


def _flow(value: Any) -> str:
    """A value as YAML on one line."""
    text = yaml.safe_dump(
        _plain(value),
        default_flow_style=True,
        width=float("inf"),
        allow_unicode=True,
        sort_keys=False,
    )
    return text.removesuffix("...\n").strip()


def _plain(value: Any) -> Any:
    """Tuples as lists, which the safe dumper knows."""
    match value:
        case tuple() | list():
            return [_plain(item) for item in value]
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case _:
            return value


ROWS_PER_INPUT = 20  # over all devices; with fewer, a linear model generalises better
HIDDEN = 32
MIN_WINDOW = 4  # readings that cnn1d needs
MIN_LENET = 16  # pixels a side
MIN_RESNET = 32


def table_model(inputs: int, rows: int) -> Choice:
    """For rows of a table.

    Args:
        inputs: of the model.
        rows: of all devices.
    """
    if rows < ROWS_PER_INPUT * inputs:
        why = (
            f"{rows} rows for {inputs} inputs are few: a linear model; try {{name: mlp, options: "
            f"{{hidden: {HIDDEN}}}}}"
        )
        return Choice({"name": "linear"}, why)
    why = f"{rows} rows for {inputs} inputs are enough for a hidden layer"
    return Choice({"name": "mlp", "options": {"hidden": HIDDEN}}, why)


def window_model(length: int) -> Choice:
    """For windows of sensor readings, or other series of `length` values per channel."""
    if length < MIN_WINDOW:
        return Choice({"name": "mlp"}, f"{length} readings are too few for a convolution")
    return Choice({"name": "cnn1d"}, "convolutions over time")


def autoencoder(inputs: int) -> Choice:
    """For unusual rows of a table."""
    code = max(inputs // 2, 1)
    hidden = [2 * inputs, code, 2 * inputs]
    return Choice(
        {"name": "autoencoder", "options": {"hidden": hidden}},
        f"reconstructs {inputs} inputs from {code}; a narrower middle finds more, and finds usual rows unusual too",
    )


def image_model(channels: int, side: int) -> Choice:
    """For images whose smaller side has `side` pixels."""
    if side < MIN_LENET:
        return Choice(
            {"name": "mlp"}, f"{side} pixels a side are too few for a convolution network"
        )
    if side < MIN_RESNET or channels == 1:
        return Choice({"name": "lenet5"}, "a small convolution network for small or grey images")
    return Choice(
        {"name": "resnet9"},
        "6.6 million parameters, for colour images; lenet5 is smaller and faster",
    )
