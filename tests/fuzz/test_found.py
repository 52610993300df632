"""What the campaign found, each as the smallest input that showed it. Before, every one of these was a crash."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from covey.agent.data import load as load_data
from covey.agent.data.arrays import ArrayFileError, read_members
from covey.coordinator.disk.array_files import open_arrays
from covey.extras.audit import check as audit_check
from covey.extras.joining import codes as joining
from covey.extras.proposals.proposal_data import describe
from covey.extras.secure.tests.group import site
from covey.shared.errors import DataError, DecodeError, UserError
from covey.shared.numerics.vectors import Layout
from covey.shared.scenario.load import load as load_scenario
from covey.shared.storage import audit
from covey.shared.wire.codec import decode
from covey.shared.wire.messages import Encoded, OrderMessage
from tests.fuzz.file_targets import npz, sounds
from tests.fuzz.mutate import packed
from tests.fuzz.wire_targets import sealed
from tests.shared.samples import SAMPLES


def test_a_vector_of_no_values_with_a_scale_is_refused() -> None:
    """ZeroDivisionError, in the coordinator's hands."""
    with pytest.raises(DecodeError, match="bad scale"):
        decode(Encoded(codec="int8", length=0, data=b"", scale=bytes(4)), length=-5)


@pytest.mark.parametrize(
    "wire",
    [
        {},
        {"tensors": 5, "trainable": 1},
        {"tensors": [["w"]], "trainable": 1},
        {"tensors": [[7, [2]]], "trainable": 1},
        {"tensors": [["w", [2.5]]], "trainable": 1},
        {"tensors": [["w", [-2]]], "trainable": 1},
        {"tensors": [["w", [True]]], "trainable": 1},
        {"tensors": [["w", [2]]], "trainable": "1"},
        {"tensors": [["w", [2]]], "trainable": 2},
        {"tensors": [["w", [2]], ["w", [2]]], "trainable": 1},
        {"tensors": [["w", [2**31, 2**31]]], "trainable": 1},
    ],
    ids=str,
)
def test_a_layout_that_is_none_is_refused(wire: dict[str, Any]) -> None:
    """Five kinds of exceptions; and a layout of 2**62 values was taken."""
    with pytest.raises(DecodeError, match="layout"):
        Layout.from_wire(wire)


def test_an_order_that_keeps_an_agent_busy_is_refused_unread() -> None:
    """46 MB of lists in lists where a text is expected took 6 s, and an idle agent has no memory for them."""
    sample = SAMPLES["order"]
    assert isinstance(sample, OrderMessage)
    order = sample.model_dump() | {"run": [b"x" * 1000] * 20_000}
    with pytest.raises(DecodeError, match="too long"):
        OrderMessage.from_bytes(sealed(sample, packed(order)))


def test_an_audit_log_with_another_alphabet_in_a_hash_is_broken(tmp_path: Path) -> None:
    """TypeError: hashes are compared in constant time, which takes ASCII alone."""
    log = audit.AuditLog(tmp_path / "audit.jsonl", "run-1")
    row = json.loads(log.path.read_text())
    log.path.write_text(json.dumps(row | {"hash": "ä" * 64}, ensure_ascii=False) + "\n")
    assert not audit_check.verify(log.path).whole


def test_an_npz_file_with_a_wild_offset_is_refused(tmp_path: Path) -> None:
    """OSError: Invalid argument, without the name of the file."""
    content = bytearray(npz()[0])
    directory = content.rindex(b"PK\x01\x02")
    content[directory + 42 : directory + 46] = struct.pack("<I", 2**32 - 1)
    end = content.rindex(b"PK\x05\x06")
    content[end + 16 : end + 20] = struct.pack("<I", 2**31)
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(ArrayFileError):
        read_members(tmp_path / "a.npz", 1 << 20)


@pytest.mark.parametrize(
    "header",
    [
        [],
        5,
        {"__metadata__": 5},
        {"__metadata__": {"facts": 5}},
        {"a": 5},
        {"a": {"dtype": "F32", "shape": [2]}},
        {"a": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [1e400], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 0]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}},
    ],
    ids=str,
)
def test_a_model_file_with_a_wrong_header_is_refused(header: Any, tmp_path: Path) -> None:
    """Six kinds of exceptions; a shape of 10**12 values was set aside in memory."""
    text = json.dumps(header).encode()
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    with pytest.raises(ValueError, match=r"m\.safetensors|JSON|number"):
        open_arrays(tmp_path / "m.safetensors")


def test_a_scenario_whose_union_has_no_name_is_explained(tmp_path: Path) -> None:
    """KeyError in the explanation of the mistake."""
    (tmp_path / "s.yaml").write_text(
        "name: a\nstrategy: {}\ntask: {features: [2], classes: 2}\nfleet: {partition: {}}\n"
    )
    with pytest.raises(UserError, match=r"strategy\.name: missing"):
        load_scenario(tmp_path / "s.yaml")


def test_a_label_beyond_the_largest_float_is_a_word(tmp_path: Path) -> None:
    """OverflowError: int too large to convert to float."""
    (tmp_path / "d.csv").write_text(f"a,label\n1,{'9' * 400}\n2,1\n")
    with pytest.raises(DataError):
        load_data(tmp_path / "d.csv")


@pytest.mark.parametrize(
    ("place", "content"),
    [
        (16, struct.pack("<I", 2**31)),  # a chunk beyond the end: RuntimeError
        (34, struct.pack("<H", 64)),  # eight bytes a sample: ValueError
    ],
)
def test_a_sound_with_a_wild_header_is_refused(tmp_path: Path, place: int, content: bytes) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.wav").write_bytes(sounds()[1])
    load_data(tmp_path)
    damaged = bytearray(sounds()[1])
    damaged[place : place + len(content)] = content
    (tmp_path / "cat" / "1.wav").write_bytes(bytes(damaged))
    with pytest.raises(DataError, match=r"not a \.wav file of PCM"):
        load_data(tmp_path)


@pytest.mark.parametrize("body", [b"\x04", b"\x04" + bytes(30), b"\x04" + bytes(34)])
def test_a_short_code_whose_checksum_fits_is_refused(body: bytes) -> None:
    """Taken, with a secret that was cut or a host without a name."""
    check = hashlib.sha256(body).digest()[: joining.CHECK_BYTES]
    with pytest.raises(UserError, match="not a whole code"):
        joining.JoinCode.parse(base64.urlsafe_b64encode(body + check).decode().rstrip("="))


def test_a_code_whose_host_is_none_is_refused() -> None:
    """UnicodeError, from the lookup of the name."""
    with pytest.raises(UserError, match="must still run there"):
        joining.redeem(joining.JoinCode("a" * 70 + ".example", 8884, bytes(16), bytes(16)))


def test_terms_with_endless_noise_are_refused() -> None:
    """OverflowError, at each member that a coordinator sends them to."""
    here = site()
    terms = here.terms.model_copy(update={"deviation": 1e308})
    member = here.members[0]
    assert member.join(terms.to_bytes()) == []
    assert member.refused == "unsafe terms"


def test_a_column_of_numbers_with_a_few_times_is_described(tmp_path: Path) -> None:
    """ValueError, out of `coordinator init`."""
    rows = ["2025-01-01 00:00,a", "2025-01-01 01:00,b", *["7,a", "8,b"] * 40]
    (tmp_path / "d.csv").write_text("\n".join(["x,label", *rows]) + "\n")
    x, _ = describe(str(tmp_path / "d.csv")).columns
    assert (x.kind, x.faults, x.values) == ("number", 2, ("7", "8"))
