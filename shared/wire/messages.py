"""Every message, as a frozen strict pydantic model: msgpack for training, JSON for what people read.

`to_bytes` and `from_bytes` are the only ways out and in. `from_bytes` raises DecodeError, and nothing else, for any bytes.
A msgpack message is one byte of protocol version, eight bytes of checksum (blake2b of the rest) and the body. A JSON
message has its checksum as its last key, `check`. A damaged message is therefore refused even if it would still make
sense. Reports travel in version 2, in which their digest takes the place of checksums over the same bytes: a report is
hashed once by its maker and once by its receiver. Who may send which message is decided by the broker's access rules.
An idle agent imports this module, so it needs neither numpy nor torch.
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
from covey.shared.wire.roll_call import MAX_SPREAD_S, ROLL_SPREAD_S
from covey.shared.wire.topics import is_name

VERSION = 1
REPORT_VERSION = 2  # of reports and their parts
DIGEST_BYTES = 16
# items of a list or map: a header of five bytes could otherwise claim memory for as many items as there are bytes
MAX_ITEMS = 1 << 17
MAX_MODELS = 1024  # in one order
SETTINGS = "order-settings"  # the key of what all orders share
MAX_SETTINGS_BYTES = 1 << 20
MAX_PARTS = 1 << 16  # of all models in one order: an agent subscribes to each of them
MAX_DEPTH = 16  # levels of lists and maps in `Numbers`
MAX_TEXT = 4096  # characters
MAX_DOCUMENT_DEPTH = 200  # levels of a JSON message before its fields are looked at
CHECKSUM_BYTES = 8
HEAD_BYTES = 1 + CHECKSUM_BYTES  # version and checksum
MAX_DETAIL = 200  # characters of a refusal: a key may be as long as the message
MAX_ROSTER_PAGES = 1 << 12
MAX_LABELS = 1000  # in a status
MAX_LABELS_BYTES = 1 << 14  # of all labels of a status as JSON

# `AgentStatus.problem` of an offline status that another program publishes in an agent's name
EXPELLED = "expelled: its credentials were revoked"
ROTATED = "its credentials were replaced: the agent needs the new file"
ASKED = "missed a deadline: asked whether it is there"


def digest(content: bytes | bytearray | memoryview) -> bytes:
    """The name of a content: its blake2b hash, 16 bytes."""
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def _checksum(body: bytes | memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=CHECKSUM_BYTES).digest()


def _name(text: str) -> str:
    if not is_name(text):
        raise ValueError(
            "expected a name of letters, digits, '.', '_' and '-', at most 64 characters"
        )
    return text


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


def _finite(value: Any, depth: int = 0) -> Any:
    """Finite numbers, short texts, and lists and maps of these with text keys. Raises ValueError for anything else."""
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    match value:
        case None | bool():
            return value
        case str() if len(value) <= MAX_TEXT:
            return value
        case int() if abs(value) < 2**63:
            return value
        case float() if math.isfinite(value):
            return value
        case list() | tuple():
            return [_finite(item, depth + 1) for item in value]
        case dict() if all(isinstance(key, str) for key in value):
            return {key: _finite(item, depth + 1) for key, item in value.items()}
    raise ValueError("expected finite numbers, texts, and lists and maps of these")


DeviceKind = Literal["cuda", "mps", "cpu"]  # what torch computes on
DeviceWish = Literal["auto", "cpu", "cuda", "mps"]
ALWAYS_THERE: tuple[DeviceWish, ...] = ("auto", "cpu")  # possible on every machine
Name = Annotated[str, AfterValidator(_name)]
# the lambda hides the second argument of `_finite`, which pydantic would fill
Numbers = Annotated[dict[str, Any], AfterValidator(lambda value: _finite(value))]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Digest = Annotated[bytes, Field(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
Text = Annotated[
    str, Field(max_length=MAX_TEXT), AfterValidator(printable)
]  # it may be shown on terminals


class Message(BaseModel):
    """The base of all messages: frozen, strict types, no unknown keys, finite numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def _refusal(cls, error: ValidationError) -> DecodeError:
        """The refusal of a message, with its first wrong field."""
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        reason = "not json" if first["type"] == "json_invalid" else "fields"
        detail = f"{cls.__name__}.{where}: {first['msg']}"
        return DecodeError(reason, detail[:MAX_DETAIL])


