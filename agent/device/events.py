"""The events that an agent's session handles, and the actions that it returns. Frozen, compared with ==."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from covey.shared.mqtt.link import Down, Echo, Up
from covey.shared.mqtt.subscriptions import TopicsRefused
from covey.shared.wire.deployments import Deployment, DeploymentShare
from covey.shared.wire.documents import AgentStatus, CoordinatorStatus, ModelInUse
from covey.shared.wire.messages import OrderMessage, SharedWork


class SessionEvent:
    """An event of an agent alone; those of its link are the same for all programs."""


@dataclass(frozen=True)
class CoordinatorSeen(SessionEvent):
    """A coordinator published its status. `retained`: the broker had kept it, so it may be out of date."""

    status: CoordinatorStatus
    retained: bool = False


@dataclass(frozen=True)
class OwnStatusSeen(SessionEvent):
    """A status under this agent's id: an echo, the last will of an earlier connection, or another program's.

    `retained`: the broker had kept it, so it may be out of date.
    """

    status: AgentStatus
    retained: bool = False


@dataclass(frozen=True)
class OrderSeen(SessionEvent):
    """The coordinator published this agent's desired state."""

    order: OrderMessage


@dataclass(frozen=True)
class SettingsReady(SessionEvent):
    """The content that all orders share is complete."""

    digest: bytes
    shared: SharedWork


@dataclass(frozen=True)
class PartSeen(SessionEvent):
    """A part of a model is on disk. The model is not complete yet."""

    topic: str = ""
    digest: bytes = b""  # of the model


@dataclass(frozen=True)
class ModelReady(SessionEvent):
    """A model is complete on disk: the newest content seen under its key."""

    key: str
    digest: bytes


@dataclass(frozen=True)
class Inspected(SessionEvent):
    """The data was compared with a task."""

    task: str  # digest of the task
    samples: int = 0  # for training
    test_samples: int = 0
    labels: tuple[str, ...] = ()  # classes that occur; empty if the device's owner hides them
    problem: str | None = None  # why the data does not fit, without private values; None if it fits
    detail: str = ""  # the same for the device's own terminal; may quote the data


@dataclass(frozen=True)
class WorkDone(SessionEvent):
    """The work of `step` is done, or has failed; its report lies in the outbox."""

    step: int


@dataclass(frozen=True)
class WorkerGone(SessionEvent):
    """The work of `step` ended without a report: the worker died or took too long."""

    step: int
    why: str


@dataclass(frozen=True)
class Sent(SessionEvent):
    """A sending ended: the broker acknowledged every part of the report (`whole`), or the link broke."""

    step: int
    whole: bool = True
    size: int = 0  # bytes of the report


@dataclass(frozen=True)
class OutboxDamaged(SessionEvent):
    """The file of the report of `step` no longer holds what the worker wrote."""

    step: int


@dataclass(frozen=True)
class ModelDamaged(SessionEvent):
    """The file of a model did not have the content that its name promises. It was removed."""

    digest: bytes


@dataclass(frozen=True)
class DeploymentSeen(SessionEvent):
    """The coordinator published which models devices should use."""

    deployment: Deployment
    wall: float  # seconds since 1970


@dataclass(frozen=True)
class DeploymentShareSeen(SessionEvent):
    """The coordinator published which of them is this agent's."""

    share: DeploymentShare


@dataclass(frozen=True)
class DeployedPartSeen(SessionEvent):
    """A part of a deployed model is on disk. The model is not complete yet."""

    topic: str = ""
    digest: bytes = b""  # of the model


@dataclass(frozen=True)
class DeployedModelReady(SessionEvent):
    """A deployed model is complete on disk."""

    digest: bytes


@dataclass(frozen=True)
class DeployedModelDamaged(SessionEvent):
    """The file of a deployed model did not have the content that its name promises. It was removed."""

    digest: bytes


@dataclass(frozen=True)
class DeploymentSettled(SessionEvent):
    """The model of a deployment was taken over, or kept out."""

    serial: int


@dataclass(frozen=True)
class ModelSettled(SessionEvent):
    """A model was taken over for the device's own use, or kept out; the model in use now."""

    model: ModelInUse


@dataclass(frozen=True)
class DataReplaced(SessionEvent):
    """The files with the data of this device are other ones than those that were read, or are gone."""

    is_gone: bool = False


@dataclass(frozen=True)
class ConditionsSeen(SessionEvent):
    """The device was compared with its owner's conditions for work."""

    unmet: str  # why no work may begin now, for people; empty if it may


