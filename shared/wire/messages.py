"""The messages of training, as frozen strict pydantic models in msgpack. `documents` has those in JSON, which people read.

`to_bytes` and `from_bytes` are the only ways out and in. `from_bytes` raises DecodeError, and nothing else, for any bytes.
`covey.shared.wire.framing` has their form on the wire. Who may send which message is decided by the broker's access rules.
An idle agent imports this module, so it needs neither numpy nor torch.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import msgpack
from pydantic import AfterValidator, Field

from covey.shared.errors import DecodeError
from covey.shared.wire.format import FORMAT
from covey.shared.wire.framing import (
    HEAD_BYTES,
    VERSION,
    Count,
    Message,
    Name,
    Numbers,
    Packed,
    Sparse,
    Text,
    checksum_of,
    compare_checksum,
)
from covey.shared.wire.topics import is_name

DIGEST_BYTES = 16
MAX_MODELS = 1024  # in one order
SETTINGS = "order-settings"  # the key of what all orders share
OWN = "own"  # the key of the initial values of what does not travel
BASE = (
    "base"  # the key of a file of weights (`task.base`), which gives some of them in place of `OWN`
)
INITIAL = (OWN, BASE)  # the last keys of an order, if it has them
MAX_SETTINGS_BYTES = 1 << 20
MAX_PARTS = 1 << 16  # of all models in one order: an agent subscribes to each of them


def digest(content: bytes | bytearray | memoryview) -> bytes:
    """The name of a content: its blake2b hash, 16 bytes."""
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def digest_of_file(path: Path) -> bytes:
    """The name of a file's content, with a part of it in memory at a time."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)).digest()


def is_base(key: str) -> bool:
    """Whether a key names a base; in buffered rounds a dot and digits follow."""
    return key.partition(".")[0] == BASE


def _model_key(text: str) -> str:
    """A cluster, or "@" and an agent. Anything else could make the agent subscribe to other topics."""
    if not is_name(text.removeprefix("@")):
        raise ValueError("expected a cluster's name, or @ and an agent's")
    return text


def _few_parts(refs: list[ModelRef]) -> list[ModelRef]:
    parts = sum(ref.parts for ref in refs)
    if parts > MAX_PARTS:
        raise ValueError(
            f"the models of one order have {parts} parts, at most {MAX_PARTS} are accepted"
        )
    return refs


