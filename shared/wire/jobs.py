"""The jobs of worker processes and their answers, and how they travel over two pipes: four bytes of length, then msgpack.

`python -m covey.agent.worker.worker` does them. Both ends import this module, so it needs neither numpy nor torch.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar, Generic, TypeVar, dataclass_transform

import msgpack

from covey.shared.wire.messages import USUAL_LEARNER, DeviceWish

A = TypeVar("A", covariant=True)  # the answer to a job that does not fail
MAX_FRAME_BYTES = 1 << 30
HEAD_BYTES = 4
PATH = 127  # the extension type of a path; those below it are the place of a class in `_CLASSES`

_CLASSES: list[type] = []  # that travel


@dataclass_transform(frozen_default=True, kw_only_default=True)
def _travels(cls: type[Any]) -> Any:
    made = dataclass(frozen=True, kw_only=True)(cls)
    _CLASSES.append(made)
    return made


# -- what jobs are made of -------------------------------------------------------------------------


@_travels
class DeviceData:
    """A file or folder on this device, or code that reads data."""

    data: str
    label: str | None = None


@_travels
class FleetShare:
    """The share of agent `index` in the data of a simulated fleet, whose scenario is a file."""

    scenario: Path
    data_root: Path | None = None
    index: int = 0


DataSource = DeviceData | FleetShare


def learner_here() -> str:
    """The learner where nobody chose one: torch where it is installed, and numpy elsewhere."""
    has_torch = importlib.util.find_spec(USUAL_LEARNER) is not None  # imports nothing
    return USUAL_LEARNER if has_torch else "numpy"


@_travels
class JobRules:
    """What the owner of a device allows in a job. By default no code of anybody's own, and no other limits."""

    policy: dict[str, Any] | None = None
    allow: list[str] = field(default_factory=list)
    learner: str = USUAL_LEARNER


@_travels
class KeepPlace:
    """Where kept models lie, and what a new one is compared with."""

    folder: Path
    current: str  # file of the model in use; "" for none
    accepted: str  # file of the model that a person accepted last; "" for none
    margin: float  # how much worse a new model may be
    earlier: tuple[str, ...] = ()  # files of models that were in use before


# -- answers ---------------------------------------------------------------------------------------


@_travels
class Failure:
    """The job failed."""

    why: str  # may leave the device
    detail: str = ""  # for its own terminal

    @property
    def in_full(self) -> str:
        """For a person at this device."""
        return self.detail or self.why


@_travels
class Nothing:
    """It is done, and there is nothing to say."""


@_travels
class DataSummary:
    """What leaves the device about its data."""

    samples: int = 0
    test_samples: int = 0
    labels: list[str] = field(default_factory=list)  # of the training part
    problem: str = ""  # why the data does not fit, without private values
    detail: str = ""  # the same in full, for the device's own terminal


@_travels
class ModelJudgement:
    """The decision on a model for the device's own use."""

    version: dict[str, Any]
    accepted: bool
    why: str
    figure: tuple[str, float] | None  # of this model
    is_first: bool = False  # it cannot be compared with what a person accepted
    tells: bool | None = None  # whether a status may have its figure and weights; None: as before


@_travels
class Performed:
    """The report of an order lies in its file, and so does the memory that belongs to it."""

    digest: bytes  # of the report
    size: int
    examples: int = 0
    memory_digest: bytes = b""  # the seal of the new memory's file; empty: the memory is as it was
    failed: str = ""  # why the report has no result, in full
    kept: ModelJudgement | Failure | None = None  # the model of the order; None: none to judge
    frozen_once: int = 0  # samples on whose outputs of frozen layers a model trained; 0 for none


@_travels
class BadModel:
    """The file of a model does not match the digest in its name."""

    digest: bytes


@_travels
class BadMemory:
    """The file of the memory is not the one that a worker wrote."""


@_travels
class BadDisk:
    """The disk did not take a result."""

    why: str
    waits: bool  # whether it helps to wait


@_travels
class Adopted:
    """The decision on models that were published for use; None: the device uses them already."""

    kept: ModelJudgement | None


@_travels
class DeviceFound:
    """The kind of device that work would be done on."""

    kind: str


@_travels
class Answers:
    """Those to several jobs, in their order."""

    answers: list[Any]


# -- jobs ------------------------------------------------------------------------------------------


class WorkerJob(Generic[A]):
    """Something for a worker to do; it is answered by an A, or a `Failure`."""

    called: ClassVar[str] = ""  # for people, in notices


