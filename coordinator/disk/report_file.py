"""The accepted reports of one step in one file: record after record, readable again after a kill at any instant.

A record has these fields, integers little endian:

    mark       8 bytes, "covey-r1"
    u32        bytes of the text
    u64        bytes of the vectors
    u32        CRC-32 of the text
    u32        CRC-32 of the vectors
    u32        CRC-32 of the five fields above
    text       JSON: {"client": ..., "vectors": [[name, values], ...], "facts": {...}}, or {"removed": client}
    zeros      up to a multiple of ALIGNMENT bytes
    vectors    float32, little endian, one after another

The next record begins at a multiple of ALIGNMENT bytes. A record replaces earlier ones of its client. One file with one
wait for the disk takes many reports, where a file for each would take as many waits and twice as many names.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covey.shared.numerics.vectors import Vector, release
from covey.shared.storage import json_text
from covey.shared.storage.files import naming, write_at
from covey.shared.strategies.base import ClientId

MARK = b"covey-r1"
ALIGNMENT = 64
_FIELDS = struct.Struct("<8sIQII")  # mark, bytes of text and vectors, their checksums
_CHECKSUM = struct.Struct("<I")
HEAD_BYTES = _FIELDS.size + _CHECKSUM.size
FLOAT32 = np.dtype("<f4")
_JSON = json.JSONEncoder(allow_nan=False, separators=(",", ":"))

Facts = dict[str, Any]  # what JSON can say
Vectors = dict[str, Vector]


@dataclass(frozen=True)
class ReportPlace:
    """The place of a report's vectors, and what else is known of it."""

    client: ClientId
    layout: tuple[
        tuple[str, int], ...
    ]  # names and lengths of the vectors, in their order in the file
    text: (
        str | bytes
    )  # of the record; parsed when it is needed, since thousands of these lie in memory
    start: int  # of the vectors in the file, in bytes
    checksum: int  # of the vectors

    @property
    def size(self) -> int:
        """The number of values of all vectors."""
        return sum(length for _, length in self.layout)

    def facts(self) -> Facts:
        """What was kept in addition to the vectors."""
        facts: Facts = json_text.loads(self.text)["facts"]
        return facts


@dataclass(frozen=True)
class _Head:
    """The beginning of a record."""

    text_bytes: int
    vector_bytes: int
    text_checksum: int
    vector_checksum: int

    def to_bytes(self) -> bytes:
        fields = _FIELDS.pack(
            MARK, self.text_bytes, self.vector_bytes, self.text_checksum, self.vector_checksum
        )
        return fields + _CHECKSUM.pack(zlib.crc32(fields))

    @classmethod
    def read(cls, content: mmap.mmap, start: int) -> _Head:
        """The head that begins at `start`. Raises ValueError where none does."""
        head = content[start : (start + HEAD_BYTES)]
        if len(head) < HEAD_BYTES:
            raise ValueError("the head is cut short")
        fields = head[: _FIELDS.size]
        (checksum,) = _CHECKSUM.unpack(head[_FIELDS.size :])
        if zlib.crc32(fields) != checksum:
            raise ValueError("the head is damaged")
        mark, *numbers = _FIELDS.unpack(fields)
        if mark != MARK:
            raise ValueError("there is no head")
        return cls(*numbers)


