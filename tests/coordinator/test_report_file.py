"""The file of a step's reports: whatever a kill or a disk does to it, no report is taken for what it is not."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from covey.coordinator.disk import report_file
from covey.coordinator.disk.report_file import ALIGNMENT, ReportFile, Vectors
from covey.shared.storage import files

REPORTS: dict[str, Vectors] = {
    "a": {"model": np.array([1, 2, 3], np.float32)},
    "b": {"model": np.array([4, 5], np.float32), "extra": np.array([6], np.float32)},
    "c": {},
    "d": {"model": np.array([7], np.float32)},
}


def written(path: Path) -> Path:
    file = ReportFile(path)
    for number, (client, vectors) in enumerate(REPORTS.items()):
        file.append(client, vectors, {"examples": number})
    return path


def is_whole(file: ReportFile, client: str) -> bool:
    try:
        file.vectors(client)
    except ValueError:
        return False
    return True


def values_of(file: ReportFile, client: str) -> dict[str, list[float]]:
    return {name: vector.tolist() for name, vector in file.vectors(client).items()}


def expected(client: str) -> dict[str, list[float]]:
    return {name: vector.tolist() for name, vector in REPORTS[client].items()}


def test_reports_come_back_from_the_disk_mapped_and_in_their_order(tmp_path: Path) -> None:
    file = ReportFile(written(tmp_path / "reports"))
    assert list(file.clients) == list(REPORTS)
    for number, client in enumerate(REPORTS):
        assert values_of(file, client) == expected(client)
        assert file.entry(client).facts() == {"examples": number}
    model = file.vectors("b")["model"]
    assert isinstance(model, np.memmap)
    assert not model.flags.writeable
    assert model.ctypes.data % ALIGNMENT == 0
    assert file.damage == []


def test_the_later_report_of_a_client_counts(tmp_path: Path) -> None:
    file = ReportFile(written(tmp_path / "reports"))
    file.append("a", {"model": np.array([9], np.float32)}, {"examples": 9})
    for seen in (file, ReportFile(file.path)):
        assert values_of(seen, "a") == {"model": [9.0]}
        assert seen.entry("a").facts() == {"examples": 9}
        assert values_of(seen, "b") == expected("b")


def test_a_removed_report_is_gone_also_after_a_restart_and_can_come_again(tmp_path: Path) -> None:
    file = ReportFile(written(tmp_path / "reports"))
    mapped = file.vectors("b")["model"]
    file.remove("b")
    file.remove("nobody")
    for seen in (file, ReportFile(file.path)):
        assert list(seen.clients) == ["a", "c", "d"]
        with pytest.raises(FileNotFoundError, match="no report of b"):
            seen.vectors("b")
    assert mapped.tolist() == [4.0, 5.0]
    file.append("b", REPORTS["b"], {})
    assert values_of(ReportFile(file.path), "b") == expected("b")


def test_a_kill_at_any_byte_leaves_the_reports_before_it(tmp_path: Path) -> None:
    """A cut file is continued where its last whole report ends."""
    whole = written(tmp_path / "reports").read_bytes()
    ends = [0]
    for number in range(1, len(REPORTS) + 1):
        file = ReportFile(tmp_path / "growing")
        client = list(REPORTS)[number - 1]
        file.append(client, REPORTS[client], {"examples": number - 1})
        ends.append(file.path.stat().st_size)
    assert ends[-1] == len(whole)
    cut = tmp_path / "cut"
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        file = ReportFile(cut)
        kept = sum(end <= length for end in ends[1:])
        assert list(file.clients) == list(REPORTS)[:kept]
        file.append("new", REPORTS["a"], {})
        again = ReportFile(cut)
        assert list(again.clients) == [*list(REPORTS)[:kept], "new"]
        assert values_of(again, "new") == expected("a")


def test_a_short_report_in_the_place_of_half_a_long_one_leaves_nothing_of_it(
    tmp_path: Path,
) -> None:
    file = ReportFile(tmp_path / "reports")
    file.append("long", {"model": np.ones(4096, np.float32)}, {})
    file.path.write_bytes(file.path.read_bytes()[:-4])
    ReportFile(file.path).append("short", REPORTS["a"], {})
    again = ReportFile(file.path)
    assert (list(again.clients), again.damage) == (["short"], [])
    again.append("next", REPORTS["b"], {})
    assert list(ReportFile(file.path).clients) == ["short", "next"]


def test_every_flipped_bit_costs_one_report_at_most_and_is_named_or_found(tmp_path: Path) -> None:
    whole = written(tmp_path / "reports").read_bytes()
    used = 0  # flipped bits that cost a report
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << (place % 8)
        (tmp_path / "changed").write_bytes(changed)
        file = ReportFile(tmp_path / "changed")
        sound = [client for client in file.clients if is_whole(file, client)]
        assert len(sound) >= len(REPORTS) - 1
        for client in sound:
            assert values_of(file, client) == expected(client)
            assert file.entry(client).facts() == {"examples": list(REPORTS).index(client)}
        if len(sound) == len(REPORTS):
            assert whole[place] == 0, "only the zeros between records may change without notice"
            continue
        used += 1
        is_found = len(list(file.clients)) > len(sound)  # by the checksum of its vectors
        assert is_found or file.damage or place >= whole.rindex(report_file.MARK)
    assert used > len(whole) // 2


def test_a_write_that_fails_leaves_the_other_reports_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ReportFile(written(tmp_path / "reports"))
    writes = 0

    def full(descriptor: int, offset: int, data: bytes | memoryview) -> None:
        nonlocal writes
        writes += 1
        if writes == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        files.write_at(descriptor, offset, data)

    monkeypatch.setattr(report_file, "write_at", full)
    with pytest.raises(OSError, match="No space"):
        file.append("new", REPORTS["a"], {})
    assert list(ReportFile(file.path).clients) == list(REPORTS)
    file.append("new", REPORTS["b"], {})
    assert values_of(ReportFile(file.path), "new") == expected("b")


def test_a_file_cut_under_a_run_is_named_for_the_reports_behind_the_cut(tmp_path: Path) -> None:
    file = ReportFile(written(tmp_path / "reports"))
    with file.path.open("r+b") as opened:
        opened.truncate(file.entry("b").start)
    assert values_of(file, "a") == expected("a")
    with pytest.raises(ValueError, match="cut short in the report of b"):
        file.vectors("b")
    file.append("e", REPORTS["a"], {})
    with pytest.raises(ValueError, match="the report of b is damaged"):
        file.vectors("b")
    assert values_of(file, "e") == expected("a")
    file.path.unlink()
    with pytest.raises(FileNotFoundError):
        file.vectors("a")


@pytest.mark.parametrize(
    "text",
    [
        [],
        {"client": "a"},
        {"client": "a", "vectors": [["model", "x"]], "facts": {}},
        {"client": "a", "vectors": [["model", 9]], "facts": {}},
        {"client": "a", "vectors": 3, "facts": {}},
        {"client": "a", "vectors": [], "facts": 3},
        {"client": "a", "vectors": []},
    ],
)
def test_a_record_without_a_sensible_text_is_named(tmp_path: Path, text: object) -> None:
    file = ReportFile(tmp_path / "reports")
    file._write(json.dumps(text), [], 0)
    file.append("b", REPORTS["b"], {})
    again = ReportFile(file.path)
    assert list(again.clients) == ["b"]
    assert len(again.damage) == 1
