"""Plots as SVG panels: lines over rounds, bars and dots in rows, stacked columns. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from markupsafe import Markup

from covey.extras.dashboard import svg
from covey.extras.dashboard.svg import COLOURS, Axis, fill, other, stroke
from covey.shared.numerics.measures import plain

TOP = 24.0  # above a plot: the label of its vertical axis
BOTTOM = 38.0  # below it: ticks and the label of the horizontal axis
RIGHT = 12.0
PLOT_HEIGHT = 190.0
ROW = 26.0  # height of one bar
MAX_LABEL = 150.0  # width of the labels of rows
MAX_MARKS = 30  # points of a line that get marks
DASHES = (None, "7 4", "2 4", "9 4 2 4")
MARK = 3.5  # half the size of a mark
MAX_COLUMN = 28.0  # width
GAP = 8.0  # between the label of a row and the plot
EDGE = 16.0  # a tick closer to an edge than this keeps its words inside the drawing


@dataclass(frozen=True)
class Series:
    """One line. A series without points keeps its number, so that it has one colour in all plots."""

    label: str
    number: int | None  # of its colour, dashes and marks; None: of everything together, in ink
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = field(default=())  # x, low, high


@dataclass(frozen=True)
class Bar:
    """One row of bars: a value with its words."""

    label: str
    value: float
    words: str  # written at its end
    colour: int | None = None


@dataclass(frozen=True)
class Strip:
    """One row of dots, with their mean as a vertical line."""

    label: str
    dots: Sequence[tuple[float, str]]  # value, and what it belongs to
    colour: int | None
    mean: float | None = None
    interval: tuple[float, float] | None = None  # around the mean


@dataclass(frozen=True)
class Size:
    """How large the drawing of a plot is."""

    width: float = svg.WIDTH
    height: float = TOP + PLOT_HEIGHT + BOTTOM


USUAL = Size()
Values = Sequence[tuple[float, str]]  # what a page shows under the pointer, by place on the x axis


@dataclass(frozen=True)
class Frame:
    """Where a plot lies in its panel, and its axes."""

    x: Axis
    y: Axis
    left: float
    top: float
    width: float
    height: float

    def place(self, x: float, y: float) -> tuple[float, float]:
        """A point of the axes in the panel."""
        across = self.left + self.width * self.x.share(x)
        return across, self.top + self.height * (1 - self.y.share(y))


# -- lines -----------------------------------------------------------------------------------------


def lines(
    title: str,
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    size: Size = USUAL,
    values: Values = (),
) -> svg.Panel:
    """Lines with marks, and bands around them."""
    frame = _frame(x, y, size)
    parts = [_grid(frame)]
    for one in series:
        parts.append(_band(frame, one))
    for one in series:
        parts.append(_line(frame, one))
    names = ", ".join(one.label for one in series if one.points)
    return _panel(
        frame,
        size,
        title,
        parts=parts,
        described=f"{y.label} over {x.label}, of {names}",
        values=values,
    )


def _panel(
    frame: Frame, size: Size, title: str, *, parts: Sequence[Markup], described: str, values: Values
) -> svg.Panel:
    """A plot whose values can be shown: it has a line for the place of the pointer."""
    places = [(frame.place(x, frame.y.low)[0], text) for x, text in values]
    pointer = Markup("")
    if places:
        end = frame.top + frame.height
        pointer = svg.line(frame.left, frame.top, frame.left, end, "hover", visibility="hidden")
    body = svg.joined([*parts, pointer])
    return svg.Panel(title, size.height, body, f"{title}: {described}", size.width, places)


def legend_of(series: Sequence[Series]) -> list[svg.LegendEntry]:
    """An entry for each series: its line with its mark. A single series needs none."""
    if len(series) == 1:
        return []
    entries = []
    for one in series:
        middle = svg.LEGEND_LINE / 2
        drawn = svg.line(
            1,
            middle,
            svg.SWATCH - 1,
            middle,
            f"line {_stroke(one)}",
            stroke_dasharray=dashes(one.number),
        )
        centre = _mark(svg.SWATCH / 2, middle, one)
        entries.append(svg.LegendEntry(svg.joined([drawn, centre]), one.label))
    return entries


def colour_entry(colour: int | None, label: str) -> svg.LegendEntry:
    """An entry with a filled square."""
    return svg.LegendEntry(svg.rectangle(5, 3, 12, 12, fill(colour)), label)


def _stroke(one: Series) -> str:
    return "ink" if one.number is None else stroke(one.number)


def _mark(x: float, y: float, one: Series) -> Markup:
    if one.number is None:
        return mark(x, y, 0, "ink")
    return mark(x, y, max(one.number, other(one.number)), fill(one.number))


def dashes(series: int | None) -> str | None:
    """The dashes of a series' line; None for an unbroken one."""
    if series is None:
        return None
    series = max(series, other(series))
    shift = series // COLOURS  # colours repeat: the same colour has other dashes
    return DASHES[(series + shift) % len(DASHES)]


