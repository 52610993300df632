"""The messages that people read, as frozen strict pydantic models in JSON: statuses, the roster and an operator's commands.

`to_bytes` and `from_bytes` are the only ways out and in. `from_bytes` raises DecodeError, and nothing else, for any bytes.
An idle agent imports this module, so it needs neither numpy nor torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from covey.shared.sentences import printable
from covey.shared.wire.format import FORMAT
from covey.shared.wire.framing import IGNORES_UNKNOWN, Count, Document, Name, Numbers, Sparse, Text
from covey.shared.wire.roll_call import MAX_SPREAD_S, ROLL_SPREAD_S

MAX_ROSTER_PAGES = 1 << 12
MAX_LABELS = 1000  # in a status
MAX_USES = 128  # characters of what a device mixes
MAX_LABELS_BYTES = 1 << 14  # of all labels of a status as JSON

# `AgentStatus.problem` of an offline status that another program publishes in an agent's name
EXPELLED = "expelled: its credentials were revoked"
ROTATED = "its credentials were replaced: the agent needs the new file"
ASKED = "missed a deadline: asked whether it is there"
# begin `ModelInUse.note`, and the version follows; whatever else begins it, a version was not taken over
IN_USE, JUDGING = "in use: ", "judging: "
FELL = " is worse since the data changed: "  # in a note, between a version and its figures


ShortText = Annotated[str, Field(max_length=64)]  # an id, a digest or the name of a model


def bounded_labels(labels: Sequence[str]) -> list[str]:
    """As many of the first labels as a status has room for."""
    kept: list[str] = []
    room = MAX_LABELS_BYTES
    for label in labels[:MAX_LABELS]:
        room -= len(json.dumps(label)) + 1
        if room < 0:
            break
        kept.append(label)
    return kept


class ModelInUse(Sparse):
    """The model that a device uses for its own predictions (`agent start --model-dir`), for people."""

    model_config = IGNORES_UNKNOWN

    optional: ClassVar[tuple[str, ...]] = ("figure", "measure", "uses")

    run: ShortText = ""  # "" before the first one
    round: Count = 0
    name: Text = ""  # of the version, as its publication has it
    cluster: int | None = None
    serial: Count = 0  # of the newest publication that the device has taken over or kept out
    rejected: Count = 0  # models that the device's own check kept out
    hook_failures: Count = 0  # of the command that runs after a change
    note: Text = ""  # the newest decision, or what the device judges now
    # the newest figure on the device's test part, where figures of its reports are no secret; None: unknown
    figure: float | None = None
    measure: ShortText = ""  # of the figure
    # what the device mixes, as `mixture.in_words` has it, where such weights are no secret; "": the served model, or unknown
    uses: Annotated[str, Field(max_length=MAX_USES), AfterValidator(printable)] = ""


OPTIONAL_OF_STATUS = (
    "brief", "model", "certificate", "disk_free", "clock", "links", "twins", "refused"
)  # fmt: skip


class AgentStatus(Sparse, Document):
    """The state of an agent (retained; also its last will, with `online` false).

    `session` is new for each start of the agent. A last will of an older session is ignored.
    """

    model_config = IGNORES_UNKNOWN

    max_bytes: ClassVar[int] = 1 << 15

    optional: ClassVar[tuple[str, ...]] = OPTIONAL_OF_STATUS

    agent: Name
    session: Name
    serial: Count = 0  # grows with every status of a session; 0 in a last will
    online: bool
    # the roll call of the coordinator that this status answers
    epoch: ShortText = ""
    # digest of the task that the data was checked against
    task: ShortText = ""
    samples: Count = 0
    test_samples: Count = 0
    # as many as `bounded_labels` returns
    labels: Annotated[list[Text], Field(max_length=MAX_LABELS)] = Field(default_factory=list)
    problem: Text | None = None  # why this agent does not take part
    busy: bool = False
    version: Text = ""
    format: Count = FORMAT  # what the messages of its sender mean
    # messages that this agent has refused, by reason
    dropped: Annotated[dict[Text, Count], Field(max_length=64)] = Field(default_factory=dict)
    model: ModelInUse | None = None  # None if the device keeps none
    brief: bool = False  # whether orders may have a `brief`
    # of the device, for people; times in seconds since 1970. A last will has the certificate too
    certificate: float | None = None  # when the first one ends that its connection needs
    disk_free: Count | None = None  # bytes on the disk of its state
    clock: float | None = None  # its time when it published this
    links: Count = 0  # connections within a day, the present one included
    twins: Count = (
        0  # times that another program with its id was heard, until it was silent for an hour
    )
    refused: Text = ""  # why the coordinator refused its newest report

    def is_older(self, other: AgentStatus) -> bool:
        """Whether the agent published `other`, of the same session, after this one."""
        return self.session == other.session and self.serial < other.serial


class CoordinatorStatus(Sparse, Document):
    """The state of the run (retained; also the last will, with `online` false and the round at its connection).

    A new `epoch` is a roll call.
    """

    model_config = IGNORES_UNKNOWN

    optional: ClassVar[tuple[str, ...]] = ("spread_s", "batch", "given_up", "trouble", "clock")

    online: bool
    version: Text = ""
    format: Count = FORMAT  # what the messages of its sender mean
    # session of the coordinator, a dot, and the number of its connections so far
    epoch: ShortText = ""
    run: ShortText = ""
    # of the run: grows with every start of its coordinator, also of one that has a copy of the run's folder
    incarnation: Count = 0
    name: Text = ""
    round: Count = 0
    rounds: Count = 0
    phase: Text = ""
    step: Count = 0
    state: Literal["gathering", "open", "paused", "folding", "finished", "stopped"] = "gathering"
    given_up: bool = (
        False  # stopped without its last round; the reason is left out, for it names other agents
    )
    clock: float | None = None  # its time when it published this, in seconds since 1970
    trouble: Text = ""  # an error that has stopped it, or what its disk waits for
    task: Numbers | None = None
    task_digest: ShortText = ""
    batch: Count = 0  # samples of a mini-batch; 0: unknown
    delivery: Literal["participants", "all"] = "participants"
    # the time over which agents spread their answers to the roll call; grows with the fleet
    spread_s: Annotated[float, Field(ge=0, le=MAX_SPREAD_S)] = ROLL_SPREAD_S

    @property
    def session(self) -> str:
        """Identifies one start of the coordinator; empty in a last will."""
        return self.epoch.partition(".")[0]


class RosterMessage(Sparse, Document):
    """The agents that the coordinator knows, and all refused messages by reason (retained, for people).

    The roster of a large fleet has several pages, on a topic each. A message with the rows that have changed is not
    retained, and replaces those of the same agents.
    """

    model_config = IGNORES_UNKNOWN

    optional: ClassVar[tuple[str, ...]] = ("round", "pages", "odd")

    run: ShortText = ""
    round: Count = 0  # rounds that are over
    agents: dict[Name, Numbers] = Field(default_factory=dict)
    refusals: dict[Text, Count] = Field(default_factory=dict)
    pages: Annotated[int, Field(ge=1, le=MAX_ROSTER_PAGES)] = 1  # of the roster, this one included
    odd: list[Numbers] = Field(
        default_factory=list
    )  # on the first page: what `coordinator doctor` lists


class Control(Document):
    """A command of an operator.

    `release` ends the quarantine of `agent`, `forget` removes it from the run; `tell` makes a running coordinator answer.
    """

    checked: ClassVar[bool] = False
    max_bytes: ClassVar[int] = 1 << 12

    command: Literal["pause", "resume", "stop", "release", "forget", "tell"]
    agent: Name | None = None

    def to_bytes(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode()
