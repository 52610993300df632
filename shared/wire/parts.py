"""Contents cut into parts, and put together again: sans-io, bounded, in any order.

The rule of the cut: a content of `size` bytes in `count` parts has parts of ceil(size / count) bytes, only the
last may be shorter, and none is empty. So every single part says whether it can be right, and a sender
chooses nothing but the number of parts.
This module needs neither numpy nor torch: an idle agent imports it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from covey.shared.errors import DecodeError
from covey.shared.wire.messages import DIGEST_BYTES, Part

REMEMBERED = 64  # finished contents per sender that are known again when a part of them comes late
BOOKKEEPING = (
    1024  # bytes charged for a pending content besides its size: tiny contents are not free
)


def part_count(size: int, part_bytes: int) -> int:
    """How many parts of at most `part_bytes` make a content of `size` >= 1 bytes. Else ValueError."""
    if size < 1 or part_bytes < 1:
        raise ValueError(
            f"a content of {size} bytes cannot be cut into parts of {part_bytes} bytes"
        )
    return -(-size // part_bytes)


def part_length(size: int, count: int) -> int:
    """Bytes of every part but the last."""
    return -(-size // count)


def part_at(
    source: BinaryIO, index: int, *, digest: bytes, size: int, part_bytes: int, about: int
) -> Part:
    """One part of a seekable content, to send a missing one again.

    Raises IndexError for an index that the content does not have, ValueError for a source shorter than `size`.
    """
    count = part_count(size, part_bytes)
    if not 0 <= index < count:
        raise IndexError(f"part {index} of a content with {count} parts")
    start = index * part_length(size, count)
    wanted = min(part_length(size, count), size - start)
    source.seek(start)
    data = source.read(wanted)
    if len(data) != wanted:
        raise ValueError(f"the content ends after {start + len(data)} bytes, {size} were announced")
    return Part(digest=digest, index=index, count=count, size=size, about=about, data=data)


def split(
    source: BinaryIO, *, digest: bytes, size: int, part_bytes: int, about: int
) -> Iterator[Part]:
    """All parts of a seekable content in order, one in memory at a time. Raises as `part_at`."""
    for index in range(part_count(size, part_bytes)):
        yield part_at(source, index, digest=digest, size=size, part_bytes=part_bytes, about=about)


def check(part: Part) -> None:
    """Does the part obey the rule of the cut? DecodeError "bad count", "bad index" or "wrong length"."""
    length = part_length(part.size, part.count)
    if part_count(part.size, length) != part.count:
        raise DecodeError(
            "bad count", f"{part.size} bytes cannot be cut into {part.count} equal parts"
        )
    if part.index >= part.count:
        raise DecodeError("bad index", f"part {part.index} of {part.count}")
    wanted = min(length, part.size - part.index * length)
    if len(part.data) != wanted:
        raise DecodeError(
            "wrong length", f"part {part.index} has {len(part.data)} bytes, want {wanted}"
        )


class Sink(Protocol):
    """Where the parts of one content go."""

    def write(self, offset: int, data: bytes) -> None:
        """Keep `data` at `offset`; never called beyond the content's size."""

    def digest(self) -> bytes:
        """The digest (`shared.messages.digest`) of all that was written."""

    def discard(self) -> None:
        """Forget the content; no other call follows."""


