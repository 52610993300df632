"""Which models the devices of a federation should use: a document for all of them, and one for each agent.

A finished run publishes its models, and so does `coordinator promote`. The models themselves travel as contents of
`clusters/deployed-{k}/model/{part}`. A candidate, which some devices try first, has a document and keys of its own, so that
all others keep what they have. Everything is retained: a device that connects later, also after the run has ended,
finds it at the broker. Only the coordinator's credentials may write these topics.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from covey.shared.wire.framing import Count, Name, Numbers, Packed, Sparse, Text
from covey.shared.wire.messages import MAX_MODELS, ModelRef
from covey.shared.wire.topics import is_deployed

MAX_DEVICES = 20_000  # of a candidate
AHEAD_MS = 86_400_000  # a day: no clock of a coordinator is further ahead of a device's

Origin = Literal["run", "operator"]


def _all_deployed(refs: list[ModelRef]) -> list[ModelRef]:
    for ref in refs:
        if not is_deployed(ref.key):
            raise ValueError("expected models under the key deployed- and a number")
    return refs


class Deployment(Sparse, Packed):
    """The models of one round of one run (retained). `models` has one for each cluster, in the order of the clusters."""

    max_bytes: ClassVar[int] = 1 << 22

    optional: ClassVar[tuple[str, ...]] = ("name", "force", "tune", "judge", "devices")

    serial: Annotated[Count, Field(ge=1)]  # grows with every publication of the federation
    run: Name
    round: Count
    name: Text = (
        ""  # of the version, for people: the operator's own, or the run's folder and the round
    )
    origin: Origin  # the run that has finished, or `coordinator promote`
    task: Numbers  # resolved: with the statistics of the fleet that the models were trained with
    layout: Numbers
    models: Annotated[
        list[ModelRef], Field(min_length=1, max_length=MAX_MODELS), AfterValidator(_all_deployed)
    ]
    force: bool = False  # devices take it over without their check, unless their policy forbids it
    # training settings with which a device trains its model at home; empty: it uses it as it is, without a judge
    tune: Numbers = Field(default_factory=dict)
    # for the judge: `evaluation.deliver`, and what is known of the fleet as `order_numbers` of the judge has it
    judge: Numbers = Field(default_factory=dict)
    # of a candidate, the devices that try it; empty for all devices
    devices: Annotated[list[Name], Field(max_length=MAX_DEVICES)] = Field(default_factory=list)

    @property
    def title(self) -> str:
        """The name of the version. One that was published without a name has its run and round."""
        return self.name or f"{self.run}@{self.round}"

    def is_for(self, agent: str) -> bool:
        """Whether a device takes part in this deployment."""
        return not self.devices or agent in self.devices

    def is_same_version(self, run: str, round_: int) -> bool:
        """Whether its models are those of this round of this run."""
        return (self.run, self.round) == (run, round_)


def latest_serial(wall: float) -> int:
    """The greatest serial that a publication may have. A serial is the time of its publication, in milliseconds since 1970.

    Args:
        wall: seconds since 1970.
    """
    return int(wall * 1000) + AHEAD_MS


class DeploymentShare(Packed):
    """The cluster of one agent in the deployment with the same `serial` (retained)."""

    max_bytes: ClassVar[int] = 1 << 10

    serial: Count
    cluster: Count