def mark(x: float, y: float, shape: int, class_: str) -> Markup:
    """A mark by the number of its shape: circle, square, triangle, diamond, then the same again."""
    match shape % 4:
        case 0:
            return svg.element("circle", cx=x, cy=y, r=MARK, class_=class_)
        case 1:
            return svg.rectangle(x - MARK, y - MARK, 2 * MARK, 2 * MARK, class_)
        case 2:
            bottom = y + MARK
            corners = [(x, y - MARK), (x + MARK, bottom), (x - MARK, bottom)]
        case _:
            far = MARK + 1
            corners = [(x, y - far), (x + far, y), (x, y + far), (x - far, y)]
    return svg.element("path", d=svg.path(corners, closed=True), class_=class_)


def _line(frame: Frame, one: Series) -> Markup:
    places = [frame.place(x, y) for x, y in one.points]
    parts = []
    if len(places) > 1:
        drawn = svg.element(
            "path",
            d=svg.path(places),
            class_=f"line {_stroke(one)}",
            stroke_dasharray=dashes(one.number),
        )
        parts.append(drawn)
    if one.label and len(places) <= MAX_MARKS:  # a line without a name is no data
        for (x, y), (at, value) in zip(places, one.points, strict=True):
            label = f"{one.label}: {plain(value)} at {plain(at)}"
            parts.append(svg.element("g", svg.hint(label), _mark(x, y, one)))
    return svg.joined(parts)


def _band(frame: Frame, one: Series) -> Markup:
    """The area between the lower and the upper values."""
    if len(one.band) < 2:
        return Markup("")
    upper = [frame.place(x, high) for x, _, high in one.band]
    lower = [frame.place(x, low) for x, low, _ in one.band]
    outline = [*upper, *reversed(lower)]
    return svg.element("path", d=svg.path(outline, closed=True), class_=f"band {fill(one.number)}")


def _frame(x: Axis, y: Axis, size: Size) -> Frame:
    """The place of a plot next to the ticks of its vertical axis."""
    left = 8 + svg.DIGIT * max(len(y.words(tick)) for tick in y.ticks)
    return Frame(x, y, left, TOP, size.width - left - RIGHT, size.height - TOP - BOTTOM)


def _grid(frame: Frame) -> Markup:
    """Grid lines, ticks and labels of both axes."""
    bottom = frame.top + frame.height
    right = frame.left + frame.width
    parts = [svg.words(0, 12, frame.y.label, "tick")]
    for tick in frame.y.ticks:
        _, y = frame.place(frame.x.low, tick)
        parts.append(svg.line(frame.left, y, right, y, "grid"))
        parts.append(svg.words(frame.left - 6, y + 4, frame.y.words(tick), "tick", "end"))
    parts.append(horizontal_axis(frame.x, frame.left, right, bottom, right + RIGHT))
    return svg.joined(parts)


def horizontal_axis(
    axis: Axis, left: float, right: float, bottom: float, width: float = svg.WIDTH
) -> Markup:
    """A line with ticks below a plot, and the label below them. The drawing has this width."""
    parts = [svg.line(left, bottom, right, bottom, "axis")]
    for number, tick in enumerate(axis.ticks):
        x = left + (right - left) * axis.share(tick)
        parts.append(svg.line(x, bottom, x, bottom + 4, "axis"))
        if number % _stride(axis, right - left):
            continue
        anchor = "middle"
        text_x = x
        if x > width - EDGE:
            anchor = "end"
            text_x = x + 8
        elif x < EDGE:
            anchor = "start"
            text_x = 0.0
        parts.append(svg.words(text_x, bottom + 17, axis.words(tick), "tick", anchor))
    parts.append(svg.words((left + right) / 2, bottom + 33, axis.label, "tick", "middle"))
    return svg.joined(parts)


def _stride(axis: Axis, width: float) -> int:
    """Of how many neighbouring ticks one has room for its words."""
    if len(axis.ticks) < 2:
        return 1
    apart = width * (axis.share(axis.ticks[1]) - axis.share(axis.ticks[0]))
    widest = max(svg.DIGIT * len(axis.words(tick)) for tick in axis.ticks)
    return math.ceil((widest + GAP) / abs(apart))  # an axis may run from right to left


# -- rows ------------------------------------------------------------------------------------------


