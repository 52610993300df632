"""Every message, as a frozen strict pydantic model. The training path is msgpack, what people read is JSON.

`to_bytes` and `from_bytes` are the only way in and out. `from_bytes` raises DecodeError and nothing
else, whatever the bytes. A msgpack message is one byte of protocol version, eight bytes of checksum
(blake2b of the rest), and the body. A JSON message carries its checksum as its last key, `check`. So a
damaged message is refused even where it would still make sense; who may send what is the broker's ACL.
This module needs neither numpy nor torch: an idle agent imports it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import msgpack
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from covey.shared import json_text
from covey.shared.errors import DecodeError
from covey.shared.printable import printable
from covey.shared.wire.topics import is_name

VERSION = 1
DIGEST_BYTES = 16
MAX_ITEMS = (
    1 << 17
)  # items of a list or map: a header of five bytes could otherwise claim memory for as many as bytes came
MAX_MODELS = 1024  # in one order
MAX_PARTS = 1 << 16  # of all models in one order: an agent subscribes to each of them
MAX_DEPTH = 16  # levels of lists and maps in `Numbers`
MAX_DOCUMENT_DEPTH = 200  # levels of a JSON message before its fields are looked at
CHECKSUM_BYTES = 8
MAX_LABELS = 1000  # of a status
MAX_LABELS_BYTES = 1 << 14

# `AgentStatus.problem` of statuses that others publish in an agent's name, offline
EXPELLED = "expelled: its credentials were revoked"
ROTATED = "its credentials were replaced: the agent needs the new file"
ASKED = "missed a deadline: asked whether it is there"


def digest(content: bytes | bytearray | memoryview) -> bytes:
    """The name of a content: blake2b, 16 bytes."""
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def _checksum(body: bytes | memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=CHECKSUM_BYTES).digest()


def _name(text: str) -> str:
    if not is_name(text):
        raise ValueError("letters, digits, '.', '_' and '-', at most 64, are wanted")
    return text


def _model_key(text: str) -> str:
    """A cluster, or "@" and an agent. Anything else would subscribe to what the order does not name."""
    if not is_name(text.removeprefix("@")):
        raise ValueError("expected a cluster's name, or @ and an agent's")
    return text


def _few_parts(refs: list[ModelRef]) -> list[ModelRef]:
    parts = sum(ref.parts for ref in refs)
    if parts > MAX_PARTS:
        raise ValueError(f"{parts} parts of models in one order, at most {MAX_PARTS} are possible")
    return refs


def _finite(value: Any, depth: int = 0) -> Any:
    """Only finite numbers, short strings, and lists and str-keyed maps of these."""
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    match value:
        case None | bool():
            return value
        case str() if len(value) <= 4096:
            return value
        case int() if abs(value) < 2**63:
            return value
        case float() if math.isfinite(value):
            return value
        case list() | tuple():
            return [_finite(item, depth + 1) for item in value]
        case dict() if all(isinstance(key, str) for key in value):
            return {key: _finite(item, depth + 1) for key, item in value.items()}
    raise ValueError("finite numbers, strings, lists and maps of these are wanted")


DeviceKind = Literal["cuda", "mps", "cpu"]  # what torch computes on
DeviceWish = Literal["auto", "cpu", "cuda", "mps"]
ALWAYS_THERE: tuple[DeviceWish, ...] = ("auto", "cpu")  # wishes that every machine can fulfil
Name = Annotated[str, AfterValidator(_name)]
Numbers = Annotated[
    dict[str, Any], AfterValidator(lambda value: _finite(value))
]  # alone: pydantic fills a second argument
Count = Annotated[int, Field(ge=0, lt=2**53)]
Digest = Annotated[bytes, Field(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
Text = Annotated[str, Field(max_length=4096), AfterValidator(printable)]  # it is shown on terminals


class Message(BaseModel):
    """The common ground: frozen, strict, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def _refusal(cls, error: ValidationError) -> DecodeError:
        """Names the first field that is wrong; cut short, because a key may be as long as the message."""
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        reason = "not json" if first["type"] == "json_invalid" else "fields"
        return DecodeError(reason, f"{cls.__name__}.{where}: {first['msg']}"[:200])


