from __future__ import annotations

import contextlib
import importlib
import json
import math
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import covey.shared.wire
from covey.shared.errors import DecodeError
from covey.shared.wire import framing
from covey.shared.wire.documents import AgentStatus, Control, CoordinatorStatus
from covey.shared.wire.framing import Document, Packed
from covey.shared.wire.messages import Encoded, ModelContent, OrderMessage, Part, ReportContent
from tests.shared.samples import SAMPLES

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(SAMPLES)
CHECKED = [name for name in NAMES if name not in ("report", "part")]  # their data has a digest
TYPES = sorted({type(sample) for sample in SAMPLES.values()}, key=lambda kind: kind.__name__)

JSON_LEAF = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5)
)


def trees(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaf,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
    )


JSON_TREE = trees(JSON_LEAF)
TREE = trees(JSON_LEAF | st.binary(max_size=5))  # msgpack has bytes as well


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def read(kind: type[Packed | Document], payload: bytes) -> Packed | Document:
    """The message in a payload. A report is read as after a comparison of its digest."""
    if kind is ReportContent:
        return ReportContent.from_bytes(payload, verified=True)
    return kind.from_bytes(payload)


def sealed(kind: type[Packed], body: Any) -> bytes:
    """A msgpack message with whatever inside, and a right checksum: what a hostile peer would send."""
    raw = body if isinstance(body, bytes) else msgpack.packb(body)
    version = bytes([framing.VERSION])
    if kind is ReportContent:
        return version + raw
    return version + framing.checksum_of(raw[: len(raw) - data_bytes(raw, kind)]) + raw


def data_bytes(raw: bytes, kind: type[Packed]) -> int:
    """How many bytes at the end the checksum leaves out."""
    with contextlib.suppress(ValueError, TypeError, KeyError, msgpack.exceptions.UnpackException):
        return len(msgpack.unpackb(raw)["data"]) if kind is Part else 0
    return 0


def json_sealed(kind: type[Document], body: bytes) -> bytes:
    """A JSON message with any content, and a valid checksum if the message has one."""
    return body[:-1] + framing.check_key(body) if kind.checked else body


def message_or_refusal(
    kind: type[Packed | Document], payload: bytes
) -> Packed | Document | DecodeError:
    """Any other exception fails the test."""
    try:
        return read(kind, payload)
    except DecodeError as error:
        refusal = error
    assert refusal.reason
    assert len(str(refusal)) < 400
    return refusal


def reason(kind: type[Packed | Document], payload: bytes) -> str:
    refusal = message_or_refusal(kind, payload)
    assert isinstance(refusal, DecodeError), refusal
    return refusal.reason


def test_every_message_has_a_sample() -> None:
    package = covey.shared.wire
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    kinds = {
        kind
        for base in (Packed, Document)
        for kind in base.__subclasses__()
        if kind.__module__.startswith(package.__name__)
    }
    assert set(TYPES) == kinds


@pytest.mark.parametrize("name", CHECKED)
def test_a_message_survives_the_round_trip(name: str) -> None:
    assert type(SAMPLES[name]).from_bytes(SAMPLES[name].to_bytes()) == SAMPLES[name]


@pytest.mark.parametrize("name", NAMES)
def test_todays_encoding_is_that_of_the_protocol(name: str) -> None:
    assert SAMPLES[name].to_bytes() == golden(name)
    assert read(type(SAMPLES[name]), golden(name)) == SAMPLES[name]


def test_a_report_without_a_compared_digest_is_refused() -> None:
    with pytest.raises(DecodeError) as refusal:
        ReportContent.from_bytes(SAMPLES["report"].to_bytes())
    assert refusal.value.reason == "checksum"


def test_the_checksum_of_a_part_covers_every_field_but_the_data() -> None:
    part = SAMPLES["part"]
    assert isinstance(part, Part)
    whole = bytearray(part.to_bytes())
    fields = len(whole) - len(part.data)
    for index in range(len(whole)):
        whole[index] ^= 1
        found = message_or_refusal(Part, bytes(whole))
        if index < fields:
            assert isinstance(found, DecodeError), index
        else:
            assert isinstance(found, Part)
            assert found.data != part.data
        whole[index] ^= 1


def test_a_part_has_its_data_at_the_end() -> None:
    fields = SAMPLES["part"].model_dump()
    data = fields.pop("data")
    body = msgpack.packb({"data": data} | fields)
    checksum = framing.checksum_of(body[: -len(data)])
    payload = bytes([framing.VERSION]) + checksum + body
    assert reason(Part, payload) == "fields"


