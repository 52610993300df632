"""What a run reports to its observer: one frozen class for each kind of event, with one JSON form.

An observer watches a run: the progress bar, the lines of `--json`, a test. The same JSON objects are the
lines of `rounds.jsonl` and the payload of the metrics topic; only some kinds of notices are written there, see `Record`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar

from covey.coordinator.fold.means import Means
from covey.shared.strategies.base import ClientId

Json = dict[str, Any]


@dataclass(frozen=True)
class Notice:
    """The JSON object of a notice names its kind under "event", then come its fields in their order."""

    event: ClassVar[str]

    def to_json(self) -> Json:
        """The notice as `--json` prints it and as the record keeps it."""
        row: Json = {"event": self.event}
        for one in fields(self):
            row[one.name] = getattr(self, one.name)
        return row


class Record(Notice):
    """A notice that the record keeps as a line."""


# -- what the record keeps -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PhaseFolded(Record):
    """A phase is over and its reports are in the strategy's state."""

    event: ClassVar[str] = "phase"

    phase: str
    ends_round: bool
    round: int  # rounds that were over when the phase began
    step: int
    invited: list[ClientId]
    reported: list[ClientId]
    missing: list[ClientId]
    deadline_s: float | None = None  # the time limit, if it adapts
    clock_s: float | None = None  # the virtual time, where durations are simulated
    # of a buffered round: the cluster that was folded, and folds since the order of each reporter
    buffer: int | None = None
    staleness: list[int] = field(default_factory=list)
    took: list[float] = field(
        default_factory=list
    )  # seconds from invitation to report, of each reporter
    client_state: Mapping[ClientId, str] = field(default_factory=dict)  # agents that lost memory
    devices: Mapping[str, int] = field(default_factory=dict)  # empty: all computed on CPUs
    cluster_sizes: Mapping[str, int]  # agents by cluster id, after the fold
    moved: int  # agents that are in another cluster than before the fold
    means: Means = field(default_factory=Means)
    seconds: float  # from the first order to the fold
    train_seconds: float  # sum over the reporters
    fold_seconds: float
    traffic: Mapping[str, int]  # totals of the run so far
    notes: Mapping[str, Any]  # what the strategy remarks
    privacy: Mapping[str, Any] | None = None  # the account so far

    def to_json(self) -> Json:
        """One line of `rounds.jsonl`: the means are keys of it, and what a phase does not have is left out."""
        row: Json = {"event": self.event}
        for one in fields(self):
            value = getattr(self, one.name)
            may_lack = one.default is None or one.default_factory is not MISSING
            if one.name == "means":
                row |= self.means.to_json()
            elif not may_lack or value not in (None, [], {}):
                row[one.name] = value
        return row


@dataclass(frozen=True)
class RoundVoid(Record):
    """A step came to nothing and is drawn again."""

    event: ClassVar[str] = "void"

    round: int
    step: int
    why: str


@dataclass(frozen=True)
class ReportSetAside(Record):
    """An accepted report made the fold fail; the step continues without it."""

    event: ClassVar[str] = "set_aside"

    agent: ClientId
    round: int
    step: int
    why: str


@dataclass(frozen=True)
class AgentQuarantined(Record):
    """An agent is not invited any more, because its reports were refused."""

    event: ClassVar[str] = "quarantined"

    agent: ClientId
    refused: int  # steps with a refused report
    why: str  # the newest refusal
    round: int


@dataclass(frozen=True)
class AgentRests(Record):
    """An agent is not invited for some rounds, because its work came to nothing several times in a row."""

    event: ClassVar[str] = "resting"

    agent: ClientId
    kind: str  # silent: online and without a report; failing: it could not do its work
    times: int  # in a row
    until: int  # complete rounds with which it is invited again
    why: str  # in words
    round: int


@dataclass(frozen=True)
class AgentReleased(Record):
    """The operator has released an agent from quarantine."""

    event: ClassVar[str] = "released"

    agent: ClientId
    round: int


@dataclass(frozen=True)
class AgentForgotten(Record):
    """The operator has removed an agent from the run; it may come back as a newcomer."""

    event: ClassVar[str] = "forgotten"

    agent: ClientId
    round: int


@dataclass(frozen=True)
class RoundsStopped(Record):
    """The method needs no more rounds, although the scenario has some left."""

    event: ClassVar[str] = "stopped"

    round: int
    rounds: int  # of the scenario
    why: str


@dataclass(frozen=True)
class LinesLost(Record):
    """The checkpoint knows lines of the record that the file does not have."""

    event: ClassVar[str] = "lost lines"

    lines: int


# -- about agents and their reports ------------------------------------------------------------------


@dataclass(frozen=True)
class ReportDamaged(Notice):
    """An accepted report cannot be read any more; its agent sends it again."""

    event: ClassVar[str] = "damaged"

    why: str


@dataclass(frozen=True)
class WorkFailed(Notice):
    """An agent reports that it could not do the work of its order."""

    event: ClassVar[str] = "failed"

    agent: ClientId
    step: int
    why: str


