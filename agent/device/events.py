"""What happens to an agent's session, and what the session wants done. Frozen, compared with ==."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from covey.shared.mqtt.link import Down, Up
from covey.shared.wire.messages import AgentStatus, CoordinatorStatus, OrderMessage


@dataclass(frozen=True)
class CoordinatorSeen:
    """What a coordinator says of itself. `retained`: it was there before we asked, and may be of another time."""

    status: CoordinatorStatus
    retained: bool = False


@dataclass(frozen=True)
class OwnStatusSeen:
    """What the broker tells others about this agent: perhaps the last will of a connection that was replaced.

    `retained`: it was there before we asked, and may be long out of date.
    """

    status: AgentStatus
    retained: bool = False


@dataclass(frozen=True)
class OrderSeen:
    order: OrderMessage


@dataclass(frozen=True)
class PartSeen:
    """A part of a model that is not complete yet arrived."""


@dataclass(frozen=True)
class ModelReady:
    """The newest content seen under a model's key lies whole on disk."""

    key: str
    digest: bytes


@dataclass(frozen=True)
class Inspected:
    """What the data is like, seen with the eyes of the task `task`.

    `problem` goes into the status, for everybody; `detail` may quote the data, and is for the device's own terminal.
    """

    task: str
    samples: int = 0
    test_samples: int = 0
    labels: tuple[str, ...] = ()
    problem: str | None = None
    detail: str = ""


@dataclass(frozen=True)
class SubscriptionsRefused:
    """The broker refuses these subscriptions; none: it refuses no more."""

    topics: tuple[str, ...]


@dataclass(frozen=True)
class WorkDone:
    """The report of `step` lies in the outbox."""

    step: int


@dataclass(frozen=True)
class WorkFailed:
    """The worker was lost; there is no report."""

    step: int
    why: str


@dataclass(frozen=True)
class Sent:
    """Every part of the report of `step` was acknowledged by the broker (`whole`), or the link broke."""

    step: int
    whole: bool = True


@dataclass(frozen=True)
class ReportDamaged:
    """The file of the report of `step` does not hold any more what the worker wrote."""

    step: int


@dataclass(frozen=True)
class ModelDamaged:
    """The file of a model does not hold what its name says; it was removed."""

    digest: bytes


@dataclass(frozen=True)
class Tick:
    pass


Event = (
    Up
    | Down
    | OwnStatusSeen
    | CoordinatorSeen
    | OrderSeen
    | PartSeen
    | ModelReady
    | Inspected
    | WorkDone
    | WorkFailed
    | Sent
    | ReportDamaged
    | ModelDamaged
    | SubscriptionsRefused
    | Tick
)


@dataclass(frozen=True)
class Subscribe:
    topics: tuple[str, ...]


@dataclass(frozen=True)
class Unsubscribe:
    topics: tuple[str, ...]


@dataclass(frozen=True)
class PublishStatus:
    status: AgentStatus


@dataclass(frozen=True)
class Inspect:
    """Compare the data with the task; answer with `Inspected`."""

    task: dict[str, Any]
    digest: str


@dataclass(frozen=True)
class StartWork:
    """Do the work; answer with `WorkDone` or `WorkFailed`. All models of the order lie on disk."""

    order: OrderMessage


@dataclass(frozen=True)
class CancelWork:
    """Whatever the worker does for this agent is not wanted any more."""


@dataclass(frozen=True)
class ReportFailure:
    """Put a report that says `why` into the outbox; answer with `WorkDone`."""

    order: OrderMessage
    why: str


@dataclass(frozen=True)
class OrderRefused:
    """The order of `step` breaks a rule of this device; what follows is a report that says so."""

    step: int
    why: str


@dataclass(frozen=True)
class SendReport:
    """Send all parts of the report in the outbox; answer with `Sent`."""

    step: int


@dataclass(frozen=True)
class StopSending:
    pass


@dataclass(frozen=True)
class CommitMemory:
    """The report was accepted: its memory becomes the memory. The report stays until the step is closed.

    `confirmed`: `again` of the order that said so.
    """

    step: int
    confirmed: int = 0


@dataclass(frozen=True)
class DropReport:
    """The report is not needed any more: it goes, and so does the memory that came with it unless it was accepted."""

    step: int


@dataclass(frozen=True)
class GoBack:
    """The coordinator has lost what it accepted after the step `accepted`: a report that was kept waits again."""

    accepted: int


@dataclass(frozen=True)
class LoseMemory:
    """The coordinator has accepted a step of ours that our disk knows nothing of: the memory is older, or gone."""

    accepted: int
    confirmed: int


@dataclass(frozen=True)
class SwitchRun:
    """From now on the outbox is that of `run`. What belongs to the run before stays aside, until a third one comes."""

    run: str


@dataclass(frozen=True)
class KeepModels:
    """All other whole models on disk may go."""

    digests: frozenset[bytes]


@dataclass(frozen=True)
class Notify:
    """Something for a person to read."""

    text: str


@dataclass(frozen=True)
class YieldId:
    """Another agent uses our id, and did so before us: end with an error."""


Action = (
    Subscribe
    | Unsubscribe
    | PublishStatus
    | Inspect
    | StartWork
    | CancelWork
    | ReportFailure
    | OrderRefused
    | SendReport
    | StopSending
    | CommitMemory
    | DropReport
    | GoBack
    | LoseMemory
    | SwitchRun
    | KeepModels
    | Notify
    | YieldId
)
Actions = list[Action]


@dataclass(frozen=True)
class Outboxed:
    """What an agent finds on its disk when it starts."""

    run: str = ""
    accepted: int = 0  # newest step of the run that is known to be accepted
    step: int = 0  # step of the report that waits, 0: none
    kept: int = (
        0  # step of the report that was accepted and is kept until its step is closed, 0: none
    )
    confirmed: int = 0  # `again` of the order that said `accepted`
    aside: Outboxed | None = None  # of the run before
