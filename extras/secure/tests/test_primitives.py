"""The primitives: fixed bytes that other languages can compare, and keys that both ends derive alike."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from covey.extras.secure import primitives
from covey.extras.secure.agent_state import MakeMasked
from covey.extras.secure.integers import integers_of
from covey.extras.secure.tests import vectors
from covey.extras.secure.tests.group import site_at

ROOT = Path(__file__).parents[3]


def test_the_fixed_vectors_are_what_the_code_makes() -> None:
    assert vectors.made() == json.loads(vectors.FILE.read_text("utf-8"))


def test_the_page_has_the_fixed_vectors() -> None:
    page = (ROOT / "extras" / "secure" / "protocol.md").read_text("utf-8")
    for what, value in vectors.small().items():
        assert f"| {what} | `{value}` |" in page


def test_a_hash_depends_on_label_and_on_the_cut_of_its_parts() -> None:
    parts = [("x", b"ab", b"c"), ("x", b"a", b"bc"), ("x", b"abc"), ("y", b"ab", b"c"), ("x",)]
    assert len({primitives.hashed(label, *rest) for label, *rest in parts}) == len(parts)  # type: ignore[arg-type]


def test_the_stream_of_chacha20_is_that_of_rfc_8439() -> None:
    """Appendix A.1, test vector 1: key, nonce and counter are 0."""
    stream = primitives.stream_of(bytes(32)).update(bytes(64))
    assert stream.hex().startswith(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    )
    assert integers_of(bytes(32), 1)[0] == int.from_bytes(stream[:4], "little")


def test_both_ends_of_a_pair_derive_the_same_mask_with_opposite_signs() -> None:
    here = site_at("join", 5)
    streams = {}
    for place, member in enumerate(here.members, start=1):
        member.train(here.begun, here.terms.scale)
        made = member.machine.listed(member.state, here.state.listing, here.inbox(place))
        (effect,) = made.then
        assert isinstance(effect, MakeMasked)
        streams[place] = {stream.key: stream.sign for stream in effect.streams}
    for one, other in combinations(streams, 2):
        (shared,) = set(streams[one]) & set(streams[other])
        assert (streams[one][shared], streams[other][shared]) == (1, -1)
    assert len({key for keys in streams.values() for key in keys}) == 5 + 10


@pytest.mark.parametrize("key", [bytes(32), b"\x01" + bytes(31), b"short"])
def test_a_key_that_shares_no_secret_is_refused(key: bytes) -> None:
    with pytest.raises(primitives.BadKeyError):
        primitives.agreement(vectors.KEY)(key)


def test_a_signature_counts_for_its_key_and_message_alone() -> None:
    signed = primitives.signature(vectors.KEY, b"message")
    public = primitives.signing_key(vectors.KEY)
    assert primitives.is_signed(public, signed, b"message")
    assert not primitives.is_signed(public, signed, b"massage")
    assert not primitives.is_signed(primitives.signing_key(vectors.OTHER), signed, b"message")
    assert not primitives.is_signed(bytes(32), signed, b"message")
    assert not primitives.is_signed(b"short", signed, b"message")


def test_a_cell_opens_with_its_key_and_what_it_is_about_alone() -> None:
    cell = primitives.sealed(vectors.KEY, b"share", b"T")
    assert primitives.unsealed(vectors.KEY, cell, b"T") == b"share"
    assert primitives.unsealed(vectors.OTHER, cell, b"T") is None
    assert primitives.unsealed(vectors.KEY, cell, b"U") is None
    assert primitives.unsealed(vectors.KEY, cell[:-1], b"T") is None
    assert primitives.unsealed(vectors.KEY, b"", b"T") is None


def test_without_the_package_the_message_names_the_extra() -> None:
    code = "import sys; sys.modules['cryptography'] = None; import covey.extras.secure.primitives"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "secure sums need the package cryptography" in done.stderr
    assert ".[secure]" in done.stderr
