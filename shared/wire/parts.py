"""Contents cut into parts and put together again: sans-io, bounded, in any order.

The rule: a content of `size` bytes in `count` parts has parts of ceil(size / count) bytes. Only the last part may be
shorter, and none is empty. Every single part therefore shows whether it can be right, and a sender chooses nothing but
the number of parts.
An idle agent imports this module, so it needs neither numpy nor torch.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from covey.shared.errors import DecodeError
from covey.shared.storage.files import discard, naming, write_at
from covey.shared.wire.messages import DIGEST_BYTES, Part

# finished contents that are remembered per sender, in case one of their parts comes late
MAX_FINISHED = 64
# charged for a pending content in addition to its size: tiny contents take memory too
OVERHEAD_BYTES = 1024
BLOCK_BYTES = 1 << 18  # of a file that is hashed


def part_count(size: int, part_bytes: int) -> int:
    """The number of parts of at most `part_bytes` for a content of `size` bytes. Raises ValueError if either is below 1."""
    if size < 1 or part_bytes < 1:
        content = f"a content of {size} bytes"
        raise ValueError(f"{content} cannot be cut into parts of {part_bytes} bytes")
    return -(-size // part_bytes)


def part_length(size: int, count: int) -> int:
    """The length in bytes of every part except the last."""
    return -(-size // count)


def part_at(
    source: BinaryIO, index: int, *, digest: bytes, size: int, part_bytes: int, about: int
) -> Part:
    """One part of a content, for example to send a missing one again.

    Args:
        source: the content, seekable.
        index: of the part, from 0.
        digest: of the whole content.
        size: of the whole content in bytes.
        part_bytes: limit of a part.
        about: the step of a report, or the version of a model.

    Raises:
        IndexError: the content has no such part.
        ValueError: `source` is shorter than `size`.
    """
    count = part_count(size, part_bytes)
    if not 0 <= index < count:
        raise IndexError(f"part {index} of a content with {count} parts")
    full_length = part_length(size, count)
    start = index * full_length
    length = min(full_length, size - start)
    source.seek(start)
    data = source.read(length)
    if len(data) != length:
        end = start + len(data)
        raise ValueError(f"the content ends after {end} bytes, expected {size}")
    return Part(digest=digest, index=index, count=count, size=size, about=about, data=data)


def split(
    source: BinaryIO, *, digest: bytes, size: int, part_bytes: int, about: int
) -> Iterator[Part]:
    """All parts of a content in order, with one in memory at a time. Arguments and errors are those of `part_at`."""
    for index in range(part_count(size, part_bytes)):
        yield part_at(source, index, digest=digest, size=size, part_bytes=part_bytes, about=about)


def check(part: Part) -> None:
    """Raises DecodeError "bad count", "bad index" or "wrong length" unless a part obeys the rule above."""
    size = part.size
    count = part.count
    index = part.index
    length = part_length(size, count)
    if part_count(size, length) != count:
        raise DecodeError("bad count", f"{size} bytes cannot be cut into {count} equal parts")
    if index >= count:
        raise DecodeError("bad index", f"part {index} of {count}")
    expected = min(length, size - index * length)
    found = len(part.data)
    if found != expected:
        raise DecodeError("wrong length", f"part {index} has {found} bytes, expected {expected}")


class Sink(Protocol):
    """Receives the parts of one content."""

    def write(self, offset: int, data: bytes) -> None:
        """Store `data` at `offset`. It is never called beyond the content's size."""

    def digest(self) -> bytes:
        """The digest (`messages.digest`) of everything that was written."""

    def discard(self) -> None:
        """Delete the content. No other call follows."""

    def content(self) -> bytes:
        """All of it. Called once it is complete."""


class MemorySink:
    """A content of one part in memory: the part itself, not a copy."""

    def __init__(self) -> None:
        self._data = b""

    def write(self, offset: int, data: bytes) -> None:
        self._data = data

    def digest(self) -> bytes:
        content_hash = _new_hash()
        content_hash.update(self._data)
        return content_hash.digest()

    def discard(self) -> None:
        self._data = b""

    def content(self) -> bytes:
        return self._data


