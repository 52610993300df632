"""A coordinator whose disk cannot be written to reports this, waits, and continues once it can."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from covey.coordinator.disk import checkpoint
from covey.coordinator.disk import space as rooms
from covey.coordinator.disk.array_files import open_arrays
from covey.coordinator.disk.report_file import ReportFile
from covey.coordinator.disk.space import DiskFullError, Room
from covey.coordinator.disk.spool import Circumstances, Spool
from covey.coordinator.serve.publisher import opened
from covey.shared.errors import UserError
from covey.shared.strategies.client_half import Report
from tests import clock


@dataclass(frozen=True)
class One:
    """A state."""

    array: npt.NDArray[np.float32]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "PAUSE_S", 0.001)


class Disk:
    """Has no room for the first writes."""

    def __init__(self, failures: int, number: int = errno.ENOSPC) -> None:
        self.failures, self.number = failures, number

    def write(self) -> str:
        if self.failures:
            self.failures -= 1
            raise OSError(self.number, os.strerror(self.number), "a file")
        return "written"


def test_a_write_is_tried_again_until_there_is_room_and_both_is_said_once(tmp_path: Path) -> None:
    room, said = Room(tmp_path), list[str]()
    room.notify = said.append
    assert room.write(Disk(5).write) == "written"
    assert len(said) == 2
    assert "no room is left" in said[0]
    assert "can be written to again" in said[1]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EMFILE])
def test_a_run_waits_for_a_read_only_disk_and_for_descriptors(tmp_path: Path, number: int) -> None:
    room, said = Room(tmp_path), list[str]()
    room.notify = said.append
    assert room.write(Disk(5, number).write) == "written"
    assert len(said) == 2


def test_what_a_run_waits_for_is_known_without_a_path_until_it_continues(tmp_path: Path) -> None:
    room, known = Room(tmp_path), list[str]()
    room.notify = lambda why: known.append(room.trouble)
    room.write(Disk(2, errno.EROFS).write)
    assert known == ["the file system of its runs is read-only; mount it for writing", ""]


def test_a_run_whose_folder_was_moved_away_does_not_wait(tmp_path: Path) -> None:
    folder, said = tmp_path / "run", list[str]()
    folder.mkdir()
    room = Room(folder)
    room.notify = said.append
    assert not room.is_gone()
    folder.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        room.write(lambda: (folder / "file").write_text("content"))
    with pytest.raises(UserError, match="put it back, then continue with --resume"):
        room.check()
    folder.mkdir()
    assert room.is_gone(), "another one has its name"
    folder.rmdir()
    (tmp_path / "away").rename(folder)
    room.check()
    assert said == []


def test_a_run_without_a_viewer_does_not_wait(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        Room(tmp_path).write(Disk(1).write)


def test_another_error_is_not_waited_for(tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.notify = print
    with pytest.raises(PermissionError):
        room.write(Disk(1, errno.EACCES).write)


def test_a_waiting_run_that_an_operator_stops_prints_the_resume_command(tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.notify = lambda why: room.close()
    with pytest.raises(DiskFullError, match="--resume"):
        room.write(Disk(1000).write)


def failing(times: int, action: Callable[..., Any]) -> Callable[..., Any]:
    """An action that finds no descriptor a few times."""
    left = [times]

    def act(*arguments: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return action(*arguments)

    return act


def test_a_checkpoint_that_no_descriptor_is_left_for_is_waited_for_and_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: "this array of the checkpoint is missing or damaged. Restore the file from a copy"."""
    monkeypatch.setattr(checkpoint, "open_arrays", failing(2, open_arrays))
    room, said = Room(tmp_path), list[str]()
    room.notify = said.append
    saved = checkpoint.Checkpoint(tmp_path, room).save({}, One(np.ones(3, np.float32)))
    assert saved.array.tolist() == [1, 1, 1]
    assert "descriptor" in said[0]


def test_a_model_is_published_once_a_descriptor_is_there_for_its_file(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"content")
    said: list[str] = []
    room = Room(tmp_path)
    room.notify = said.append
    run: Any = SimpleNamespace(folder=tmp_path, room=room)
    broken: Any = SimpleNamespace(open=failing(2, (tmp_path / "model").open))
    with clock.run(opened(run, broken)) as file:
        assert file.read() == b"content"
    assert "can be written to again" in said[1]


def test_an_accepted_report_that_no_descriptor_is_left_for_is_waited_for_and_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: "the accepted report of step 1 cannot be read (Too many open files)"."""
    room, said = Room(tmp_path), list[str]()
    room.notify = said.append
    spool = Spool(tmp_path, room)
    spool.keep(1, "agent-0", Report({"model": np.ones(3, np.float32)}, 5), Circumstances(1.0))
    monkeypatch.setattr(ReportFile, "vectors", failing(2, ReportFile.vectors))
    found, unreadable = spool.readable(1, ["agent-0"])
    assert unreadable == {}
    assert [(client, report.vectors["model"].tolist()) for client, report in found] == [
        ("agent-0", [1, 1, 1])
    ]
    assert "descriptor" in said[0]


def test_a_program_that_starts_without_descriptors_ends_and_calls_nothing_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: the report was removed and its agent asked again, and the checkpoint called missing or damaged."""
    spool = Spool(tmp_path)
    spool.keep(1, "agent-0", Report({"model": np.ones(3, np.float32)}, 5), Circumstances(1.0))
    one = One(np.ones(3, np.float32))
    checkpoint.Checkpoint(tmp_path / "checkpoint").save({}, one)
    with monkeypatch.context() as few:
        few.setattr(ReportFile, "vectors", failing(1, ReportFile.vectors))
        few.setattr(checkpoint, "open_arrays", failing(1, open_arrays))
        with pytest.raises(OSError, match="Too many open files"):
            Spool(tmp_path).sound(1)
        with pytest.raises(OSError, match="Too many open files"):
            checkpoint.Checkpoint(tmp_path / "checkpoint").state(one)
    again = Spool(tmp_path)
    assert (again.sound(1), again.damaged) == (["agent-0"], [])
    assert checkpoint.Checkpoint(tmp_path / "checkpoint").state(one).array.tolist() == [1, 1, 1]