class FileSink:
    """A content in a file, sparse until written. Holds no descriptor between parts: many agents send at once."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        with path.open("wb") as file:
            file.truncate(size)

    def write(self, offset: int, data: bytes) -> None:
        with self.path.open("r+b", buffering=0) as file:
            view = memoryview(data)
            while view:  # a write may stop short, at 2 GiB or on a signal
                done = os.pwrite(file.fileno(), view, offset)
                view, offset = view[done:], offset + done

    def digest(self) -> bytes:
        with self.path.open("rb") as file:
            return hashlib.file_digest(
                file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)
            ).digest()

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Pending:
    """A content that is not complete: for logs and status."""

    sender: str
    digest: bytes
    about: int
    size: int
    count: int
    received: int
    touched: float  # when its last new part came


@dataclass
class _Partial:
    size: int
    count: int
    about: int
    sink: Sink
    touched: float
    have: bytearray  # one byte per part
    received: int = 0

    @property
    def cost(self) -> int:
        return self.size + self.count + BOOKKEEPING


@dataclass
class _Sender:
    partials: OrderedDict[bytes, _Partial] = field(
        default_factory=OrderedDict
    )  # least recently touched first
    finished: OrderedDict[bytes, None] = field(default_factory=OrderedDict)


class Assembler:
    """Feed it parts; it returns a content's sink once, when the content is whole and its digest is right.

    At most `per_sender` contents of one sender are pending, each of at most `largest_bytes`, and all senders'
    together at most `total_bytes` (each is charged its size and a little for bookkeeping). To make room only the
    same sender's least recently touched contents are given up. Senders are names that the caller has vetted.
    """

    def __init__(
        self,
        new_sink: Callable[[str, Part], Sink],
        *,
        largest_bytes: int,
        per_sender: int,
        total_bytes: int,
        max_age_s: float,
    ) -> None:
        self._new_sink = new_sink
        self.largest_bytes = largest_bytes
        self._per_sender = per_sender
        self._total_bytes = total_bytes
        self._max_age_s = max_age_s
        self._senders: dict[str, _Sender] = {}
        self._bytes = 0  # the sum of the costs of all partials

    @property
    def pending(self) -> tuple[Pending, ...]:
        """Every incomplete content, by sender and then least recently touched first."""
        return tuple(
            _describe(name, key, partial)
            for name, sender in sorted(self._senders.items())
            for key, partial in sender.partials.items()
        )

    def feed(self, sender: str, part: Part, now: float) -> Sink | None:
        """Take one part; the sink where it completed its content.

        A part that is there already, or whose content was finished lately, is None and changes nothing.
        Raises DecodeError: "too large", "bad count", "bad index", "wrong length", "contradicts" (count or size
        differ from the content's first part), "no room", "wrong digest" (the content is given up whole).
        What a sink raises (OSError) goes through, and the part may be fed again.
        """
        if part.size > self.largest_bytes:
            raise DecodeError("too large", f"{part.size} bytes, at most {self.largest_bytes}")
        check(part)
        own = self._senders.setdefault(sender, _Sender())
        if part.digest in own.finished:
            own.finished.move_to_end(part.digest)
            return None
        partial = own.partials.get(part.digest) or self._begin(sender, part, now)
        if (partial.size, partial.count) != (part.size, part.count):
            seen = f"{part.size} bytes in {part.count} parts"
            raise DecodeError(
                "contradicts", f"{seen}, the first part said {partial.size} in {partial.count}"
            )
        if partial.have[part.index]:
            return None
        partial.sink.write(part.index * part_length(part.size, part.count), part.data)
        partial.have[part.index] = 1
        partial.received += 1
        partial.touched = now
        own.partials.move_to_end(part.digest)
        return self._finish(sender, part.digest) if partial.received == partial.count else None

    def missing(self, sender: str, digest: bytes) -> list[int]:
        """Indices of the parts that a pending content lacks; empty where nothing of it is pending."""
        partial = self._senders.get(sender, _Sender()).partials.get(digest)
        return (
            []
            if partial is None
            else [index for index, there in enumerate(partial.have) if not there]
        )

    def expire(self, now: float) -> list[Pending]:
        """Give up every content without a new part for `max_age_s`; returns what was given up."""
        late = [item for item in self.pending if now - item.touched >= self._max_age_s]
        for item in late:
            self._give_up(item.sender, item.digest)
        return late

    def drop(self, sender: str) -> list[Pending]:
        """Forget a sender, its pending and its finished contents; returns what was pending."""
        lost = [item for item in self.pending if item.sender == sender]
        for item in lost:
            self._give_up(sender, item.digest)
        self._senders.pop(sender, None)
        return lost

    def forget(self, sender: str, digest: bytes) -> None:
        """Accept this content from the beginning, though it was finished before or lies here in parts."""
        own = self._senders.get(sender)
        if own is None:
            return
        own.finished.pop(digest, None)
        if digest in own.partials:
            self._give_up(sender, digest)

    def _begin(self, sender: str, part: Part, now: float) -> _Partial:
        partials = self._senders[sender].partials
        cost = part.size + part.count + BOOKKEEPING
        own_bytes = sum(partial.cost for partial in partials.values())
        if (
            self._bytes - own_bytes + cost > self._total_bytes
        ):  # even without all of this sender's others
            raise DecodeError(
                "no room", f"for {part.size} bytes, {self._bytes - own_bytes} are others'"
            )
        while partials and (
            len(partials) >= self._per_sender or self._bytes + cost > self._total_bytes
        ):
            self._give_up(sender, next(iter(partials)))
        sink = self._new_sink(sender, part)
        partial = _Partial(part.size, part.count, part.about, sink, now, bytearray(part.count))
        partials[part.digest] = partial
        self._bytes += partial.cost
        return partial

    def _finish(self, sender: str, digest: bytes) -> Sink:
        own = self._senders[sender]
        partial = own.partials.pop(digest)
        self._bytes -= partial.cost
        if partial.sink.digest() != digest:
            partial.sink.discard()
            raise DecodeError("wrong digest", f"{partial.size} bytes about {partial.about}")
        own.finished[digest] = None
        if len(own.finished) > REMEMBERED:
            own.finished.popitem(last=False)
        return partial.sink

    def _give_up(self, sender: str, digest: bytes) -> None:
        partial = self._senders[sender].partials.pop(digest)
        self._bytes -= partial.cost
        with contextlib.suppress(OSError):  # what cannot be removed now is swept with the spool
            partial.sink.discard()


def _describe(sender: str, digest: bytes, partial: _Partial) -> Pending:
    return Pending(
        sender,
        digest,
        partial.about,
        partial.size,
        partial.count,
        partial.received,
        partial.touched,
    )