class Packed(Message):
    """A msgpack message."""

    max_bytes: ClassVar[int] = (
        1 << 40
    )  # bytes; what carries weights is bounded where its parts are put together

    def to_bytes(self) -> bytes:
        body: bytes = msgpack.packb(self.model_dump(), use_bin_type=True)
        return b"".join((bytes([VERSION]), _checksum(body), body))

    @classmethod
    def from_bytes(cls, payload: bytes) -> Self:
        if not payload:
            raise DecodeError("empty")
        if len(payload) > cls.max_bytes:
            raise DecodeError(
                "too long", f"{len(payload)} bytes of msgpack, at most {cls.max_bytes}"
            )
        if payload[0] != VERSION:
            raise DecodeError("version", f"{payload[0]}, want {VERSION}")
        body = memoryview(payload)[1 + CHECKSUM_BYTES :]
        if _checksum(body) != payload[1 : 1 + CHECKSUM_BYTES]:
            raise DecodeError("checksum", "the message was damaged or cut short")
        try:
            data = msgpack.unpackb(
                body,
                raw=False,
                strict_map_key=True,
                max_array_len=MAX_ITEMS,
                max_map_len=MAX_ITEMS,
                object_pairs_hook=json_text.unique,
            )
        except Exception as error:  # msgpack raises a dozen types, some of them bare ValueErrors
            raise DecodeError("not msgpack", str(error)[:200]) from None
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise cls._refusal(error) from None


class Document(Message):
    """A JSON message."""

    max_bytes: ClassVar[int] = 1 << 22
    checked: ClassVar[bool] = True  # False: people write it by hand, without a checksum

    def to_bytes(self) -> bytes:
        body = self.model_dump_json().encode()
        return body[:-1] + _check_key(body) if self.checked else body

    @classmethod
    def from_bytes(cls, payload: bytes) -> Self:
        if not payload:
            raise DecodeError("empty")
        if len(payload) > cls.max_bytes:
            raise DecodeError("too long", f"{len(payload)} bytes of JSON, at most {cls.max_bytes}")
        if cls.checked:
            payload = _without_check(payload)
        try:
            json_text.loads(
                payload, depth=MAX_DOCUMENT_DEPTH
            )  # pydantic takes the second of two equal keys
        except json_text.JsonError as error:
            raise DecodeError("not json", str(error)) from None
        try:
            return cls.model_validate_json(payload)
        except ValidationError as error:
            raise cls._refusal(error) from None


def _check_key(body: bytes) -> bytes:
    return b',"check":"%s"}' % _checksum(body).hex().encode()


def _without_check(payload: bytes) -> bytes:
    length = len(_check_key(b""))
    body = payload[:-length] + b"}"
    if payload[-length:] != _check_key(body):
        raise DecodeError("checksum", "the message was damaged or cut short")
    return body


class Part(Packed):
    """A slice of a larger content. `about` is the step (a report's) or version that it belongs to."""

    digest: Digest
    index: Count
    count: Annotated[int, Field(ge=1, le=1 << 20)]
    size: Annotated[int, Field(ge=1, lt=1 << 40)]  # bytes of the whole content
    about: Count
    data: bytes


class ModelRef(Message):
    """A model that an order names: where its parts lie and which content they make."""

    key: Annotated[str, Field(max_length=65), AfterValidator(_model_key)]
    digest: Digest
    parts: Annotated[int, Field(ge=1, le=1 << 20)]
    size: Annotated[int, Field(ge=1, lt=1 << 40)]


