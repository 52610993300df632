"""`coordinator advise`: which shift a fleet has, and whether groups would help, before anything is trained.

The advice is that of cards alone: a run of Kin that ends after its tests. With a number of rounds the run
continues, and its agents vote. The run's folder is a temporary one, and no model of it is published.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from covey.coordinator.cli import run
from covey.coordinator.cli.options import (
    BROKER_OF_A_RUN,
    Set,
    distinct_brokers,
    ensure_role,
    in_federation,
    out,
    warn,
)
from covey.coordinator.record import records
from covey.coordinator.record.notices import Observer, ignore
from covey.coordinator.run.options import RunOptions
from covey.coordinator.view.lines import phase_line
from covey.coordinator.view.printed import show
from covey.coordinator.view.table import Column, Table
from covey.extras.dashboard.cluster_pictures import proximity_map
from covey.extras.dashboard.curves import curves, proximity_of
from covey.extras.dashboard.svg import document
from covey.extras.proposals import init
from covey.extras.simulate import driver
from covey.shared.cli import Allow, BrokerAddresses, DataRoot, Json, stopped, with_connection
from covey.shared.errors import UserError
from covey.shared.mqtt.credentials import COORDINATOR
from covey.shared.numerics.measures import Kind
from covey.shared.own_code.consent import AllowedCode
from covey.shared.scenario.load import from_mapping, load
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.sentences import counted, some
from covey.shared.storage import json_text
from covey.shared.storage.files import write_atomically
from covey.shared.strategies.bases.cut import CLEAR, KINDS, LEVEL
from covey.shared.strategies.phase_names import SIGNATURE

MOST_NAMES = 12  # of a group's members, on a terminal


@with_connection(BROKER_OF_A_RUN, several=True)
def advise_command(
    scenario: Annotated[
        Path | None,
        typer.Argument(
            help="the scenario file  [default: with --from, as `coordinator init` proposes it]"
        ),
    ] = None,
    *,
    connection: BrokerAddresses,
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            help="data of one device, as for `agent start --data`, in place of a fleet; repeatable",
        ),
    ] = None,
    overrides: Set = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--try",
            min=3,
            help="then train this many rounds, in which the agents vote on groups  [default: no training]",
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(help="write a picture of how far the devices' data lie apart")
    ] = None,
    data_root: DataRoot = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Find out how a fleet's data differ and whether groups would help, before anything is trained.

    It compares short summaries of the data. With --from it reads the data of the devices here. Otherwise it simulates the fleet
    section of the scenario, or asks real agents over the broker. The method of the scenario does not matter.
    """
    if scenario is None and not sources:
        raise UserError("advise needs a scenario file, or the data of each device: --from")
    if scenario is None and overrides:
        raise UserError("--set changes a scenario file: name one, or omit --set")
    if sources and len(sources) == 1:
        raise UserError(
            "advise compares devices: repeat --from for the data of each; expected at least two"
        )
    loaded = None if scenario is None else load(scenario, overrides or [])
    if loaded is not None and loaded.fleet is None and not sources:
        ensure_role(connection, COORDINATOR)
        loaded = in_federation(connection, loaded)
    options = RunOptions(
        Path(),
        data_root=data_root,
        allowed=AllowedCode.parse(allow),
        brokers=distinct_brokers(connection),
    )
    if sources:
        found = advise_files(sources, loaded, options, rounds=rounds, picture=svg)
    else:
        assert loaded is not None  # noqa: S101 - checked above
        found = advise(loaded, options, ignore, rounds=rounds, picture=svg)
    if found is None:
        raise stopped("there is no advice yet")
    if svg is not None and found.picture is None:
        warn(f"{svg} is not written: no test found a shift, or there are too many agents to draw")
    if as_json:
        print(json_text.dumps(found.to_json()))
        return
    for line in (found.sentence, *found.votes):
        out().print(line, highlight=False, markup=False)
    for table in (found.tests, found.members):
        if table.rows:
            show(out(), table)


