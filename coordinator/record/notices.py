"""What a run reports to its observer: one frozen class for each kind of event, with one JSON form.

An observer watches a run: the progress bar, the lines of `--json`, a test. The same JSON objects are the
lines of `rounds.jsonl` and the payload of the metrics topic; only some kinds of notices are written there, see `Record`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from covey.coordinator.fold.means import Means
from covey.shared.strategies.base import ClientId

Json = dict[str, Any]


@dataclass(frozen=True)
class _Notice:
    """The JSON object of a notice names its kind under "event", then come its fields in their order."""

    event: ClassVar[str]

    def to_json(self) -> Json:
        """The notice as `--json` prints it and as the record keeps it."""
        row: Json = {"event": self.event}
        for one in fields(self):
            row[one.name] = getattr(self, one.name)
        return row


# -- what the record keeps -------------------------------------------------------------------------


@dataclass(frozen=True)
class PhaseFolded(_Notice):
    """A phase is over and its reports are in the strategy's state."""

    event: ClassVar[str] = "phase"

    phase: str
    ends_round: bool
    round: int  # rounds that were over when the phase began
    step: int
    invited: list[ClientId]
    reported: list[ClientId]
    missing: list[ClientId]
    cluster_sizes: Mapping[str, int]  # agents by cluster id, after the fold
    moved: int  # agents that are in another cluster than before the fold
    seconds: float  # from the first order to the fold
    train_seconds: float  # sum over the reporters
    fold_seconds: float
    traffic: Mapping[str, int]  # totals of the run so far
    notes: Mapping[str, Any]  # what the strategy remarks
    means: Means = field(default_factory=Means)
    client_state: Mapping[ClientId, str] = field(default_factory=dict)  # agents that lost memory
    devices: Mapping[str, int] = field(default_factory=dict)  # empty: all computed on CPUs
    privacy: Mapping[str, Any] | None = None  # the account so far
    deadline_s: float | None = None  # the time limit, if it adapts
    clock_s: float | None = None  # the virtual time, where durations are simulated
    # of a buffered round: the cluster that was folded, and folds since the order of each reporter
    buffer: int | None = None
    staleness: list[int] = field(default_factory=list)

    def to_json(self) -> Json:
        """One line of `rounds.jsonl`: what a phase does not have is left out."""
        row: Json = {
            "event": self.event,
            "phase": self.phase,
            "ends_round": self.ends_round,
            "round": self.round,
            "step": self.step,
            "invited": self.invited,
            "reported": self.reported,
            "missing": self.missing,
        }
        if self.deadline_s is not None:
            row["deadline_s"] = self.deadline_s
        if self.clock_s is not None:
            row["clock_s"] = self.clock_s
        if self.buffer is not None:
            row["buffer"] = self.buffer
        if self.staleness:
            row["staleness"] = self.staleness
        if self.client_state:
            row["client_state"] = self.client_state
        if self.devices:
            row["devices"] = self.devices
        row["cluster_sizes"] = self.cluster_sizes
        row["moved"] = self.moved
        row |= self.means.to_json()
        row["seconds"] = self.seconds
        row["train_seconds"] = self.train_seconds
        row["fold_seconds"] = self.fold_seconds
        row["traffic"] = self.traffic
        row["notes"] = self.notes
        if self.privacy is not None:
            row["privacy"] = self.privacy
        return row


@dataclass(frozen=True)
class RoundVoid(_Notice):
    """A step came to nothing and is drawn again."""

    event: ClassVar[str] = "void"

    round: int
    step: int
    why: str


@dataclass(frozen=True)
class ReportSetAside(_Notice):
    """An accepted report made the fold fail; the step continues without it."""

    event: ClassVar[str] = "set_aside"

    agent: ClientId
    round: int
    step: int
    why: str


@dataclass(frozen=True)
class AgentQuarantined(_Notice):
    """An agent is not invited any more, because its reports were refused."""

    event: ClassVar[str] = "quarantined"

    agent: ClientId
    refused: int  # steps with a refused report
    why: str  # the newest refusal
    round: int


@dataclass(frozen=True)
class AgentRests(_Notice):
    """An agent is not invited for some rounds, because its work came to nothing several times in a row."""

    event: ClassVar[str] = "resting"

    agent: ClientId
    kind: str  # silent: online and without a report; failing: it could not do its work
    times: int  # in a row
    until: int  # complete rounds with which it is invited again
    why: str  # in words
    round: int


@dataclass(frozen=True)
class AgentReleased(_Notice):
    """The operator has released an agent from quarantine."""

    event: ClassVar[str] = "released"

    agent: ClientId
    round: int


@dataclass(frozen=True)
class AgentForgotten(_Notice):
    """The operator has removed an agent from the run; it may come back as a newcomer."""

    event: ClassVar[str] = "forgotten"

    agent: ClientId
    round: int


@dataclass(frozen=True)
class RoundsStopped(_Notice):
    """The method needs no more rounds, although the scenario has some left."""

    event: ClassVar[str] = "stopped"

    round: int
    rounds: int  # of the scenario
    why: str


@dataclass(frozen=True)
class LinesLost(_Notice):
    """The checkpoint knows lines of the record that the file does not have."""

    event: ClassVar[str] = "lost lines"

    lines: int


Record = (
    PhaseFolded
    | RoundVoid
    | ReportSetAside
    | AgentQuarantined
    | AgentRests
    | AgentReleased
    | AgentForgotten
    | RoundsStopped
    | LinesLost
)

# -- about agents and their reports ------------------------------------------------------------------


@dataclass(frozen=True)
class ReportDamaged(_Notice):
    """An accepted report cannot be read any more; its agent sends it again."""

    event: ClassVar[str] = "damaged"

    why: str


