"""The spool waits for the disk once for reports that came together, and opens no file twice without need."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from covey.coordinator.disk.report_file import ReportPlace
from covey.coordinator.disk.spool import REPORTS, Circumstances, Spool
from covey.shared.storage import files
from covey.shared.strategies.client_half import Report
from covey.shared.wire.parts import FileSink, MemorySink
from tests.kit import spooled

CLIENTS = ["agent-0", "agent-1", "agent-2"]


def report(value: float) -> Report:
    return Report({"model": np.full(10, value, np.float32)}, 32)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files and folders in the order in which they were synced."""
    names: list[str] = []
    monkeypatch.setattr(files, "sync", lambda path: names.append(path.name))
    return names


def test_reports_that_came_together_are_synced_once_and_their_folder_with_them(
    tmp_path: Path, synced: list[str]
) -> None:
    spool = Spool(tmp_path)
    spool.keep(1, "before", report(0), Circumstances(1.0))
    spool.sync()
    synced.clear()
    for client in CLIENTS:
        spool.keep(1, client, report(1), Circumstances(1.0))
    assert synced == []
    spool.sync()
    assert synced == ["reports", "1"]
    spool.sync()
    assert synced == ["reports", "1"], "nothing is new"


def test_a_report_that_left_the_spool_needs_no_sync(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.keep(1, "agent-0", report(1), Circumstances(1.0))
    spool.keep(2, "agent-1", report(1), Circumstances(1.0))
    spool.drop(1)
    spool.sync()
    assert spool.who(2) == ["agent-1"]
    assert not (tmp_path / "1").exists()


def test_how_reports_came_about_is_known_without_their_files_and_read_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    spool.keep(1, "agent-0", report(1), Circumstances(2.5, "lost", device="cuda"))
    spool.keep(1, "agent-1", report(1), Circumstances(1.5))

    def seen(of: Spool) -> dict[str, Circumstances]:
        return of.circumstances(1, ["agent-0", "agent-1"])

    expected = {"agent-0": Circumstances(2.5, "lost", "cuda"), "agent-1": Circumstances(1.5)}
    assert seen(Spool(tmp_path)) == expected
    monkeypatch.setattr(ReportPlace, "facts", lambda entry: pytest.fail(f"{entry} was read"))
    assert seen(spool) == expected
    spool.drop(1)
    assert not spool._steps


def test_a_damaged_report_is_named_and_the_others_are_readable(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for number, client in enumerate(CLIENTS):
        spool.keep(1, client, report(number), Circumstances(1.0))
    spooled.cut_before(tmp_path / "1" / REPORTS, "agent-2")
    reports, reasons = spool.readable(1, CLIENTS)
    assert [client for client, _ in reports] == ["agent-0", "agent-1"]
    assert [one.vectors["model"][0] for _, one in reports] == [0.0, 1.0]
    assert list(reasons) == ["agent-2"]
    assert "cut short" in reasons["agent-2"]


def test_the_values_of_reports_are_counted_without_a_look_at_their_vectors(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for client in CLIENTS:
        spool.keep(1, client, report(1), Circumstances(1.0))
    spooled.cut_before(tmp_path / "1" / REPORTS, "agent-0")
    assert spool.values(1, CLIENTS[1:]) == 20


def test_reports_of_several_steps_are_those_of_one_until_it_is_over(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for step, client in enumerate(CLIENTS, start=1):
        spool.keep(step, client, report(step), Circumstances(float(step), device="cuda"))
    spool.kept = {1, 2, 3}
    spool.gather(7, [("agent-0", 1), ("agent-2", 3), ("nobody", 2)])
    assert spool.who(7) == ["agent-0", "agent-2"]
    found, reasons = spool.readable(7, ["agent-0", "agent-2", "nobody"])
    assert [one.vectors["model"][0] for _, one in found] == [1.0, 3.0]
    assert list(reasons) == ["nobody"]
    assert spool.circumstances(7, ["agent-2"]) == {"agent-2": Circumstances(3.0, device="cuda")}
    spool.discard(7, "agent-2")
    assert (spool.who(7), spool.who(3)) == (["agent-0"], ["agent-2"])
    spool.kept = {2}
    spool.drop(7)
    assert [spool.who(step) for step in (1, 2, 3, 7)] == [[], ["agent-1"], [], []]


def test_a_run_that_an_earlier_version_left_in_mid_step_has_no_reports(tmp_path: Path) -> None:
    """Its reports were files of their own. Their agents are asked again."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "agent-0.safetensors").write_bytes(b"as it was")
    spool = Spool(tmp_path)
    assert (spool.sound(1), spool.damaged) == ([], [])
    spool.keep(1, "agent-0", report(1), Circumstances(1.0))
    spool.drop(1)
    assert not (tmp_path / "1").exists()


def test_a_content_in_memory_has_the_digest_of_one_on_disk(tmp_path: Path) -> None:
    content = bytes(range(200))
    in_memory = MemorySink()
    on_disk = FileSink(tmp_path / "content", len(content))
    for sink in (in_memory, on_disk):
        sink.write(0, content)
        assert sink.content() == content
    assert in_memory.digest() == on_disk.digest()
    in_memory.discard()
    assert in_memory.content() == b""
