"""One thing that is odd about a fleet: which devices, what, since when, and the next command. The list of them has one order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self, cast, get_args

from covey.shared import extras
from covey.shared.sentences import some

# In the order of the list: what harms all devices first, then what explains other oddities, last what may wait.
Kind = Literal[
    "coordinator",
    "broker",
    "twin id",
    "certificate",
    "disk",
    "clock",
    "federation",
    "target",
    "unit",
    "scale",
    "copy",
    "swap",
    "constant",
    "missing",
    "rows",
    "reports",
    "excluded",
    "work",
    "drift",
    "figure",
    "no model",
    "publication",
    "silent",
    "offline",
    "slow",
    "link",
    "version",
]


@dataclass(frozen=True)
class Broker:
    """The broker, as this program sees it."""

    why: str = ""  # it cannot be reached, refuses, or drops messages; empty if all is well
    until: float | None = None  # when its certificate ends


def doctor() -> Any | None:
    """`extras/doctor/of_run.py`, which finds all that is odd about a run; None if it is not installed: nothing is odd then."""
    return extras.part("doctor", "of_run") if extras.has("doctor") else None


@dataclass(frozen=True, kw_only=True)
class KindFacts:
    """The facts about all that is odd in one way."""

    is_urgent: bool = False  # it may not wait
    of_run: bool = False  # a run finds it, and no device states it between runs
    explains: tuple[Kind, ...] = ()  # of the same devices: no rows of their own
    once: bool = True  # whatever names a device so first counts


DATA = KindFacts(of_run=True, explains=("drift", "figure", "no model"), once=False)
SPECIAL: Mapping[Kind, KindFacts] = {  # the others are stated by devices, and stand for themselves
    "coordinator": KindFacts(is_urgent=True),
    "broker": KindFacts(is_urgent=True, once=False),
    "certificate": KindFacts(is_urgent=True),
    "disk": KindFacts(is_urgent=True),
    "excluded": KindFacts(explains=("work", "silent")),
    "target": replace(DATA, is_urgent=True, once=True),
    "unit": replace(DATA, once=True),
    "scale": DATA,
    "copy": replace(DATA, once=True),
    "swap": DATA,
    "constant": DATA,
    "missing": DATA,
    "reports": KindFacts(of_run=True),
    "work": KindFacts(of_run=True),
    "drift": KindFacts(of_run=True),
    "figure": KindFacts(of_run=True),
    "no model": KindFacts(of_run=True),
}
KINDS = {
    kind: SPECIAL.get(kind, KindFacts()) for kind in get_args(Kind)
}  # in the order of the list
BROKER = "broker"  # in the place of a device
COORDINATOR = "coordinator"
MAX_NAMES = 3  # of devices in a line
MAX_ODD = 100  # that a list has room for


@dataclass(frozen=True)
class Odd:
    """One thing that is odd.

    Attributes:
        devices: their ids, or `BROKER` or `COORDINATOR`.
        what: a sentence for people, without a name of these devices.
        next: the command that helps, or what else to do.
        since: in seconds since 1970; None: unknown.
        weight: of two of one kind the heavier comes first.
    """

    devices: tuple[str, ...]
    kind: Kind
    what: str
    next: str
    since: float | None = None
    weight: float = 0.0

    @property
    def who(self) -> str:
        """The devices for people."""
        return some(self.devices, MAX_NAMES)

    @property
    def sentence(self) -> str:
        """One line for people."""
        return f"{self.who}: {self.what}; next: {self.next}"

    @property
    def likeness(self) -> object:
        """Equal for devices about which the same is odd, and that need the same command. Each copy is a thing of its own."""
        command = re.sub(rf"\b{re.escape(self.devices[0])}\b", "", self.next)
        return self.kind, self.what, command, self.devices if self.kind == "copy" else ()

    def joined(self, other: Self) -> Self:
        """This and what is alike, as one thing."""
        devices = tuple(sorted({*self.devices, *other.devices}))
        since = min((at for at in (self.since, other.since) if at is not None), default=None)
        return replace(self, devices=devices, since=since, weight=max(self.weight, other.weight))

    @property
    def facts(self) -> KindFacts:
        return KINDS[self.kind]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "devices": list(self.devices)}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`. Raises ValueError for anything else."""
        match dict(saved):
            case {
                "devices": [*devices],
                "kind": str(kind),
                "what": str(what),
                "next": str(command),
                "since": int() | float() | None as since,
                "weight": int() | float() as weight,
            } if kind in KINDS and devices and all(isinstance(one, str) for one in devices):
                return cls(
                    tuple(devices), cast(Kind, kind), what, next=command, since=since, weight=weight
                )
        raise ValueError("expected devices, kind, what, next, since and weight")


def ranked(found: Iterable[Odd]) -> list[Odd]:
    """The list in its order, at most `MAX_ODD` things; several devices about which the same is odd are one."""
    once: dict[object, Odd] = {}
    for one in sorted(found, key=lambda one: one.devices):
        once[one.likeness] = once.get(one.likeness, one).joined(one)
    order = {kind: place for place, kind in enumerate(KINDS)}
    listed = sorted(once.values(), key=lambda one: (order[one.kind], -one.weight, one.devices))
    return listed[:MAX_ODD]


def read_odd(saved: Any) -> list[Odd]:
    """The list as `to_json` has stored it; what cannot be read is left out, for others may have written it."""
    found: list[Odd] = []
    for one in saved if isinstance(saved, Sequence) and not isinstance(saved, str) else ():
        try:
            found.append(Odd.from_json(one))
        except (ValueError, TypeError):
            continue
    return found


def without(found: Iterable[Odd], device: str) -> list[Odd]:
    """The list after a device was forgotten: nothing names it any more."""
    rest = [
        replace(one, devices=tuple(other for other in one.devices if other != device))
        for one in found
        if one.kind != "copy" or device not in one.devices
    ]
    return [one for one in rest if one.devices]
