"""The history of a coordinator that lies, with the workers of real devices; and whether it has learned anything.

The fleet works twice: once as it is, and once with another row in the victim's table, for the same orders. Everything that
leaves the victim must be the same bytes, its masked vectors apart: for any row, a mask may be the one that hides it.
No sum, nor two or three of them together, may give what one agent has added; an agent that refuses is not quarantined; each
refusal has a name; and the run ends.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from covey.agent.device.events import Inspected
from covey.agent.device.presence import SessionPresence, SessionProgress
from covey.agent.policy import OwnersRules, Policy
from covey.agent.worker.worker import answer
from covey.coordinator.processes.launch import setup_of
from covey.coordinator.run import orders
from covey.coordinator.run.folder import IN_PROCESS
from covey.coordinator.run.orders import OrderBook
from covey.coordinator.run.rules import rules_of
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.virtual_clock import Driver, GivenUpError
from covey.extras.secure import on_device as on_device
from covey.extras.secure import secured as secured
from covey.extras.secure.figures import BITS, FIGURES
from covey.extras.secure.grouping import Grouping
from covey.extras.secure.integers import Integers, OutOfRangeError, add_masks, total_of
from covey.extras.secure.messages import Terms
from covey.extras.secure.phases import HEAD, bytes_of, words_of
from covey.extras.secure.primitives import hashed
from covey.extras.secure.progress import GroupSum
from covey.extras.secure.secure_folder import SIGNING_KEY, SecureFolder
from covey.extras.secure.tests.live import FEATURES, LAYOUT, Devices
from covey.shared.disclosures import cleared_status
from covey.shared.numerics.vectors import Vector
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import ClientId
from covey.shared.strategies.part_local import model_of
from covey.shared.strategies.phase_names import AHEAD, BOX, CHOOSE, EVALUATE
from covey.shared.wire.jobs import DeviceData, InspectData, Perform, Performed
from covey.shared.wire.messages import INITIAL, OrderMessage, ReportContent, Work
from tests.kit.scenes import Scenes
from tests.methods import METHODS
from tests.simulator.judge import BrokenError
from tests.simulator.lies import MESSAGES, Bender, Lie, fields_of, other_model, renamed
from tests.simulator.lying_plan import HONEST_TASK, NAMED, ROWS, SECURE_CLEAR, LyingPlan, scene_of
from tests.simulator.world import MEMORY, History

VICTIM = "a1"
COLUMNS = ("u", "v", "w", "age", "WORD", "y")
WORDS = ("flu", "none", "hiv")
NOW = 1_000_000.0
VOIDS = (
    2  # rounds without a result after which a run is given up, and attempts after which a round is
)
MOST_ORDERS = 400  # of a run; it ends before
OF_A_SUM = ("secure-", "@")  # keys of its messages
SAME_MODEL = 1e-6  # of the length of a model, in which values of 1 are added
NEAR = 1e-3  # of its length: an update that is computed to this error is known
TOGETHER = 3  # sums that are compared, at most
FAULT_SHARE = 0.1  # of the orders
UNNAMED = "the work failed with"  # begins the text about an error that nobody has foreseen

Row = list[str]
Told = Callable[[], None]


class OverError(Exception):
    """Everything that the plan asks for has been played."""


# of a run of the liar's: KeyError, for its lies may bend what it needs itself
ENDS = (OverError, GivenUpError, KeyError)


def table(seed: int, client: ClientId) -> list[Row]:
    """The rows of an agent."""
    draw = np.random.default_rng([seed, *client.encode()])
    values = draw.normal(size=(ROWS, FEATURES))
    targets = values @ [1.0, -2.0, 0.5] + draw.normal()
    cells = [[f"{one:.4f}" for one in row] for row in values]
    rest = zip(draw.integers(30, 34, ROWS), draw.choice(WORDS, ROWS), targets, strict=True)
    return [
        [*own, str(age), word, f"{y:.4f}"] for own, (age, word, y) in zip(cells, rest, strict=True)
    ]


def odd(row: Row, kind: str, draw: random.Random) -> Row:
    """Another row in the place of this one."""
    other = [f"{draw.gauss(0, 1):.4f}" for _ in NAMED] + row[FEATURES:]
    match kind:
        case "far" | "very far":
            other[draw.randrange(FEATURES)] = f"{draw.uniform(4, 40 if kind == 'far' else 4e6):.4f}"
        case "target":
            other[-1] = f"{10.0 ** draw.randint(1, 6):.1f}"
        case "cells":
            other[FEATURES:] = ["61", "syphilis", row[-1]]
    return other


class Fleet(Devices):
    """Devices on a disk whose random numbers follow from the seed."""

    def __init__(self, folder: Path, plan: LyingPlan, agents: Sequence[str]) -> None:
        super().__init__(folder, agents=())
        self.plan, self.agents = plan, agents
        limits = [f"privacy={{{plan.demand}}}", *plan.hidden]
        learner = "torch" if plan.is_noised else "numpy"
        self.owners = OwnersRules(Policy().with_limits(limits), learner=learner)
        self.rules = self.owners.for_job()
        self.tokens: dict[ClientId, Any] = {}

    def settle_in(self, number: int, name: str, rows: Sequence[Row]) -> None:
        place = self.folder / name
        (place / "secure").mkdir(parents=True)
        (place / "secure" / SIGNING_KEY).write_bytes(
            hashed("key", str(self.plan.seed).encode(), name.encode())
        )
        self._enrolled(number, name)
        lines = [",".join(COLUMNS), *(",".join(row) for row in rows)]
        (place / "data.csv").write_text("\n".join(lines))

    def token(self, folder: Path) -> Any:
        """The random bytes of the agent with this folder."""
        name = folder.parent.name
        draw = random.Random(f"{self.plan.seed} {name}")  # noqa: S311  they have to repeat
        return self.tokens.setdefault(name, draw.randbytes)

    def source(self, client: ClientId) -> DeviceData:
        return DeviceData(data=str(self.folder / client / "data.csv"), label="y")

    def performed(
        self, client: ClientId, order: bytes, contents: Sequence[tuple[str, bytes]]
    ) -> Any:
        """The answer of a worker, and the bytes of its report."""
        place, paths = self.folder / client, []
        for name, content in contents:
            paths.append(place / f"{name}.model")
            if not paths[-1].exists():
                paths[-1].write_bytes(content)
        memory = place / "memory"
        job = Perform(
            order=order,
            models=paths,
            memory=memory if memory.exists() else None,
            client=client,
            source=self.source(client),
            report_out=place / "report",
            memory_out=place / "newer",
            durable=False,
            account=place / "account",
            secure=place / "secure",
            rules=self.rules,
        )
        done = answer(job)
        if not isinstance(done, Performed):
            return done, b""
        if done.memory_digest:
            (place / "newer").replace(memory)
        return done, (place / "report").read_bytes()

    def status(self, client: ClientId, task: Task) -> bytes:
        """What an agent says about its data, as its service publishes it."""
        found = answer(
            InspectData(source=self.source(client), task=task.for_agents(), rules=self.rules)
        )
        if problem := getattr(found, "problem", "") or getattr(found, "why", ""):
            seen = Inspected(task.digest, problem=problem)
        else:
            seen = Inspected(task.digest, found.samples, found.test_samples, tuple(found.labels))
        presence = SessionPresence(client, "session", "version")
        presence._inspecting = task.digest
        presence.inspected(seen)
        progress = SessionProgress(busy=False, dropped={})
        return cleared_status(presence.status(progress), self.owners.policy.promises).to_bytes()


@dataclass
class Opened:
    """A sum without masks, as a coordinator has it, and the models from which each of its members began."""

    members: tuple[ClientId, ...]
    values: Integers
    models: dict[ClientId, list[Vector]]

    def is_further_work(self, other: Opened) -> bool:
        """Whether a member of both began from models that no sum of the other is near to.

        Sums of different rounds may give what one agent added, the more exactly the less the model moved: noise and steady
        members are for that, and without them nobody promises otherwise.
        """
        for agent in set(self.members) & set(other.members):
            pairs = itertools.product(self.models[agent], other.models[agent])
            if not any(_are_near(one, another) for one, another in pairs):
                return True
        return False


@dataclass
class Heard:
    """What the victim was asked, and what it answered."""

    order: bytes
    contents: list[tuple[str, bytes]]
    times: int
    answer: str  # of a worker that made no report
    report: bytes
    masked: list[Integers] = field(default_factory=list)


class Liar(Devices):
    """A coordinator with its lies, and the fleet that hears them."""

    def __init__(self, plan: LyingPlan, fleet: Fleet, history: History) -> None:
        self.plan, self.fleet, self.history = plan, fleet, history
        self.rules = fleet.rules
        self.memories, self._kept = {}, {}
        self.draw = random.Random(f"faults {plan.seed}")  # noqa: S311  bad luck, no secrets
        self.sums = 0  # that were begun
        self.open = 0  # the number of the sum whose phases are open, or come next
        self.opened: list[Opened] = []
        self.made: dict[ClientId, list[Integers]] = {}
        self.began: dict[ClientId, list[Vector]] = {}  # the models of its newest masked vector
        self.heard: list[Heard] = []
        self.masked: list[Integers] = []
        self.asked = 0
        self.broken: list[str] = []  # promises
        self.at_work: ClientId = ""
        self._told: dict[tuple[ClientId, int], Work] = {}  # by step
        self._bent: dict[tuple[Any, ...], Work] = {}  # by the honest work and the lies
        self._first: dict[str, Any] = {}  # models by key
        self._newest: Integers | None = None

    def begins(self) -> None:
        """A run begins: its steps have the numbers of the one before."""
        self._told.clear()
        self.asked, self.open = 0, self.sums

    # what is asked

    def report(self, run: Run, client: ClientId, order: OrderMessage) -> bytes:
        self.settle(run, client, run.members.accepted(client))
        assert order.work is not None
        self.asked += 1
        if self.asked > MOST_ORDERS:
            raise BrokenError(f"the run has not ended after {MOST_ORDERS} orders")
        evaluates = EVALUATE in (order.work.phase, order.work.numbers.get(AHEAD))
        if evaluates and not self.plan.evaluates:
            raise OverError
        if "gone" in self.plan.faults and self.draw.random() < FAULT_SHARE:
            self.history.struck["gone"] += 1
            return ReportContent.failed(order, client, "gone").to_bytes()
        times = 1
        if "asked again" in self.plan.faults and self.draw.random() < FAULT_SHARE:
            self.history.struck["asked again"] += 1
            times = 2
        book = run.orders
        try:
            contents = [(ref.digest.hex(), book.content_of(ref.key)) for ref in order.work.models]
        except KeyError:  # an agent waits for a model that nobody has published
            return ReportContent.failed(order, client, "gone").to_bytes()
        self.at_work, self.masked = client, []
        done: Any = None
        content = b""
        for _ in range(times):
            done, content = self.fleet.performed(client, order.to_bytes(), contents)
        if client == VICTIM:
            why = "" if content else repr(done)
            heard = Heard(order.to_bytes(), contents, times, why, content, self.masked)
            self.heard.append(heard)
        if not content:  # an agent drops an order that it cannot read
            return ReportContent.failed(order, client, "gone").to_bytes()
        report = ReportContent.from_bytes(content, verified=True)
        if HEAD in report.numbers:
            refs = [ref for ref in order.work.models if not ref.key.startswith(OF_A_SUM)]
            self.began[client] = [book.base(ref.digest) for ref in refs]
        if report.failure:
            self.history.struck["refusal"] += 1
            self.history.story.append(f"{client} {order.work.phase}: {report.failure}")
            if report.failure.startswith(UNNAMED):
                self.broken.append(f"no rule has a name ({order.work.phase}): {report.failure}")
        return content

    # what is told

    def tells(self, lie: Lie, client: ClientId = "") -> bool:
        is_for = {"all": True, "the victim": client == VICTIM, "the others": client != VICTIM}
        return self.open >= lie.since and (not client or is_for[lie.to])

    def told(self, lie: Lie) -> None:
        self.history.struck[lie.name] += 1

    def lies(self, *kinds: str) -> Iterator[tuple[Lie, random.Random]]:
        for lie in self.plan.lies:
            if lie.kind in kinds:
                yield lie, random.Random(f"lie {lie.draw}")  # noqa: S311

    def bender(self, draw: random.Random) -> Bender:
        cells = [cell for row in table(self.plan.seed, VICTIM)[:3] for cell in row]
        return Bender(draw, COLUMNS, ["61", "syphilis", "none", "drop", *cells])

    def work(self, client: ClientId, step: Any, work: Work) -> Work:  # type: ignore[override]
        """The work that an agent is told; the same one as long as the step is open."""
        known = self._told.get((client, step.number))
        if known is None:
            telling = [
                (lie, draw)
                for lie, draw in self.lies("again", "phase", "order", "task")
                if self.tells(lie, client)
            ]
            name = (work.digest, *(lie for lie, _ in telling))
            known = self._bent.get(name)
            if known is None:
                known = self._bent[name] = self._lied(work, telling)
            self._told[client, step.number] = known
        return known

    def _lied(self, work: Work, telling: Sequence[tuple[Lie, random.Random]]) -> Work:
        for lie, draw in telling:
            bent: Work | None
            match lie.kind:
                case "again":
                    of_first = lie.about == "the whole order"
                    bent = work.model_copy(update={"round": 0}) if of_first else None
                case "phase":
                    bent = renamed(work, lie.about, draw)
                case "order":
                    bent = self.bender(draw).bent(work, lie.about)
                case _:
                    task = self.bender(draw).bent(Task.model_validate(work.task), lie.about)
                    bent = None
                    if task is not None:
                        bent = work.model_copy(update={"task": task.for_agents()})
            if bent is not None and bent != work:
                self.told(lie)
                work = Work.model_validate(fields_of(bent))  # without the digest of the honest one
        return work

    def terms(self, terms: Terms) -> Terms:
        for lie, draw in self.lies("ruler"):
            if FIGURES in terms.vectors:  # about two slots in six are as good as random
                usual = (1 << BITS) * math.sqrt(terms.vectors[FIGURES] / 9)
                self.told(lie)
                terms = terms.model_copy(update={"levels": int(usual * draw.uniform(0.6, 1.1))})
        for lie, draw in self.lies("terms"):
            if self.tells(lie):
                bent = self.bender(draw).bent(terms, lie.about)
                if bent is not None:
                    self.told(lie)
                    terms = bent
        return terms

    def model(self, key: str, model: Any) -> Any:
        first = self._first.setdefault(key, model)
        if key in INITIAL or key.startswith(OF_A_SUM):
            return model
        for lie, draw in self.lies("again", "model"):
            if self.tells(lie):
                self.told(lie)
                model = first if lie.kind == "again" else other_model(model, lie.about, draw)
        return model

    def message(self, key: str, content: Any) -> Any:
        """A message of a sum, as it is sent."""
        name = "@" if key.startswith("@") else key.rpartition("-")[2]
        for lie, draw in self.lies("message"):
            of, _, about = lie.about.partition(".")
            if of != name or not self.tells(lie):
                continue
            bent = self.bender(draw).bent(MESSAGES[of].from_bytes(bytes_of(content)), about)
            if bent is not None:
                self.told(lie)
                content = words_of(bent.to_bytes())
        return content

    def members(self, reports: Any) -> Any:
        """Those whose boxes a coordinator wants to have seen."""
        for lie, draw in self.lies("member"):
            if self.tells(lie) and len(reports) > 1:
                others = [one for one, _ in reports if one != VICTIM]
                out = VICTIM if lie.about == "the victim" else draw.choice(others)
                self.told(lie)
                reports = [one for one in reports if one[0] != out]
        return reports

    def opens(self, integers: Integers, *about: Any) -> Any:
        """A sum without masks; a lie says that it is none."""
        self._newest = integers.copy()
        for lie, _ in self.lies("void"):
            if self.tells(lie) and self.history.struck[lie.name] <= lie.draw % 2:
                self.told(lie)
                raise OutOfRangeError("a value of the sum exceeds its bound")
        return total_of(integers, *about)

    def ended(self, group: GroupSum) -> None:
        if self._newest is not None:
            members = tuple(group.reported)
            models = {member: self.began[member] for member in members}
            self.opened.append(Opened(members, self._newest, models))
            self.history.struck["opened sum"] += 1
        self._newest = None

    @contextmanager
    def at_large(self) -> Iterator[None]:
        """The code of the coordinator is the liar's."""
        liar, ended, work = self, GroupSum.ended, OrderBook._work
        boxes, terms = secured.Secured._boxes, secured.Secured._terms_of_sum
        of_key, save = secured.Secured.model, SecureFolder.save_vector

        def of_step(own: OrderBook, client: ClientId, step: Any, state: Any) -> Work:
            if step.phase.name == BOX:
                liar.open = liar.sums
            return liar.work(client, step, work(own, client, step, state))

        def begun(own: Any, state: Any, reports: Any) -> Any:
            chosen = liar.members(reports)
            liar.sums += 1
            return boxes(own, state, chosen)

        def over(group: GroupSum, *about: Any) -> Any:
            liar.ended(group)
            return ended(group, *about)

        def saved(folder: SecureFolder, name: str, vector: Integers) -> None:
            if not name.endswith("-masked"):
                liar.made.setdefault(liar.at_work, []).append(vector.copy())
            save(folder, name, vector)

        def masked(vector: Integers, *streams: Any) -> None:
            add_masks(vector, *streams)
            liar.masked.append(vector.copy())

        def of_sum(own: Any, state: Any, key: str) -> Any:
            content = of_key(own, state, key)
            return liar.message(key, content) if key.startswith(OF_A_SUM) else content

        def drawn(own: Grouping, clients: Any, *about: Any) -> Iterator[tuple[list[Any], int]]:
            """In one group, as often as it likes."""
            size = own.size(len(clients), 0)
            yield sorted(clients), len(clients) if size is None else size.least

        patches: list[Any] = [
            patch.object(OrderBook, "_work", of_step),
            patch.object(
                orders, "model_of", lambda o, t, key, u: liar.model(key, model_of(o, t, key, u))
            ),
            patch.object(secured.Secured, "_boxes", begun),
            patch.object(
                secured.Secured, "_terms_of_sum", lambda *a, **k: liar.terms(terms(*a, **k))
            ),
            patch.object(secured.Secured, "model", of_sum),
            patch.object(secured, "MOST_VOIDS", VOIDS),
            patch.object(secured, "ASKED_FOR_ANSWERS", 1),
            patch.object(secured, "total_of", self.opens),
            patch.object(GroupSum, "ended", over),
            patch.object(SecureFolder, "save_vector", saved),
            patch.object(on_device, "add_masks", masked),
        ]
        if any(lie.kind == "member" for lie in self.plan.lies):
            patches.append(patch.object(Grouping, "drawn", drawn))
        with ExitStack() as stack:
            for one in patches:
                stack.enter_context(one)
            yield


