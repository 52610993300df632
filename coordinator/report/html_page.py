"""A page as HTML: one file without any other, which runs no script but its own and loads nothing.

Whatever a page shows may come from others: names of agents, messages, folders. The template escapes every text, and a
Content-Security-Policy names the hashes of the only style and the only script that may apply.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from covey.coordinator.doctor.odd import Odd
from covey.coordinator.report.figure_pictures import Picture
from covey.coordinator.view import theme
from covey.coordinator.view.svg import panel, swatch
from covey.coordinator.view.table import Table

# -- what the figures of a page mean: modes of evaluation, averages, and agreement of clusters -------------------------


@dataclass(frozen=True)
class GlossaryTerm:
    """A term of the page, explained in a sentence."""

    title: str
    meaning: str


# Modes of evaluation by their key in results, in the order of tables.
MODES = {
    "server": GlossaryTerm(
        "E-server",
        "the served model (an agent's cluster model, or the only one) on the agent's own test data",
    ),
    "delivered": GlossaryTerm(
        "E-delivered",
        "what the agent uses: a mixture of what it can have, weighed on its own training samples",
    ),
    "tuned": GlossaryTerm(
        "E-tuned", "the same after a short fine-tuning on the agent's training data"
    ),
    "last": GlossaryTerm(
        "E-last",
        "the agent's own model as its latest training left it; for an agent that never trained, the served model",
    ),
    "last_of_participants": GlossaryTerm(
        "E-last, participants", "E-last over the agents that took part in a training round"
    ),
    "last_of_undrawn": GlossaryTerm(
        "E-last, others", "E-last over the agents that no training round has drawn"
    ),
    "best": GlossaryTerm(
        "E-best", "the best model that an agent had right after a training of its own"
    ),
    "newcomers_server": GlossaryTerm(
        "newcomers, E-server", "the served model on agents that joined after the last round"
    ),
    "newcomers_delivered": GlossaryTerm("newcomers, E-delivered", "what these agents use"),
    "newcomers_tuned": GlossaryTerm(
        "newcomers, E-tuned", "the same after fine-tuning on these agents"
    ),
    "newcomers_last": GlossaryTerm("newcomers, E-last", "the newcomers' own models"),
}
MODES_OF_AGENTS = ("server", "delivered", "tuned", "last", "best")  # columns of the table of agents

AVERAGES = (
    GlossaryTerm("macro", "mean over agents: every agent counts once"),
    GlossaryTerm("micro", "mean over test samples: an agent with more test data counts more"),
)
AGREEMENT = (
    GlossaryTerm(
        "ARI", "adjusted Rand index of clusters and planted groups: 1 is the same, 0 is chance"
    ),
)
TRAFFIC = (
    GlossaryTerm(
        "Mbit per agent",
        "model values as float32, both ways, without evaluation: traffic as papers count it",
    ),
)


def terms(modes: Collection[str], *, has_groups: bool) -> list[GlossaryTerm]:
    """The terms that a page needs, which shows these modes."""
    found = [term for mode, term in MODES.items() if mode in modes]
    found.extend(AVERAGES)
    if has_groups:
        found.extend(AGREEMENT)
    found.extend(TRAFFIC)
    return found


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
    decides: bool = False


@dataclass(frozen=True)
class Fact:
    """A name and its value."""

    name: str
    value: str


@dataclass(frozen=True)
class PageSection:
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
    lead: Sequence[str]  # the sentences to read if nothing else is read
    tiles: Sequence[Tile]
    tables: Sequence[Table]
    remarks: Sequence[str]
    terms: Sequence[GlossaryTerm]
    pictures: Sequence[Picture]
    sections: Sequence[PageSection]
    odd: Sequence[Odd] | None = None  # what is odd about the devices; None: not known


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
