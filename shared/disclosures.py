"""What leaves a device: one row for each field of a report and of a status, with the promises that keep it back.

A field without a row is not sent, and neither is one whose row names a promise that is in force. `cleared` and
`cleared_status` are the last step before a report is written and a status is published; nothing else decides what they hold.
An idle agent imports this module, so it needs neither numpy nor torch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from pydantic import BaseModel

from covey.shared.candidate_names import CANDIDATES
from covey.shared.errors import PublicError
from covey.shared.strategies.phase_names import CARD, COMPANION, EVALUATE, MOMENTS, SIGNATURE
from covey.shared.wire.documents import AgentStatus
from covey.shared.wire.messages import ReportContent


class Promise(Enum):
    """A reason to keep fields back, in the words of a refusal."""

    SUMMED = "secure sums: an update leaves this device under masks alone"
    NOISED = "DP-SGD: what reads training samples leaves this device with noise alone"
    # with DP-SGD, a method that measures a model which it has trained on the device without noise
    AT_HOME = "DP-SGD: the model that the method serves here trained without noise"
    KEPT = "policy of this device: its owner demands sums or noise, or hides samples, which figures count"
    # any demand: a status follows from the task and the form of the file, never from its cells
    OWNED = "policy of this device: its owner keeps something back"
    NO_WORDS = "policy of this device: words: hidden"
    NO_SAMPLES = "policy of this device: samples: hidden"
    UNASKED = "policy of this device: companion: summed: sums of a table leave this device under masks alone"


Promises = Collection[Promise]
M = TypeVar("M", bound=BaseModel)
R = TypeVar("R", bound=ReportContent)
S = TypeVar("S", bound=AgentStatus)


@dataclass(frozen=True)
class DisclosureRow:
    """One field."""

    holds: str  # what it is made of
    never: frozenset[Promise] = frozenset()  # promises that keep it back
    within: Mapping[str, str] | None = (
        None  # of a mapping, the names that may be in it; None: it is sent whole
    )
    instead: Any = None  # what is sent where it is kept back; None: its default, or nothing

    def leaves(self, promises: Promises) -> bool:
        """Whether it is sent while these promises are in force."""
        return self.never.isdisjoint(promises)


Table = Mapping[str, DisclosureRow]
ANY = "*"  # the row of all names that have none of their own


def _row(
    holds: str, *never: Promise, within: Mapping[str, str] | None = None, instead: Any = None
) -> DisclosureRow:
    return DisclosureRow(holds, frozenset(never), within, instead)


_SINGLE = (Promise.SUMMED, Promise.NOISED)  # it is of one agent, and has no noise
_OF_TRAINING = (*_SINGLE, Promise.KEPT)

REPORT: Table = {
    "format": _row("number of the messages' format"),
    "run": _row("of the order"),
    "step": _row("of the order"),
    "work": _row("digest of the order"),
    "client": _row("the agent's id"),
    "examples": _row(
        "number of training samples; the status has it too", Promise.NO_SAMPLES, instead=1
    ),
    "steps": _row("steps of SGD", *_SINGLE),
    "loss": _row("mean loss of training", *_SINGLE),
    "numbers": _row("see the tables of numbers"),
    "seconds": _row("duration of the work", *_SINGLE, Promise.OWNED),
    "vectors": _row("see the table of vectors"),
    "failure": _row(
        "why there is no result; quotes no data, and is of the order alone where sums or noise are demanded"
    ),
    "client_state": _row("whether the agent's memory was whole"),
    "device": _row("what computed it"),
}

VECTORS: Table = {
    "masked": _row("a masked update"),
    "secure": _row("a message of a secure sum"),
    "model": _row("a model after training, with the noise of DP-SGD if it is on", Promise.SUMMED),
    SIGNATURE: _row("a part or a sketch of such a model, or what the method asks", Promise.SUMMED),
    CARD: _row("sums of the samples of each class", *_SINGLE, Promise.NO_SAMPLES),
    COMPANION: _row(
        "sums of a companion: of few rows they are the table", *_OF_TRAINING, Promise.UNASKED
    ),
    ANY: _row("what else a method asks for: gradients, profiles", *_SINGLE),
}

FIGURES = {
    "n": "test samples",
    "correct": "right answers",
    "accuracy": "share of right answers",
    "f1": "mean of the classes",
    "recall": "mean of the classes",
    "auc": "mean of the classes",
    "loss": "mean loss",
    "mse": "mean squared error",
    "mae": "mean absolute error",
    "maes": "the same of each step",
    "mean": "of the test targets",
    "variance": "of the test targets",
    "diverged": "the outputs were not finite",
}
WEIGHED = dict.fromkeys(CANDIDATES, "weight of this candidate")
SUMS = "sums"  # of data that were replaced
MOMENTS_OF_TARGET = {"count": "samples", "sum": "of the targets", "square": "sum of squares"}

_SUMS = _row(
    "sums of data that were replaced since they were sent, or never were",
    *_OF_TRAINING,
    within=dict.fromkeys(("count", "sum", "square", "target"), "as before the first round"),
)

NUMBERS_OF_EVALUATION: Table = {
    "head": _row("signed head of a masked report, whose slots have the figures"),
    "server": _row(
        "test figures of the served model",
        Promise.SUMMED,
        Promise.KEPT,
        Promise.AT_HOME,
        within=FIGURES,
    ),
    "last": _row(
        "test figures of the model after its latest training",
        Promise.SUMMED,
        Promise.KEPT,
        Promise.AT_HOME,
        within=FIGURES,
    ),
    "tuned": _row("test figures after fine-tuning", *_OF_TRAINING, within=FIGURES),
    "baseline": _row(
        "test figures of a guess from training samples", *_OF_TRAINING, within=FIGURES
    ),
    "trees": _row("test figures of trees on its table alone", *_OF_TRAINING, within=FIGURES),
    "delivered": _row("test figures of what the device uses", *_OF_TRAINING, within=FIGURES),
    "weights": _row("how much each candidate counts here", *_OF_TRAINING, within=WEIGHED),
    "gain": _row("how much better than the served model, and its variance", *_OF_TRAINING),
    "uses": _row("the weights of what the device uses", *_OF_TRAINING, within=WEIGHED),
    SUMS: _SUMS,
}

NUMBERS_OF_STATISTICS: Table = {
    "count": _row("values per column", *_OF_TRAINING),
    "sum": _row("sum per column", *_OF_TRAINING),
    "square": _row("sum of squares per column", *_OF_TRAINING),
    "quantiles": _row("quantiles per column", *_OF_TRAINING),
    "words": _row("words of a column", *_OF_TRAINING, Promise.NO_WORDS),
    "target": _row("the same sums of the target", *_OF_TRAINING, within=MOMENTS_OF_TARGET),
}

NUMBERS_OF_TRAINING: Table = {
    "epsilon": _row("spent by DP-SGD so far"),
    "head": _row("signed head of a masked report"),
    SUMS: _SUMS,
    "track": _row("test figures right after training", *_OF_TRAINING, within=FIGURES),
    ANY: _row("what a method declares for the phase: choices, losses, counts", *_SINGLE),
}

_STATED = "number of samples; with any demand that of the file's rows"

STATUS: Table = {
    "format": _row("number of the messages' format"),
    "agent": _row("the agent's id"),
    "session": _row("this start of the agent"),
    "serial": _row("counts statuses"),
    "online": _row("whether it runs"),
    "epoch": _row("of the coordinator's roll call"),
    "task": _row("digest of the task"),
    "samples": _row(_STATED, Promise.NO_SAMPLES),
    "test_samples": _row(_STATED, Promise.NO_SAMPLES),
    "labels": _row("the set of classes of the data", Promise.OWNED),
    "problem": _row("why it stays out; with any demand a fault of the task or the file's form"),
    "busy": _row("whether it works"),
    "version": _row("of Covey"),
    "dropped": _row("refused messages by reason"),
    "brief": _row("reads short orders"),
    # which of the published models a device takes over follows from its own samples
    "model": _row("the model that the device uses", Promise.OWNED),
    "model.run": _row("of that model"),
    "model.round": _row("of that model"),
    "model.name": _row("of that model's version"),
    "model.cluster": _row("of that model"),
    "model.serial": _row("newest publication dealt with"),
    "model.rejected": _row("models that the device's check kept out"),
    "model.hook_failures": _row("of the owner's command"),
    "model.note": _row("the newest decision, or what is judged"),
    # sent if the report of an evaluation may have it too
    "model.uses": _row("the weights of what the device uses"),
    "model.figure": _row("of that model on the test part"),
    "model.measure": _row("of that figure"),
    "certificate": _row("when the first certificate of its connection ends"),
    "disk_free": _row("bytes on the disk of its state, which what it keeps takes", Promise.OWNED),
    "clock": _row("its time"),
    "links": _row("connections within a day"),
    "twins": _row("times that another program used its id, until it was silent for an hour"),
    "refused": _row("why the coordinator refused its newest report"),
}


def numbers_of(phase: str) -> Table:
    """The rows of the numbers in the report of a phase."""
    return {EVALUATE: NUMBERS_OF_EVALUATION, MOMENTS: NUMBERS_OF_STATISTICS}.get(
        phase, NUMBERS_OF_TRAINING
    )


def cleared(report: R, phase: str, promises: Promises) -> R:
    """The report without what may not leave.

    Raises:
        PublicError: it holds a vector that may not leave, for which nothing can stand in.
    """
    for name in report.vectors:
        row = VECTORS.get(name, VECTORS[ANY])
        for promise in promises:
            if promise in row.never:
                raise PublicError(f"{promise.value}; the order asks for {name!r} without it")
    rows = numbers_of(phase)
    numbers = {
        name: _within(rows.get(name, rows.get(ANY)), value)
        for name, value in report.numbers.items()
        if _leaves(rows.get(name, rows.get(ANY)), promises)
    }
    return _fields(report, REPORT, promises).model_copy(update={"numbers": numbers})


def cleared_status(status: S, promises: Promises) -> S:
    """The status without what may not leave."""
    return _fields(status, STATUS, promises)


def _leaves(row: DisclosureRow | None, promises: Promises) -> bool:
    return row is not None and row.leaves(promises)


def _within(row: DisclosureRow | None, value: Any) -> Any:
    """A number without names that have no place in it."""
    if row is None or row.within is None or not isinstance(value, Mapping):
        return value
    return {name: one for name, one in value.items() if name in row.within}


def _fields(message: M, rows: Table, promises: Promises, within: str = "") -> M:
    """The message with the default, or nothing of its kind, in the place of each field that may not leave."""
    changes: dict[str, Any] = {}
    for name, field in type(message).model_fields.items():
        value = getattr(message, name)
        row = rows.get(within + name)
        if not _leaves(row, promises):
            default = field.get_default(call_default_factory=True)
            empty = type(value)() if field.is_required() else default
            changes[name] = empty if row is None or row.instead is None else row.instead
        elif isinstance(value, BaseModel):
            changes[name] = _fields(value, rows, promises, f"{within}{name}.")
    return message.model_copy(update=changes) if changes else message
