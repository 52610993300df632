"""What an agent reports to a person, a log or a program. Every kind of notice is a frozen dataclass.

An observer receives the notices one by one. `to_json` gives the object that `agent start --json` prints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class _Notice:
    kind: ClassVar[str]  # the value of "event" in JSON

    def to_json(self) -> dict[str, Any]:
        """{"event": the kind, and a key for each field}."""
        return {"event": self.kind, **asdict(self)}


class DeviceNotice(_Notice):
    """A notice of one agent."""


# -- the link and the coordinator --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Started(DeviceNotice):
    """The program was started with valid options."""

    kind = "start"
    agent: str
    federation: str
    broker: str  # address without password
    data: str


@dataclass(frozen=True)
class Connected(DeviceNotice):
    kind = "up"
    why: str = ""  # always empty; the key is part of the format
    broker: str = ""  # address without password: one of several may be in use; empty if unknown


@dataclass(frozen=True)
class Disconnected(DeviceNotice):
    """The link was lost, or an attempt to connect failed. The agent keeps trying."""

    kind = "down"
    why: str


@dataclass(frozen=True)
class MessageRefused(DeviceNotice):
    """A message that makes no sense was dropped."""

    kind = "refused"
    why: str


@dataclass(frozen=True)
class RunJoined(DeviceNotice):
    """The agent's report and memory are now those of this run."""

    kind = "run"
    run: str


@dataclass(frozen=True)
class DataFits(DeviceNotice):
    """The data fits the coordinator's task."""

    kind = "data"
    samples: int  # for training
    test_samples: int
    remark: str = (
        ""  # what the task does to rows by its own words, and what of the data does not fit
    )


@dataclass(frozen=True)
class DataChanged(DeviceNotice):
    """The files with the data were changed since they were read; they are read again."""

    kind = "data changed"


@dataclass(frozen=True)
class WaitsForCoordinator(DeviceNotice):
    """The agent is connected, and no coordinator works on this broker."""

    kind = "waiting"
    why: str
    seconds: int  # how long the agent has waited


@dataclass(frozen=True)
class Problem(DeviceNotice):
    """Why the agent stays out of the run."""

    kind = "problem"
    why: str


# -- work and reports --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkStarted(DeviceNotice):
    kind = "work"
    step: int
    phase: str


@dataclass(frozen=True)
class OrderFailed(DeviceNotice):
    """The work of a step failed or was refused. The report names the reason."""

    kind = "failed"
    step: int
    why: str


@dataclass(frozen=True)
class FrozenOnce(DeviceNotice):
    """The layers that do not train computed once for all epochs of a step, and the others trained on their outputs."""

    kind = "frozen once"
    step: int
    samples: int


@dataclass(frozen=True)
class WorkerDied(DeviceNotice):
    """A worker process died during a job. The job is done again, once."""

    kind = "worker lost"
    job: str
    why: str


@dataclass(frozen=True)
class ReportSent(DeviceNotice):
    kind = "sent"
    step: int
    whole: bool  # False: the link broke on the way


@dataclass(frozen=True)
class ReportAccepted(DeviceNotice):
    kind = "accepted"
    step: int


@dataclass(frozen=True)
class CoordinatorRefused(DeviceNotice):
    """The coordinator has refused a report, or refuses all of this agent's."""

    kind = "report refused"
    why: str


@dataclass(frozen=True)
class ReportDropped(DeviceNotice):
    """The coordinator closed the step without this report."""

    kind = "dropped"
    step: int


@dataclass(frozen=True)
class AskedAgain(DeviceNotice):
    """The coordinator lost what it had accepted after the step `accepted`."""

    kind = "asked again"
    accepted: int


# -- the model in use --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelTaken(DeviceNotice):
    """A new model is in use on this device."""

    kind = "model"
    run: str
    round: int
    cluster: int | None
    version: str  # its name, for people
    path: str
    why: str


@dataclass(frozen=True)
class ModelRejected(DeviceNotice):
    """A new model is worse than the model in use, which stays."""

    kind = "model rejected"
    run: str
    round: int
    cluster: int | None
    version: str  # its name, for people
    why: str


@dataclass(frozen=True)
class ModelNotKept(DeviceNotice):
    """A new model could not be judged or written. The model in use stays."""

    kind = "model not kept"
    why: str


@dataclass(frozen=True)
class HookFailed(DeviceNotice):
    """The command of `--on-model` failed. The new model is in use all the same."""

    kind = "hook failed"
    why: str


# -- the device --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Damaged(DeviceNotice):
    """A file of the agent's state is damaged; what happens next."""

    kind = "damaged"
    why: str


@dataclass(frozen=True)
class DiskFull(DeviceNotice):
    """The disk cannot be written to and the agent waits, or it can be again."""

    kind = "disk"
    why: str


@dataclass(frozen=True)
class StoryLine:
    """One sentence of an agent's story, with its local time in ISO 8601."""

    at: str
    text: str


@dataclass(frozen=True)
class StorySoFar(DeviceNotice):
    """What happened to the agent, oldest first."""

    kind = "story"
    lines: tuple[StoryLine, ...]


# -- simulated fleets --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CutOff(DeviceNotice):
    """A fault drill: the agent vanishes as in a power cut."""

    kind = "dies"
    step: int


@dataclass(frozen=True)
class FleetStarted(_Notice):
    kind = "fleet"
    agents: int
    workers: int
    broker: str


@dataclass(frozen=True)
class FleetConnected(_Notice):
    kind = "fleet up"


@dataclass(frozen=True)
class FleetDisconnected(_Notice):
    kind = "fleet down"
    why: str


@dataclass(frozen=True)
class OfAgent:
    """A notice of one agent of a fleet."""

    agent: str
    notice: DeviceNotice

    def to_json(self) -> dict[str, Any]:
        """The notice's object with a first key "agent"."""
        return {"agent": self.agent, **self.notice.to_json()}


FleetNotice = FleetStarted | FleetConnected | FleetDisconnected | OfAgent

DeviceObserver = Callable[[DeviceNotice], None]
FleetObserver = Callable[[FleetNotice], None]
