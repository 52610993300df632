"""What a coordinator can lie about, and other values for any field of its messages, by the types of the fields.

A lie has a kind and what it is about. The fields come from the messages themselves: a new one is lied about at once.
"""

from __future__ import annotations

import json
import math
import random
import types
import typing
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from covey.extras.secure.messages import CellInbox, JoinList, Terms, UnmaskList
from covey.shared.errors import DecodeError
from covey.shared.scenario.columns import ColumnName
from covey.shared.scenario.task import Task
from covey.shared.strategies import phase_names
from covey.shared.strategies.phase_names import AHEAD, EVALUATE
from covey.shared.wire.framing import Message, Packed
from covey.shared.wire.messages import Work

M = TypeVar("M", bound=BaseModel)
TRIES = 12  # other values that a message does not take

# what a coordinator sends in the course of a sum, by the name under which an order has it
MESSAGES: Mapping[str, type[Packed]] = {"list": JoinList, "unmask": UnmaskList, "@": CellInbox}
PHASES = ("of nobody", "with digits", "of another method")
AGAIN = ("the models", "the whole order")  # of the first round, in each
MODELS = ("huge", "large", "zero", "one ulp")
MEMBERS = ("the victim", "another")
RULER = (
    "length of figures",
)  # levels that the figures of some tables are too long for, and those of others not
RUN = ("another run",)  # after the first, with another seed and start
VOID = ("a sum that was opened",)
COUNTED = "cells of a row"  # the task that counts them
PARTS = {"phase", "task"}  # fields of the work with a kind of their own

ABOUT: Mapping[str, tuple[str, ...]] = {
    "phase": PHASES,
    "order": tuple(name for name in Work.model_fields if name not in PARTS),
    "task": tuple(Task.model_fields),
    "terms": tuple(Terms.model_fields),
    "ruler": RULER,
    "message": tuple(f"{key}.{name}" for key, of in MESSAGES.items() for name in of.model_fields),
    "again": AGAIN,
    "model": MODELS,
    "member": MEMBERS,
    "void": VOID,
    "run": RUN,
    "status": (*(name for name in Task.model_fields), COUNTED),
}
LIES = tuple(ABOUT)
To = Literal["all", "the victim", "the others"]


@dataclass(frozen=True)
class Lie:
    """A lie that is told from a sum on.

    Attributes:
        kind: of `LIES`.
        about: a field, or what of `ABOUT` it is.
        draw: the seed of the value that is told.
        to: whom.
        since: the first sum in whose course it is told, counted from 0.
    """

    kind: str
    about: str
    draw: int = 0
    to: To = "all"
    since: int = 0

    @property
    def name(self) -> str:
        return f"{self.kind}: {self.about}"

    def __str__(self) -> str:
        return f"{self.name}, number {self.draw}, to {self.to}, from sum {self.since} on"


def kinds_told(struck: Mapping[str, int]) -> dict[str, Counter[str]]:
    """How often each lie was told, by kind and by what it is about."""
    told: dict[str, Counter[str]] = {kind: Counter() for kind in LIES}
    for name, count in struck.items():
        kind, _, about = name.partition(": ")
        if kind in told and about:
            told[kind][about] += count
    return told


def phases() -> list[str]:
    """All names of phases that travel."""
    names = vars(phase_names).items()
    return sorted(
        value
        for name, value in names
        if name.isupper() and isinstance(value, str) and name not in ("AHEAD", "CARD")
    )


def renamed(work: Work, about: str, draw: random.Random) -> Work | None:
    """The work under another name of its phase; None for an evaluation or an exchange without work."""
    phase = work.numbers.get(AHEAD, work.phase)
    if phase == EVALUATE or (work.phase in phase_names.EXCHANGES and AHEAD not in work.numbers):
        return None
    match about:
        case "of nobody":
            name = draw.choice(("x", "training", "Train"))
        case "with digits":
            name = f"{phase}{draw.randrange(100)}"
        case _:
            name = draw.choice([one for one in phases() if one != phase])
    if work.phase in phase_names.EXCHANGES:
        return work.model_copy(update={"numbers": {**work.numbers, AHEAD: name}})
    return work.model_copy(update={"phase": name})


def fields_of(message: BaseModel) -> dict[str, Any]:
    """The fields of a message, and nothing that was derived from them."""
    return {name: getattr(message, name) for name in type(message).model_fields}


