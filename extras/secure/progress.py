"""The state of a run under secure sums: how far a round is, and what is known of the sum of each group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import msgpack

from covey.extras.secure import coordinator as co
from covey.extras.secure.phases import BOX, WORDS, bytes_of, words_of
from covey.extras.secure.suspicion import Suspicion
from covey.shared.errors import DecodeError
from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.around import Outer
from covey.shared.strategies.base import ClientId
from covey.shared.strategies.client_half import Report


@dataclass(frozen=True)
class GroupSum:
    """The sum of one group, as the state of a run has it."""

    cluster: str
    members: Sequence[ClientId]  # in order of places
    least: int  # members that must report
    listed: Sequence[ClientId] = ()
    reported: Sequence[ClientId] = ()
    end: str = ""  # "sum", or why it is void or passed over; empty while it is open
    blamed: Sequence[ClientId] = ()  # members because of whom
    # messages as words: "terms", "list", "unmask", and "records" of the machine. "total": the masked sum (m,)
    contents: Mapping[str, Vector] = field(default_factory=dict)

    def ended(self, end: str, why: str = "") -> dict[str, Any]:
        """How the sum ended, for the record: "sum", "void" (nothing was revealed) or "passed over"."""
        missing = [client for client in self.members if client not in self.reported]
        known = {"cluster": self.cluster, "reported": list(self.reported), "missing": missing}
        return {**known, "end": end, "why": why}


@dataclass(frozen=True)
class SummedFigures:
    """The averages of an evaluation under secure sums: over all sums, and of the served models by cluster."""

    modes: Mapping[str, Any] = field(default_factory=dict)
    by_cluster: Mapping[str, Any] = field(default_factory=dict)
    groups: Sequence[Sequence[ClientId]] = ()  # the members of each sum
    fleet: Mapping[str, Any] | None = None  # `FleetWeights`; None: no agent has weights


@dataclass(frozen=True)
class Progress:
    """How far a round under secure sums is."""

    stage: str = BOX  # whose reports come next: of boxes (or a phase of the method in the clear), join, train or unmask
    round: int = 0
    voids: int = 0  # attempts of this round whose sums were void
    blamed: Sequence[ClientId] = ()  # members that take part in no further sum
    # by cluster, of sums that were answered and passed over while its model stood still: "bound", who answered, and answers
    # for the same members alone; "members", whose reports were in the newest one
    standing: Mapping[str, Mapping[str, Sequence[ClientId]]] = field(default_factory=dict)
    suspicion: Suspicion = field(default_factory=Suspicion)
    named: Mapping[ClientId, str] = field(
        default_factory=dict
    )  # by the newest fold, as liars, and why
    summed: int = 0  # rounds that had a sum
    honest: int = 0  # the number that this round's scale of integers was made for; 0: not known yet
    sums: Sequence[GroupSum] = ()
    ends: Sequence[Mapping[str, Any]] | None = None  # of the sums of the phase that was folded last
    evaluates: bool = False  # the sums are those of an evaluation, after the round before
    figures: SummedFigures | None = None  # of the evaluation that was folded last

    def __post_init__(self) -> None:
        """A checkpoint has what is in it as mappings."""
        sums = tuple(one if isinstance(one, GroupSum) else GroupSum(**one) for one in self.sums)
        object.__setattr__(self, "sums", sums)
        if isinstance(self.figures, Mapping):
            object.__setattr__(self, "figures", SummedFigures(**self.figures))
        if isinstance(self.suspicion, Mapping):
            object.__setattr__(self, "suspicion", Suspicion(**self.suspicion))

    def after(self, **changes: Any) -> Progress:
        """What lasts beyond the phases of a sum, with these changes."""
        names = ("round", "blamed", "standing", "suspicion", "summed")
        return Progress(**{**{name: getattr(self, name) for name in names}, **changes})

    def without(self, client: ClientId) -> Progress:
        """This without an agent. An open sum is made of its messages too, and ends with its round."""
        standing = {
            cluster: {
                "bound": [one for one in known["bound"] if one != client],
                # those who are bound to it have nobody to answer for any more
                "members": [] if client in known["members"] else known["members"],
            }
            for cluster, known in self.standing.items()
        }
        blamed = [one for one in self.blamed if one != client]
        named = {one: why for one, why in self.named.items() if one != client}
        if (figures := self.figures) is not None:
            groups = [[one for one in group if one != client] for group in figures.groups]
            figures = replace(figures, groups=groups)
        suspicion = self.suspicion.without([client])
        known = replace(self, blamed=blamed, standing=standing, figures=figures, named=named)
        return replace(known, suspicion=suspicion, ends=None)

    @property
    def open(self) -> list[GroupSum]:
        """Sums that have not ended."""
        return [one for one in self.sums if not one.end]

    def sum_of(self, client: ClientId) -> tuple[int, GroupSum | None]:
        """The sum that an agent is a member of, and its number."""
        found = ((i, one) for i, one in enumerate(self.sums) if client in one.members)
        return next(found, (0, None))


@dataclass(frozen=True)
class SealedState(Outer):
    """The state of a run under secure sums."""

    progress: Progress = Progress()


State = SealedState


class Collected:
    """A sum with the machine that decides about it."""

    def __init__(self, group: GroupSum, machine: co.SecureSum, state: co.SumState) -> None:
        self.machine, self.state = machine, state
        self._group = group
        self._records = [co.Record(*one) for one in _unpacked(group.contents["records"])]

    @classmethod
    def of(cls, group: GroupSum) -> Collected:
        contents = [bytes_of(group.contents[name]) for name in ("terms", "records")]
        return cls(group, *_restored(*contents))

    def take(self, step: co.SumsTransition) -> None:
        self.state = step.state
        self._records += step.records

    def feed(
        self, receive: Callable[[co.SumState, bytes], co.SumsTransition], report: Report
    ) -> None:
        """A message of a member; one that does not count is left out."""
        try:
            self.take(receive(self.state, bytes_of(report.vectors[WORDS])))
        except DecodeError:
            return

    def kept(self, **contents: bytes) -> GroupSum:
        """The sum with what is known now, and with further messages."""
        state, members = self.state, self._group.members
        listed, reported, blamed = (
            [members[place - 1] for place in places]
            for places in (state.listed, state.reported, getattr(state.end, "blamed", ()))
        )
        end = "" if state.end is None else getattr(state.end, "reason", "sum")
        packed = msgpack.packb([(record.name, record.content) for record in self._records])
        words = {name: words_of(one) for name, one in {**contents, "records": packed}.items()}
        return replace(
            self._group,
            listed=listed,
            reported=reported,
            end=f"{end} ({', '.join(blamed)})" if blamed else self._group.end or end,
            blamed=blamed or self._group.blamed,
            contents={**self._group.contents, **words},
        )


def _unpacked(words: Vector) -> Any:
    return msgpack.unpackb(bytes_of(words))


@lru_cache(maxsize=16)
def _restored(terms: bytes, records: bytes) -> tuple[co.SecureSum, co.SumState]:
    """The machine of a sum, and its state: the inbox of each member is read from it."""
    machine = co.SecureSum(terms)
    return machine, machine.restored(co.Record(*one) for one in msgpack.unpackb(records))
