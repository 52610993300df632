"""SVG as text: elements with every word escaped, panels, and a picture as a document of its own. Pure.

Colours are classes of the theme, so that one drawing serves the light and the dark theme; text stays text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from covey.coordinator.view import theme

XML = Markup('<?xml version="1.0" encoding="utf-8"?>\n')
NAMESPACE = "http://www.w3.org/2000/svg"
WIDTH = 330.0  # of a panel, in its own units: pixels on the narrowest phone, so that words are nowhere drawn smaller
GAP = 24.0  # between the panels of a document
IN_A_ROW = 3  # panels of a document
TITLE_HEIGHT = 22.0
LEGEND_LINE = 18.0
SWATCH = 22.0  # width of a legend's mark
LETTER = 6.6  # usual width of a letter of 12 pixels
DIGIT = 7.7  # of a digit in a wide font
WIDE_LETTER = 11.8  # and of these:
WIDE = "mwMW%@"

Value = str | float | None


@dataclass(frozen=True)
class Panel:
    """One drawing: a plot with its axes. `title` is shown above it; it may be empty."""

    title: str
    height: float
    body: Markup
    description: str  # for readers who do not see it
    width: float = WIDTH
    values: Sequence[tuple[float, str]] = ()  # in words, by their place across, for the pointer


@dataclass(frozen=True)
class LegendEntry:
    """One entry of a legend: a mark of `SWATCH` by `LEGEND_LINE`, and its meaning."""

    mark: Markup
    label: str


@dataclass(frozen=True)
class Drawing:
    """The panels of one picture, and their common legend."""

    panels: Sequence[Panel]
    legend: Sequence[LegendEntry] = field(default=())


def element(name: str, *children: str, **attributes: Value) -> Markup:
    """An element. Children that are no markup are escaped, as are the values of attributes; None leaves one out.

    `class_` stands for class, and `stroke_width` for stroke-width.
    """
    words = [name]
    for key, value in attributes.items():
        if value is None:
            continue
        written = key.rstrip("_").replace("_", "-")
        text = number(value) if isinstance(value, int | float) else value
        words.append(f'{written}="{escape(text)}"')
    opened = " ".join(words)
    inner = joined(children)
    if not inner:
        return Markup(f"<{opened}/>")  # noqa: S704 - every value is escaped above
    return Markup(f"<{opened}>{inner}</{name}>")  # noqa: S704 - as above


def joined(parts: Iterable[str]) -> Markup:
    """Markup and text in a row; text is escaped."""
    return Markup("").join(parts)


def number(value: float) -> str:
    """A coordinate with at most one decimal: a tenth of a pixel."""
    rounded = round(value, 1)
    if rounded == int(rounded):
        return str(int(rounded))
    return str(rounded)


def line(x1: float, y1: float, x2: float, y2: float, class_: str, **attributes: Value) -> Markup:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_, **attributes)


def rectangle(
    x: float, y: float, width: float, height: float, class_: str, *children: str
) -> Markup:
    """A rectangle; a child may be its title."""
    return element(
        "rect", *children, x=x, y=y, width=max(width, 0.0), height=max(height, 0.0), class_=class_
    )


def words(x: float, y: float, text: str, class_: str | None = None, anchor: str = "") -> Markup:
    """A line of text. `anchor` is "middle" or "end"; empty begins at x."""
    return element("text", text, x=x, y=y, class_=class_, text_anchor=anchor or None)


def hint(text: str) -> Markup:
    """What a browser shows while the pointer rests on the element that has this child."""
    return element("title", text)


def path(points: Iterable[tuple[float, float]], *, closed: bool = False) -> str:
    """The data of a path through these points."""
    corners = [f"{number(x)} {number(y)}" for x, y in points]
    data = "L".join(corners)
    end = "Z" if closed else ""
    return f"M{data}{end}"


def panel(one: Panel) -> Markup:
    """A panel as an element of a page."""
    places = [(round(x, 1), text) for x, text in one.values]
    return element(
        "svg",
        one.body,
        viewBox=f"0 0 {number(one.width)} {number(one.height)}",
        role="img",
        aria_label=one.description,
        data_values=json.dumps(places) if places else None,
    )


def swatch(entry: LegendEntry) -> Markup:
    """The mark of a legend's entry as an element of a page."""
    return element(
        "svg",
        entry.mark,
        class_="swatch",
        viewBox=f"0 0 {number(SWATCH)} {number(LEGEND_LINE)}",
        width=SWATCH,
        height=LEGEND_LINE,
        aria_hidden="true",
    )


def document(drawing: Drawing) -> str:
    """A picture as a file of its own: its panels in rows, the legend below, a background of its own."""
    parts = []
    height = 0.0
    for start in range(0, len(drawing.panels), IN_A_ROW):
        row = drawing.panels[start : start + IN_A_ROW]
        for place, one in enumerate(row):
            parts.append(_titled(one, place * (WIDTH + GAP), height))
        height += TITLE_HEIGHT + max(one.height for one in row)
    width = min(len(drawing.panels), IN_A_ROW) * (WIDTH + GAP) - GAP
    for entries in _legend_rows(drawing.legend, width):
        parts.append(_moved(0, height, entries))
        height += LEGEND_LINE
    style = element("style", Markup(_style()))  # noqa: S704 - our own file
    full_width = width + 2 * GAP
    full_height = height + 2 * GAP
    whole = element(
        "svg",
        style,
        rectangle(0, 0, full_width, full_height, "paper"),
        _moved(GAP, GAP, *parts),
        xmlns=NAMESPACE,
        viewBox=f"0 0 {number(full_width)} {number(full_height)}",
        width=full_width,
        height=full_height,
        font_family="system-ui, sans-serif",
    )
    return f"{XML}{whole}\n"


def _titled(one: Panel, x: float, y: float) -> Markup:
    """A panel at a place, below its title."""
    title = words(0, TITLE_HEIGHT - 8, one.title, "title")
    return _moved(x, y, title, _moved(0, TITLE_HEIGHT, one.body))


def _moved(x: float, y: float, *parts: str) -> Markup:
    return element("g", *parts, transform=f"translate({number(x)} {number(y)})")


def _legend_rows(legend: Sequence[LegendEntry], width: float) -> list[Markup]:
    """The entries in rows that fit into the width."""
    rows: list[list[Markup]] = [[]]
    x = 0.0
    for entry in legend:
        needed = SWATCH + 6 + LETTER * len(entry.label) + 18
        if x > 0 and x + needed > width:
            rows.append([])
            x = 0.0
        rows[-1].append(_moved(x, 0, entry.mark, words(SWATCH + 6, 13, entry.label)))
        x += needed
    return [joined(row) for row in rows if row]


def _style() -> str:
    """The part of the theme that drawings need: colours, and rules about SVG."""
    kept = []
    for rule in theme.css().splitlines():
        if rule.startswith((":root", "@media", "  ", "}", "svg", ".f", ".s")):
            kept.append(rule)
    text = "\n".join(kept)
    for rule in ("max-width: 28rem;", "width: 100%;", "height: auto;"):
        text = text.replace(rule, "")
    return f"{text}\nsvg .title {{ font-weight: 600; }}\n"


def text_width(text: str) -> float:
    """About how wide a text of 12 pixels is, in pixels; its font is the reader's, so this is an estimate."""
    wide = sum(1 for letter in text if letter in WIDE)
    return WIDE_LETTER * wide + LETTER * (len(text) - wide)
