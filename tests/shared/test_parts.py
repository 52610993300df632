from __future__ import annotations

import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from covey.shared.errors import DecodeError
from covey.shared.wire.messages import Part, digest
from covey.shared.wire.parts import (
    MAX_FINISHED,
    OVERHEAD_BYTES,
    Assembler,
    FileSink,
    Pending,
    check,
    part_at,
    part_count,
    split,
)
from tests.hashes import Hashes
from tests.night import examples

CONTENT = bytes(range(10))


class MemorySink:
    """A content in memory."""

    def __init__(self, size: int) -> None:
        self._buffer = bytearray(size)

    def content(self) -> bytes:
        return bytes(self._buffer)

    def write(self, offset: int, data: bytes) -> None:
        self._buffer[offset : offset + len(data)] = data

    def digest(self) -> bytes:
        return digest(self._buffer)

    def discard(self) -> None:
        self._buffer = bytearray()


def cut(content: bytes, part_bytes: int = 4, about: int = 1) -> list[Part]:
    return list(
        split(
            io.BytesIO(content),
            digest=digest(content),
            size=len(content),
            part_bytes=part_bytes,
            about=about,
        )
    )


def assembler(
    largest: int = 1000, per_sender: int = 2, total: int = 100_000, max_age_s: float = 60.0
) -> Assembler:
    return Assembler(
        lambda sender, part: MemorySink(part.size),
        largest_bytes=largest,
        per_sender=per_sender,
        total_bytes=total,
        max_age_s=max_age_s,
    )


def feed(to: Assembler, parts: list[Part], sender: str = "a", now: float = 0.0) -> list[bytes]:
    """The contents that became whole."""
    sinks = [to.feed(sender, part, now) for part in parts]
    return [sink.content() for sink in sinks if isinstance(sink, MemorySink)]


def refused(to: Assembler, part: Part, sender: str = "a") -> str:
    with pytest.raises(DecodeError) as refusal:
        to.feed(sender, part, 0.0)
    return refusal.value.reason


@given(content=st.binary(min_size=1, max_size=300), part_bytes=st.integers(1, 310))
def test_split_agrees_with_the_rule_of_the_cut(content: bytes, part_bytes: int) -> None:
    parts = cut(content, part_bytes)
    assert b"".join(part.data for part in parts) == content
    assert len(parts) == part_count(len(content), part_bytes)
    assert all(1 <= len(part.data) <= part_bytes for part in parts)
    for index, part in enumerate(parts):
        check(part)
        assert part == part_at(
            io.BytesIO(content),
            index,
            digest=digest(content),
            size=len(content),
            part_bytes=part_bytes,
            about=1,
        )


@given(size=st.integers(1, 2**40 - 1), part_bytes=st.integers(1, 2**40))
def test_equal_parts_of_any_size_are_as_many_as_announced(size: int, part_bytes: int) -> None:
    count = part_count(size, part_bytes)
    length = -(-size // count)
    assert length <= part_bytes
    assert 0 < size - (count - 1) * length <= length


def test_a_content_is_cut_into_equal_parts() -> None:
    assert [len(part.data) for part in cut(bytes(10), 9)] == [5, 5]
    assert [len(part.data) for part in cut(bytes(10), 4)] == [4, 4, 2]


@pytest.mark.parametrize(("size", "part_bytes"), [(0, 1), (1, 0), (-1, 1)])
def test_nothing_cannot_be_cut(size: int, part_bytes: int) -> None:
    with pytest.raises(ValueError, match="cannot be cut"):
        part_count(size, part_bytes)


def test_a_part_beyond_the_content_and_a_content_that_is_too_short_are_errors_of_the_caller() -> (
    None
):
    with pytest.raises(IndexError, match="part 3"):
        part_at(io.BytesIO(CONTENT), 3, digest=digest(CONTENT), size=10, part_bytes=4, about=1)
    with pytest.raises(ValueError, match="ends after 10"):
        list(split(io.BytesIO(CONTENT), digest=digest(CONTENT), size=11, part_bytes=4, about=1))


@given(data=st.data())
def test_contents_come_together_in_any_order_with_duplicates_and_interleaved(
    data: st.DataObject,
) -> None:
    contents = data.draw(
        st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=4, unique=True)
    )
    parts = [part for content in contents for part in cut(content, data.draw(st.integers(1, 20)))]
    parts += data.draw(st.lists(st.sampled_from(parts), max_size=10))
    together = assembler(per_sender=4)
    assert sorted(feed(together, data.draw(st.permutations(parts)))) == sorted(contents)
    assert together.pending == ()


def test_only_a_whole_content_is_handed_out() -> None:
    one, two, three = cut(CONTENT)
    together = assembler()
    assert feed(together, [three, one]) == []
    assert together.missing("a", digest(CONTENT)) == [1]
    assert together.pending == (Pending("a", digest(CONTENT), 1, 10, 3, 2, 0.0),)
    assert feed(together, [two]) == [CONTENT]
    assert together.missing("a", digest(CONTENT)) == []


