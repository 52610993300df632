"""The invariants of every history, looked at after each event of a coordinator.

- A step is folded once, and each report once, in the history that one folder of the run has.
- A report that its agent knows to be accepted is folded, unless its step is void or the report was taken back by name.
- A report counts for the models, settings and round that it came from, and for no other.
- The fold of a step has the bytes that its reports give without broker, spool, sums and restarts.
- The secure sum of a group is that of the integers of those whom the record has as reported; else it is void or passed
  over, with a reason. They are listed members, each has seen this very list, and none answers twice for one start.
- A report that a coordinator has acknowledged, or counts in its checkpoint, is in its spool when it takes the run up again.
- Every order and every version of a model that a run names has its file.
- An agent loses its memory only where one of its own files has rotted, or a folder was put back or copied. It is ahead of a
  coordinator only where an accepted report of its own lay in a rotten file.
- As long as the rounds are those of the calm run, so are the bytes.
- Checkpoints, rounds, steps, incarnations, orders and roll calls never go back.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from covey.coordinator.checks import read_report
from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.disk.spool import Circumstances
from covey.coordinator.engine.pace import Pace
from covey.coordinator.record.store import Saved, Store
from covey.coordinator.run.parts import Parts
from covey.coordinator.run.run import Run
from covey.extras.secure import secured as secured
from covey.extras.secure.agent_state import OwnSum
from covey.extras.secure.derivation import name_of_terms
from covey.extras.secure.integers import Integers, total_of
from covey.extras.secure.messages import JoinList, Terms
from covey.extras.secure.phases import bytes_of
from covey.extras.secure.progress import GroupSum
from covey.shared.strategies.base import ClientId, Phase, Reports
from covey.shared.strategies.client_half import Report
from covey.shared.wire.documents import CoordinatorStatus
from covey.shared.wire.messages import OrderMessage, ReportContent, Work
from tests.simulator.plan import EVENTS


class BrokenError(AssertionError):
    """A history that broke an invariant; the text names which."""


@dataclass
class Lineage:
    """The known contents of one folder of the run."""

    manifests: list[str] = field(default_factory=list)  # digests of the checkpoints, in their order
    age: tuple[int, int] = (-1, -1)  # round and step of the newest
    incarnation: int = -1
    state: str = ""  # digest of the method's state in the newest
    folds: dict[int, list[str]] = field(default_factory=dict)  # digests of reports, by step
    pending: dict[int, list[str]] = field(default_factory=dict)  # folds that the next one has
    accepted: dict[int, dict[ClientId, str]] = field(default_factory=dict)  # reports, by step
    promised: dict[ClientId, int] = field(default_factory=dict)  # accepted steps in orders
    has_rotten: bool = False  # reports: they may have to come again
    models: dict[int, str] = field(default_factory=dict)  # digests of what is folded, by step

    def copy(self) -> Lineage:
        return Lineage(
            list(self.manifests),
            self.age,
            self.incarnation,
            self.state,
            {step: list(reports) for step, reports in self.folds.items()},
            {step: list(reports) for step, reports in self.pending.items()},
            {step: dict(reports) for step, reports in self.accepted.items()},
            dict(self.promised),
            self.has_rotten,
            dict(self.models),
        )


@dataclass
class Sums:
    """Watches the secure sums of a history, whose integers it gets from the agents.

    Args:
        fail: gets each sum that is wrong.
        struck: counts faults of the history, and here the sums that they met.
    """

    fail: Callable[[Exception], None]
    struck: Counter[str]
    made: dict[ClientId, dict[str, Integers]] = field(default_factory=dict)  # by start
    seen: dict[ClientId, dict[bytes, OwnSum]] = field(default_factory=dict)  # by name of the terms
    opened: Integers | None = None
    faults: int = 0  # before the present sums

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at each sum that a coordinator opens, and at each end."""
        ended, boxes = GroupSum.ended, secured.Secured._boxes
        evaluated = secured.Secured._evaluated

        def opened(integers: Integers, *about: Any) -> Any:
            self.opened = integers.copy()
            return total_of(integers, *about)

        def over(one: GroupSum, end: str, why: str = "") -> dict[str, Any]:
            self.struck[f"secure {end}"] += 1
            self.struck["attacked sum"] += sum(map(self.struck.__getitem__, EVENTS)) > self.faults
            opened, self.opened = (
                self.opened,
                None,
            )  # honest agents make no sum that is out of range
            if end == "sum" and (stranger := self._stranger(one)):
                self.fail(
                    BrokenError(f"{stranger} counts in a secure sum of which it knows another list")
                )
            if opened is not None and not self._is_plain(opened, one.reported):
                self.fail(BrokenError(f"a secure sum is not that of {one.reported}"))
            if end != "sum" and not why:
                self.fail(BrokenError(f"a secure sum is {end} without a reason"))
            return ended(one, end, why)

        def figures(
            method: secured.Secured, state: Any, progress: Any, sums: Any, *more: Any, **about: Any
        ) -> Any:
            self.struck["secure evaluation"] += len(sums)
            return evaluated(method, state, progress, sums, *more, **about)

        def begun(method: secured.Secured, *about: Any) -> Any:
            self.faults = sum(map(self.struck.__getitem__, EVENTS))
            return boxes(method, *about)

        with (
            patch.object(secured, "total_of", opened),
            patch.object(GroupSum, "ended", over),
            patch.object(secured.Secured, "_boxes", begun),
            patch.object(secured.Secured, "_evaluated", figures),
        ):
            yield

    def saves(self, agent: ClientId, own: OwnSum | None) -> None:
        """An agent has put its part of a sum on its disk."""
        if own is None:
            return
        seen = self.seen.setdefault(agent, {})
        before, seen[own.name] = seen.get(own.name), own
        if not own.answer or (before is not None and before.answer):
            return
        start = Terms.from_bytes(own.terms).start
        answered = [other for other in seen.values() if other.answer]
        if sum(Terms.from_bytes(other.terms).start == start for other in answered) > 1:
            self.fail(BrokenError(f"{agent} answers twice for one start"))

    def _stranger(self, one: GroupSum) -> ClientId:
        """An agent that counts in a sum, but has not reported to this list of these members; "": none."""
        terms, listing = (bytes_of(one.contents[name]) for name in ("terms", "list"))
        places = {row.place for row in JoinList.from_bytes(listing).rows}
        for agent in one.reported:
            own = self.seen.get(agent, {}).get(name_of_terms(terms))
            is_member = agent in one.members and agent in one.listed
            if own is None or not is_member or own.listing != listing or not own.head:
                return agent
            if own.place not in places or one.members[own.place - 1] != agent:
                return agent
        return ""

    def _is_plain(self, opened: Integers, reported: Sequence[ClientId]) -> bool:
        """Whether a sum is that of what these agents made from one start."""
        of_each = [self.made.get(agent, {}) for agent in reported]
        starts = set.intersection(*map(set, of_each))
        sums = (np.sum([made[one] for made in of_each], axis=0, dtype=np.uint32) for one in starts)
        return any(np.array_equal(one, opened) for one in sums)