@contextmanager
def one_seed(fleets: Sequence[Fleet], seed: int) -> Iterator[None]:
    """Random numbers and clocks of devices follow from the seed."""
    by_folder = {fleet.folder: fleet for fleet in fleets}

    def token(folder: SecureFolder) -> Any:
        return by_folder[folder._folder.parent.parent].token(folder._folder)

    with (
        patch.object(SecureFolder, "token", property(token)),
        patch.object(SecureFolder, "now", property(lambda folder: NOW)),
    ):
        yield


@cache
def clear_in(method: str) -> tuple[str, ...]:
    """The phases of a method whose reports are in no sum."""
    sealed = Scenes.of("lying", HONEST_TASK)(
        {"name": method, **METHODS[method]}
    ).strategy.facts.sealed
    return () if sealed is None else tuple(sealed.clear)


def begun(plan: LyingPlan, folder: Path, number: int) -> Run:
    scene = scene_of(plan, 3 + number)
    starts = [
        np.full(LAYOUT.size, 0.1 * k + 0.05 * number, np.float32)
        for k in range(scene.strategy.starts)
    ]
    rules = replace(rules_of(scene), void_limit=VOIDS)
    setup = setup_of(scene, starts, LAYOUT)
    return Run.start(folder, scene, setup, rules=rules, run=IN_PROCESS, now=0.0)


