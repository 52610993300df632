"""SVG as text: elements with every word escaped, panels, and a picture as a document of its own. Pure.

Colours are classes of the theme, so that one drawing serves the light and the dark theme; text stays text.

The style sheet of all pages is here too: a page puts `css()` into its one `<style>` element. SVG and HTML name colours by class: `f0` to `f7` fill, `s0` to
`s7` stroke; `fn` and `sn` are grey. The classes follow the reader's theme, light or dark. Clusters take the colours from
the first one on, methods and all else from the end: they share none where both are few.

Axes have a range that suits their values, ticks, and the way in which these are written.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from markupsafe import Markup, escape

from covey.shared.numerics.measures import PERCENT, Measure

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)  # between ticks, times a power of ten
TICKS = 5  # about that many on an axis
LEAST_PERCENT = 10.0  # the smallest span of an axis of percentages


@dataclass(frozen=True)
class Axis:
    """A linear axis from `low` to `high`, with its ticks in between."""

    label: str  # with the unit
    low: float
    high: float
    ticks: Sequence[float]

    def share(self, value: float) -> float:
        """The place of a value: 0 at the low end, 1 at the high end."""
        return (value - self.low) / (self.high - self.low)

    def words(self, tick: float) -> str:
        """A tick in words, with as many decimals as its neighbours need."""
        if len(self.ticks) < 2:
            return f"{tick:g}"
        step = self.ticks[1] - self.ticks[0]
        if max(abs(self.low), abs(self.high)) >= 1e6 or step < 1e-4:
            return f"{tick:.3g}"
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        if step * 10**decimals % 1 > 1e-6:  # steps of 2.5 need one more
            decimals += 1
        return f"{tick:.{decimals}f}"


def rounds_axis(rounds: Iterable[float], label: str = "rounds", low: float = 0.0) -> Axis:
    """An axis from round `low` to the last round, with whole numbers as ticks."""
    high = max(low + 1.0, math.ceil(max(rounds, default=0.0)))
    return Axis(label, low, high, _ticks(low, high, whole=True))


def from_zero(values: Iterable[float], label: str, *, whole: bool = False) -> Axis:
    """An axis from zero to a tick at or above the largest value."""
    largest = max(values, default=0.0)
    if not largest > 0:
        largest = 1.0
    step = _step(largest, whole=whole)
    high = step * math.ceil(largest / step - 1e-9)
    return Axis(label, 0.0, high, _ticks(0.0, high, whole=whole))


def around(
    values: Iterable[float],
    label: str,
    *,
    least: float = 0.0,
    floor: float = -math.inf,
    ceiling: float = math.inf,
) -> Axis:
    """An axis that shows the differences of some values, with ticks at both ends.

    Args:
        values: finite numbers
        label: of the axis, with the unit
        least: the smallest span of the axis: single values and small differences are not blown up
        floor: no tick is below
        ceiling: no tick is above
    """
    numbers = list(values) or [0.0]
    lowest = min(numbers)
    highest = max(numbers)
    missing = least - (highest - lowest)
    if highest == lowest and missing <= 0:
        missing = abs(highest) or 1.0
    if missing > 0:
        lowest -= missing / 2
        highest += missing / 2
        too_high = max(0.0, highest - ceiling)
        too_low = max(0.0, floor - lowest)
        lowest += too_low - too_high
        highest += too_low - too_high
    step = _step(highest - lowest)
    low = max(step * math.floor(lowest / step + 1e-9), floor)
    high = min(step * math.ceil(highest / step - 1e-9), ceiling)
    return Axis(label, low, high, _ticks(low, high))


def _step(span: float, *, whole: bool = False) -> float:
    """A round distance between ticks, so that there are about `TICKS` of them."""
    rough = span / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = 10 * power
    for factor in STEPS:
        if factor * power >= rough - 1e-12:
            step = factor * power
            break
    if not whole:
        return step
    if step == 2.5 * power and power < 10:
        step = 5 * power
    return max(1.0, float(round(step)))


def _ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    step = _step(high - low, whole=whole)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [step * place for place in range(first, last + 1)]


def columns_axis(rounds: Sequence[float], label: str = "rounds") -> Axis:
    """An axis for columns that stand on whole numbers, with room for half a column at both ends."""
    first = min(rounds)
    last = max(rounds)
    ticks = [tick for tick in _ticks(first, max(last, first + 1), whole=True) if tick <= last]
    return Axis(label, first - 0.5, last + 0.5, ticks)


def shown(measure: Measure, figure: float) -> float:
    """A figure as charts show it: shares in percent."""
    return measure.scale * figure


def axis_label(measure: Measure) -> str:
    """The measure with its unit; its direction where that is not obvious."""
    if measure.lower_is_better:
        return f"{measure.title}; lower is better"
    return measure.title


def figure_axis(measure: Measure, figures: Iterable[float], *, zero: bool = False) -> Axis:
    """An axis for these figures, which are scaled already. Percentages stay between 0 and 100."""
    label = axis_label(measure)
    values = list(figures)
    if measure.scale != PERCENT:
        is_positive = min(values, default=0.0) >= 0
        if zero and is_positive:
            return from_zero(values, label)
        return around(values, label)
    if zero:
        return Axis(label, 0.0, PERCENT, (0.0, 20.0, 40.0, 60.0, 80.0, 100.0))
    return around(values, label, least=LEAST_PERCENT, floor=0.0, ceiling=PERCENT)


COLOURS = 8  # `--c0` to `--c7`; after the last, the first follows again
NO_COLOUR = "n"  # the suffix of grey: no cluster


@cache
def css() -> str:
    """The style sheet, without its comments."""
    text = (resources.files("covey.extras.dashboard") / "theme.css").read_text(encoding="utf-8")
    return re.sub(r"/\*.*?\*/\s*", "", text, flags=re.DOTALL).strip()


@cache
def chosen_css() -> str:
    """Rules for a page whose reader can choose: `data-theme` on the root element overrides the system's theme."""
    light, dark, *_ = re.findall(r":root \{(.*?)\}", css(), flags=re.DOTALL)
    return (
        f':root[data-theme="light"] {{ {light} color-scheme: light; }}\n'
        f':root[data-theme="dark"] {{ {dark} color-scheme: dark; }}\n'
    )