class Work(Message):
    """What an agent should do. Everything that the worker needs besides the data and the models."""

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
    privacy: Numbers | None = (
        None  # noise that the agent adds: {"signatures": ..., "local": ..., "rounds": R}
    )

    @model_serializer(mode="wrap")
    def _without_what_is_not_used(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """An order without privacy is that of an earlier version, byte for byte: older agents understand it."""
        fields: dict[str, Any] = dump(self)
        if self.privacy is None:
            del fields["privacy"]
        return fields


class OrderMessage(Packed):
    """The desired state of one agent (retained). `step` 0 or `work` None: nothing to do.

    `accepted` is the newest step of this agent whose report lies safely on the coordinator's disk;
    reports of steps up to `closed` that were not accepted are no longer wanted.
    `again` grows with every restart of the coordinator, which then lost sight of the parts in transit and
    wants them once more; `serial` grows with every order in between.
    """

    max_bytes: ClassVar[int] = 16 << 20

    run: Name
    serial: Count = 0
    step: Count
    accepted: Count
    closed: Count
    again: Count = 0
    cluster: int | None = None
    work: Work | None = None

    @property
    def age(self) -> tuple[int, int]:
        """Of two orders of one run, the greater is the newer."""
        return self.again, self.serial


class Encoded(Message):
    """One vector, encoded (`shared.codec`). `base`: digest of the model it is a delta against, or empty."""

    codec: Name
    length: Count
    base: Annotated[bytes, Field(max_length=DIGEST_BYTES)] = b""
    data: bytes
    scale: bytes = b""
    index: bytes = b""


class ModelContent(Packed):
    """A model, whole: what the parts of a model topic make."""

    layout: Name
    vector: Encoded


class ReportContent(Packed):
    """A report, whole: what the parts of a report topic make. `failure` says why the work was not done.

    `client_state`: "lost" where the agent's memory of earlier work was damaged or gone, "ahead" where it is that of
    later work, which the coordinator has lost. Methods with client state then end with other models.
    """

    run: Name
    step: Count
    client: Name
    examples: Count
    steps: Count
    loss: float
    numbers: Numbers
    seconds: float  # spent in the strategy's work, data loading and encoding excluded
    vectors: dict[str, Encoded]
    failure: Text | None = None
    client_state: Literal["whole", "lost", "ahead"] = "whole"  # the memory that the work began with
    device: DeviceKind = "cpu"  # what torch computed on

    @model_serializer(mode="wrap")
    def _without_the_usual_device(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A report from a CPU is that of an earlier version, byte for byte: older coordinators understand it."""
        fields: dict[str, Any] = dump(self)
        if self.device == "cpu":
            del fields["device"]
        return fields

    @classmethod
    def failed(cls, order: OrderMessage, client: str, why: str) -> Self:
        """The answer to an order whose work could not be done."""
        empty: dict[str, Any] = {
            "examples": 0,
            "steps": 0,
            "loss": 0.0,
            "numbers": {},
            "seconds": 0.0,
            "vectors": {},
        }
        return cls(run=order.run, step=order.step, client=client, failure=why, **empty)


def bounded_labels(labels: Sequence[str]) -> list[str]:
    """The first labels, as many as a status has room for."""
    kept: list[str] = []
    room = MAX_LABELS_BYTES
    for label in labels[:MAX_LABELS]:
        room -= len(json.dumps(label)) + 1
        if room < 0:
            break
        kept.append(label)
    return kept


class AgentStatus(Document):
    """Who an agent is and how it does (retained, and as last will with `online` false).

    `session` is new for each start of the agent: a last will of an older session is ignored.
    """

    max_bytes: ClassVar[int] = 1 << 15

    agent: Name
    session: Name
    serial: Count = 0  # grows with every status of a session; a last will has 0
    online: bool
    epoch: Annotated[str, Field(max_length=64)] = (
        ""  # the coordinator's roll call that this answers
    )
    task: Annotated[str, Field(max_length=64)] = (
        ""  # digest of the task that the data was checked against
    )
    samples: Count = 0
    test_samples: Count = 0
    labels: Annotated[
        list[Text], Field(max_length=MAX_LABELS)
    ] = []  # as many as `bounded_labels` leaves
    problem: Text | None = None  # why this agent stays out of the run
    cluster: int | None = None
    busy: bool = False
    step: Count = 0
    run: Annotated[str, Field(max_length=64)] = ""  # the run that the agent's state belongs to
    accepted: Count = 0  # the newest step of that run whose report it believes to be accepted
    version: Text = ""
    dropped: Annotated[
        dict[Text, Count], Field(max_length=64)
    ] = {}  # messages refused by this agent, by reason


class CoordinatorStatus(Document):
    """What runs (retained, and as last will with `online` false). A new `epoch` calls the roll."""

    online: bool
    epoch: Annotated[str, Field(max_length=64)] = (
        ""  # session of the coordinator, a dot, its connections so far
    )
    run: Annotated[str, Field(max_length=64)] = ""
    name: Text = ""
    round: Count = 0
    rounds: Count = 0
    phase: Text = ""
    step: Count = 0
    state: Literal["gathering", "open", "paused", "folding", "finished", "stopped"] = "gathering"
    task: Numbers | None = None
    task_digest: Annotated[str, Field(max_length=64)] = ""
    delivery: Literal["participants", "all"] = "participants"

    @property
    def session(self) -> str:
        """One life of the coordinator; empty in a last will."""
        return self.epoch.partition(".")[0]


class RosterMessage(Document):
    """Everybody the coordinator knows, by agent, and all refused messages by reason: for people (retained)."""

    run: Annotated[str, Field(max_length=64)] = ""
    agents: dict[Name, Numbers] = {}
    refusals: dict[Text, Count] = {}


class Control(Document):
    """An operator's command. `release` trusts `agent` again after a quarantine; `tell` makes a running coordinator answer."""

    checked: ClassVar[bool] = False
    max_bytes: ClassVar[int] = 1 << 12

    command: Literal["pause", "resume", "stop", "release", "tell"]
    agent: Name | None = None

    def to_bytes(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode()
