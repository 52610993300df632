"""A page as HTML: one file without any other, which runs no script but its own and loads nothing.

Whatever a page shows may come from others: names of agents, messages, folders. The template escapes every text, and a
Content-Security-Policy names the hashes of the only style and the only script that may apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from covey.coordinator.report.explanations import Term
from covey.coordinator.report.figure_pictures import Picture
from covey.coordinator.view import theme
from covey.coordinator.view.svg import panel, swatch
from covey.coordinator.view.table import Table

# Not in an attribute anywhere: the policy allows the two inline blocks by their hashes, and pictures as data.
POLICY = (
    "default-src 'none'; style-src {style}; script-src {script}; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class Tile:
    """One of the figures that matter most."""

    figure: str
    label: str


@dataclass(frozen=True)
class Fact:
    """A name and its value."""

    name: str
    value: str


@dataclass(frozen=True)
class Section:
    """The part of a page about one run or comparison: its tables, where it comes from, how to repeat it."""

    title: str
    tables: Sequence[Table]
    facts: Sequence[Fact]
    command: str
    remarks: Sequence[str] = field(default=())  # about the command
    scenario: str = ""


@dataclass(frozen=True)
class Page:
    """All that a page shows, from top to bottom."""

    title: str
    subtitle: str
    kind: str  # "run" or "comparison"
    tiles: Sequence[Tile]
    tables: Sequence[Table]
    remarks: Sequence[str]
    terms: Sequence[Term]
    pictures: Sequence[Picture]
    sections: Sequence[Section]


def html(page: Page) -> str:
    """The HTML of a page. The same page gives the same bytes."""
    pages = Environment(
        loader=PackageLoader("covey.coordinator.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = pages.get_template("report.html")
    style = f"{theme.css()}\n{_own('report.css')}"
    script = _own("report.js")
    return template.render(
        page=page,
        panel=panel,
        swatch=swatch,
        policy=POLICY.format(style=theme.source_hash(style), script=theme.source_hash(script)),
        style=Markup(style),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
    )


@cache
def _own(name: str) -> str:
    """One of the files next to this module."""
    return (resources.files("covey.coordinator.report") / name).read_text(encoding="utf-8").strip()