def bars(title: str, rows: Sequence[Bar], axis: Axis, width: float = svg.WIDTH) -> svg.Panel:
    """Horizontal bars from zero, each with its words at its end."""
    longest = max(len(row.words) for row in rows)
    left = _label_width([row.label for row in rows])
    right = width - RIGHT - svg.LETTER * longest
    parts = [_row_grid(axis, left, right, len(rows))]
    for place, row in enumerate(rows):
        top = ROW * place + 4
        end = left + (right - left) * axis.share(row.value)
        parts.append(_row_label(row.label, left, top))
        parts.append(svg.rectangle(left, top + 2, end - left, ROW - 10, fill(row.colour)))
        parts.append(svg.words(end + 5, top + 14, row.words))
    described = f"{title}: {', '.join(f'{row.label}: {row.words}' for row in rows)}"
    return svg.Panel(title, _rows_height(len(rows)), svg.joined(parts), described, width=width)


def strips(title: str, rows: Sequence[Strip], axis: Axis) -> svg.Panel:
    """A dot for each value, row by row; dots are spread a little so that all can be seen."""
    left = _label_width([row.label for row in rows])
    right = svg.WIDTH - RIGHT
    parts = [_row_grid(axis, left, right, len(rows))]
    for place, row in enumerate(rows):
        top = ROW * place + 4
        middle = top + ROW / 2 - 3
        parts.append(_row_label(row.label, left, top))
        if row.mean is not None:
            x = left + (right - left) * axis.share(row.mean)
            parts.append(svg.line(x, top - 2, x, top + ROW - 4, "ink", stroke_width=1.5))
        if row.interval is not None:
            low, high = (left + (right - left) * axis.share(end) for end in row.interval)
            parts.append(svg.line(low, middle, high, middle, "ink", stroke_width=1.5))
        for count, (value, name) in enumerate(row.dots):
            spread = (count * 5 % 11 - 5) * 1.1  # the same for the same agents
            x = left + (right - left) * axis.share(value)
            dot = svg.element(
                "circle",
                svg.hint(f"{name}: {plain(value)}"),
                cx=x,
                cy=middle + spread,
                r=3,
                class_=fill(row.colour),
                fill_opacity="0.6",
            )
            parts.append(dot)
    described = ", ".join(f"{row.label}: {len(row.dots)}" for row in rows)
    return svg.Panel(
        title, _rows_height(len(rows)), svg.joined(parts), f"{title}: dots of {described}"
    )


def _rows_height(rows: int) -> float:
    return ROW * rows + BOTTOM + 8


def _label_width(labels: Sequence[str]) -> float:
    return min(MAX_LABEL, max(svg.text_width(label) for label in labels)) + GAP + 4


def _row_label(label: str, left: float, top: float) -> Markup:
    """A label that fits; the whole of it shows under the pointer."""
    room = int((left - GAP) / svg.LETTER)
    shown = label
    if svg.text_width(label) > left - GAP:
        shown = label[: room - 1] + "…"
    return svg.element("text", shown, svg.hint(label), x=left - GAP, y=top + 14, text_anchor="end")


def _row_grid(axis: Axis, left: float, right: float, rows: int) -> Markup:
    bottom = ROW * rows + 8
    parts = []
    for tick in axis.ticks:
        x = left + (right - left) * axis.share(tick)
        parts.append(svg.line(x, 0, x, bottom, "grid"))
    parts.append(horizontal_axis(axis, left, right, bottom))
    return svg.joined(parts)


# -- columns ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StackedColumn:
    """One column over a round: the heights of its layers from bottom to top, each with its colour."""

    x: float
    layers: Sequence[tuple[float, int | None, str]]  # height, colour, name


def columns(
    title: str,
    stacks: Sequence[StackedColumn],
    x: Axis,
    y: Axis,
    *,
    size: Size = USUAL,
    values: Values = (),
) -> svg.Panel:
    """Stacked columns; one for each stack, as wide as the distance between neighbours allows."""
    frame = _frame(x, y, size)
    parts = [_grid(frame)]
    places = sorted(frame.place(one.x, 0.0)[0] for one in stacks)
    widths = [MAX_COLUMN]
    for one_place, next_place in pairwise(places):
        if next_place > one_place:
            widths.append(0.8 * (next_place - one_place))
    width = min(widths)
    for one in stacks:
        below = 0.0
        for height, colour, name in one.layers:
            if not height:
                continue
            centre, top = frame.place(one.x, below + height)
            _, bottom = frame.place(one.x, below)
            said = svg.hint(f"{name}: {svg.number(height)} at {svg.number(one.x)}")
            parts.append(
                svg.rectangle(centre - width / 2, top, width, bottom - top, fill(colour), said)
            )
            below += height
    return _panel(
        frame, size, title, parts=parts, described=f"{y.label} over {x.label}", values=values
    )
