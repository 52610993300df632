"""What a run asks of the shell around it: publish this, ask that agent, show a notice, end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from covey.coordinator.record.notices import Notice
from covey.shared.errors import DecodeError
from covey.shared.strategies.base import ClientId
from covey.shared.wire.messages import BriefWork, ModelRef, OrderMessage, Work


@dataclass(frozen=True)
class SendModel:
    """Publish the content of `path` in parts, retained."""

    ref: ModelRef
    path: Path
    about: int  # the step that the model belongs to
    values: int  # float32 numbers before encoding


@dataclass(frozen=True)
class DropModel:
    """No order names this version of a model any more: clear its parts."""

    key: str
    parts: int


@dataclass(frozen=True)
class SendOrder:
    """Publish an agent's desired state, retained."""

    client: ClientId
    order: OrderMessage

    @property
    def work(self) -> Work | BriefWork | None:
        """What the order asks for; None for nothing."""
        return self.order.work or self.order.brief


@dataclass(frozen=True)
class Question:
    """Ask an agent whether it is there."""

    client: ClientId


@dataclass(frozen=True)
class Announce:
    """Show a notice to the observer."""

    notice: Notice


@dataclass(frozen=True)
class ReportTaken:
    """What became of a report that came."""

    refused: str = ""  # the reason in a word; empty if it was accepted


@dataclass(frozen=True)
class SumTaken:
    """What became of an aggregator's sum: it counts, it came before or too late, or it is refused."""

    counts: bool
    error: DecodeError | None = None


@dataclass(frozen=True)
class RunOver:
    """The run is over; `why` is empty unless it was given up."""

    why: str


Effect = SendModel | DropModel | SendOrder | Question | Announce | ReportTaken | SumTaken | RunOver