class Bender:
    """Draws other values.

    Args:
        draw: the chance.
        columns: of the table, to name.
        cells: of the table, to name.
    """

    def __init__(self, draw: random.Random, columns: Sequence[str], cells: Sequence[str]) -> None:
        self._draw, self._columns, self._cells = draw, columns, cells

    def bent(self, message: M, name: str) -> M | None:
        """The message with another value in this field; None where it takes none."""
        hint = typing.get_type_hints(type(message), include_extras=True)[name]
        value = getattr(message, name)
        for _ in range(TRIES):
            other = self.other(hint, value)
            try:
                bent = type(message).model_validate({**fields_of(message), name: other})
                if isinstance(bent, Message):  # as it arrives
                    json.dumps(bent.model_dump(), default=str, allow_nan=False)
                bent_value = getattr(bent, name)
            except (ValidationError, DecodeError, ValueError, TypeError, OverflowError):
                continue
            if bent_value != value:
                return bent
        return None

    def other(self, hint: Any, value: Any) -> Any:
        """A value of this type, mostly another one than the given."""
        if hint is ColumnName:
            return self._draw.choice(self._columns)
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        if origin is typing.Annotated:
            return self.other(inner[0], value)
        if origin in (typing.Union, types.UnionType):
            return self.other(self._draw.choice(inner), value)
        if origin is Literal:
            return self._draw.choice(inner)
        if origin in (list, tuple):
            return self._of_list(inner[0] if inner else Any, value)
        if origin is dict or isinstance(value, Mapping):
            return self._of_map(inner, value)
        if isinstance(hint, type) and issubclass(hint, BaseModel):
            return self._of_message(hint, value)
        return self._plain(hint, value)

    def _plain(self, hint: Any, value: Any) -> Any:
        kind = type(value) if hint is Any else hint
        if kind is type(None):
            return self._draw.choice((None, 0, 1.5, True)) if hint is Any else None
        if kind is bool:
            return not value
        if kind is int:
            whole = value if isinstance(value, int) else 0
            far = (0, 1, -1, 2 ** self._draw.randrange(1, 31))
            return self._draw.choice((whole - 1, whole + 1, 2 * whole, *far))
        if kind is float:
            real = value if isinstance(value, float) else 1.0
            near = (math.nextafter(real, math.inf), real / 2, 2 * real, -real)
            return self._draw.choice((*near, 0.0, 1e-30, 10.0 ** self._draw.randrange(-9, 38)))
        if kind is bytes:
            known = value if isinstance(value, bytes) else bytes(16)
            return self._draw.choice((b"", self._draw.randbytes(len(known)), known[:-1]))
        if kind in (list, tuple):
            return self._of_list(Any, value)
        return self._draw.choice(self._cells)

    def _of_list(self, hint: Any, value: Any) -> list[Any]:
        known = list(value) if isinstance(value, list | tuple) else []
        fresh = [self.other(hint, None) for _ in range(self._draw.randint(1, 2))]
        if not known:
            return fresh
        place = self._draw.randrange(len(known))
        without = known[:place] + known[place + 1 :]
        bent = [*known[:place], self.other(hint, known[place]), *known[place + 1 :]]
        turned = [*known[1:], known[0]]
        return self._draw.choice((without, bent, turned, [*known, known[place]], [*known, *fresh]))

    def _of_map(self, inner: tuple[Any, ...], value: Any) -> dict[Any, Any]:
        known = dict(value) if isinstance(value, Mapping) else {}
        of_key, of_value = inner or (str, Any)
        if known and self._draw.random() < 3 / 4:
            name = self._draw.choice(sorted(known, key=str))
            return {**known, name: self.other(of_value, known[name])}
        return {**known, self.other(of_key, ""): self.other(of_value, 0)}

    def _of_message(self, of: type[BaseModel], value: Any) -> Any:
        if isinstance(value, of):
            return self.bent(value, self._draw.choice(sorted(of.model_fields)))
        hints = typing.get_type_hints(of, include_extras=True)
        needed = [name for name, field in of.model_fields.items() if field.is_required()]
        more = [
            name for name in of.model_fields if name not in needed and self._draw.random() < 0.2
        ]
        return {name: self.other(hints[name], None) for name in [*needed, *more]}

    def counting(self, task: Task, row: Sequence[str]) -> Task | None:
        """The task by which a status counts the rows with some cells of this one."""
        cells = self._draw.sample(list(row), self._draw.randint(1, 2))
        read = task.read.model_copy(update={"missing": tuple(cells)})
        changes: dict[str, Any] = {"read": read.model_dump(), "impute": "drop"}
        if self._draw.random() < 1 / 2:
            changes["drop_unlabelled"] = True
        columns = self._draw.sample(list(self._columns[:-1]), self._draw.randint(1, 3))
        words = [name for name in columns if name.isupper()]  # columns of words have such names
        changes |= {"columns": columns, "categories": {name: ["none"] for name in words}}
        changes["features"] = [len(columns) + len(words)]
        changes["standardise"] = "none"
        try:
            return Task.model_validate({**task.model_dump(mode="json"), **changes})
        except ValidationError:
            return None


def other_model(model: np.ndarray[Any, Any], about: str, draw: random.Random) -> Any:
    """Values (d,) in the place of a model."""
    match about:
        case "huge":  # the outputs of some rows overflow
            direction = np.zeros_like(model)
            direction[draw.randrange(model.size - 1)] = 3.4e38 / draw.choice((2, 3, 4, 6, 9))
            return direction
        case "large":
            return (model + np.float32(10.0 ** draw.randrange(3, 37))).astype(np.float32)
        case "zero":
            return np.zeros_like(model)
    return np.nextafter(model, np.float32(1))