class FileSink:
    """A content in a file, sparse until it is written. No descriptor stays open between parts: many agents send at once.

    Parts mostly arrive in order. Those are hashed on arrival, and the rest once the content is complete.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self._size = size
        self._hash = _new_hash()
        self._hashed = 0  # bytes at the beginning of the content that are in `_hash`
        with naming(path), path.open("wb") as file:
            file.truncate(size)

    def write(self, offset: int, data: bytes) -> None:
        with naming(self.path), self.path.open("r+b", buffering=0) as file:
            write_at(file.fileno(), offset, data)
        if offset == self._hashed:
            self._hash.update(data)
            self._hashed += len(data)

    def digest(self) -> bytes:
        if self._hashed == self._size:
            return self._hash.digest()
        with self.path.open("rb") as file:
            file.seek(self._hashed)
            while block := file.read(BLOCK_BYTES):
                self._hash.update(block)
                self._hashed += len(block)
        return self._hash.digest()

    def discard(self) -> None:
        discard(self.path)  # what cannot be deleted now is deleted with the spool

    def content(self) -> bytes:
        return self.path.read_bytes()


def taken(sink: Sink) -> bytes:
    """The complete content of a sink, which keeps it no longer."""
    content = sink.content()
    sink.discard()
    return content


def _new_hash() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=DIGEST_BYTES)


@dataclass(frozen=True)
class Pending:
    """An incomplete content, for logs and status."""

    sender: str
    digest: bytes
    about: int
    size: int
    count: int
    received: int  # parts
    touched: float  # time of its latest new part, in seconds


@dataclass
class _Partial:
    """An incomplete content."""

    size: int
    count: int
    about: int
    sink: Sink
    touched: float  # time of its latest new part, in seconds
    have: bytearray  # one byte per part: 1 if it was written
    received: int = 0  # the number of ones in `have`

    @property
    def cost(self) -> int:
        """Bytes that are charged for it."""
        return _cost(self.size, self.count)

    @property
    def is_complete(self) -> bool:
        return self.received == self.count


def _cost(size: int, count: int) -> int:
    return size + count + OVERHEAD_BYTES


@dataclass
class _Sender:
    """The contents of one sender, by digest."""

    # least recently touched first
    partials: OrderedDict[bytes, _Partial] = field(default_factory=OrderedDict)
    # the latest MAX_FINISHED, least recently seen first; the values mean nothing
    finished: OrderedDict[bytes, None] = field(default_factory=OrderedDict)


class Assembler:
    """Feed it parts. It returns the sink of a content once, when the content is complete and its digest is right.

    Each content has at most `largest_bytes`, one sender has at most `per_sender` incomplete contents, and those of all
    senders are charged at most `total_bytes`. To make room, only the least recently touched contents of the same sender
    are dropped. Senders are names that the caller has verified. Contents without a new part for `max_age_s` expire.
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
        self._senders: dict[str, _Sender] = {}  # by name; entries stay until `drop`
        self._incomplete: set[str] = set()  # those with partials: few, where many have sent before
        self._bytes = 0  # the sum of the costs of all partials

    def __repr__(self) -> str:
        pending = len(self.pending)
        return f"Assembler({pending} contents pending, {self._bytes} bytes charged)"

    @property
    def pending(self) -> tuple[Pending, ...]:
        """All incomplete contents, sorted by sender; of one sender the least recently touched first."""
        pending: list[Pending] = []
        for name in sorted(self._incomplete):
            for digest, partial in self._senders[name].partials.items():
                pending.append(_describe(name, digest, partial))
        return tuple(pending)

    def feed(self, sender: str, part: Part, now: float) -> Sink | None:
        """Take one part at the time `now`, in seconds.

        Args:
            sender: a name that the caller has verified.
            part: the part.
            now: the time.

        Returns:
            The sink if this part completed its content. None otherwise, also for a part that arrived before, or whose
            content was finished recently.

        Raises:
            DecodeError: "too large", "bad count", "bad index", "wrong length", "contradicts" (count or size differ from
                those of the content's first part), "no room", or "wrong digest" (then the whole content is dropped).
            OSError: from the sink; the part may be fed again.
        """
        if part.size > self.largest_bytes:
            raise DecodeError("too large", f"{part.size} bytes, at most {self.largest_bytes}")
        check(part)
        own = self._senders.setdefault(sender, _Sender())
        if part.digest in own.finished:
            own.finished.move_to_end(part.digest)
            return None
        partial = own.partials.get(part.digest) or self._begin(sender, part, now)
        if partial.size != part.size or partial.count != part.count:
            raise DecodeError(
                "contradicts",
                f"{part.size} bytes in {part.count} parts, the first part had {partial.size} in {partial.count}",
            )
        if partial.have[part.index]:
            return None
        partial.sink.write(part.index * part_length(part.size, part.count), part.data)
        partial.have[part.index] = 1
        partial.received += 1
        partial.touched = now
        own.partials.move_to_end(part.digest)
        if not partial.is_complete:
            return None
        return self._finish(sender, part.digest)

    def missing(self, sender: str, digest: bytes) -> list[int]:
        """Indices of the parts that an incomplete content lacks; empty if none of its parts is here."""
        own = self._senders.get(sender)
        if own is None or digest not in own.partials:
            return []
        return [index for index, written in enumerate(own.partials[digest].have) if not written]

    def expire(self, now: float) -> list[Pending]:
        """Drop every content without a new part for `max_age_s`. Returns what was dropped."""
        expired = []
        for item in self.pending:
            age_s = now - item.touched
            if age_s >= self._max_age_s:
                self._give_up(item.sender, item.digest)
                expired.append(item)
        return expired

    def drop(self, sender: str) -> list[Pending]:
        """Forget a sender with all its contents. Returns its incomplete ones."""
        lost = [item for item in self.pending if item.sender == sender]
        for item in lost:
            self._give_up(sender, item.digest)
        self._senders.pop(sender, None)
        return lost

    def has_finished(self, sender: str, digest: bytes) -> bool:
        """Whether this content was finished recently, so that its parts are dropped."""
        own = self._senders.get(sender)
        return own is not None and digest in own.finished

    def forget(self, sender: str, digest: bytes) -> None:
        """Accept a content from the beginning, although it was finished before or some of its parts are here."""
        own = self._senders.get(sender)
        if own is None:
            return
        own.finished.pop(digest, None)
        if digest in own.partials:
            self._give_up(sender, digest)

    def _begin(self, sender: str, part: Part, now: float) -> _Partial:
        """Make room for a content, and create its sink."""
        partials = self._senders[sender].partials
        cost = _cost(part.size, part.count)
        own_bytes = sum(partial.cost for partial in partials.values())
        others_bytes = self._bytes - own_bytes
        if others_bytes + cost > self._total_bytes:  # dropping all of this sender's would not help
            raise DecodeError("no room", f"for {part.size} bytes, other senders use {others_bytes}")
        while partials and (
            len(partials) >= self._per_sender or self._bytes + cost > self._total_bytes
        ):
            self._give_up(sender, next(iter(partials)))
        sink = self._new_sink(sender, part)
        partial = _Partial(
            part.size, part.count, part.about, sink=sink, touched=now, have=bytearray(part.count)
        )
        partials[part.digest] = partial
        self._incomplete.add(sender)
        self._bytes += partial.cost
        return partial

    def _finish(self, sender: str, digest: bytes) -> Sink:
        own = self._senders[sender]
        partial = self._pop(sender, digest)
        if partial.sink.digest() != digest:
            partial.sink.discard()
            raise DecodeError("wrong digest", f"{partial.size} bytes about {partial.about}")
        own.finished[digest] = None
        if len(own.finished) > MAX_FINISHED:
            own.finished.popitem(last=False)
        return partial.sink

    def _give_up(self, sender: str, digest: bytes) -> None:
        partial = self._pop(sender, digest)
        partial.sink.discard()

    def _pop(self, sender: str, digest: bytes) -> _Partial:
        """A content that is incomplete no longer, and is charged no longer."""
        partials = self._senders[sender].partials
        partial = partials.pop(digest)
        self._bytes -= partial.cost
        if not partials:
            self._incomplete.discard(sender)
        return partial


def _describe(sender: str, digest: bytes, partial: _Partial) -> Pending:
    return Pending(
        sender=sender,
        digest=digest,
        about=partial.about,
        size=partial.size,
        count=partial.count,
        received=partial.received,
        touched=partial.touched,
    )
