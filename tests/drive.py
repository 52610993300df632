"""A whole run in a few lines and no sockets: plan, order, work, fold, for strategies under test.

It keeps the promises of the engine: reports in ascending client id, void phases planned again, memory
committed on acceptance, numbers through msgpack, vectors of the promised sizes only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

import msgpack
import numpy as np

from covey.shared.seeds import entropy, generator
from covey.shared.strategies.base import (
    EVALUATE,
    MODEL,
    ClientId,
    Order,
    Phase,
    Setup,
    Strategy,
    View,
)
from covey.shared.strategies.client_half import LAST_MODEL, ClientState, Job, Local, Mixture, Report
from covey.shared.strategies.part_local import PartLocal, divided
from covey.shared.strategies.reading import folded
from covey.shared.work.order_settings import split_by
from tests.bowl import Drop, Trainer

T = TypeVar("T")


def leaves(value: Any) -> Iterator[Any]:
    """Everything that a state, a report or a memory is made of, in order."""
    if is_dataclass(value):
        value = {item.name: getattr(value, item.name) for item in fields(value)}
    if isinstance(value, Mapping):
        for key in value:
            yield key
            yield from leaves(value[key])
    elif isinstance(value, tuple | list):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def frozen(value: T) -> T:
    """The same, with its arrays made read-only: who changes one in place fails."""
    for leaf in leaves(value):
        if isinstance(leaf, np.ndarray):
            leaf.flags.writeable = False
    return value


def fingerprint(value: Any) -> list[Any]:
    """Equal for two states only if they agree bit for bit, order of dicts included."""
    return [leaf.tobytes() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves(value)]


def _promised(report: Report, phase: Phase) -> None:
    """The vectors of a report are those of the phase: of the length given there, or up to n for a length of -n."""
    assert report.vectors.keys() == phase.sizes.keys()
    for name, size in phase.sizes.items():
        assert len(report.vectors[name]) == size or 0 < len(report.vectors[name]) <= -size, name


@dataclass
class Run:
    """A run under way. `locals` are the clients; `joins`: the round in which a client appears, 0 by default."""

    strategy: Strategy[Any]
    setup: Setup
    locals: Mapping[ClientId, Trainer]
    joins: Mapping[ClientId, int] = field(default_factory=dict)
    drop: Drop = lambda phase, round_, client: False
    shuffle: int = 0  # in which order clients do their work
    client_states: dict[ClientId, ClientState] = field(default_factory=dict)
    phases: list[tuple[Phase, tuple[ClientId, ...]]] = field(
        default_factory=list
    )  # folded, with their reporters
    folds: list[tuple[Any, Phase, tuple[tuple[ClientId, Report], ...]]] = field(
        default_factory=list
    )  # what each fold was given: state, phase, reports
    round: int = 0

    def __post_init__(self) -> None:
        self.part = self.setup  # as the method gets it
        if self.setup.split is None:
            split = split_by(self.strategy, self.setup.layout)
            self.part = divided(self.setup, split, self.strategy)
        self.state = frozen(self.strategy.init(self.part))

    def rounds(self, count: int) -> Run:
        """Continue until `count` rounds are folded in all. Raises AssertionError for a run that hangs."""
        attempt = 0
        while self.round < count:
            assert attempt < 20, "the phase is void again and again"
            assert len(self.phases) < 20 + 5 * count, "phases are folded, but no round ends"
            attempt = 0 if self.phase(attempt) else attempt + 1
        return self

    def present(self) -> tuple[ClientId, ...]:
        return tuple(
            sorted(client for client in self.locals if self.joins.get(client, 0) <= self.round)
        )

    def personal(self, client: ClientId) -> Mixture:
        job = self.job("evaluate", client, self.strategy.serve(self.state, client))
        state = self.client_states.get(client, {})
        local = self.local(job)
        if not isinstance(local, PartLocal):
            return self.strategy.personal(job, local, state)
        return local.whole_mixture(self.strategy.personal(job, local, local.seen(state)))

    def phase(self, attempt: int) -> bool:
        """One attempt at the phase that comes next; whether it counts."""
        phase = self.strategy.plan(
            self.state, View(self.round, self.setup.rounds, attempt, self.present())
        )
        asks_all = phase.cohort == "all" and not phase.ends_round
        phase = replace(phase, cohort=self._cohort(phase, attempt))
        done: dict[ClientId, tuple[Report, ClientState]] = {}
        for client in generator(self.shuffle, "arrival").permutation(list(phase.cohort)).tolist():
            if not self.drop(phase.name, self.round, client):
                job = self.job(phase.name, client, self.strategy.order(self.state, phase, client))
                done[client] = self._work(job)
                _promised(done[client][0], phase)
        share = 0.5 if asks_all else phase.quorum
        if len(done) < max(share * len(phase.cohort), 1) and not phase.may_be_empty:
            return False
        self.client_states.update(
            {client: client_state for client, (_, client_state) in done.items()}
        )
        reports = frozen(tuple((client, done[client][0]) for client in sorted(done)))
        self.folds.append((self.state, phase, reports))
        self.state = frozen(folded(self.strategy, self.state, phase, reports=reports))
        self.phases.append((phase, tuple(sorted(done))))
        self.round += phase.ends_round
        return True

    def _work(self, job: Job) -> tuple[Report, ClientState]:
        local = self.local(job)
        before = self.client_states.get(job.client, {})
        if not isinstance(local, PartLocal):
            return self.strategy.work(job, local, before)
        seen = local.seen(before)
        report, after = self.strategy.work(job, local, seen)
        if MODEL in report.vectors:  # as the runner of a client does
            after = {**after, LAST_MODEL: report.vectors[MODEL]}
        return report, local.stored(after, seen, before)

    def _cohort(self, phase: Phase, attempt: int) -> tuple[ClientId, ...]:
        present = self.present()
        if phase.cohort == "sample":
            m = max(int(self.setup.participation * len(present) + 1e-9), 1)
            order = (
                generator(self.setup.seed, "cohort", self.round, attempt)
                .permutation(present)
                .tolist()
            )
            return tuple(sorted(order[:m]))
        return present if phase.cohort == "all" else tuple(c for c in phase.cohort if c in present)

    def job(self, phase: str, client: ClientId, order: Order) -> Job:
        models = tuple(self.strategy.model(self.state, key) for key in order.models)
        numbers = msgpack.unpackb(msgpack.packb(dict(order.numbers)))
        assert phase in {*self.strategy.facts.planned, EVALUATE}, f"agents refuse the phase {phase}"
        undeclared = numbers.keys() - self.strategy.facts.numbers_of(phase)
        assert not undeclared, f"agents refuse {undeclared} in the phase {phase}"
        training = self.setup.training.in_round(self.round, self.setup.rounds)
        plain = (numbers, order.cluster, self.part.layout, training)
        split = self.part.split
        return Job(phase, self.round, client, self.setup.seed, models, *plain, split=split)

    def local(self, job: Job) -> Local:
        seed = entropy(job.seed, "job", job.phase, job.round, job.client)
        local = replace(self.locals[job.client], training=job.training, seed=seed)
        if job.split is None:
            return local
        state = self.client_states.get(job.client, {})
        part: Any = PartLocal(local, job.split, state, self.part.rest, job.client)
        return part  # type: ignore[no-any-return]