@dataclass(frozen=True)
class WorkFailed(_Notice):
    """An agent reports that it could not do the work of its order."""

    event: ClassVar[str] = "failed"

    agent: ClientId
    step: int
    why: str


@dataclass(frozen=True)
class ReportIgnored(_Notice):
    """A report came that no open step waits for."""

    event: ClassVar[str] = "ignored"

    agent: ClientId | None
    why: str


@dataclass(frozen=True)
class ReportRefused(_Notice):
    """A report broke a rule and was dropped."""

    event: ClassVar[str] = "refused"

    agent: ClientId
    why: str


@dataclass(frozen=True)
class AgentExcluded(_Notice):
    """An agent stays out of the run, because its data does not fit."""

    event: ClassVar[str] = "problem"

    agent: ClientId
    why: str


# -- about the service -------------------------------------------------------------------------------


@dataclass(frozen=True)
class BrokerReady(_Notice):
    """The broker of the run is known, and runs where the coordinator has started it."""

    event: ClassVar[str] = "broker"

    broker: str  # "yours", or the name of the program that was started
    url: str
    note: str


@dataclass(frozen=True)
class ModelChosen(_Notice):
    """The initial model is about to be built."""

    event: ClassVar[str] = "model"

    model: str


@dataclass(frozen=True)
class LinkUp(_Notice):
    """The broker is connected."""

    event: ClassVar[str] = "link"

    up: bool = field(default=True, init=False)


@dataclass(frozen=True)
class LinkDown(_Notice):
    """The connection to the broker was lost."""

    event: ClassVar[str] = "link"

    up: bool = field(default=False, init=False)
    why: str


@dataclass(frozen=True)
class ShardUp(_Notice):
    """One of several brokers is connected."""

    event: ClassVar[str] = "shard"

    up: bool = field(default=True, init=False)
    shard: int  # counted from 0
    broker: str  # its address


@dataclass(frozen=True)
class ShardDown(_Notice):
    """The connection to one of several brokers was lost."""

    event: ClassVar[str] = "shard"

    up: bool = field(default=False, init=False)
    shard: int  # counted from 0
    why: str
    agents: int  # that were online there


@dataclass(frozen=True)
class AggregatorUp(_Notice):
    """The aggregator near a broker is online."""

    event: ClassVar[str] = "aggregator"

    up: bool = field(default=True, init=False)
    shard: int  # the number of its broker


@dataclass(frozen=True)
class AggregatorDown(_Notice):
    """The aggregator near a broker is gone: the coordinator reads the reports there itself."""

    event: ClassVar[str] = "aggregator"

    up: bool = field(default=False, init=False)
    shard: int  # the number of its broker


@dataclass(frozen=True)
class AggregatorExcluded(_Notice):
    """The aggregator near a broker speaks another format: the coordinator reads the reports there itself."""

    event: ClassVar[str] = "aggregator excluded"

    shard: int  # the number of its broker
    why: str


@dataclass(frozen=True)
class SumRefused(_Notice):
    """A partial sum does not fit: its step takes single reports."""

    event: ClassVar[str] = "sum refused"

    shard: int  # the number of the aggregator's broker
    why: str


@dataclass(frozen=True)
class SubscriptionsRefused(_Notice):
    """The broker refuses these subscriptions; none: it has accepted all of them since."""

    event: ClassVar[str] = "subscriptions"

    refused: list[str]  # topics
    why: str = ""  # for people


@dataclass(frozen=True)
class BrokerDrops(_Notice):
    """The broker acknowledges what it does not deliver, or delivers it again."""

    event: ClassVar[str] = "delivery"

    why: str  # for people
    works: bool  # it delivers again


@dataclass(frozen=True)
class ControlReceived(_Notice):
    """The operator has paused or resumed the run."""

    event: ClassVar[str] = "control"

    command: str  # "pause" or "resume"
    topic: str  # where the command was published


@dataclass(frozen=True)
class DiskRemark(_Notice):
    """The disk is full, or has room again."""

    event: ClassVar[str] = "disk"

    why: str


@dataclass(frozen=True)
class ProcessFrozen(_Notice):
    """This process did not run for a while; deadlines are postponed by that time."""

    event: ClassVar[str] = "frozen"

    seconds: float
    why: str


@dataclass(frozen=True)
class ModelsPublished(_Notice):
    """Devices have been given the models of a round, for use."""

    event: ClassVar[str] = "published"

    version: str  # its name, for people
    round: int
    models: int
    serial: int


@dataclass(frozen=True)
class ModelsNotPublished(_Notice):
    """The run is finished, but its models could not be given to devices."""

    event: ClassVar[str] = "not published"

    why: str


@dataclass(frozen=True)
class RunWaits(_Notice):
    """No phase can open at the moment."""

    event: ClassVar[str] = "waiting"

    why: str
    seconds: int = 0  # how long the run has waited


CausedByPeer = WorkFailed | ReportIgnored | ReportRefused  # a peer can cause these at will
Notice = (
    Record
    | CausedByPeer
    | ReportDamaged
    | AgentExcluded
    | BrokerReady
    | ModelChosen
    | LinkUp
    | LinkDown
    | ShardUp
    | ShardDown
    | AggregatorUp
    | AggregatorDown
    | AggregatorExcluded
    | SumRefused
    | SubscriptionsRefused
    | BrokerDrops
    | ControlReceived
    | DiskRemark
    | ProcessFrozen
    | RunWaits
    | ModelsPublished
    | ModelsNotPublished
)
Observer = Callable[[Notice], None]


def ignore(notice: Notice) -> None:
    """The observer of an unobserved run."""