@dataclass(frozen=True)
class VitalsSeen(SessionEvent):
    """The state of the machine was looked at."""

    disk_free: int | None  # bytes on the disk of the agent's state
    certificate: float | None  # when the first one ends that the connection needs


@dataclass(frozen=True)
class Tick(SessionEvent):
    """The time that the session asked for (`wake_at`) has come."""


Event = Up | Down | Echo | TopicsRefused | SessionEvent


class Action:
    """What the session asks of the program around it."""


@dataclass(frozen=True)
class Subscribe(Action):
    """Subscribe to topics. The broker sends what it retains there, also for topics subscribed before."""

    topics: tuple[str, ...]


@dataclass(frozen=True)
class Unsubscribe(Action):
    """End the subscriptions to topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True)
class PublishStatus(Action):
    """Publish this agent's status, retained."""

    status: AgentStatus


@dataclass(frozen=True)
class Inspect(Action):
    """Compare the data with the task; answer with `Inspected`."""

    task: dict[str, Any]
    digest: str
    batch: int = 0  # samples of a mini-batch; 0: unknown


@dataclass(frozen=True)
class StartWork(Action):
    """Do the work; answer with `WorkDone` or `WorkerGone`. All models of the order lie on disk."""

    order: OrderMessage


@dataclass(frozen=True)
class CancelWork(Action):
    """The work that is under way is no longer needed: give the job up."""


@dataclass(frozen=True)
class ReportFailure(Action):
    """Put a report into the outbox that names why there is no result; answer with `WorkDone`."""

    order: OrderMessage
    why: str


@dataclass(frozen=True)
class OrderRefused(Action):
    """The order of `step` breaks a rule of this device. A `ReportFailure` with the reason follows."""

    step: int
    why: str


@dataclass(frozen=True)
class SendReport(Action):
    """Send all parts of the report in the outbox; answer with `Sent`."""

    step: int


@dataclass(frozen=True)
class StopSending(Action):
    """Stop the sending that is under way. No `Sent` follows."""


@dataclass(frozen=True)
class CommitMemory(Action):
    """The report was accepted: what the agent remembers from this work becomes its memory.

    The report stays in the outbox until `DropReport`.
    """

    step: int
    confirmed: int = 0  # `again` of the order that reported it


@dataclass(frozen=True)
class DropReport(Action):
    """Remove the report, together with the memory that came with it unless the report was accepted."""

    step: int


@dataclass(frozen=True)
class GoBack(Action):
    """The coordinator lost what it accepted after the step `accepted`. A kept report waits to be sent again."""

    accepted: int


@dataclass(frozen=True)
class LoseMemory(Action):
    """The coordinator accepted a step that our disk does not know: our memory is older, or lost."""

    accepted: int
    confirmed: int


@dataclass(frozen=True)
class SwitchRun(Action):
    """Use the outbox of another run. That of the run before is kept aside until a third run comes."""

    run: str


@dataclass(frozen=True)
class KeepModels(Action):
    """Remove all other complete models from the disk."""

    digests: frozenset[bytes]


@dataclass(frozen=True)
class KeepDeployed(Action):
    """Remove all other deployed models from the disk."""

    digests: frozenset[bytes]


@dataclass(frozen=True)
class Adopt(Action):
    """Judge the models of these clusters; answer with `DeploymentSettled` or `DeployedModelDamaged`.

    All of them lie on disk. Of several the device takes the one that fits its data best.
    """

    deployment: Deployment
    clusters: tuple[int, ...]


@dataclass(frozen=True)
class DeploymentRefused(Action):
    """The policy of this device refuses the newest deployment: show it in the status."""

    deployment: Deployment


@dataclass(frozen=True)
class Notify(Action):
    """A text for a person at the device."""

    text: str


@dataclass(frozen=True)
class RefusalSeen(Action):
    """The coordinator has refused the newest report, for a reason that is news."""

    why: str


@dataclass(frozen=True)
class YieldId(Action):
    """Another agent uses our id, and started earlier: end with an error."""


Actions = list[Action]


@dataclass(frozen=True)
class Outboxed:
    """What the outbox holds when an agent starts."""

    run: str = ""  # the run that the steps belong to; "" before the first order
    accepted: int = 0  # newest step of the run that is known to be accepted
    step: int = 0  # step of a report that is neither accepted nor closed; 0 for none
    kept: int = 0  # step of an accepted report that is kept until its step is closed; 0 for none
    work: bytes = b""  # digest of the work that the report of `step` or `kept` came from
    confirmed: int = 0  # `again` of the order that reported `accepted`
    aside: Outboxed | None = None  # the run before this one
