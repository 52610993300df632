"""All that can happen to a run: events of its engine, and what came over the wire or was decided outside of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.coordinator.engine import events
from covey.shared.errors import DecodeError
from covey.shared.strategies.base import ClientId

if TYPE_CHECKING:  # few runs have aggregators
    from covey.extras.scale.partial_sums import AggregatorAgents
    from covey.shared.wire.aggregates import PartialSum


@dataclass(frozen=True)
class ReportCame:
    """A report of an agent is here as a whole, and nothing of it is known."""

    client: ClientId
    content: Callable[[], bytes]  # called once; the caller keeps nothing of it
    digest: bytes = b""  # of the content, if the caller has compared it already


@dataclass(frozen=True)
class Refused:
    """A report of this agent was dropped."""

    client: ClientId
    error: DecodeError


@dataclass(frozen=True)
class SumCame:
    """An aggregator has sent a partial sum, which counts as if its reports had come one by one.

    A sum of a step that is over is dropped, as late reports are. One that is refused makes its step direct: the caller
    asks the agents for their reports.
    """

    content: bytes  # the message of the aggregator
    partial: PartialSum  # the same, read
    origin: AggregatorAgents  # what is known of its agents


@dataclass(frozen=True)
class GivenUp:
    """The run ends without its last round. It can be resumed: nothing of this is in the checkpoint."""

    why: str


Told = events.Reported | events.ReportedTogether | events.Failed | Refused  # of reports
Happening = events.Event | ReportCame | Refused | SumCame | GivenUp
