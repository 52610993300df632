"""A page as HTML: one file without any other, which runs no script but its own and loads nothing.

Whatever a page shows may come from others: names of agents, messages, folders. The template escapes every text, and a
Content-Security-Policy names the hashes of the only style and the only script that may apply.

The pictures of finished runs: which ones these runs have, and what each of them shows.

Runs come in groups. A group of several runs is one method on several seeds: its lines are means, with a band of one
standard deviation to either side. A report of single runs has a group for each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from statistics import fmean

from markupsafe import Markup

from covey.coordinator.odd import Odd
from covey.coordinator.view.table import Table
from covey.extras.dashboard import cluster_pictures, plots, svg
from covey.extras.dashboard.curves import Curves
from covey.extras.dashboard.figure_pictures import (
    Picture,
    RunGroup,
    band_remark,
    extent,
    of_figures,
    series_of,
)
from covey.extras.dashboard.svg import (
    Drawing,
    Panel,
    columns_axis,
    figure_axis,
    from_zero,
    other,
    panel,
    rounds_axis,
    shown,
    swatch,
)
from covey.extras.dashboard.templates import templates
from covey.shared.numerics.measures import MEASURES, Measure
from covey.shared.sentences import counted

MAX_PANELS = 6  # runs that get panels of their own
MAX_NAMED = 3  # last agents of rounds that have a colour of their own
MISSING = other(3)  # the colour of agents that did not report


def pictures(groups: Sequence[RunGroup], *, by_seed: bool = False) -> list[Picture]:
    """All pictures of these groups, most important first.

    With `by_seed`, every run is a seed of its group: there are no pictures of single runs.
    """
    found: list[Picture] = []
    found.extend(of_figures(groups))
    found.extend(_of_rounds(groups))
    if by_seed:
        return found
    single = [group.runs[0] for group in groups if len(group.runs) == 1]
    if len(single) == len(groups):
        found.extend(_of_agents(single))
        for name, title, drawing in cluster_pictures.of_single_runs(single):
            found.append(Picture(name, title, drawing))
    return found


# -- other lines over rounds -----------------------------------------------------------------------


def _of_rounds(groups: Sequence[RunGroup]) -> Iterator[Picture]:
    """Training loss, and who reported in each round."""
    no_scale = MEASURES["loss"]
    series = []
    for number, group in enumerate(groups):
        series.append(
            series_of(other(number), group.label, [run.loss for run in group.runs], no_scale)
        )
    places: list[float] = []
    for one in series:
        places.extend(x for x, _ in one.points)
    if places:
        x = rounds_axis(places)
        panel = plots.lines("", series, x, from_zero(extent(series), "training loss"))
        drawing = Drawing([panel], plots.legend_of(series))
        title = "Training loss, mean over a round's agents"
        yield Picture("loss", title, drawing, band_remark(groups))
    runs = [group.runs[0] for group in groups if len(group.runs) == 1]
    if len(runs) == 1 and runs[0].times:
        yield _waits(runs[0])
    attended = [run for run in runs if any(one.missing for one in run.attendance)]
    if attended and len(runs) <= MAX_PANELS:
        panels = [_attendance(run, alone=len(runs) == 1) for run in attended]
        legend = [
            plots.colour_entry(None, "reported"),
            plots.colour_entry(MISSING, "invited, did not report"),
        ]
        yield Picture("attendance", "Agents of each training round", Drawing(panels, legend))


def _waits(run: Curves) -> Picture:
    """Who made the others wait, round by round."""
    often = Counter(one.agent for one in run.times).most_common()
    colours = {agent: other(place) for place, (agent, _) in enumerate(often[:MAX_NAMED])}
    stacks = []
    for one in run.times:
        more = (one.last - one.usual, colours.get(one.agent, MISSING), f"last: {one.agent}")
        stacks.append(plots.StackedColumn(one.round, [(one.usual, None, "median agent"), more]))
    x = columns_axis([one.round for one in run.times], "round")
    y = from_zero([one.last for one in run.times], "seconds from the order to the report")
    legend = [plots.colour_entry(None, "median agent")]
    legend += [plots.colour_entry(colour, f"last: {agent}") for agent, colour in colours.items()]
    if len(often) > len(colours):
        legend.append(plots.colour_entry(MISSING, "last: another one"))
    agent, count = often[0]
    remark = f"The last one of most rounds: {agent}, in {count} of {len(run.times)}."
    drawing = Drawing([plots.columns("", stacks, x, y)], legend)
    return Picture("waits", "How long agents take in a round", drawing, remark)


def _attendance(run: Curves, *, alone: bool) -> Panel:
    stacks = []
    most = 0
    for one in run.attendance:
        reported = (one.reported, None, "reported")
        stacks.append(
            plots.StackedColumn(one.round, [reported, (one.missing, MISSING, "did not report")])
        )
        most = max(most, one.reported + one.missing)
    x = columns_axis([one.round for one in run.attendance], "round")
    y = from_zero([most], "agents", whole=True)
    return plots.columns("" if alone else run.label, stacks, x, y)


# -- agents and clusters ---------------------------------------------------------------------------


def _of_agents(runs: Sequence[Curves]) -> Iterator[Picture]:
    """The figures of single agents, and the clusters that they are in."""
    measure = runs[0].measure
    if any(_has_figures(run) for run in runs):
        title = f"Agents: {measure.label} as served, agent by agent"
        remark = "Each dot is an agent, the line their mean."
        yield Picture("agents", title, _agents(runs, measure), remark)
    clustered = [run for run in runs if _has_clusters(run)]
    if not clustered or len(runs) > MAX_PANELS:
        return
    alone = len(runs) == 1
    yield Picture("clusters", "Agents per group over rounds", _sizes(clustered, alone=alone))
    panels = [_samples(run, alone=alone) for run in clustered if run.samples]
    if panels:
        yield Picture("samples", "Training samples per group", Drawing(panels))
    planted = [run for run in clustered if run.by_truth()]
    if planted:
        title = "Agents by group found (rows) and planted (columns)"
        yield Picture("groups", title, cluster_pictures.clusters_by_group(planted, alone=alone))


def _has_figures(run: Curves) -> bool:
    return any(one.figure is not None for one in run.agents)


def _has_clusters(run: Curves) -> bool:
    """Whether there were ever two clusters or more."""
    return any(len(sizes) > 1 for _, sizes in run.sizes)


def _agents(runs: Sequence[Curves], measure: Measure) -> Drawing:
    """A row of dots for each run, or for each cluster of a single run."""
    rows = []
    for number, run in enumerate(runs):
        dots: dict[int | None, list[tuple[float, str]]] = {}  # by cluster; by nothing if several
        for one in run.agents:
            if one.figure is not None:
                cluster = one.cluster if len(runs) == 1 else None
                dot = (shown(measure, one.figure), one.agent)
                dots.setdefault(cluster, []).append(dot)
        for cluster, own in sorted(dots.items(), key=_none_first):
            mean = fmean(value for value, _ in own)
            label = run.label if cluster is None else f"group {cluster}"
            colour = other(number) if cluster is None else cluster
            rows.append(plots.Strip(label, own, colour, mean))
    values: list[float] = []
    for row in rows:
        values.extend(value for value, _ in row.dots)
    return Drawing([plots.strips("", rows, figure_axis(measure, values))])


def _none_first(item: tuple[int | None, object]) -> int:
    """Sorts clusters by number, agents without a cluster before them."""
    cluster, _ = item
    return -1 if cluster is None else cluster


def _sizes(runs: Sequence[Curves], *, alone: bool) -> Drawing:
    """Agents per cluster after each round, stacked."""
    panels = []
    names: set[int] = set()
    for run in runs:
        newest: dict[int, dict[int, int]] = {}  # sizes by cluster, after each round
        for rounds, sizes in run.sizes:
            newest[rounds] = {int(cluster): size for cluster, size in sizes.items()}
        stacks = []
        for rounds, by_cluster in newest.items():
            layers = []
            for cluster in sorted(by_cluster):
                layers.append((by_cluster[cluster], cluster, f"group {cluster}"))
                names.add(cluster)
            stacks.append(plots.StackedColumn(rounds, layers))
        most = max(sum(by_cluster.values()) for by_cluster in newest.values())
        x = columns_axis(list(newest), "rounds that were over")
        y = from_zero([most], "agents", whole=True)
        panels.append(plots.columns("" if alone else run.label, stacks, x, y))
    legend = [plots.colour_entry(cluster, f"group {cluster}") for cluster in sorted(names)]
    return Drawing(panels, legend)


def _samples(run: Curves, *, alone: bool) -> Panel:
    """Bars of each cluster's training samples, with the number of its agents."""
    rows = []
    for cluster in sorted(run.samples):
        samples = run.samples[cluster]
        agents = sum(1 for own in run.clusters.values() if own == cluster)
        text = f"{samples} ({counted(agents, 'agent')})"
        rows.append(plots.Bar(f"group {cluster}", samples, text, cluster))
    axis = from_zero(run.samples.values(), "training samples", whole=True)
    return plots.bars("" if alone else run.label, rows, axis)


