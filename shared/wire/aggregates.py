"""Messages between a coordinator and its aggregators (docs/protocol.md): orders down, partial sums up.

An aggregator is a process near one broker. It adds the reports of that broker's agents up and sends their sum, with what
the coordinator needs of each report besides its vectors. Agents send and receive none of these messages.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, cast

from pydantic import Field

from covey.shared.errors import Blaming, DecodeError
from covey.shared.wire.format import FORMAT
from covey.shared.wire.framing import (
    IGNORES_UNKNOWN,
    Count,
    Document,
    Message,
    Name,
    Numbers,
    Packed,
    Text,
)
from covey.shared.wire.messages import DIGEST_BYTES, DeviceName, Digest, ModelRef

ArrayName = Annotated[str, Field(pattern=f"^[0-9a-f]{{{2 * DIGEST_BYTES}}}$")]
Reason = Annotated[str, Field(pattern="^[a-z0-9 ]{1,40}$")]  # people count by it
TASK = "aggregator-task"  # the key of a task in its reference


class AggregatorStatus(Document):
    """The state of an aggregator (retained; also its last will, with `online` false)."""

    model_config = IGNORES_UNKNOWN

    max_bytes: ClassVar[int] = 1 << 12

    session: Name  # new for each start of the aggregator
    online: bool
    version: Text = ""
    format: Count = FORMAT  # what the messages of its sender mean
    run: Annotated[str, Field(max_length=64)] = ""  # of the order that it has read
    step: Count = 0


class AggregatorOrder(Packed):
    """The coordinator's desired state of an aggregator (retained): the open step, and whose reports it adds up.

    `task` is None while the aggregator has nothing to do, because no step is open or its reports go to the coordinator.
    """

    run: Name
    step: Count
    task: ModelRef | None = None
    # the agents that are awaited, with the training samples of their statuses; None: not known
    agents: dict[Name, Count | None] = Field(default_factory=dict)
    # digests of the partial sums of this step that need not be sent again
    settled: list[Digest] = Field(default_factory=list)


class AggregatorTask(Packed):
    """What checking and adding up the reports of one step takes: the content of the parts on the task topic."""

    run: Name
    step: Count
    scenario: str  # JSON, every key with its value
    phase: str  # JSON of the phase
    state: bytes  # the strategy's state: a manifest that names arrays
    arrays: dict[ArrayName, bytes]  # safetensors files by the digest of their array
    layout: Numbers  # of the models
    # encoded models of the orders by digest in hexadecimal digits: differences refer to them
    bases: dict[ArrayName, bytes] = Field(default_factory=dict)


class SummedReport(Message):
    """A report that is part of a sum: everything in it but the values of its vectors."""

    client: Name
    digest: Digest  # of the report as it came
    work: Digest  # of the work that it came from
    examples: Count
    steps: Count
    loss: float
    numbers: Numbers
    seconds: float
    client_state: Literal["whole", "lost", "ahead"] = "whole"
    device: DeviceName = "cpu"
    # by vector name, how far it lies from the model that its order named; of vectors that have such a model
    norms: dict[str, float] = Field(default_factory=dict)


class RefusedReport(Message):
    """A report that an aggregator refused, with the reason in a word and its details."""

    client: Name
    reason: Reason
    detail: Text

    @property
    def error(self) -> DecodeError:
        """The refusal as the coordinator's own check would raise it."""
        return DecodeError(cast(Blaming, self.reason), self.detail)


class FailedReport(Message):
    """An agent's report that it could not do its work."""

    client: Name
    why: Text


class PartialSum(Packed):
    """The sum of some reports of one step, and what else came from the agents of an aggregator.

    No two sums of a step have an agent in common.
    """

    run: Name
    step: Count
    session: Name  # of the aggregator
    serial: Count  # of this sum in the session
    reports: list[SummedReport] = Field(default_factory=list)
    failures: list[FailedReport] = Field(default_factory=list)
    refusals: list[RefusedReport] = Field(default_factory=list)
    ignored: list[Name] = Field(default_factory=list)  # agents whose reports were not expected
    unable: Text = ""  # why the step needs single reports; empty: it does not
    sums: bytes = b""  # an `Accumulator`; empty without reports