class Packed(Message):
    """A msgpack message."""

    # what carries weights is limited where its parts are put together
    max_bytes: ClassVar[int] = 1 << 40

    def to_bytes(self) -> bytes:
        """Version, checksum and body."""
        body = self._body()
        version = bytes([VERSION])
        return b"".join((version, _checksum(body), body))

    @classmethod
    def from_bytes(cls, payload: bytes, *, verified: bool = False) -> Self:
        """The message in a payload.

        Args:
            payload: version, checksum and body.
            verified: the caller has compared the digest of the payload, which is as good as the checksum.

        Raises:
            DecodeError: for one of the reasons "empty", "too long", "version", "checksum", "not msgpack", "fields".
        """
        version = cls._version(payload)
        if version != VERSION:
            raise DecodeError("version", f"{version}, expected {VERSION}")
        body = memoryview(payload)[HEAD_BYTES:]
        if not verified:
            _compare(body, payload)
        return cls._of_body(body)

    def _body(self) -> bytes:
        body: bytes = msgpack.packb(self.model_dump(), use_bin_type=True)
        return body

    @classmethod
    def _version(cls, payload: bytes) -> int:
        """The version of a payload of acceptable length. Raises DecodeError "empty" or "too long"."""
        if not payload:
            raise DecodeError("empty")
        if len(payload) > cls.max_bytes:
            raise DecodeError(
                "too long", f"{len(payload)} bytes of msgpack, at most {cls.max_bytes}"
            )
        return payload[0]

    @classmethod
    def _of_body(cls, body: memoryview) -> Self:
        """The message in a body. Raises DecodeError "not msgpack" or "fields"."""
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
            raise DecodeError("not msgpack", str(error)[:MAX_DETAIL]) from None
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise cls._refusal(error) from None


def _compare(checked: memoryview, payload: bytes) -> None:
    """Raises DecodeError("checksum") unless the head of a payload has the checksum of these bytes."""
    if _checksum(checked) != payload[1:HEAD_BYTES]:
        raise DecodeError("checksum", "the message is damaged or cut short")


class Document(Message):
    """A JSON message."""

    max_bytes: ClassVar[int] = 1 << 22
    checked: ClassVar[bool] = True  # False: people write the message by hand, without a checksum

    def to_bytes(self) -> bytes:
        """The JSON text, with the key `check` at its end if the message is `checked`."""
        body = self.model_dump_json().encode()
        if not self.checked:
            return body
        without_brace = body[:-1]
        return without_brace + _check_key(body)

    @classmethod
    def from_bytes(cls, payload: bytes) -> Self:
        """The message in a payload.

        Raises:
            DecodeError: for one of the reasons "empty", "too long", "checksum", "not json", "fields".
        """
        if not payload:
            raise DecodeError("empty")
        if len(payload) > cls.max_bytes:
            raise DecodeError("too long", f"{len(payload)} bytes of JSON, at most {cls.max_bytes}")
        if cls.checked:
            payload = _without_check(payload)
        try:
            # pydantic would take the second of two equal keys
            json_text.loads(payload, depth=MAX_DOCUMENT_DEPTH)
        except json_text.JsonError as error:
            raise DecodeError("not json", str(error)) from None
        try:
            return cls.model_validate_json(payload)
        except ValidationError as error:
            raise cls._refusal(error) from None


def _check_key(body: bytes) -> bytes:
    """The end of a message with a checksum, in place of its closing brace."""
    checksum = _checksum(body).hex()
    return b',"check":"%s"}' % checksum.encode()


def _without_check(payload: bytes) -> bytes:
    """The JSON text without the key `check`. Raises DecodeError("checksum") unless it is right."""
    length = len(_check_key(b""))
    body = payload[:-length] + b"}"
    if payload[-length:] != _check_key(body):
        raise DecodeError("checksum", "the message is damaged or cut short")
    return body


# For messages that inform and ask for nothing: a peer of a newer version may inform about more, and what a receiver does not
# know is dropped before anything reads it. An unknown field of an order, a report or a command could change what is meant,
# such as noise that an agent has to add: all other messages refuse it.
IGNORES_UNKNOWN = ConfigDict(extra="ignore")


class Part(Packed):
    """A part of a larger content. `about` is the step of a report, or the version of a model."""

    digest: Digest
    index: Count
    count: Annotated[int, Field(ge=1, le=1 << 20)]
    size: Annotated[int, Field(ge=1, lt=1 << 40)]  # bytes of the whole content
    about: Count
    data: bytes

    def to_bytes(self, version: int = VERSION) -> bytes:
        """Version, checksum and body.

        In version 2 the checksum covers all fields but `data`: the digest of the content covers that.
        """
        if version == VERSION:
            return super().to_bytes()
        body = self._body()
        fields = self._without_data(memoryview(body))
        return b"".join((bytes([version]), _checksum(fields), body))

    @classmethod
    def from_bytes(cls, payload: bytes, *, verified: bool = False) -> Self:
        """The part in a payload of either version. Arguments and errors are those of `Packed.from_bytes`.

        Nothing has compared the data of a part of version 2 yet: that is done once all parts are there.
        """
        if cls._version(payload) != REPORT_VERSION:
            return super().from_bytes(payload, verified=verified)
        body = memoryview(payload)[HEAD_BYTES:]
        part = cls._of_body(body)
        if not payload.endswith(part.data):
            raise DecodeError("fields", "Part.data: expected it as the last field")
        _compare(part._without_data(body), payload)
        return part

    def _without_data(self, body: memoryview) -> memoryview:
        """What the checksum of version 2 covers of this part's body."""
        return body[: len(body) - len(self.data)]