def test_the_same_content_of_two_senders_is_two_contents() -> None:
    together = assembler()
    for sender in ("a", "b"):
        assert feed(together, cut(CONTENT)[:2], sender) == []
    assert feed(together, cut(CONTENT)[2:], "a") == [CONTENT]
    assert together.missing("b", digest(CONTENT)) == [2]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"size": 1001}, "too large"),
        ({"count": 11}, "bad count"),
        ({"count": 6}, "bad count"),  # parts of 2 bytes: five are enough
        ({"index": 3}, "bad index"),
        ({"data": b"12345"}, "wrong length"),
        ({"data": b"123"}, "wrong length"),
        ({"data": b""}, "wrong length"),
        ({"index": 2}, "wrong length"),
        ({"size": 9}, "wrong length"),
    ],
)
def test_a_part_that_cannot_be_right_is_refused_and_leaves_no_trace(
    change: dict[str, object], reason: str
) -> None:
    together = assembler()
    assert refused(together, cut(CONTENT)[0].model_copy(update=change)) == reason
    assert together.pending == ()


@pytest.mark.parametrize("other", [cut(CONTENT, 5)[1], cut(CONTENT + b"!!", 4)[0]])
def test_a_part_that_contradicts_the_first_is_refused_and_the_rest_still_comes_together(
    other: Part,
) -> None:
    together = assembler()
    one, two, three = cut(CONTENT)
    feed(together, [one])
    assert refused(together, other.model_copy(update={"digest": digest(CONTENT)})) == "contradicts"
    assert feed(together, [two, three]) == [CONTENT]


def test_a_content_with_a_wrong_digest_is_given_up_whole_and_may_come_again() -> None:
    together = assembler()
    one, two, three = cut(CONTENT)
    feed(together, [one, two])
    assert refused(together, three.model_copy(update={"data": b"??"})) == "wrong digest"
    assert together.pending == ()
    assert feed(together, [one, two, three]) == [CONTENT]


def test_a_late_duplicate_of_a_finished_content_starts_nothing() -> None:
    together = assembler()
    feed(together, cut(CONTENT))
    assert feed(together, cut(CONTENT)) == []
    assert together.pending == ()


def test_a_forgotten_content_is_taken_again() -> None:
    together = assembler()
    feed(together, cut(CONTENT))
    together.forget("a", digest(CONTENT))
    assert feed(together, cut(CONTENT)) == [CONTENT]


def test_forgetting_gives_up_what_lies_here_in_parts() -> None:
    together = assembler()
    feed(together, cut(CONTENT)[:1])
    together.forget("a", digest(CONTENT))
    together.forget("nobody", digest(CONTENT))
    assert together.pending == ()


def test_the_memory_of_finished_contents_is_bounded_and_keeps_the_newest() -> None:
    together = assembler()
    contents = [bytes([0, number]) for number in range(MAX_FINISHED + 1)]
    for content in contents:
        assert feed(together, cut(content)) == [content]
    assert feed(together, cut(contents[-1])) == []
    assert feed(together, cut(contents[0])) == [contents[0]]


def test_a_finished_content_that_keeps_coming_stays_in_memory() -> None:
    together = assembler()
    for number in range(MAX_FINISHED + 1):
        assert feed(together, cut(bytes([0, number]))) == [bytes([0, number])]
        assert feed(together, cut(bytes([0, 0]))) == []


def test_a_content_may_be_as_large_as_the_bound() -> None:
    assert feed(assembler(largest=len(CONTENT)), cut(CONTENT)) == [CONTENT]
    assert refused(assembler(largest=len(CONTENT) - 1), cut(CONTENT)[0]) == "too large"


def test_the_least_recently_touched_content_of_the_same_sender_makes_room() -> None:
    together = assembler(per_sender=2)
    old, kept, new = (bytes([number] * 10) for number in range(3))
    feed(together, cut(old)[:1], now=0)
    feed(together, cut(kept)[:1], now=1)
    feed(together, cut(old)[1:2], now=2)  # touched again: now `kept` is the oldest
    feed(together, cut(new)[:1], now=3)
    assert [item.digest for item in together.pending] == [digest(old), digest(new)]


def test_bytes_make_room_among_the_same_senders_contents_alone() -> None:
    cost = 10 + 3 + OVERHEAD_BYTES
    together = assembler(per_sender=9, total=3 * cost)
    first, second, third = (bytes([number] * 10) for number in range(3))
    feed(together, cut(first)[:1], "mine")
    feed(together, cut(second)[:1], "greedy")
    feed(together, cut(third)[:1], "greedy")
    feed(together, cut(CONTENT)[:1], "greedy")
    assert [(item.sender, item.digest) for item in together.pending] == [
        ("greedy", digest(third)),
        ("greedy", digest(CONTENT)),
        ("mine", digest(first)),
    ]