def other(number: int) -> int:
    """The number of the colour of a method, a mode or a planted group: counted down from the last but one, as the last is
    nearly grey. The inverse of itself."""
    return -2 - number


def fill(number: int | None) -> str:
    """The class that fills a shape with the colour of a series or cluster; grey for None."""
    return f"f{_suffix(number)}"


def stroke(number: int | None) -> str:
    """The class that draws a line in the colour of a series or cluster; grey for None."""
    return f"s{_suffix(number)}"


def _suffix(number: int | None) -> str:
    if number is None:
        return NO_COLOUR
    return str(number % COLOURS)


def source_hash(text: str) -> str:
    """The hash of an inline script or style, as a Content-Security-Policy names it: 'sha256-...' with its quotes."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


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
        below = TITLE_HEIGHT if any(one.title for one in row) else 0.0
        for place, one in enumerate(row):
            parts.append(_titled(one, place * (WIDTH + GAP), height, below))
        height += below + max(one.height for one in row)
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


def _titled(one: Panel, x: float, y: float, below: float) -> Markup:
    """A panel at a place, `below` its title."""
    title = words(0, below - 8, one.title, "title") if one.title else Markup()
    return _moved(x, y, title, _moved(0, below, one.body))


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


OF_DRAWINGS = re.compile(r":root|@media|svg|\.[fs][0-9n] ")  # the rules of the theme that they need


def _style() -> str:
    """The part of the theme that drawings need: colours, and rules about SVG."""
    kept = []
    is_kept = False
    for rule in css().splitlines():
        if not rule.startswith((" ", "}")):  # else a line of the rule before
            is_kept = OF_DRAWINGS.match(rule) is not None
        if is_kept:
            kept.append(rule)
    text = "\n".join(kept)
    for rule in ("max-width: 28rem;", "width: 100%;", "height: auto;"):
        text = text.replace(rule, "")
    return f"{text}\nsvg .title {{ font-weight: 600; }}\n"


def text_width(text: str) -> float:
    """About how wide a text of 12 pixels is, in pixels; its font is the reader's, so this is an estimate."""
    wide = sum(1 for letter in text if letter in WIDE)
    return WIDE_LETTER * wide + LETTER * (len(text) - wide)
