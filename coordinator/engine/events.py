"""What happens to the round engine, and what it wants done. Frozen, compared with ==."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from covey.shared.strategies.base import ClientId, Phase, View


@dataclass(frozen=True)
class Joined:
    client: ClientId


@dataclass(frozen=True)
class Left:
    client: ClientId
    at_once: bool = False  # nobody waits for it: it cannot be back soon


ANY = -1  # in place of a cluster: every fold counts
NONE = -2  # in place of a cluster: no fold counts


@dataclass(frozen=True)
class Reported:
    """The client's report for this step lies safely in the spool.

    The other fields matter to buffered rounds alone: the cluster whose buffer takes the report; the cluster whose model
    the agent began with, None for the same one, ANY if each fold changes all models, NONE if none changes it; and the
    phase of an entry, which belongs to no buffer.
    """

    client: ClientId
    step: int
    cluster: int = 0
    began_with: int | None = None
    phase: Phase | None = None


@dataclass(frozen=True)
class ReportedTogether:
    """The reports of these clients for the open step came as one sum, which lies safely in the spool: all count, or none."""

    clients: tuple[ClientId, ...]
    step: int


@dataclass(frozen=True)
class Unreadable:
    """The reports of these clients for this step, which is being closed, cannot be read from the spool any more."""

    clients: tuple[ClientId, ...]
    step: int


@dataclass(frozen=True)
class Failed:
    """The client reports that it cannot do this step's work."""

    client: ClientId
    step: int
    why: str


@dataclass(frozen=True)
class VoteRefused:
    """A report of this client was refused: it has no vote in the open step unless a right one follows."""

    client: ClientId
    why: str


@dataclass(frozen=True)
class SetAside:
    """Accepted reports make the fold fail, each for a reason; the step continues without them."""

    reasons: dict[ClientId, str]


@dataclass(frozen=True)
class FoldFailed:
    """The reports of the closed step make no sound state, and no one of them is to blame."""

    why: str


@dataclass(frozen=True)
class Release:
    """The operator trusts a client again that is in quarantine."""

    client: ClientId


@dataclass(frozen=True)
class Forget:
    """The operator removes a client from the run, until it comes back as a newcomer."""

    client: ClientId


@dataclass(frozen=True)
class Planned:
    """The strategy's answer to `PlanPhase`; None: the run is complete.

    `sizes` are given where the phase is a round that takes place in buffers: the agents of each cluster.
    """

    phase: Phase | None
    sizes: Mapping[int, int] | None = None


@dataclass(frozen=True)
class Folded:
    """The reports of the closed step are in the state, which has found that some clients lie, each for a reason."""

    accused: Mapping[ClientId, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True)
class LinkLost:
    """No agent can be seen."""


@dataclass(frozen=True)
class LinkBack:
    """We can see again, and have called the roll."""


@dataclass(frozen=True)
class Paused:
    """The operator wants no new phase to open."""


@dataclass(frozen=True)
class Resumed:
    """The operator resumes the run."""


Event = (
    Joined
    | Left
    | Reported
    | ReportedTogether
    | Unreadable
    | Failed
    | VoteRefused
    | SetAside
    | FoldFailed
    | Release
    | Forget
    | Planned
    | Folded
    | Tick
    | LinkLost
    | LinkBack
    | Paused
    | Resumed
)


@dataclass(frozen=True)
class PlanPhase:
    """Ask the strategy for the next phase and answer with `Planned`."""

    view: View


@dataclass(frozen=True)
class Open:
    """Give each of the cohort its order for this step."""

    step: int
    round: int
    attempt: int
    phase: Phase
    cohort: tuple[ClientId, ...]


@dataclass(frozen=True)
class Invite:
    """Give one more agent an order for the open step."""

    step: int
    client: ClientId


@dataclass(frozen=True)
class Give:
    """Buffered rounds: give each of these agents an order of its own, under the number that stands by its name."""

    orders: tuple[tuple[ClientId, int], ...]


@dataclass(frozen=True)
class Buffer:
    """The reports of a buffered round, in the order of `Close.reporters`."""

    cluster: int | None  # whose buffer it was; None: a newcomer's entry, which belongs to none
    steps: tuple[int, ...]  # of the orders that the reports answer
    staleness: tuple[int, ...]  # folds of the cluster's model since each of these orders


@dataclass(frozen=True)
class Close:
    """Fold the reports of these, in this order, and answer with `Folded`."""

    step: int
    reporters: tuple[ClientId, ...]
    missing: tuple[ClientId, ...]
    buffer: Buffer | None = None  # None: the reports of one step


@dataclass(frozen=True)
class Void:
    """The step came to nothing; its reports are thrown away."""

    step: int
    why: str
    cohort: tuple[ClientId, ...]


@dataclass(frozen=True)
class Quarantined:
    """From now on this client is not invited, because its reports were refused in `refused` steps."""

    client: ClientId
    refused: int
    why: str


@dataclass(frozen=True)
class Rested:
    """From now on this client is not invited before `until` rounds are complete: its work came to nothing `times` times in a row."""

    client: ClientId
    kind: str  # silent or failing
    times: int
    until: int
    why: str  # in words, for the operator


@dataclass(frozen=True)
class Released:
    """This client is invited again."""

    client: ClientId


@dataclass(frozen=True)
class Forgotten:
    """Nothing counts on this client any more. Its report of the open step is thrown away."""

    client: ClientId


@dataclass(frozen=True)
class Ask:
    """Call the roll of these agents alone: they let the time of a step pass."""

    clients: tuple[ClientId, ...]


@dataclass(frozen=True)
class Ignored:
    event: Event
    why: str


@dataclass(frozen=True)
class Finished:
    """The run is over; `why` is empty unless it was given up."""

    why: str = ""


Action = (
    PlanPhase
    | Open
    | Invite
    | Give
    | Close
    | Void
    | Ask
    | Quarantined
    | Rested
    | Released
    | Forgotten
    | Ignored
    | Finished
)