def play(plan: LyingPlan) -> History:
    """Play a plan to its end in both worlds, and judge it."""
    history = History()
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        try:
            _play(plan, Path(folder), history)
        except Exception as error:
            history.failure = f"{type(error).__name__}: {error}".replace(folder, "FOLDER")
    return history


def _play(plan: LyingPlan, folder: Path, history: History) -> None:
    names = [f"a{number}" for number in range(1, plan.agents + 1)]
    fleet, twin = Fleet(folder / "one", plan, names), Fleet(folder / "other", plan, [VICTIM])
    rows = table(plan.seed, VICTIM)
    for number, name in enumerate(names, 1):
        fleet.settle_in(number, name, rows if name == VICTIM else table(plan.seed, name))
    draw = random.Random(f"odd row {plan.seed}")  # noqa: S311
    rows[plan.row] = odd(rows[plan.row], plan.odd, draw)
    twin.settle_in(1, VICTIM, rows)
    liar = Liar(plan, fleet, history)
    with one_seed((fleet, twin), plan.seed):
        _complete(liar, folder / "run", 0)
        for number, (lie, _) in enumerate(liar.lies("run"), 1):
            liar.told(lie)
            _complete(liar, folder / f"run-{number}", number)
        _compare_statuses(liar, twin, rows[plan.row])
        _compare_reports(liar, twin)
        _count_clear(liar)
        _compute(liar)
    if liar.broken:
        raise BrokenError("\n  ".join(dict.fromkeys(liar.broken)))