@dataclass(frozen=True)
class Advice:
    """What the cards of a fleet say, and what its agents have voted."""

    kind: str  # "unknown", "one model", "groups" or "own models"
    sentence: str
    agents: int
    chances: Mapping[str, float]  # of the tests; empty: not tested
    groups: tuple[tuple[str, ...], ...] = ()  # members of the groups of the first cut
    silhouette: float | None = None
    votes: tuple[str, ...] = ()
    picture: str | None = None  # the file with the distances of the cards; None: nothing was drawn

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def tests(self) -> Table:
        """The tests, and what they found."""
        rows = [
            (kind, f"{self.chances[kind]:.4f}", "differ" if self.chances[kind] < LEVEL else "-")
            for kind in KINDS
            if kind in self.chances
        ]
        columns = [Column("test"), Column("p", is_number=True), Column("agents")]
        return Table("Tests of the agents' data", columns, rows)

    @property
    def members(self) -> Table:
        """The groups and who is in them."""
        rows = [
            (str(k), str(len(names)), some(names, MOST_NAMES))
            for k, names in enumerate(self.groups)
            if names
        ]
        columns = [Column("group"), Column("agents", is_number=True), Column("members")]
        return Table("Groups", columns, rows)


# what helps if labels differ, or targets of a regression, by the kind of task
FOR_LABELS: Mapping[Kind, str] = {
    "classes": "set task.label_prior: on",
    "values": "keep the bias of the last layer on each device (task.keep)",
}


def advice(
    notes: Mapping[str, Any],
    agents: int,
    groups: Sequence[Sequence[str]] = (),
    kind: Kind = "classes",
) -> Advice:
    """The advice from what the record has of Kin.

    Args:
        notes: as `Kin.shown` makes them after the tests.
        agents: the number that sent a card.
        groups: the members of each group of the first cut; empty where there is none.
        kind: of the task.
    """
    chances = notes.get("shift_chances", {})
    shifts = [shift for shift in KINDS if chances.get(shift, 1.0) < LEVEL]
    silhouette = next(iter(notes["silhouettes"].values()), None)
    found = Advice(
        "one model", "", agents, chances, tuple(tuple(names) for names in groups), silhouette
    )
    if not chances:
        return replace(
            found,
            kind="unknown",
            sentence="the cards cannot decide: fewer than four agents sent one; compare methods with coordinator compare",
        )
    if not shifts:
        return replace(
            found,
            sentence=f"no groups: no shift found between the data of {agents} agents; take fedavg",
        )
    verb = "differs" if shifts in (["style"], ["concept"]) else "differ"
    differ = f"{' and '.join(shifts)} {verb} between agents"
    remedy = FOR_LABELS.get(kind, "") if "labels" in shifts else ""
    if kind == "values" and shifts == ["labels"]:
        return replace(
            found,
            sentence=f"no groups: the level of the targets differs between agents, and nothing else; take fedavg, and {remedy}",
        )
    if silhouette is not None and silhouette >= CLEAR:
        other = f"; or try one model: {remedy}" if remedy else ""
        return replace(
            found,
            kind="groups",
            sentence=f"groups: {differ}, and they fall into {counted(len(groups), 'group')}; take kin, whose agents vote on "
            f"it, or fedclust or ifca, which ask for the cards too{other}",
        )
    return replace(
        found,
        kind="own models",
        sentence=f"own models rather than groups: {differ}, but they hardly fall into groups; "
        f"{remedy and f'{remedy}, '}let agents finish at home, or take kin, whose agents vote on it",
    )


def planned(scenario: Scenario, rounds: int | None) -> Scenario:
    """The scenario of the run that finds the advice.

    Raises:
        UserError: the scenario does not go with cards, with the reason.
    """
    if scenario.privacy is not None and scenario.privacy.has_noise:
        raise UserError(
            "advise: the scenario has a section privacy, and cards are not private; leave the section out for a fleet whose "
            "owners agree"
        )
    settings = scenario.model_dump(mode="json")
    strategy = {"name": "kin", "stop": "cards"} if rounds is None else {"name": "kin"}
    changes = {
        "strategy": strategy,
        "aggregation": {},
        "compare": None,
        "evaluation": {"tune_epochs": 0},
        "rounds": {**settings["rounds"], "count": rounds or 1, "stop": None},
    }
    return Scenario.model_validate({**settings, **changes})