class Judge:
    """Watches all coordinators of a run, and the work of its agents.

    Args:
        fail: gets each invariant that is broken, at once.
    """

    def __init__(self, fail: Callable[[Exception], None]) -> None:
        self._fail = fail
        self._lineages: dict[Path, Lineage] = {}
        self._stores: dict[Path, Store] = {}  # of the newest life in each folder
        self._works: dict[str, set[str]] = {}  # what each report came from, by its digest
        self._contents: dict[str, bytes] = {}  # of the reports, by their digests
        self._newest: dict[tuple[str, ...], tuple[int, ...]] = {}  # of what only grows
        self.given_up: set[ClientId] = set()  # agents whose accepted reports lay in a rotten file
        self.has_unreadable = False  # an accepted report could not be read by the fold

    def _expect(self, holds: bool, what: str) -> None:
        if not holds:
            self._fail(BrokenError(what))

    def _grows(self, name: tuple[str, ...], age: tuple[int, ...]) -> None:
        newest = self._newest.get(name, age)
        self._expect(age >= newest, f"{name} goes back from {newest} to {age}")
        self._newest[name] = age

    # -- what agents and brokers see ---------------------------------------------------------------

    def works(self, life: str, order: OrderMessage) -> None:
        """An agent begins with the work of an order."""
        self._grows(("an agent's work", life, order.run), (order.again,))

    def made(self, digest: bytes, content: bytes, order: OrderMessage) -> None:
        """An agent has made a report."""
        assert order.work is not None
        self._works.setdefault(digest.hex(), set()).add(_text(order.work))
        self._contents[digest.hex()] = content

    def ordered(self, life: str, folder: Path, client: ClientId, order: OrderMessage) -> None:
        """A coordinator publishes an order: its agent may learn what was accepted."""
        self._grows(("orders", life, client), order.age)
        store = self._stores[folder]
        self._expect(
            not store._is_due and not store.reports._unsynced,
            "an order leaves before what it follows from is on the disk",
        )
        promised = self._lineages[folder].promised
        promised[client] = max(promised.get(client, 0), order.accepted)

    def called(self, shard: int, status: CoordinatorStatus) -> None:
        """A coordinator publishes its status on a broker."""
        session, _, call = status.epoch.rpartition(".")
        if session:
            self._grows(("roll calls", session, str(shard)), (int(call),))

    # -- folders -----------------------------------------------------------------------------------

    def copied(self, folder: Path, copy: Path) -> None:
        """An operator copies the folder of a run."""
        self._lineages[copy] = self._lineages[folder].copy()

    def put_back(self, backup: Path, folder: Path) -> None:
        """An operator puts an earlier copy of a folder in its place. Agents may still know of later steps."""
        self._lineages[folder] = self._lineages[backup].copy()

    def rotten(self, folder: Path, path: Path) -> None:
        """A file in this folder is damaged. Accepted reports may have to come again, or are given up."""
        if folder in self._lineages:
            lineage = self._lineages[folder]
            lineage.promised.clear()
            lineage.has_rotten = True
            if path.name == "reports":
                self.given_up |= set(lineage.accepted.get(int(path.parent.name), {}))

    def takes_up(self, folder: Path) -> None:
        """A coordinator is about to resume the run in a folder."""
        lineage = self._lineages.setdefault(folder, Lineage())
        found = _manifest(folder)
        if found in lineage.manifests:
            self._expect(
                found == lineage.manifests[-1], f"the checkpoint of {folder.name} is an older one"
            )
            lineage.pending.clear()
        else:  # it was written, and the kill came before anything else
            self._commit(lineage, found)
            lineage.state = ""

    def _commit(self, lineage: Lineage, manifest: str) -> None:
        lineage.manifests.append(manifest)
        lineage.folds |= lineage.pending
        lineage.pending.clear()

    def models_in(self, folder: Path) -> Mapping[int, str]:
        """Digests of the models after each fold in the history of a folder, by step."""
        return self._lineages[folder].models

    # -- coordinators ------------------------------------------------------------------------------

    def watch(self, run: Run) -> None:
        """Look at everything that a coordinator does. Its run has just been made; it is started or resumed next."""
        lineage = self._lineages.setdefault(run.folder, Lineage())
        self._stores[run.folder] = run.store
        is_first = True  # checkpoint of this life
        note, save, take = run.store.note, run.store._save, run.take
        take_back, discard = run.members.take_back, run.store.reports.discard
        keep = run.store.reports.keep
        note_resume = run.recorder.note_resume

        def noted(event: str, **about: Any) -> None:
            note(event, **about)
            if event == "fold":
                self._folded(run, lineage, about["step"], about["reporters"])

        def kept(step: int, client: ClientId, report: Report, about: Circumstances) -> None:
            keep(step, client, report, about)
            self._accepted(run, lineage, client, step, about.digest)

        def saved(of: Saved) -> None:
            nonlocal is_first
            if is_first:
                self._begins(run, lineage)
            is_first = False
            save(of)
            self._saved(run, lineage)

        def taken(phase: Phase, reports: Reports, outcome: Any, circumstances: Any) -> None:
            try:
                self._same_fold(run, lineage, reports, outcome)
            except Exception as error:  # the run would take it for one of its own
                self._fail(error)
            take(phase, reports, outcome, circumstances)
            assert run.engine.step is not None
            lineage.models[run.engine.step.number] = models_of(run)

        def resumed(reported: Sequence[ClientId]) -> None:
            self._resumed(run, lineage, reported)
            note_resume(reported)

        def taken_back(client: ClientId) -> None:
            self.has_unreadable = True
            lineage.promised.pop(client, None)
            take_back(client)

        def discarded(step: int, client: ClientId) -> None:
            lineage.promised.pop(client, None)
            discard(step, client)

        run.store.note = noted  # type: ignore[method-assign]
        run.store._save = saved  # type: ignore[assignment, method-assign]
        run.take = taken  # type: ignore[method-assign]
        run.recorder.note_resume = resumed  # type: ignore[assignment, method-assign]
        run.members.take_back = taken_back  # type: ignore[method-assign]
        run.store.reports.discard = discarded  # type: ignore[method-assign]
        run.store.reports.keep = kept  # type: ignore[assignment, method-assign]

    def _begins(self, run: Run, lineage: Lineage) -> None:
        """The first checkpoint of a life follows."""
        if lineage.state:
            self._expect(
                _digest(run.state) == lineage.state, "the state is not that of the checkpoint"
            )
        incarnation = run.facts.incarnation
        self._expect(
            incarnation > lineage.incarnation,
            f"the incarnation {incarnation} comes after {lineage.incarnation}",
        )

    def _resumed(self, run: Run, lineage: Lineage, reported: Sequence[ClientId]) -> None:
        """A coordinator has read its checkpoint and its spool."""
        if lineage.has_rotten:
            return
        step = run.engine.step
        if step is not None:
            asked = {client for client, known in lineage.promised.items() if known == step.number}
            lost = sorted(asked - set(reported))
            self._expect(not lost, f"acknowledged reports of {lost} are not in the spool")
        waiting = Checkpoint(run.folder / "checkpoint").facts()["engine"].get("stream")
        if waiting is not None:
            reports = Pace.from_json(waiting, ()).waiting()
            lost = [
                one.client for one in reports if one.client not in run.store.reports.who(one.step)
            ]
            self._expect(
                not lost, f"the checkpoint counts reports of {lost} that are not in the spool"
            )

    def _accepted(
        self, run: Run, lineage: Lineage, client: ClientId, step: int, report: str
    ) -> None:
        opened, own = run.engine.step, run.orders.own.works.get(step)
        known = None if opened is None else opened.asked.pop(client, None)
        if own is None:
            assert opened is not None
            own = run.orders._work(client, opened, run.state)
        self._expect(
            known is None or known.work == own.digest,
            f"what {client} is asked for in step {step} has changed since its order",
        )
        self._expect(
            _text(own) in self._works[report],
            f"a report of {client} counts for other work than it came from: step {step}",
        )
        lineage.accepted.setdefault(step, {})[client] = report

    def _folded(
        self, run: Run, lineage: Lineage, step: int, reporters: Mapping[ClientId, str]
    ) -> None:
        self._expect(step not in lineage.folds, f"step {step} is folded twice")
        if run.engine.rules.is_buffered:
            lineage.pending[step] = []
            return
        lost = {client for client, known in lineage.promised.items() if known == step}
        lost -= set(reporters)
        self._expect(not lost, f"step {step} is folded without accepted reports of {sorted(lost)}")
        accepted = lineage.accepted.get(step, {})
        reports = [accepted[client] for client in reporters if client in accepted]
        before = {report for earlier in lineage.folds.values() for report in earlier}
        twice = sorted(before & set(reports))
        self._expect(not twice, f"reports are folded twice: {twice}")
        lineage.pending[step] = reports

    def _same_fold(self, run: Run, lineage: Lineage, reports: Reports, outcome: Any) -> None:
        """Fold the reports as the agents made them."""
        step = run.engine.step
        if run.engine.rules.is_buffered or step is None:
            return
        accepted = lineage.accepted.get(step.number, {})
        made: list[tuple[ClientId, Report]] = []
        for client, _ in reports:
            if client not in accepted:  # a kill came before this judge saw it
                return
            content = ReportContent.from_bytes(self._contents[accepted[client]], verified=True)
            checked = read_report(
                content, step.phase, run.scenario, train_samples=None, base=run.orders.base
            )
            made.append((client, checked))
        phase = replace(step.phase, cohort=tuple(sorted(step.cohort)))
        again = run.folding_of(step.number, phase).folded(made, run.state)
        self._expect(
            _digest(again.state) == _digest(outcome.state),
            f"step {step.number} is folded to other bytes than its reports give",
        )

    def _saved(self, run: Run, lineage: Lineage) -> None:
        age = (run.engine.round, run.engine.number)
        self._expect(age >= lineage.age, f"the checkpoint goes back from {lineage.age} to {age}")
        self._expect(run.facts.incarnation >= lineage.incarnation, "the incarnation goes back")
        lineage.age, lineage.incarnation = age, run.facts.incarnation
        lineage.state = _digest(run.state)
        self._commit(lineage, _manifest(run.folder))
        named = [send.path for send in run.orders.own.versions.values()]
        missing = [path.name for path in named if not path.exists()]
        self._expect(not missing, f"models that the run names have no file: {missing}")