def test_every_golden_file_has_a_message() -> None:
    assert sorted(path.name for path in GOLDEN.iterdir()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_proper_prefix_is_refused(name: str) -> None:
    whole = golden(name)
    for length in range(len(whole)):
        assert isinstance(message_or_refusal(type(SAMPLES[name]), whole[:length]), DecodeError), (
            length
        )


PACKED = [sample for sample in SAMPLES.values() if isinstance(sample, Packed)]


@pytest.mark.parametrize("sample", PACKED, ids=lambda sample: type(sample).__name__)
def test_every_proper_prefix_is_refused_even_with_a_right_checksum(sample: Packed) -> None:
    body = msgpack.packb(sample.model_dump())
    for length in range(len(body)):
        assert isinstance(
            message_or_refusal(type(sample), sealed(type(sample), body[:length])), DecodeError
        ), length


@pytest.mark.parametrize("name", [name for name in CHECKED if name != "control"])
def test_a_flipped_bit_is_noticed(name: str) -> None:
    whole = bytearray(golden(name))
    for index in range(len(whole)):
        whole[index] ^= 1
        assert isinstance(message_or_refusal(type(SAMPLES[name]), bytes(whole)), DecodeError), index
        whole[index] ^= 1


@pytest.mark.parametrize("kind", TYPES)
@given(data=st.data())
def test_random_bytes_are_a_message_or_refused(
    kind: type[Packed | Document], data: st.DataObject
) -> None:
    payload = data.draw(st.binary(max_size=60))
    message_or_refusal(kind, payload)
    message_or_refusal(
        kind, sealed(kind, payload) if issubclass(kind, Packed) else json_sealed(kind, payload)
    )


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_a_mutated_body_with_a_right_checksum_is_a_message_or_refused(
    name: str, data: st.DataObject
) -> None:
    sample = SAMPLES[name]
    body = bytearray(
        msgpack.packb(sample.model_dump())
        if isinstance(sample, Packed)
        else sample.model_dump_json().encode()
    )
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    raw = bytes(body)
    message_or_refusal(
        type(sample),
        sealed(type(sample), raw) if isinstance(sample, Packed) else json_sealed(type(sample), raw),
    )


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_any_value_in_any_field_is_a_message_or_refused(name: str, data: st.DataObject) -> None:
    sample = SAMPLES[name]
    if isinstance(sample, Packed):
        body = sample.model_dump()
        body[data.draw(st.sampled_from(sorted(body)))] = data.draw(TREE)
        message_or_refusal(type(sample), sealed(type(sample), body))
    else:
        body = sample.model_dump(mode="json")
        body[data.draw(st.sampled_from(sorted(body)))] = data.draw(JSON_TREE)
        message_or_refusal(type(sample), json_sealed(type(sample), json.dumps(body).encode()))


@pytest.mark.parametrize("name", NAMES)
def test_an_unchanged_sample_that_these_tests_seal_is_a_message(name: str) -> None:
    sample = SAMPLES[name]
    if isinstance(sample, Packed):
        assert read(type(sample), sealed(type(sample), sample.model_dump())) == sample
    else:
        assert (
            type(sample).from_bytes(json_sealed(type(sample), sample.model_dump_json().encode()))
            == sample
        )


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_field_is_refused_unless_the_message_only_informs(name: str) -> None:
    sample = SAMPLES[name]
    if isinstance(sample, Packed):
        assert (
            reason(type(sample), sealed(type(sample), sample.model_dump() | {"sudo": 1}))
            == "fields"
        )
        return
    kind = type(sample)
    newer = sample.model_dump(mode="json") | {"sudo": {"of a newer version": [1, 2]}}
    payload = json_sealed(kind, json.dumps(newer).encode())
    if kind.model_config.get("extra") == "ignore":
        assert kind.from_bytes(payload) == sample
        assert b"sudo" not in kind.from_bytes(payload).to_bytes()
    else:
        assert reason(kind, payload) == "fields"


def test_what_a_status_has_in_maps_of_its_own_may_grow_too() -> None:
    in_use = {"run": "r1", "round": 3, "sudo": 1}
    content = {"agent": "pi-7", "session": "s", "online": True, "model": in_use}
    status = AgentStatus.from_bytes(json_sealed(AgentStatus, json.dumps(content).encode()))
    assert status.model is not None
    assert status.model.round == 3
    for uses, expected in (("100 % served", None), ("x" * 129, "fields"), (5, "fields")):
        told = json.dumps({**content, "model": {**in_use, "uses": uses}}).encode()
        if expected is None:
            assert AgentStatus.from_bytes(json_sealed(AgentStatus, told)).model is not None
        else:
            assert reason(AgentStatus, json_sealed(AgentStatus, told)) == expected
    twice = json.dumps(content)[:-1] + ',"sudo":1,"sudo":2}'
    assert reason(AgentStatus, json_sealed(AgentStatus, twice.encode())) == "not json"


def test_a_newer_version_is_refused_by_name() -> None:
    assert reason(Part, b"\x03" + SAMPLES["part"].to_bytes()[1:]) == "version"
    assert reason(ReportContent, b"\x03" + SAMPLES["report"].to_bytes()[1:]) == "version"
    assert reason(OrderMessage, b"\x02" + SAMPLES["order"].to_bytes()[1:]) == "version"


@pytest.mark.parametrize("field", ["loss", "seconds"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused(field: str, value: float) -> None:
    assert (
        reason(
            ReportContent, sealed(ReportContent, SAMPLES["report"].model_dump() | {field: value})
        )
        == "fields"
    )


@pytest.mark.parametrize(
    "value", [math.nan, [math.inf], {"a": [-math.inf]}, 2**63, b"bytes", {1: 2}, "x" * 5000]
)
def test_numbers_hold_only_finite_numbers_short_strings_and_lists_and_maps_of_these(
    value: Any,
) -> None:
    report = SAMPLES["report"].model_dump() | {"numbers": {"value": value}}
    assert reason(ReportContent, sealed(ReportContent, report)) in {"fields", "not msgpack"}
    with pytest.raises(ValidationError):
        ReportContent.model_validate(report)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e999", "9" * 5000])
def test_json_numbers_that_are_not_finite_or_absurd_are_refused(text: str) -> None:
    body = b'{"online":true,"task":{"a":%s}}' % text.encode()
    assert reason(CoordinatorStatus, json_sealed(CoordinatorStatus, body)) in {"fields", "not json"}


def test_deep_nesting_is_refused_without_exhausting_the_stack() -> None:
    for opening in (b"\x91", b"\x81\xa1a", b"\xdd\x00\x00\x00\x01"):
        assert reason(OrderMessage, sealed(OrderMessage, opening * 100_000)) == "not msgpack"
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    assert (
        reason(
            ReportContent,
            sealed(ReportContent, SAMPLES["report"].model_dump() | {"numbers": {"a": deep}}),
        )
        == "fields"
    )
    assert (
        reason(
            CoordinatorStatus,
            json_sealed(
                CoordinatorStatus, b'{"online":true,"task":{"a":%s}}' % (b"[" * 150 + b"]" * 150)
            ),
        )
        == "fields"
    )
    assert reason(Control, b"[" * 4_000) == "not json"


@pytest.mark.parametrize(
    "header",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
    ],
)
def test_a_header_that_claims_gigabytes_is_refused(header: bytes) -> None:
    assert reason(Part, sealed(Part, header)) == "not msgpack"


def test_a_list_longer_than_any_of_ours_is_refused_before_memory_is_set_aside_for_it() -> None:
    report = SAMPLES["report"].model_dump()
    longest, longer = (
        {"numbers": {"a": [0] * length}} for length in (framing.MAX_ITEMS, framing.MAX_ITEMS + 1)
    )
    assert isinstance(
        message_or_refusal(ReportContent, sealed(ReportContent, report | longest)), ReportContent
    )
    assert reason(ReportContent, sealed(ReportContent, report | longer)) == "not msgpack"


def test_text_that_is_not_utf8_is_refused() -> None:
    assert reason(ModelContent, sealed(ModelContent, b"\x81\xa2\xff\xfe\x01")) == "not msgpack"
    assert reason(Control, b'{"command":"\xff"}') == "not json"


def test_the_refusal_of_a_long_key_is_short() -> None:
    assert (
        len(
            str(
                message_or_refusal(
                    Part, sealed(Part, SAMPLES["part"].model_dump() | {"k" * 100_000: 1})
                )
            )
        )
        < 400
    )


def test_a_status_longer_than_the_limit_is_refused_unread() -> None:
    assert reason(AgentStatus, b" " * (AgentStatus.max_bytes + 1)) == "too long"


@pytest.mark.parametrize("value", [True, 1.0, "1", -1, 2**53])
def test_a_count_is_a_whole_number_from_zero(value: Any) -> None:
    assert reason(Part, sealed(Part, SAMPLES["part"].model_dump() | {"about": value})) == "fields"


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a b", "+", "#", "$SYS", "ä", "x" * 65, "a\n"])
def test_a_name_that_cannot_stand_in_a_topic_is_refused(name: str) -> None:
    assert (
        reason(
            ReportContent, sealed(ReportContent, SAMPLES["report"].model_dump() | {"client": name})
        )
        == "fields"
    )


def test_the_refusal_of_an_encoded_vector_is_short() -> None:
    with pytest.raises(ValidationError):
        Encoded(codec="float32", length=0, data=b"", base=b"x" * 17)


def test_an_idle_agent_loads_neither_numpy_nor_torch_for_messages_and_parts() -> None:
    code = "import sys, covey.shared.wire.documents, covey.shared.wire.messages, covey.shared.wire.parts, covey.shared.wire.topics; print({'numpy', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