@dataclass(frozen=True)
class ReportIgnored(Notice):
    """A report came that no open step waits for."""

    event: ClassVar[str] = "ignored"

    agent: ClientId | None
    why: str


@dataclass(frozen=True)
class ReportRefused(Notice):
    """A report broke a rule and was dropped."""

    event: ClassVar[str] = "refused"

    agent: ClientId
    why: str


@dataclass(frozen=True)
class AgentExcluded(Notice):
    """An agent stays out of the run, because its data does not fit."""

    event: ClassVar[str] = "problem"

    agent: ClientId
    why: str


@dataclass(frozen=True)
class AgentLeft(Notice):
    """An agent floods the coordinator, which does not read its topics for a while."""

    event: ClassVar[str] = "left"

    agent: ClientId
    why: str


# -- about the service -------------------------------------------------------------------------------


@dataclass(frozen=True)
class BrokerReady(Notice):
    """The broker of the run is known, and runs where the coordinator has started it."""

    event: ClassVar[str] = "broker"

    broker: str  # "yours", or the name of the program that was started
    url: str
    note: str


@dataclass(frozen=True)
class ModelChosen(Notice):
    """The initial model is there."""

    event: ClassVar[str] = "model"

    model: str
    still: list[
        str
    ]  # tensors that do not train: frozen by their owner, or no gradient reaches them


@dataclass(frozen=True)
class LinkUp(Notice):
    """The broker is connected."""

    event: ClassVar[str] = "link"

    up: bool = field(default=True, init=False)


@dataclass(frozen=True)
class LinkDown(Notice):
    """The connection to the broker was lost."""

    event: ClassVar[str] = "link"

    up: bool = field(default=False, init=False)
    why: str


@dataclass(frozen=True)
class ShardUp(Notice):
    """One of several brokers is connected."""

    event: ClassVar[str] = "shard"

    up: bool = field(default=True, init=False)
    shard: int  # counted from 0
    broker: str  # its address


@dataclass(frozen=True)
class ShardDown(Notice):
    """The connection to one of several brokers was lost."""

    event: ClassVar[str] = "shard"

    up: bool = field(default=False, init=False)
    shard: int  # counted from 0
    why: str
    agents: int  # that were online there


@dataclass(frozen=True)
class AggregatorUp(Notice):
    """The aggregator near a broker is online."""

    event: ClassVar[str] = "aggregator"

    up: bool = field(default=True, init=False)
    shard: int  # the number of its broker


@dataclass(frozen=True)
class AggregatorDown(Notice):
    """The aggregator near a broker is gone: the coordinator reads the reports there itself."""

    event: ClassVar[str] = "aggregator"

    up: bool = field(default=False, init=False)
    shard: int  # the number of its broker


@dataclass(frozen=True)
class AggregatorExcluded(Notice):
    """The aggregator near a broker speaks another format: the coordinator reads the reports there itself."""

    event: ClassVar[str] = "aggregator excluded"

    shard: int  # the number of its broker
    why: str


@dataclass(frozen=True)
class SumRefused(Notice):
    """A partial sum does not fit: its step takes single reports."""

    event: ClassVar[str] = "sum refused"

    shard: int  # the number of the aggregator's broker
    why: str


@dataclass(frozen=True)
class SubscriptionsRefused(Notice):
    """The broker refuses these subscriptions; none: it has accepted all of them since."""

    event: ClassVar[str] = "subscriptions"

    refused: list[str]  # topics
    why: str = ""  # for people


@dataclass(frozen=True)
class BrokerDrops(Notice):
    """The broker acknowledges what it does not deliver, or delivers it again."""

    event: ClassVar[str] = "delivery"

    why: str  # for people
    works: bool  # it delivers again


@dataclass(frozen=True)
class ControlReceived(Notice):
    """The operator has paused or resumed the run."""

    event: ClassVar[str] = "control"

    command: str  # "pause" or "resume"
    topic: str  # where the command was published


@dataclass(frozen=True)
class DiskRemark(Notice):
    """The disk is full, or has room again."""

    event: ClassVar[str] = "disk"

    why: str


@dataclass(frozen=True)
class ProcessFrozen(Notice):
    """This process did not run for a while; deadlines are postponed by that time."""

    event: ClassVar[str] = "frozen"

    seconds: float
    why: str


@dataclass(frozen=True)
class ModelsPublished(Notice):
    """Devices have been given the models of a round, for use."""

    event: ClassVar[str] = "published"

    version: str  # its name, for people
    round: int
    models: int
    serial: int


@dataclass(frozen=True)
class ModelsNotPublished(Notice):
    """The run is finished, but its models could not be given to devices."""

    event: ClassVar[str] = "not published"

    why: str


@dataclass(frozen=True)
class RunWaits(Notice):
    """No phase can open at the moment."""

    event: ClassVar[str] = "waiting"

    why: str
    seconds: int = 0  # how long the run has waited


CausedByPeer = WorkFailed | ReportIgnored | ReportRefused  # a peer can cause these at will
Observer = Callable[[Notice], None]


def ignore(notice: Notice) -> None:
    """The observer of an unobserved run."""