def _complete(liar: Liar, folder: Path, number: int) -> None:
    """A run to its end."""
    run = begun(liar.plan, folder, number)
    liar.begins()
    with liar.at_large():
        try:
            Driver(run, liar).complete(dict.fromkeys(liar.fleet.agents, (ROWS, ROWS)))
        except ENDS as end:
            liar.history.story.append(f"{type(end).__name__}: {end}")
    if quarantined := run.members.quarantined:
        liar.broken.append(f"quarantined for a refusal: {quarantined}")


def _compare_statuses(liar: Liar, twin: Fleet, row: Row) -> None:
    honest = Task.model_validate(HONEST_TASK)
    for lie, draw in liar.lies("status"):
        bender = liar.bender(draw)
        if lie.about in Task.model_fields:
            task = bender.bent(honest, lie.about)
        else:
            task = bender.counting(honest, row)
        if task is None:
            continue
        liar.told(lie)
        one, other = liar.fleet.status(VICTIM, task), twin.status(VICTIM, task)
        liar.history.story.append(f"status: {one.decode()}")
        if one != other:
            liar.broken.append(f"a status depends on a row ({lie}): {_difference(one, other)}")


def _compare_reports(liar: Liar, twin: Fleet) -> None:
    """What the victim answered to each order, and what it answers with another row."""
    for heard in liar.heard:
        masks = iter(heard.masked)

        def masked(vector: Integers, *streams: Any, masks: Iterator[Integers] = masks) -> None:
            add_masks(vector, *streams)
            known = next(masks, None)  # as if the masks were those that give this vector
            if known is not None and known.shape == vector.shape:
                vector[:] = known

        with patch.object(on_device, "add_masks", masked):
            for _ in range(heard.times):
                done, content = twin.performed(VICTIM, heard.order, heard.contents)
        why = "" if content else repr(done)
        work = OrderMessage.from_bytes(heard.order).work
        assert work is not None
        if SECURE_CLEAR in liar.plan.demand and work.phase in clear_in(liar.plan.method):
            continue  # what it shows is counted
        one, other = _seen(heard.report, liar.plan), _seen(content, liar.plan)
        if (heard.answer, one) != (why, other):
            liar.broken.append(
                f"a report depends on a row ({work.phase}): {heard.answer} {why} {_differing(one, other)}"
            )
        liar.history.struck["compared report"] += 1