class ReportFile:
    """The reports of one step. Appended reports survive a kill; who needs more calls `sync_files`.

    Args:
        path: of the file, which need not exist. Its records are read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: list[str] = []  # what was unreadable, for a person
        self._entries: dict[ClientId, ReportPlace] = {}
        self._compared: set[ClientId] = set()  # whose vectors are what was written
        self._end = 0  # of the last record, where the next one may begin
        self._is_tidy = False  # is nothing behind the last record?
        self._read()

    def __repr__(self) -> str:
        return f"<ReportFile {self.path}: {len(self._entries)} reports>"

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been written yet."""
        return self._end == 0

    @property
    def clients(self) -> Iterable[ClientId]:
        """Whose reports are here."""
        return self._entries.keys()

    def entry(self, client: ClientId) -> ReportPlace:
        """The report of a client. Raises FileNotFoundError if there is none."""
        found = self._entries.get(client)
        if found is None:
            raise FileNotFoundError(f"{self.path} has no report of {client}")
        return found

    # -- writing -----------------------------------------------------------------------------------

    def append(self, client: ClientId, vectors: Mapping[str, Vector], facts: Facts) -> None:
        """Write a report, in place of an earlier one of this client.

        Args:
            client: who sent it.
            vectors: (d,) each, by name; written as float32. Integers of 32 bits are written as they are: who reads
                them back views the values as integers.
            facts: what else must be known of it, as JSON can say it.

        Raises:
            OSError: the report is not in the file, and the others are as they were.
        """
        contents: list[memoryview] = []
        layout: list[tuple[str, int]] = []
        checksum = 0
        for name, vector in vectors.items():
            is_words = vector.dtype == np.uint32  # of secure sums: their bits, which are read back
            values = np.ascontiguousarray(vector.view(FLOAT32) if is_words else vector, FLOAT32)
            content = values.view(np.uint8).data
            checksum = zlib.crc32(content, checksum)
            layout.append((name, values.size))
            contents.append(content)
        text = _JSON.encode({"client": client, "vectors": layout, "facts": facts})
        start = self._write(text, contents, checksum)
        self._entries[client] = ReportPlace(client, tuple(layout), text, start, checksum)
        self._compared.discard(client)

    def remove(self, client: ClientId) -> None:
        """Forget a report, also after a kill. Its vectors stay readable where they are mapped. Raises OSError."""
        if client not in self._entries:
            return
        text = _JSON.encode({"removed": client})
        with suppress(FileNotFoundError):  # then nothing is left that a restart could find
            self._write(text, [], 0)
        del self._entries[client]
        self._compared.discard(client)

    def _write(self, text: str, contents: list[memoryview], checksum: int) -> int:
        """Write a record behind the last one. Returns where its vectors begin."""
        encoded = text.encode()
        vector_bytes = sum(content.nbytes for content in contents)
        head = _Head(len(encoded), vector_bytes, zlib.crc32(encoded), checksum)
        record_start = _aligned(self._end)
        start = _aligned(record_start + HEAD_BYTES + len(encoded))
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            with naming(self.path):
                if not self._is_tidy:
                    # half of a record that a full disk or a kill has interrupted
                    os.ftruncate(descriptor, self._end)
                self._is_tidy = False
                write_at(descriptor, record_start, head.to_bytes() + encoded)
                end = start
                for content in contents:
                    write_at(descriptor, end, content)
                    end += content.nbytes
                if not contents:
                    os.ftruncate(descriptor, end)  # as far as vectors would begin
        finally:
            os.close(descriptor)
        self._is_tidy = True
        self._end = end
        return start

    # -- reading -----------------------------------------------------------------------------------

    def vectors(self, client: ClientId) -> Vectors:
        """The vectors of a report by name, (d,) float32 each, mapped into memory and read-only.

        The first call reads all of them and compares their checksum.

        Raises:
            FileNotFoundError: there is no report of this client, or no file any more.
            ValueError: the file is cut short, or does not hold what was written.
        """
        entry = self.entry(client)
        values = self._mapped(entry)
        if client not in self._compared:
            self._compare(values, entry)
            self._compared.add(client)
        vectors: Vectors = {}
        begin = 0
        for name, length in entry.layout:
            end = begin + length
            vectors[name] = values[begin:end]
            begin = end
        return vectors

    def _compare(self, values: Vector, entry: ReportPlace) -> None:
        checksum = zlib.crc32(values.view(np.uint8).data)
        release(values)
        if checksum != entry.checksum:
            raise ValueError(f"{self.path}: the report of {entry.client} is damaged")

    def _mapped(self, entry: ReportPlace) -> Vector:
        if entry.size == 0:
            return np.empty(0, np.float32)
        needed = entry.start + entry.size * FLOAT32.itemsize
        if self.path.stat().st_size < needed:
            raise ValueError(f"{self.path} is cut short in the report of {entry.client}")
        return np.memmap(self.path, FLOAT32, mode="r", offset=entry.start, shape=(entry.size,))

    def _read(self) -> None:
        """Find the records of a file that an earlier process has written. Their vectors are not read."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            if os.fstat(file.fileno()).st_size == 0:
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                self._find_records(content)

    def _find_records(self, content: mmap.mmap) -> None:
        start = 0
        while start < len(content):
            try:
                end = self._take_record(content, start)
            except ValueError as error:
                end = content.find(MARK, start + 1)
                if end < 0:
                    end = len(content)
                self.damage.append(f"{self.path}: bytes {start} to {end} are damaged ({error})")
            if end > len(content):
                return  # a kill came before the end of this record, so nothing relies on it
            self._end = end
            start = _aligned(end)

    def _take_record(self, content: mmap.mmap, start: int) -> int:
        """Take note of the record that begins at `start`. Returns its end. Raises ValueError for one that is damaged."""
        head = _Head.read(content, start)
        text_start = start + HEAD_BYTES
        text_end = text_start + head.text_bytes
        vectors_start = _aligned(text_end)
        end = vectors_start + head.vector_bytes
        if end > len(content):
            return end
        text = content[text_start:text_end]
        if zlib.crc32(text) != head.text_checksum:
            raise ValueError("its text is damaged")
        try:
            self._take_text(text, vectors_start, head)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"its text is damaged: {error!r}") from None
        return end

    def _take_text(self, text: bytes, vectors_start: int, head: _Head) -> None:
        content = json_text.loads(text)
        removed = content.get("removed")
        if removed is not None:
            self._entries.pop(removed, None)
            return
        client = content["client"]
        named_lengths = tuple((name, length) for name, length in content["vectors"])
        entry = ReportPlace(client, named_lengths, text, vectors_start, head.vector_checksum)
        if entry.size * FLOAT32.itemsize != head.vector_bytes:
            raise ValueError("its text is of other vectors")
        if not isinstance(content["facts"], dict):
            raise TypeError("facts have names")
        self._entries[client] = entry


def _aligned(offset: int) -> int:
    """The next multiple of ALIGNMENT."""
    return offset + (-offset % ALIGNMENT)