@_travels
class InspectData(WorkerJob[DataSummary]):
    """Compare the data with a task."""

    called = "inspect"

    source: DataSource
    task: dict[str, Any]
    rules: JobRules = field(default_factory=JobRules)


@_travels
class TryStep(WorkerJob[Nothing]):
    """Train one step and evaluate, within the owner's limits on memory."""

    called = "fits"

    source: DataSource
    task: dict[str, Any]
    batch: int
    rules: JobRules = field(default_factory=JobRules)


OrderAnswer = Performed | BadModel | BadMemory | BadDisk


@_travels
class Perform(WorkerJob[OrderAnswer]):
    """Do the work of an order, and write the report and the new memory."""

    called = "perform"

    order: bytes
    client: str
    source: DataSource
    models: list[Path]
    report_out: Path
    memory_out: Path
    durable: bool
    memory: Path | None = None
    memory_digest: str = ""  # its seal, in hex; "" if it is unknown
    client_state: str = "whole"
    account: Path | None = None  # of the privacy that the device has spent
    secure: Path | None = None  # the folder of its secure sums
    ahead: bool = False  # the work is for a masked report, and waits in that folder
    lost: str = ""  # why an earlier worker could not do it with the data; empty: none has tried
    keep: KeepPlace | None = None  # the order's model goes there
    rules: JobRules = field(default_factory=JobRules)


@_travels
class PerformTogether(WorkerJob[Answers]):
    """Do the work of several orders of a simulated fleet; those that train take their steps together."""

    jobs: list[Perform]


@_travels
class WritePartition(WorkerJob[Nothing]):
    """Write which samples of a simulated fleet belong to which agent, as .npz."""

    source: FleetShare
    out: Path


@_travels
class WriteStart(WorkerJob[Nothing]):
    """Write the initial models of a simulated fleet's scenario, as .npz."""

    source: FleetShare
    out: Path
    rules: JobRules = field(default_factory=JobRules)


@_travels
class AdoptModel(WorkerJob[Adopted | BadModel]):
    """Judge models that were published for use, and write the one that this device takes over; none: measure the one in use."""

    called = "adopt"

    source: DataSource
    deployment: bytes  # empty: the model in use is measured again
    clusters: list[int]  # whose models these are
    models: list[Path]
    keep: KeepPlace
    rules: JobRules = field(default_factory=JobRules)


@_travels
class FindDevice(WorkerJob[DeviceFound]):
    """Check which kind of device the work would be done on."""

    wanted: DeviceWish
    rules: JobRules = field(default_factory=JobRules)


# -- on a pipe -------------------------------------------------------------------------------------


def pack(message: object) -> bytes:
    """The frame of a job or an answer: its head and its body."""
    body = _packed(message)
    return len(body).to_bytes(HEAD_BYTES, "little") + body


def _packed(message: object) -> bytes:
    packed: bytes = msgpack.packb(message, use_bin_type=True, default=_extended)
    return packed


def _extended(value: object) -> msgpack.ExtType:
    if isinstance(value, Path):
        return msgpack.ExtType(PATH, str(value).encode())
    return msgpack.ExtType(_CLASSES.index(type(value)), _packed(vars(value)))


def read(pipe: IO[bytes]) -> Any:
    """The next message; None if the other end has closed the pipe. Raises ValueError for an impossible length."""
    head = pipe.read(HEAD_BYTES)
    if len(head) < HEAD_BYTES:
        return None
    length = frame_length(head)
    body = pipe.read(length)
    if len(body) < length:
        return None
    return unpack(body)


def frame_length(head: bytes) -> int:
    """The number of bytes that follow a head. Raises ValueError for more than MAX_FRAME_BYTES."""
    length = int.from_bytes(head, "little")
    if length > MAX_FRAME_BYTES:
        raise ValueError(
            f"a message of {length} bytes between a process and its worker, at most {MAX_FRAME_BYTES}"
        )
    return length


def unpack(body: bytes) -> Any:
    """The message in the body of a frame. Raises ValueError if it is none."""
    return msgpack.unpackb(body, raw=False, ext_hook=_restored)


def _restored(code: int, content: bytes) -> object:
    if code == PATH:
        return Path(content.decode())
    try:
        return _CLASSES[code](**unpack(content))
    except (IndexError, TypeError) as error:
        raise ValueError(f"no job and no answer: {error}") from error
