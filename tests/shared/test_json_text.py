"""JSON that every program reads alike: what is not, is neither written nor read."""

from __future__ import annotations

import math
import sys
from typing import Any

import msgpack
import pytest

from covey.shared.errors import DecodeError
from covey.shared.storage.json_text import JsonError, dumps, loads
from covey.shared.wire.documents import AgentStatus, Control
from covey.shared.wire.messages import OrderMessage
from tests.shared.samples import SAMPLES
from tests.shared.test_messages import json_sealed, sealed


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_not_written(value: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        dumps({"loss": [value]})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": NaN}', "NaN is not a number in JSON"),
        ("[Infinity]", "Infinity is not a number in JSON"),
        ("[-Infinity]", "-Infinity is not a number in JSON"),
        ("[1e999]", "a number is not finite"),
        ('{"a": 1, "a": 2}', "a key occurs twice"),
        ('{"b": {"a": 1, "a": 2}}', "a key occurs twice"),
        ("[" * 100 + "]" * 100, "nested deeper than 64 levels"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("[" + "9" * 5000 + "]", "not JSON"),
        ('"\\ud800"', "half of a character"),
        (b'"\xff"', "not JSON"),
        ("{", "not JSON, line 1 column 2"),
        ("", "not JSON, line 1 column 1"),
    ],
)
def test_the_parser_refuses_text_outside_of_json_by_name(text: str | bytes, why: str) -> None:
    with pytest.raises(JsonError) as caught:
        loads(text)
    assert why in str(caught.value)


def test_the_reason_quotes_no_value() -> None:
    with pytest.raises(JsonError) as caught:
        loads('{"password": secret}')
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "value", [None, 1, 2**70, -0.5, "é€", [1, [2, {"a": []}]], {"": {"b": None}}, True]
)
def test_everything_else_comes_back_as_it_went(value: Any) -> None:
    assert loads(dumps(value)) == value


def test_as_deep_as_allowed_is_read() -> None:
    assert loads("[" * 5 + "1" + "]" * 5, depth=5) == [[[[[1]]]]]
    with pytest.raises(JsonError):
        loads("[" * 6 + "1" + "]" * 6, depth=5)


def test_a_message_with_a_key_twice_is_refused() -> None:
    """Before, the second one counted, and a proxy or a person who reads the first one saw something else."""
    with pytest.raises(DecodeError, match="a key occurs twice"):
        Control.from_bytes(b'{"command":"pause","command":"stop"}')
    status = SAMPLES["agent_status"].model_dump_json().encode()
    twice = status.replace(b'"samples":120', b'"samples":1,"samples":120')
    assert twice != status
    with pytest.raises(DecodeError, match="a key occurs twice"):
        AgentStatus.from_bytes(json_sealed(AgentStatus, twice))


def test_an_order_with_a_key_twice_is_refused() -> None:
    tree = SAMPLES["order"].model_dump()
    body = bytearray(msgpack.packb(tree))
    assert body[0] == 0x80 | len(tree), "a map of fewer than 16 keys begins with its length"
    body[0] += 1
    with pytest.raises(DecodeError, match="a key occurs twice"):
        OrderMessage.from_bytes(
            sealed(OrderMessage, bytes(body) + msgpack.packb("step") + msgpack.packb(13))
        )


def test_messages_a_hundred_thousand_levels_deep_are_refused_and_the_stack_stays_whole() -> None:
    depth = 100_000
    for opening in (b"\x91", b"\x81\xa1a"):
        with pytest.raises(DecodeError):
            OrderMessage.from_bytes(sealed(OrderMessage, opening * depth + b"\xc0"))
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        with pytest.raises(DecodeError):
            Control.from_bytes(opening * depth + b"1" + closing * depth)
    assert sys.getrecursionlimit() <= 10_000, "nobody raised the limit"