def watched(judge: Judge) -> type[Run]:
    """A run with the judge looking on from the beginning."""

    class Watched(Run):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            judge.watch(self)

    return Watched


@dataclass(frozen=True)
class Folded:
    """A fold in the record of a run."""

    step: int
    round: int
    phase: str
    reported: tuple[ClientId, ...]

    @property
    def of_round(self) -> tuple[int, str, tuple[ClientId, ...]]:
        """Round, phase and reporters: the same in a run that needed other steps for it."""
        return self.round, self.phase, self.reported


def rounds_of(folder: Path) -> list[Folded]:
    """The folds in the record of a run."""
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [
        Folded(row["step"], row["round"], row["phase"], tuple(row["reported"]))
        for row in rows
        if row.get("event") == "phase"
    ]


def _text(work: Work) -> str:
    """Everything that the work of an order depends on."""
    return repr(sorted(work.model_dump().items()))


def models_of(run: Parts) -> str:
    """Digest of what a run has learned so far."""
    return _digest((run.models, run.strategy.assignment(run.state)))


def rounds_ended(folder: Path) -> list[int]:
    """The rounds that the record of a run has as ended, in its order."""
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [row["round"] for row in rows if row.get("event") == "phase" and row["ends_round"]]


def _manifest(folder: Path) -> str:
    content = (folder / "checkpoint" / "manifest.json").read_bytes()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _digest(state: Any) -> str:
    """Of everything in the state of a method."""
    hasher = hashlib.blake2b(digest_size=16)
    _feed(hasher, state)
    return hasher.hexdigest()


def _feed(hasher: Any, value: Any) -> None:
    if is_dataclass(value):
        for one in fields(value):
            _feed(hasher, getattr(value, one.name))
    elif isinstance(value, np.ndarray):
        hasher.update(repr(value.shape).encode() + np.ascontiguousarray(value).tobytes())
    elif isinstance(value, dict):
        for key in sorted(value, key=repr):
            hasher.update(repr(key).encode())
            _feed(hasher, value[key])
    elif isinstance(value, tuple | list):
        hasher.update(f"[{len(value)}]".encode())
        for item in value:
            _feed(hasher, item)
    else:
        hasher.update(repr(value.item() if isinstance(value, np.generic) else value).encode())