DeviceKind = Literal["cuda", "mps", "cpu"]  # what torch computes on
USUAL_MACHINE = "x86_64"
USUAL_LEARNER = "torch"
# see `device_name`
DeviceName = Annotated[
    str, Field(pattern=r"^(cuda|mps|cpu)( [A-Za-z0-9_]{1,16})?( \([A-Za-z0-9_.-]{1,64}\))?$")
]
DeviceWish = Literal["auto", "cpu", "cuda", "mps"]
ALWAYS_THERE: tuple[DeviceWish, ...] = ("auto", "cpu")  # possible on every machine
Digest = Annotated[bytes, Field(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]


class Part(Packed):
    """A part of a larger content. `about` is the step of a report, or the version of a model."""

    digest: Digest
    index: Count
    count: Annotated[int, Field(ge=1, le=1 << 20)]
    size: Annotated[int, Field(ge=1, lt=1 << 40)]  # bytes of the whole content
    about: Count
    data: bytes

    def to_bytes(self) -> bytes:
        """Version, checksum and body. The checksum covers all fields but `data`: the digest of the content covers that."""
        body = self._body()
        fields = self._without_data(memoryview(body))
        return b"".join((bytes([VERSION]), checksum_of(fields), body))

    @classmethod
    def from_bytes(cls, payload: bytes, *, verified: bool = False) -> Self:
        """The part in a payload. Arguments and errors are those of `Packed.from_bytes`.

        Nothing has compared the data yet: that is done once all parts are there.
        """
        cls._check_version(payload)
        body = memoryview(payload)[HEAD_BYTES:]
        part = cls._of_body(body)
        if not payload.endswith(part.data):
            raise DecodeError("fields", "Part.data: expected it as the last field")
        if not verified:
            compare_checksum(part._without_data(body), payload)
        return part

    def _without_data(self, body: memoryview) -> memoryview:
        """What the checksum covers of this part's body."""
        return body[: len(body) - len(self.data)]


class ModelRef(Message):
    """A model that an order names: the topic of its parts, and the content that they form."""

    key: Annotated[str, Field(max_length=65), AfterValidator(_model_key)]
    digest: Digest
    parts: Annotated[int, Field(ge=1, le=1 << 20)]
    size: Annotated[int, Field(ge=1, lt=1 << 40)]


def packed(fields: dict[str, Any]) -> bytes:
    """The fields of a message as bytes."""
    content: bytes = msgpack.packb(fields, use_bin_type=True)
    return content


class Work(Sparse):
    """The work of an order: everything that the worker needs besides the data and the models."""

    optional: ClassVar[tuple[str, ...]] = ("privacy",)

    phase: Name
    round: Count
    seed: int
    strategy: Numbers  # name and hyper-parameters
    training: Numbers
    task: Numbers
    layout: Numbers
    scaling: Numbers | None  # per channel: {"mean": [...], "std": [...]}
    models: Annotated[list[ModelRef], Field(max_length=MAX_MODELS), AfterValidator(_few_parts)]
    numbers: Numbers
    cluster: int | None
    sizes: dict[str, int]
    codec: Numbers  # {"name": "float32", "delta": false, ...}
    evaluation: Numbers
    part_bytes: Annotated[int, Field(ge=1024, le=8 << 20)]
    # noise that the agent adds: {"signatures": ..., "local": ..., "rounds": R}
    privacy: Numbers | None = None

    @cached_property
    def digest(self) -> bytes:
        """Names the work, its models, settings and round included: 16 bytes of BLAKE2b over the packed fields.

        Two coordinators of one run may ask for different work under the same number of a step. A report carries the
        digest of the work that it came from, so that it counts for no other.
        """
        return digest(packed(self.model_dump()))


class SharedWork(Packed):
    """The part of the work that is the same for all agents. It is published as a content in parts, like a model."""

    seed: int
    strategy: Numbers
    training: Numbers
    task: Numbers
    layout: Numbers
    scaling: Numbers | None
    codec: Numbers
    evaluation: Numbers
    part_bytes: Annotated[int, Field(ge=1024, le=8 << 20)]
    privacy: Numbers | None


def _small_settings(ref: ModelRef) -> ModelRef:
    """An agent subscribes to this key and no other, and puts the content together in memory."""
    if ref.key != SETTINGS:
        raise ValueError(f"expected the key {SETTINGS}")
    if ref.size > MAX_SETTINGS_BYTES:
        raise ValueError(f"{ref.size} bytes, at most {MAX_SETTINGS_BYTES} are accepted")
    return ref


class BriefWork(Message):
    """The rest of the work, and the digest of the part that all agents share."""

    shared: Annotated[ModelRef, AfterValidator(_small_settings)]
    phase: Name
    round: Count
    models: Annotated[list[ModelRef], Field(max_length=MAX_MODELS), AfterValidator(_few_parts)]
    numbers: Numbers
    cluster: int | None
    sizes: dict[str, int]


class OrderMessage(Sparse, Packed):
    """The desired state of one agent (retained). If `step` is 0 or `work` is None, there is nothing to do.

    `brief` stands in the place of `work` for agents whose status allows it: it names what all agents share by its digest.

    `accepted` is the newest step of this agent whose report is stored safely by the coordinator. Reports of steps up to
    `closed` that were not accepted are no longer needed. `again` grows with every restart of the coordinator, which has
    then lost the parts in transit and needs them once more; `serial` grows with every order in between.
    """

    max_bytes: ClassVar[int] = 16 << 20
    called: ClassVar[str] = "order"

    optional: ClassVar[tuple[str, ...]] = ("brief", "use", "refused")

    format: Count = FORMAT
    run: Name
    serial: Count = 0
    step: Count
    accepted: Count
    closed: Count
    again: Count = 0
    cluster: int | None = None
    work: Work | None = None
    brief: BriefWork | None = None
    refused: Text = ""  # why the agent's newest report was refused; empty once one was accepted
    use: bool = (
        False  # the device may use the model that this order gives it (`agent start --model-dir`)
    )

    @property
    def age(self) -> tuple[int, int]:
        """Compares orders of one run: the greater one is newer."""
        return self.again, self.serial


class Encoded(Message):
    """One encoded vector (`covey.shared.wire.codec`). `base`: digest of the model that it is a difference to, or empty."""

    codec: Name
    length: Count
    base: Annotated[bytes, Field(max_length=DIGEST_BYTES)] = b""
    data: bytes
    scale: bytes = b""
    index: bytes = b""


class ModelContent(Packed):
    """A whole model: the content of the parts on a model topic."""

    layout: Name
    vector: Encoded


def device_name(kind: str, machine: str, learner: str) -> str:
    """What computes here, as a report names it: "cpu", "cpu aarch64", "cpu (numpy)". Bytes repeat on one of these only.

    The kind of machine and the learner are named unless they are the usual ones.
    """
    name = kind
    if machine != USUAL_MACHINE:
        name = f"{name} {machine}"
    return name if learner == USUAL_LEARNER else f"{name} ({learner})"


def learner_of(device: str) -> str:
    """The learner in a name that `device_name` gave."""
    _, _, learner = device.partition(" (")
    return learner.removesuffix(")") or USUAL_LEARNER


class ReportContent(Sparse, Packed):
    """A whole report: the content of the parts on a report topic. `failure` is the reason if the work was not done.

    It travels as one byte of version and the body. The digest of these bytes takes the place of a checksum.
    `client_state` is "lost" if the agent's state of earlier work is damaged or missing, and "ahead" if it belongs to
    later work that the coordinator has lost. Methods that keep client state then end with other models.
    """

    called: ClassVar[str] = "report"

    optional: ClassVar[tuple[str, ...]] = ("device",)

    format: Count = FORMAT
    run: Name
    step: Count
    work: Digest  # `Work.digest` of the order
    client: Name
    examples: Count
    steps: Count
    loss: float
    numbers: Numbers
    seconds: float  # of the strategy's work, without loading data and encoding
    vectors: dict[str, Encoded]
    failure: Text | None = None
    client_state: Literal["whole", "lost", "ahead"] = "whole"  # that the work began with
    device: DeviceName = "cpu"  # what computed it

    def packed(self) -> memoryview:
        """Version and body, in the memory in which they were packed: a copy of a large report takes time."""
        packer = msgpack.Packer(use_bin_type=True, autoreset=False)
        packer.pack(VERSION)  # a small number is its own byte in msgpack
        packer.pack(self.model_dump())
        content: memoryview = packer.getbuffer()
        return content

    def to_bytes(self) -> bytes:
        """Version and body."""
        return bytes(self.packed())

    @classmethod
    def from_bytes(cls, payload: bytes, *, verified: bool = False) -> Self:
        """The report in a content.

        Args:
            payload: the content.
            verified: the caller has compared the digest of the content. Nothing else protects it.

        Raises:
            DecodeError: as `Packed.from_bytes`; "checksum" for a content that is not verified.
        """
        cls._check_version(payload)
        if not verified:
            raise DecodeError("checksum", "the digest of the report was not compared")
        return cls._of_body(memoryview(payload)[1:])

    @classmethod
    def failed(cls, order: OrderMessage, client: str, why: str) -> Self:
        """The report of work that could not be done.

        Args:
            order: the order.
            client: the agent's id.
            why: the reason, which may be shown on other machines.

        Raises:
            ValueError: the order has no work.
        """
        if order.work is None:
            raise ValueError(f"order {order.step} of run {order.run} has no work")
        empty: dict[str, Any] = {
            "examples": 0,
            "steps": 0,
            "loss": 0.0,
            "numbers": {},
            "seconds": 0.0,
            "vectors": {},
        }
        return cls(
            run=order.run,
            step=order.step,
            work=order.work.digest,
            client=client,
            failure=why,
            **empty,
        )