def test_a_sender_without_room_is_refused_and_loses_nothing() -> None:
    cost = 10 + 3 + OVERHEAD_BYTES
    together = assembler(total=cost)
    feed(together, cut(CONTENT)[:1], "mine")
    assert refused(together, cut(CONTENT)[0], "greedy") == "no room"
    assert feed(together, cut(CONTENT)[1:], "mine") == [CONTENT]
    assert feed(together, cut(CONTENT), "greedy") == [CONTENT]


def test_a_content_without_a_new_part_for_long_expires() -> None:
    together = assembler(max_age_s=60)
    one, two, _ = cut(CONTENT)
    feed(together, [one], now=0)
    feed(together, [two], now=30)
    feed(together, [two], now=80)  # a duplicate is no progress
    assert together.expire(89.9) == []
    assert [(item.sender, item.received) for item in together.expire(90)] == [("a", 2)]
    assert together.pending == ()


def test_a_dropped_sender_leaves_nothing_behind() -> None:
    together = assembler()
    feed(together, cut(CONTENT))
    feed(together, cut(b"other")[:1])
    assert [item.size for item in together.drop("a")] == [5]
    assert together.drop("a") == []
    assert feed(together, cut(CONTENT)) == [CONTENT]  # the memory of finished ones went too


def test_a_file_takes_parts_in_any_order_and_knows_its_digest(tmp_path: Path) -> None:
    together = Assembler(
        lambda sender, part: FileSink(tmp_path / sender, part.size),
        largest_bytes=100,
        per_sender=1,
        total_bytes=10_000,
        max_age_s=1,
    )
    sinks = [together.feed("a", part, 0.0) for part in reversed(cut(CONTENT))]
    assert isinstance(sinks[-1], FileSink)
    assert sinks[-1].path.read_bytes() == CONTENT


@given(order=st.permutations(range(5)))
def test_a_file_is_hashed_once_in_whatever_order_it_is_written(order: list[int]) -> None:
    content = bytes(range(50))
    hashes = Hashes()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        hashes.watch(patch)
        sink = FileSink(Path(folder) / "content", len(content))
        for index in order:
            start = 10 * index
            sink.write(start, content[start : start + 10])
        found = sink.digest()
    assert found == digest(content)
    assert hashes.bytes == len(content)


def test_a_content_that_is_given_up_leaves_no_file(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "content", 10)
    assert sink.path.stat().st_size == 10
    sink.discard()
    sink.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_could_not_be_written_may_be_fed_again() -> None:
    class Full(MemorySink):
        full = True

        def write(self, offset: int, data: bytes) -> None:
            if self.full:
                raise OSError(28, "No space left on device")
            super().write(offset, data)

    together = Assembler(
        lambda sender, part: Full(part.size),
        largest_bytes=100,
        per_sender=1,
        total_bytes=9999,
        max_age_s=1,
    )
    with pytest.raises(OSError, match="space"):
        together.feed("a", cut(CONTENT)[0], 0.0)
    Full.full = False
    assert feed(together, cut(CONTENT)) == [CONTENT]


class AnyFeeding(RuleBasedStateMachine):
    """Whatever is fed, right or wrong: the bounds hold, and what comes out is what went in."""

    contents = tuple(bytes([number]) * (7 * number + 1) for number in range(6))
    parts = tuple(part for content in contents for part in cut(content, 5))
    senders = st.sampled_from(["a", "b", "c"])
    total = 3 * OVERHEAD_BYTES

    def __init__(self) -> None:
        super().__init__()
        self.together = assembler(largest=30, per_sender=2, total=self.total, max_age_s=5)
        self.now = 0.0

    @rule(
        sender=senders,
        part=st.sampled_from(parts),
        damage=st.sampled_from([{}, {"data": b"xxxxx"}, {"index": 1}, {"count": 2}]),
    )
    def feed(self, sender: str, part: Part, damage: dict[str, object]) -> None:
        before = {item for item in self.together.pending if item.sender != sender}
        try:
            sink = self.together.feed(sender, part.model_copy(update=damage), self.now)
        except DecodeError:
            sink = None
        assert sink is None or (isinstance(sink, MemorySink) and sink.content() in self.contents)
        assert before == {item for item in self.together.pending if item.sender != sender}

    @rule(seconds=st.floats(0, 4))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.together.expire(self.now)
        assert all(self.now - item.touched < 5 for item in self.together.pending)

    @rule(sender=senders, content=st.sampled_from(contents))
    def forget(self, sender: str, content: bytes) -> None:
        self.together.forget(sender, digest(content))

    @rule(sender=senders)
    def drop(self, sender: str) -> None:
        self.together.drop(sender)

    @invariant()
    def within_bounds(self) -> None:
        pending = self.together.pending
        assert (
            sum(item.size + item.count + OVERHEAD_BYTES for item in pending)
            == self.together._bytes
            <= self.total
        )
        for sender in "abc":
            assert sum(item.sender == sender for item in pending) <= 2
        assert all(
            len(self.together.missing(item.sender, item.digest)) == item.count - item.received
            for item in pending
        )


TestAnyFeeding = AnyFeeding.TestCase
TestAnyFeeding.settings = settings(max_examples=examples(20), stateful_step_count=30, deadline=None)