# -- what the figures of a page mean: modes of evaluation, averages, and agreement of clusters -------------------------


@dataclass(frozen=True)
class GlossaryTerm:
    """A term of the page, explained in a sentence."""

    title: str
    meaning: str


# Modes of evaluation by their key in results, in the order of tables.
MODES = {
    "server": GlossaryTerm(
        "served",
        "the served model (that of an agent's group, or the only one) on the agent's own test data",
    ),
    "delivered": GlossaryTerm(
        "in use",
        "what the agent uses: a mixture of what it can have, weighed on its own training samples",
    ),
    "tuned": GlossaryTerm(
        "fine-tuned", "the same after a short fine-tuning on the agent's training data"
    ),
    "last": GlossaryTerm(
        "own last",
        "the agent's own model as its latest training left it; for an agent that never trained, the served model",
    ),
    "last_of_participants": GlossaryTerm(
        "own last, participants", "own last over the agents that took part in a training round"
    ),
    "last_of_undrawn": GlossaryTerm(
        "own last, others", "own last over the agents that no training round has drawn"
    ),
    "best": GlossaryTerm(
        "own best", "the best model that an agent had right after a training of its own"
    ),
    "baseline": GlossaryTerm(
        "constant", "no model: the most frequent class, or the mean target, of its training data"
    ),
    "trees": GlossaryTerm("trees", "no federation: boosted trees on the agent's own table"),
    "newcomers_server": GlossaryTerm(
        "newcomers, served", "the served model on agents that joined after the last round"
    ),
    "newcomers_delivered": GlossaryTerm("newcomers, in use", "what these agents use"),
    "newcomers_tuned": GlossaryTerm(
        "newcomers, fine-tuned", "the same after fine-tuning on these agents"
    ),
    "newcomers_last": GlossaryTerm("newcomers, own last", "the newcomers' own models"),
}
MODES_OF_AGENTS = ("server", "delivered", "tuned", "last", "best")  # columns of the table of agents

AVERAGES = (
    GlossaryTerm("mean over agents", "every agent counts once, whatever its number of samples"),
)
AGREEMENT = (
    GlossaryTerm(
        "ARI",
        "adjusted Rand index of the groups found and the planted ones: 1 is the same, 0 is chance",
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
    first: Sequence[Table] = ()  # above the pictures
    folded: Sequence[Picture] = ()  # and with these, the tables: all other figures
    odd: Sequence[Odd] | None = None  # what is odd about the devices; None: not known


def html(page: Page) -> str:
    """The HTML of a page. The same page gives the same bytes."""
    pages = templates()
    template = pages.get_template("report.html")
    style = f"{svg.css()}\n{_own('report.css')}"
    script = _own("report.js")
    return template.render(
        page=page,
        panel=panel,
        swatch=swatch,
        policy=POLICY.format(style=svg.source_hash(style), script=svg.source_hash(script)),
        style=Markup(style),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
    )


@cache
def _own(name: str) -> str:
    """One of the files next to this module."""
    return (resources.files("covey.extras.dashboard") / name).read_text(encoding="utf-8").strip()