def advise(
    scenario: Scenario,
    options: RunOptions,
    observer: Observer,
    *,
    rounds: int | None = None,
    picture: Path | None = None,
) -> Advice | None:
    """Ask the fleet of a scenario for cards; None where the operator stopped it.

    Args:
        scenario: its data, model and fleet count, and its method does not. Without a section fleet it waits for agents.
        options: of the run, whose folder is a temporary one.
        observer: gets the notices of the run.
        rounds: of a short run with votes after the cards; None: cards alone.
        picture: a file for the distances of the cards, as SVG, where a test finds a shift among at most `kin.MOST_DRAWN` agents.

    Raises:
        UserError: the run cannot start, or was given up.
    """
    cards = _ran(planned(scenario, None), options, observer, is_drawn=picture is not None)
    if cards is None:
        return None
    tested = next(row for row in cards.phases if row["phase"] == SIGNATURE)
    groups = _grouped(cards.assignment)
    found = advice(tested["notes"], len(tested["reported"]), groups, scenario.task.kind)
    if picture is not None and cards.picture:
        write_atomically(picture, cards.picture.encode())
        found = replace(found, picture=str(picture))
    if rounds is None:
        return found
    tried = _ran(planned(scenario, rounds), options, observer)
    if tried is None:
        return None
    trained = [row for row in tried.phases if row["ends_round"]]
    return replace(found, votes=phase_line(trained[-1]).decisions[1:])


def advise_files(
    sources: Sequence[str],
    scenario: Scenario | None,
    options: RunOptions,
    *,
    rounds: int | None = None,
    picture: Path | None = None,
) -> Advice | None:
    """The advice for devices whose data is here: one agent each, in process.

    Args:
        sources: data of one device each, as for `agent start --data`.
        scenario: its task counts; None: as `coordinator init` proposes it.
        options, rounds, picture: as `advise` takes them. The picture numbers the devices in the order of `sources`.

    Raises:
        UserError: as `advise`, or the data does not go together.
    """
    if scenario is None:
        content = yaml.safe_load(init.init(init.InitRequest(sources)).to_yaml())
    else:
        content = scenario.model_dump(mode="json")
    with tempfile.TemporaryDirectory(prefix="covey-devices-") as folder:
        for number, source in enumerate(sources):
            data = Path(source).absolute()
            # the agents of a folder of devices have the order of its names
            (Path(folder) / f"{number:05}{data.suffix}").symlink_to(data)
        rule = {"name": "by_group", "split": "time"}
        fleet = {"agents": len(sources), "data": folder, "partition": rule}
        whole = from_mapping({**content, "fleet": fleet})
        found = advise(whole, options, ignore, rounds=rounds, picture=picture)
    if found is None:
        return None
    named = {agent_name(number, len(sources)): source for number, source in enumerate(sources)}
    groups = tuple(tuple(named[agent] for agent in group) for group in found.groups)
    return replace(found, groups=groups)


@dataclass(frozen=True)
class Ran:
    """A run, as read before its folder is removed."""

    phases: Sequence[records.Row]
    assignment: Mapping[str, int]  # the group of each agent at the end
    picture: str  # SVG; empty: nothing to draw


def _ran(
    plan: Scenario, options: RunOptions, observer: Observer, *, is_drawn: bool = False
) -> Ran | None:
    """A run; None where it was stopped."""
    with tempfile.TemporaryDirectory(prefix="covey-advise-") as folder:
        here = replace(options, folder=Path(folder) / "run")
        result: Mapping[str, Any] | None
        if plan.fleet is None:
            result = asyncio.run(run.run(plan, here, observer))
        else:
            result = driver.alone(plan, here, observer)
        if result is None:
            return None
        phases = [row for row in records.lines(here.folder) if row["event"] == "phase"]
        picture = _picture(here.folder, plan, result) if is_drawn else ""
    return Ran(phases, result["assignment"], picture)


def _picture(folder: Path, plan: Scenario, result: Mapping[str, Any]) -> str:
    """The distances of the cards; empty where the run keeps none."""
    proximity = proximity_of(folder, plan)
    if proximity is None:
        return ""
    [curve] = curves([folder], [result], detailed=False)
    return document(proximity_map(curve, proximity))


def _grouped(assignment: Mapping[str, int]) -> tuple[tuple[str, ...], ...]:
    count = max(assignment.values(), default=-1) + 1
    return tuple(
        tuple(sorted(name for name, group in assignment.items() if group == k))
        for k in range(count)
    )
