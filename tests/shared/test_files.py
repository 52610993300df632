"""A replaced file is the old one or the new one, and no temporary file is left."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from covey.shared.storage import files
from covey.shared.storage.files import atomic_replace, write_atomically


@pytest.mark.parametrize("durable", [True, False])
def test_an_atomic_write_leaves_only_the_file(tmp_path: Path, durable: bool) -> None:
    write_atomically(tmp_path / "x", b"old", durable=durable)
    write_atomically(tmp_path / "x", b"new", durable=durable)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_bytes() == b"new"


def test_the_old_content_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    write_atomically(path := tmp_path / "x", b"old")
    with atomic_replace(path) as beside:
        beside.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


def test_a_write_that_fails_leaves_the_old_content_alone(tmp_path: Path) -> None:
    write_atomically(path := tmp_path / "x", b"old")

    def half() -> None:
        with atomic_replace(path) as beside:
            beside.write_bytes(b"ne")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"old"]


def test_an_error_names_the_file_that_was_to_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write_atomically(tmp_path / "nowhere" / "x", b"new")
    assert caught.value.filename == str(tmp_path / "nowhere" / "x")


def test_two_with_marks_of_their_own_write_the_same_file_at_once(tmp_path: Path) -> None:
    with (
        atomic_replace(tmp_path / "x", mark="1") as one,
        atomic_replace(tmp_path / "x", mark="2") as two,
    ):
        one.write_bytes(b"one")
        two.write_bytes(b"two")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"one"]


def test_only_a_durable_write_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    write_atomically(tmp_path / "x", b"1", durable=False)
    assert not synced
    write_atomically(tmp_path / "x", b"2")
    assert len(synced) == 2  # the file, and the folder that names it


def test_a_durable_folder_is_named_on_the_disk_by_each_folder_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync", synced.append)
    files.make_folder(tmp_path / "a" / "b")
    assert sorted(synced) == [tmp_path, tmp_path / "a"]
    files.make_folder(tmp_path / "a" / "c", durable=False)
    files.make_folder(tmp_path / "a" / "b")
    assert len(synced) == 2


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (errno.ENOSPC, "no room is left"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read-only"),
        (errno.EMFILE, "this process has no descriptor left"),
        (errno.ENFILE, "this machine has no descriptor left"),
        (errno.EACCES, ""),
        (errno.EIO, ""),
        (errno.ENOENT, ""),
    ],
)
def test_a_program_waits_for_what_a_person_can_put_right(
    tmp_path: Path, number: int, why: str
) -> None:
    found = files.obstacle(OSError(number, "why"), tmp_path)
    assert why in found
    assert bool(found) == bool(why)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_a_program_waits_for_a_folder_that_was_closed_and_for_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """An own training that may not read a file of its own has failed."""
    assert not files.obstacle(OSError(number, "why"), tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    assert "may not write" in files.obstacle(OSError(number, "why"), tmp_path)


def test_a_program_waits_for_a_folder_that_was_moved_away(tmp_path: Path) -> None:
    gone = tmp_path / "run"
    assert "put it back" in files.obstacle(FileNotFoundError(errno.ENOENT, "why"), gone)


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(OSError, match=os.strerror(errno.ENODEV)):
        write_atomically(pipe, b"new")
    assert pipe.is_fifo()