def _count_clear(liar: Liar) -> None:
    """An agent shows a signature and a vote once, four choices and two for each sum, however often it is asked."""
    shown: dict[str, set[str]] = {}
    for heard in liar.heard:
        work = OrderMessage.from_bytes(heard.order).work
        assert work is not None
        fields = _seen(heard.report, liar.plan)
        if work.phase in clear_in(liar.plan.method) and (
            fields.get("vectors") or fields.get("numbers")
        ):
            content = repr((fields["vectors"], fields["numbers"]))
            shown.setdefault(work.phase, set()).add(content)
    answered = sum(VICTIM in one.members for one in liar.opened)
    for phase, contents in shown.items():
        most = 4 + 2 * answered if phase == CHOOSE else 1
        if len(contents) > most:
            liar.broken.append(f"an agent shows {len(contents)} times what it has for {phase}")


def _are_near(one: Vector, other: Vector) -> bool:
    one, other = one.astype(float), other.astype(float)
    if one.shape != other.shape:
        return False
    length = math.sqrt(one.size + float(one @ one))
    return float(np.linalg.norm(one - other)) <= SAME_MODEL * length


def _seen(content: bytes, plan: LyingPlan) -> dict[str, Any]:
    """The fields of a report, without the time that it took and vectors with noise."""
    if not content:
        return {}
    report = ReportContent.from_bytes(content, verified=True)
    fields = report.model_copy(update={"seconds": 0.0}).model_dump()
    if plan.is_noised:
        for vector in fields["vectors"].values():
            vector["data"] = len(vector["data"])
    return fields


