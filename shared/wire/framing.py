"""How fields become the payload of a message, and back: msgpack for training, JSON for what people read.

A msgpack message is one byte of protocol version, eight bytes of checksum (blake2b of the rest) and the body. A JSON
message has its checksum as its last key, `check`. A damaged message is therefore refused even if it would still make
sense. What travels in parts has a digest, which takes the place of checksums over the same bytes: the checksum of a part
leaves out its data, and a report has none, so that it is hashed once by its maker and once by its receiver.
An idle agent imports this module, so it needs neither numpy nor torch.
"""

from __future__ import annotations

import hashlib
import math
from typing import Annotated, Any, ClassVar, Self

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

from covey.shared.errors import DecodeError
from covey.shared.sentences import printable
from covey.shared.storage import json_text
from covey.shared.wire.format import FORMAT, NONE, speaks_other
from covey.shared.wire.topics import is_name

VERSION = 1
CHECKSUM_BYTES = 8
HEAD_BYTES = 1 + CHECKSUM_BYTES  # version and checksum
# items of a list or map: a header of five bytes could otherwise claim memory for as many items as there are bytes
MAX_ITEMS = 1 << 17
MAX_DEPTH = 16  # levels of lists and maps in `Numbers`
MAX_TEXT = 4096  # characters
MAX_DOCUMENT_DEPTH = 200  # levels of a JSON message before its fields are looked at
MAX_DETAIL = 200  # characters of a refusal: a key may be as long as the message


def checksum_of(body: bytes | memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=CHECKSUM_BYTES).digest()


def _name(text: str) -> str:
    if not is_name(text):
        raise ValueError(
            "expected a name of letters, digits, '.', '_' and '-', at most 64 characters"
        )
    return text


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


Name = Annotated[str, AfterValidator(_name)]
# the lambda hides the second argument of `_finite`, which pydantic would fill
Numbers = Annotated[dict[str, Any], AfterValidator(lambda value: _finite(value))]
Count = Annotated[int, Field(ge=0, lt=2**53)]
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
        is_json = first["type"] != "json_invalid"
        why = f"{cls.__name__}.{where}: {first['msg']}"[:MAX_DETAIL]
        return DecodeError("fields" if is_json else "not json", why)


class Sparse(Message):
    """A message that leaves out its `optional` fields where they have their defaults."""

    optional: ClassVar[tuple[str, ...]]

    @model_serializer(mode="wrap")
    def _without_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        for name in self.optional:
            default = type(self).model_fields[name].get_default(call_default_factory=True)
            if getattr(self, name) == default:
                del fields[name]
        return fields


class Packed(Message):
    """A msgpack message."""

    called: ClassVar[str] = "message"  # for people
    # what carries weights is limited where its parts are put together
    max_bytes: ClassVar[int] = 1 << 40

    def to_bytes(self) -> bytes:
        """Version, checksum and body."""
        body = self._body()
        return b"".join((bytes([VERSION]), checksum_of(body), body))

    @classmethod
    def from_bytes(cls, payload: bytes, *, verified: bool = False) -> Self:
        """The message in a payload.

        Args:
            payload: version, checksum and body.
            verified: the caller has compared the digest of the payload, which is as good as the checksum.

        Raises:
            DecodeError: for one of the reasons "empty", "too long", "version", "checksum", "not msgpack", "fields".
        """
        cls._check_version(payload)
        body = memoryview(payload)[HEAD_BYTES:]
        if not verified:
            compare_checksum(body, payload)
        return cls._of_body(body)

    def _body(self) -> bytes:
        body: bytes = msgpack.packb(self.model_dump(), use_bin_type=True)
        return body

    @classmethod
    def _check_version(cls, payload: bytes) -> None:
        """Raises DecodeError "empty", "too long" or "version"."""
        if not payload:
            raise DecodeError("empty")
        if len(payload) > cls.max_bytes:
            raise DecodeError(
                "too long", f"{len(payload)} bytes of msgpack, at most {cls.max_bytes}"
            )
        if payload[0] != VERSION:
            raise DecodeError("version", f"{payload[0]}, expected {VERSION}")

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
        if "format" in cls.model_fields and isinstance(data, dict):
            number = data.get("format", NONE)
            if number != FORMAT and type(number) is int:  # its fields may mean something else
                who = f"the sender of this {cls.called}"
                raise DecodeError("format", speaks_other(who, number, "", "this program"))
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise cls._refusal(error) from None


def compare_checksum(checked: memoryview, payload: bytes) -> None:
    """Raises DecodeError("checksum") unless the head of a payload has the checksum of these bytes."""
    if checksum_of(checked) != payload[1:HEAD_BYTES]:
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
        return without_brace + check_key(body)

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
            message = cls.model_validate_json(payload)
        except ValidationError as error:
            raise cls._refusal(error) from None
        # a status of another number is read all the same: its sender needs an update
        if "format" in cls.model_fields and "format" not in message.model_fields_set:
            return message.model_copy(update={"format": NONE})
        return message


def check_key(body: bytes) -> bytes:
    """The end of a message with a checksum, in place of its closing brace."""
    return b',"check":"%s"}' % checksum_of(body).hex().encode()


def _without_check(payload: bytes) -> bytes:
    """The JSON text without the key `check`. Raises DecodeError("checksum") unless it is right."""
    length = len(check_key(b""))
    body = payload[:-length] + b"}"
    if payload[-length:] != check_key(body):
        raise DecodeError("checksum", "the message is damaged or cut short")
    return body


# For messages that inform and ask for nothing: a peer of a newer version may inform about more, and what a receiver does not
# know is dropped before anything reads it. An unknown field of an order, a report or a command could change what is meant,
# such as noise that an agent has to add: all other messages refuse it.
IGNORES_UNKNOWN = ConfigDict(extra="ignore")
