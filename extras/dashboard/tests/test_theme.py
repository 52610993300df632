"""The style sheet that all pages share."""

from __future__ import annotations

import itertools
import math
import re

import pytest

from covey.extras.dashboard import svg

LIGHT, DARK = 0, 1  # which part of the sheet
MIN_CONTRAST = 3.0  # of a graphic against the page (WCAG 2.2, 1.4.11)
MIN_TEXT_CONTRAST = 4.5
MIN_DISTANCE = 20.0  # between two colours in CIE Lab, for usual colour vision


def colours(part: int) -> dict[str, tuple[float, float, float]]:
    """The colours of one theme, as linear light."""
    block = svg.css().split("@media")[part]
    found: dict[str, tuple[float, float, float]] = {}
    for name, digits in re.findall(r"--(\w+): #(\w{6})", block):
        red, green, blue = (int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4))
        found[name] = (_linear(red), _linear(green), _linear(blue))
    return found


def _linear(value: float) -> float:
    if value <= 0.04045:
        return value / 12.92
    return float(((value + 0.055) / 1.055) ** 2.4)


def luminance(colour: tuple[float, float, float]) -> float:
    red, green, blue = colour
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    darker, brighter = sorted((luminance(one), luminance(other)))
    return (brighter + 0.05) / (darker + 0.05)


def lab(colour: tuple[float, float, float]) -> tuple[float, float, float]:
    red, green, blue = colour
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = luminance(colour)
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    roots = [_root(value) for value in (x, y, z)]
    return 116 * roots[1] - 16, 500 * (roots[0] - roots[1]), 200 * (roots[1] - roots[2])


def _root(value: float) -> float:
    if value > 0.008856:
        return float(value ** (1 / 3))
    return 7.787 * value + 16 / 116


def distance(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    return math.dist(lab(one), lab(other))


@pytest.mark.parametrize("part", [LIGHT, DARK])
def test_series_are_visible_and_differ_and_text_is_readable(part: int) -> None:
    found = colours(part)
    series = [found[f"c{number}"] for number in range(svg.COLOURS)]
    assert min(contrast(one, found["page"]) for one in series) >= MIN_CONTRAST
    for one, other in itertools.permutations(series, 2):
        assert distance(one, other) >= MIN_DISTANCE
        assert distance(one, found["bad"]) >= MIN_DISTANCE, "no series has the red of faults"
    for name in ("ink", "quiet", "link", "good", "warn", "bad"):
        assert contrast(found[name], found["page"]) >= MIN_TEXT_CONTRAST
        assert contrast(found[name], found["panel"]) >= MIN_TEXT_CONTRAST


def test_colours_repeat_after_the_last_and_nothing_is_grey() -> None:
    assert [svg.fill(number) for number in (0, 7, 8, None)] == ["f0", "f7", "f0", "fn"]
    assert svg.stroke(9) == "s1"
    for name in ("f7", "s7", "fn", "sn"):
        assert f".{name} {{" in svg.css()


def test_the_style_sheet_needs_no_other_file() -> None:
    assert "url(" not in svg.css()
    assert "@import" not in svg.css()
    assert "/*" not in svg.css()
