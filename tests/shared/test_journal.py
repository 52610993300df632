"""A journal has whole lines alone: after a full disk, a power cut, a damage and a resume."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from covey.shared.storage.journal import Journal


def opened(
    path: Path,
    keep: int | None = 0,
    *,
    durable: bool = True,
    write: Callable[[Callable[[], None]], None] = lambda action: action(),
    is_sound: Callable[[bytes], bool] = lambda line: b"\0" not in line,
) -> Journal[str]:
    return Journal(path, str.encode, keep=keep, is_sound=is_sound, durable=durable, write=write)


def test_lines_wait_until_they_are_flushed_together(tmp_path: Path) -> None:
    writes: list[Callable[[], None]] = []

    def write(action: Callable[[], None]) -> None:
        writes.append(action)
        action()

    journal = opened(tmp_path / "log", write=write)
    journal.add("one")
    journal.add("two")
    assert (tmp_path / "log").read_bytes() == b""
    journal.flush()
    journal.flush()
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"
    assert journal.count == 2
    assert len(writes) == 2  # the opening, and one for both lines


def test_a_line_that_did_not_fit_leaves_no_half_of_it_and_comes_with_the_next_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    journal = opened(path)
    journal.add("one")
    journal.flush()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        journal.add("two")
        with pytest.raises(OSError, match="No space"):
            journal.flush()
        assert path.read_bytes() == b"one\n"
    journal.flush()
    assert path.read_bytes() == b"one\ntwo\n"


@pytest.mark.parametrize(("durable", "synced"), [(True, 2), (False, 0)])
def test_a_durable_journal_syncs_with_every_flush_another_one_when_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool, synced: int
) -> None:
    journal = opened(tmp_path / "log", durable=durable)
    calls: list[int] = []
    monkeypatch.setattr(os, "fsync", calls.append)
    for text in ("one", "two"):
        journal.add(text)
        journal.flush()
    assert len(calls) == synced
    journal.sync()
    assert len(calls) == synced + 1


@pytest.mark.parametrize(
    ("content", "keep", "left", "count", "lost", "torn"),
    [
        (b"one\ntwo\nthree\n", 2, b"one\ntwo\n", 2, 0, 0),
        (b"one\ntw", 3, b"one\n", 1, 2, 0),
        (b"one\nt\0o\nthree\n", 3, b"one\nthree\n", 2, 1, 0),
        (b"", 0, b"", 0, 0, 0),
        (b"one\ntwo\nthree\n", None, b"one\ntwo\nthree\n", 0, 0, 0),
        (b"one\ntwo\nth", None, b"one\ntwo\n", 0, 0, 2),
        (b"on", None, b"", 0, 0, 2),
        (b"x" * 100_000 + b"\nth", None, b"x" * 100_000 + b"\n", 0, 0, 2),
    ],
    ids=[
        "newer lines",
        "a power cut",
        "a damage",
        "nothing",
        "uncut",
        "torn",
        "torn first",
        "long",
    ],
)
def test_the_lines_that_are_left_when_a_journal_is_opened_again(
    tmp_path: Path, content: bytes, keep: int | None, left: bytes, count: int, lost: int, torn: int
) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    journal = opened(path, keep)
    assert path.read_bytes() == left
    assert (journal.count, journal.lost, journal.torn_bytes) == (count, lost, torn)
    if keep is None:
        assert journal.newest == b"".join(left.splitlines(keepends=True)[-1:])
    journal.add("next")
    journal.flush()
    assert path.read_bytes() == left + b"next\n"


def test_a_file_with_a_damaged_line_is_kept_for_a_person(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\nt\0o\n")
    opened(path, 2)
    assert (tmp_path / "log.damaged").read_bytes() == b"one\nt\0o\n"
