"""The style sheet of all pages, and the colour of each series and cluster. Pure, without libraries.

A page puts `css()` into its one `<style>` element. SVG and HTML name colours by class: `f0` to `f7` fill, `s0` to
`s7` stroke; `fn` and `sn` are grey. The classes follow the reader's theme, light or dark. Clusters take the colours from
the first one on, methods and all else from the end: they share none where both are few.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources

COLOURS = 8  # `--c0` to `--c7`; after the last, the first follows again
NO_COLOUR = "n"  # the suffix of grey: no cluster


@cache
def css() -> str:
    """The style sheet, without its comments."""
    text = (resources.files("covey.coordinator.view") / "theme.css").read_text(encoding="utf-8")
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
