"""Data that changes on the disk of a device is noticed and read again."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from covey.agent.data_place import NOTHING, DataWatch, fingerprint
from covey.agent.worker.sources import dataset
from covey.shared.scenario.task import Task
from covey.shared.wire.jobs import DeviceData


def samples(path: Path, count: int, seconds: int) -> None:
    """Write samples, with a time of modification of their own."""
    rows = np.arange(count * 4, dtype=np.float32).reshape(count, 4)
    np.savez(path, x=rows, y=np.arange(count) % 2)
    os.utime(path, (seconds, seconds))


def test_a_worker_reads_data_again_that_was_repaired_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    source = DeviceData(data=str(path))
    task = Task(features=(4,), classes=2)
    samples(path, 20, seconds=100)
    before = dataset(source, task)
    assert dataset(source, task) is before  # unchanged files are not read again
    samples(path, 40, seconds=200)
    after = dataset(source, task)
    assert len(after.targets) + len(after.test_targets) == 40


def test_a_change_counts_once_the_files_are_no_longer_being_written(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,b\n1,2\n")
    watch = DataWatch(str(path))
    assert not watch.has_changed()
    path.write_text("a,b\n1,2\n3,")
    assert not watch.has_changed()
    path.write_text("a,b\n1,2\n3,4\n")
    assert not watch.has_changed()
    assert watch.has_changed()
    assert not watch.has_changed()
    path.unlink()
    assert watch.has_changed(at_once=True)


def test_any_file_of_a_folder_counts_and_code_has_no_fingerprint(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    (folder / "cat").mkdir(parents=True)
    (folder / "cat" / "1.png").write_bytes(b"one")
    before = fingerprint(str(folder))
    (folder / "cat" / "2.png").write_bytes(b"two")
    after = fingerprint(str(folder))
    assert after is not None
    assert after != before
    assert (after.entries, after.size_bytes >= 6) == (4, True)
    assert fingerprint(str(tmp_path / "none.csv")) == NOTHING
    assert fingerprint("my_package.data:read") is None
    assert not DataWatch(None).has_changed()