def _differing(one: dict[str, Any], other: dict[str, Any]) -> str:
    names = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    return "; ".join(f"{name}: {one.get(name)!r} or {other.get(name)!r}"[:300] for name in names)


def _difference(one: bytes, other: bytes) -> str:
    return _differing(json.loads(one), json.loads(other))


def _compute(liar: Liar) -> None:
    """Try to compute what one agent has added from one, two or three sums."""
    agents = sorted(liar.made)
    for count in range(1, min(TOGETHER, len(liar.opened)) + 1):
        for some in itertools.combinations(liar.opened, count):
            pairs = itertools.combinations(some, 2)
            if any(a.values.size != b.values.size or a.is_further_work(b) for a, b in pairs):
                continue
            members = np.array([[agent in one.members for agent in agents] for one in some], float)
            for place, agent in enumerate(agents):
                aim = np.eye(len(agents))[place]
                weights, *_ = np.linalg.lstsq(members.T, aim, rcond=None)
                if not np.allclose(members.T @ weights, aim, atol=1e-9) or not np.all(weights):
                    continue
                found = sum(
                    w * one.values.astype(np.int32) for w, one in zip(weights, some, strict=True)
                )
                for true in liar.made[agent]:
                    true = true.astype(np.int32).astype(float)
                    if true.shape == np.shape(found) and np.linalg.norm(
                        found - true
                    ) < NEAR * np.linalg.norm(true):
                        sums = " and ".join(",".join(one.members) for one in some)
                        liar.broken.append(
                            f"the update of {agent} is computed from the sums of {sums}"
                        )