class ModelRef(Message):
    """A model that an order names: the topic of its parts, and the content that they form."""

    key: Annotated[str, Field(max_length=65), AfterValidator(_model_key)]
    digest: Digest
    parts: Annotated[int, Field(ge=1, le=1 << 20)]
    size: Annotated[int, Field(ge=1, lt=1 << 40)]


class Work(Message):
    """The work of an order: everything that the worker needs besides the data and the models."""

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

    @model_serializer(mode="wrap")
    def _without_unused_fields(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `privacy` out if it is not used: the order is then the same as before the field existed."""
        fields: dict[str, Any] = dump(self)
        if self.privacy is None:
            del fields["privacy"]
        return fields


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


class OrderMessage(Packed):
    """The desired state of one agent (retained). If `step` is 0 or `work` is None, there is nothing to do.

    `brief` stands in the place of `work` for agents whose status allows it: it names what all agents share by its digest.

    `accepted` is the newest step of this agent whose report is stored safely by the coordinator. Reports of steps up to
    `closed` that were not accepted are no longer needed. `again` grows with every restart of the coordinator, which has
    then lost the parts in transit and needs them once more; `serial` grows with every order in between.
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
    brief: BriefWork | None = None

    @model_serializer(mode="wrap")
    def _without_an_unused_brief(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `brief` out if it is not used: the order is then the same as before the field existed."""
        fields: dict[str, Any] = dump(self)
        if self.brief is None:
            del fields["brief"]
        return fields

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


class ReportContent(Packed):
    """A whole report: the content of the parts on a report topic. `failure` is the reason if the work was not done.

    It travels in version 2: one byte of version and the body. The digest of these bytes takes the place of a checksum.
    `client_state` is "lost" if the agent's state of earlier work is damaged or missing, and "ahead" if it belongs to
    later work that the coordinator has lost. Methods that keep client state then end with other models.
    """

    run: Name
    step: Count
    client: Name
    examples: Count
    steps: Count
    loss: float
    numbers: Numbers
    seconds: float  # of the strategy's work, without loading data and encoding
    vectors: dict[str, Encoded]
    failure: Text | None = None
    client_state: Literal["whole", "lost", "ahead"] = "whole"  # that the work began with
    device: DeviceKind = "cpu"  # what torch computed on

    def packed(self) -> memoryview:
        """Version and body, in the memory in which they were packed: a copy of a large report takes time."""
        packer = msgpack.Packer(use_bin_type=True, autoreset=False)
        packer.pack(REPORT_VERSION)  # a small number is its own byte in msgpack
        packer.pack(self.model_dump())
        content: memoryview = packer.getbuffer()
        return content

    def to_bytes(self) -> bytes:
        """Version and body."""
        return bytes(self.packed())

    @classmethod
    def from_bytes(cls, payload: bytes, *, verified: bool = False) -> Self:
        """The report in a content of either version.

        Args:
            payload: the content.
            verified: the caller has compared the digest of the content. Nothing else protects one of version 2. A
                checksum, which earlier versions write, is compared nevertheless.

        Raises:
            DecodeError: as `Packed.from_bytes`; "checksum" also for a content of version 2 that is not verified.
        """
        if cls._version(payload) != REPORT_VERSION:
            return super().from_bytes(payload)
        if not verified:
            raise DecodeError("checksum", "the digest of the report was not compared")
        body = memoryview(payload)[1:]
        return cls._of_body(body)

    @model_serializer(mode="wrap")
    def _without_the_usual_device(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `device` out for a CPU: the report is then the same as before the field existed."""
        fields: dict[str, Any] = dump(self)
        if self.device == "cpu":
            del fields["device"]
        return fields

    @classmethod
    def failed(cls, order: OrderMessage, client: str, why: str) -> Self:
        """The report of work that could not be done.

        Args:
            order: the order.
            client: the agent's id.
            why: the reason, which may be shown on other machines.
        """
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
    """As many of the first labels as a status has room for."""
    kept: list[str] = []
    room = MAX_LABELS_BYTES
    for label in labels[:MAX_LABELS]:
        room -= len(json.dumps(label)) + 1
        if room < 0:
            break
        kept.append(label)
    return kept


class ModelInUse(Message):
    """The model that a device uses for its own predictions (`agent start --model-dir`), for people."""

    model_config = IGNORES_UNKNOWN

    run: Annotated[str, Field(max_length=64)] = ""  # "" before the first one
    round: Count = 0
    cluster: int | None = None
    rejected: Count = 0  # models that the device's own check kept out
    hook_failures: Count = 0  # of the command that runs after a change
    note: Text = ""  # the newest decision


Seconds = Annotated[float, Field(ge=0, le=1e6)]


class Benchmark(Message):
    """How fast a device trains, as `agent bench` measured it there, for people."""

    model_config = IGNORES_UNKNOWN

    model: Annotated[str, Field(max_length=64)]
    values: Count  # parameters and buffers of the model
    samples: Count  # of the training part
    test_samples: Count
    batch: Annotated[int, Field(ge=1, le=1 << 20)]
    threads: Annotated[int, Field(ge=1, le=1 << 12)]
    import_s: Seconds  # of torch, in a new process
    step_s: Seconds  # one step of SGD
    evaluation_s: Seconds  # the outputs for the whole test part
    memory_mb: Count  # the largest resident memory of the training process


class AgentStatus(Document):
    """The state of an agent (retained; also its last will, with `online` false).

    `session` is new for each start of the agent. A last will of an older session is ignored.
    """

    model_config = IGNORES_UNKNOWN

    max_bytes: ClassVar[int] = 1 << 15

    agent: Name
    session: Name
    serial: Count = 0  # grows with every status of a session; 0 in a last will
    online: bool
    # the roll call of the coordinator that this status answers
    epoch: Annotated[str, Field(max_length=64)] = ""
    # digest of the task that the data was checked against
    task: Annotated[str, Field(max_length=64)] = ""
    samples: Count = 0
    test_samples: Count = 0
    # as many as `bounded_labels` returns
    labels: Annotated[list[Text], Field(max_length=MAX_LABELS)] = []
    problem: Text | None = None  # why this agent does not take part
    cluster: int | None = None
    busy: bool = False
    step: Count = 0
    run: Annotated[str, Field(max_length=64)] = ""  # the run of the agent's state
    accepted: Count = 0  # newest step of that run whose report was accepted, as far as it knows
    version: Text = ""
    # messages that this agent has refused, by reason
    dropped: Annotated[dict[Text, Count], Field(max_length=64)] = {}
    model: ModelInUse | None = None  # None if the device keeps none
    bench: Benchmark | None = None  # None if nobody has measured the device
    brief: bool = False  # whether orders may have a `brief`

    @model_serializer(mode="wrap")
    def _without_unused_fields(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is not used: the status is then the same as before these fields existed."""
        fields: dict[str, Any] = dump(self)
        if not self.brief:
            del fields["brief"]
        for name in ("model", "bench"):
            if getattr(self, name) is None:
                del fields[name]
        return fields


class CoordinatorStatus(Document):
    """The state of the run (retained; also the last will, with `online` false). A new `epoch` is a roll call."""

    model_config = IGNORES_UNKNOWN

    online: bool
    # session of the coordinator, a dot, and the number of its connections so far
    epoch: Annotated[str, Field(max_length=64)] = ""
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
    # the time over which agents spread their answers to the roll call; grows with the fleet
    spread_s: Annotated[float, Field(ge=0, le=MAX_SPREAD_S)] = ROLL_SPREAD_S

    @model_serializer(mode="wrap")
    def _without_the_usual_spread(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `spread_s` out of a small fleet's status: it is then the same as before the field existed."""
        fields: dict[str, Any] = dump(self)
        if self.spread_s == ROLL_SPREAD_S:
            del fields["spread_s"]
        return fields

    @property
    def session(self) -> str:
        """Identifies one start of the coordinator; empty in a last will."""
        return self.epoch.partition(".")[0]


class RosterMessage(Document):
    """The agents that the coordinator knows, and all refused messages by reason (retained, for people).

    The roster of a large fleet has several pages, on a topic each. A message with the rows that have changed is not
    retained, and replaces those of the same agents.
    """

    model_config = IGNORES_UNKNOWN

    run: Annotated[str, Field(max_length=64)] = ""
    agents: dict[Name, Numbers] = {}
    refusals: dict[Text, Count] = {}
    pages: Annotated[int, Field(ge=1, le=MAX_ROSTER_PAGES)] = 1  # of the roster, this one included

    @model_serializer(mode="wrap")
    def _without_the_only_page(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `pages` out of a small fleet's roster: it is then the same as before the field existed."""
        fields: dict[str, Any] = dump(self)
        if self.pages == 1:
            del fields["pages"]
        return fields


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
