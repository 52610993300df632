"""The audit log: every change of a written line is found, and a kill costs at most the line that was being written."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.extras.audit.check import Break, verify
from covey.extras.audit.key import read_key
from covey.shared.errors import UserError
from covey.shared.storage import audit
from covey.shared.storage.audit import AuditLog, Flood, Head
from tests.night import examples

KEY = b"k" * 32


def written(path: Path, lines: int = 6, key: bytes | None = None) -> AuditLog:
    """A log of the owner `run-1` with this many lines."""
    log = AuditLog(path, "run-1", key=key, now=lambda: 1e9)
    for step in range(1, lines):
        log.append("accept", agent=f"agent-{step}", step=step)
    return log


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def broken_line(path: Path, **options: Any) -> int | None:
    broken = verify(path, **options).broken
    return broken.line if broken is not None else None


def test_an_untouched_log_is_whole_and_names_its_owner(tmp_path: Path) -> None:
    log = written(tmp_path / "log")
    verdict = verify(tmp_path / "log", owner="run-1", head=log.head)
    assert verdict.whole
    assert (verdict.lines, verdict.owner, verdict.head) == (6, "run-1", log.head)
    assert verdict.events == {"begin": 1, "accept": 5}
    assert verdict.first_time == "2001-09-09T01:46:40.000Z"


@settings(max_examples=examples(20), deadline=None)
@given(st.data())
def test_a_flipped_bit_anywhere_is_found_at_its_line(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    written(path)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    bit = data.draw(st.integers(0, 7))
    line = content[:place].count(b"\n") + 1
    content[place] ^= 1 << bit
    path.write_bytes(content)
    assert broken_line(path) == line


def test_a_deleted_line_is_found_where_it_was(tmp_path: Path) -> None:
    written(tmp_path / "log")
    lines = lines_of(tmp_path / "log")
    del lines[3]
    (tmp_path / "log").write_bytes(b"".join(lines))
    broken = verify(tmp_path / "log").broken
    assert broken == Break(4, "it has number 5, expected 4: lines are missing or moved")


def test_swapped_lines_are_found_at_the_first_of_them(tmp_path: Path) -> None:
    written(tmp_path / "log")
    lines = lines_of(tmp_path / "log")
    lines[2], lines[3] = lines[3], lines[2]
    (tmp_path / "log").write_bytes(b"".join(lines))
    assert broken_line(tmp_path / "log") == 3


def test_a_line_that_was_changed_with_its_hash_is_found_at_the_line_after_it(
    tmp_path: Path,
) -> None:
    written(tmp_path / "log")
    lines = lines_of(tmp_path / "log")
    lines[2] = forged(lines[2])
    (tmp_path / "log").write_bytes(b"".join(lines))
    assert broken_line(tmp_path / "log") == 4


def forged(line: bytes, previous: str | None = None) -> bytes:
    """A line that accuses somebody else, with the hash that fits it."""
    record = json.loads(line)
    record["fields"]["agent"] = "somebody-else"
    record["previous"] = previous if previous is not None else record["previous"]
    del record["hash"]
    record["hash"] = audit.hash_of(audit.canonical(record), None)
    return audit.canonical(record) + b"\n"


def rewritten(path: Path) -> None:
    """What somebody does who knows this file format: another story from line 3 on, with hashes that fit."""
    lines = lines_of(path)
    for i in range(2, len(lines)):
        lines[i] = forged(lines[i], json.loads(lines[i - 1])["hash"])
    path.write_bytes(b"".join(lines))


def test_a_log_that_was_written_again_is_found_by_a_head_kept_elsewhere(tmp_path: Path) -> None:
    log = written(tmp_path / "log")
    rewritten(tmp_path / "log")
    assert broken_line(tmp_path / "log") is None  # a chain alone cannot show it
    assert broken_line(tmp_path / "log", head=log.head) == 6


def test_a_log_with_a_key_that_was_written_again_is_found_without_a_head(tmp_path: Path) -> None:
    written(tmp_path / "log", key=KEY)
    assert broken_line(tmp_path / "log", key=KEY) is None
    rewritten(tmp_path / "log")
    assert broken_line(tmp_path / "log", key=KEY) == 3


def test_a_log_without_a_key_in_place_of_one_with_it_is_found(tmp_path: Path) -> None:
    written(tmp_path / "log")
    assert broken_line(tmp_path / "log", key=KEY) == 1


def test_a_log_with_a_key_is_not_checked_without_it_or_with_another(tmp_path: Path) -> None:
    written(tmp_path / "log", key=KEY)
    with pytest.raises(UserError, match="give the key's file with --key"):
        verify(tmp_path / "log")
    assert broken_line(tmp_path / "log", key=b"x" * 32) == 1


def test_a_tail_that_was_cut_off_is_found_by_a_head_kept_elsewhere(tmp_path: Path) -> None:
    log = written(tmp_path / "log")
    (tmp_path / "log").write_bytes(b"".join(lines_of(tmp_path / "log")[:4]))
    assert broken_line(tmp_path / "log") is None  # a chain alone cannot show it
    assert verify(tmp_path / "log", head=log.head).broken == Break(
        5, "the log ends before line 6, which was written: the newest lines were cut off"
    )


def test_a_log_of_another_run_is_found(tmp_path: Path) -> None:
    written(tmp_path / "log")
    assert verify(tmp_path / "log", owner="run-2").broken == Break(
        1, "the log belongs to 'run-1', expected 'run-2'"
    )


def test_a_log_continues_at_its_last_line(tmp_path: Path) -> None:
    head = written(tmp_path / "log").head
    AuditLog(tmp_path / "log", "run-1", head=head).append("resume")
    verdict = verify(tmp_path / "log", owner="run-1", head=head)
    assert verdict.whole
    assert (verdict.lines, verdict.notes) == (7, ())


@pytest.mark.parametrize("left", [1, 40])
def test_a_torn_last_line_is_broken_until_a_restart_cuts_it_off_and_records_it(
    tmp_path: Path, left: int
) -> None:
    path = tmp_path / "log"
    written(path)
    lines = lines_of(path)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:left])
    assert verify(path).broken == Break(6, "it is cut short")
    AuditLog(path, "run-1")
    verdict = verify(path)
    assert verdict.whole
    assert verdict.notes == (
        f"line 6: an unfinished line of {left} bytes was cut off at a restart",
    )


def test_a_log_of_which_nothing_but_a_torn_first_line_is_left_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b'{"event":"beg')
    AuditLog(path, "run-1")
    assert verify(path, owner="run-1").events == {"begin": 1, "log_repaired": 1}


def test_lines_that_a_restart_misses_are_named_and_the_log_stays_broken(tmp_path: Path) -> None:
    path = tmp_path / "log"
    head = written(path).head
    path.write_bytes(b"".join(lines_of(path)[:3]))
    AuditLog(path, "run-1", head=head).append("resume")
    broken = verify(path).broken
    assert broken is not None
    assert broken.line == 4
    assert "line 6 once had another hash" in broken.why


def test_a_damaged_last_line_does_not_stop_the_log_and_stays_the_first_broken_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    written(path)
    lines = lines_of(path)
    lines[-1] = b"damaged\n"
    path.write_bytes(b"".join(lines))
    AuditLog(path, "run-1").append("resume")
    assert broken_line(path) == 6
    assert len(lines_of(path)) == 7


def test_a_missing_log_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no audit log"):
        verify(tmp_path / "log")


@pytest.mark.parametrize(
    "junk", [b"\n", b"[]\n", b"{}\n", b"\xff\n", b"[" * 100_000 + b"\n", b'{"event":1}\n']
)
def test_junk_is_a_broken_line_and_no_crash(tmp_path: Path, junk: bytes) -> None:
    (tmp_path / "log").write_bytes(junk)
    assert broken_line(tmp_path / "log") == 1


def test_an_empty_log_is_broken(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    assert broken_line(tmp_path / "log") == 1


def test_lines_that_find_no_room_on_the_disk_wait_and_are_whole_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    log = written(path)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full)
        log.append("accept", agent="agent-7", step=7)
        with pytest.raises(OSError, match="no space"):
            log.sync()
    assert len(lines_of(path)) == 6
    log.append("accept", agent="agent-8", step=8)
    log.sync()
    assert verify(path, head=log.head).lines == 8


def test_a_writer_killed_again_and_again_leaves_a_chain_that_each_restart_makes_whole(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    program = (
        "import sys; from pathlib import Path; from covey.shared.storage.audit import AuditLog\n"
        "log = AuditLog(Path(sys.argv[1]), 'run-1')\n"
        "while True: log.append('accept', agent='a' * 200)\n"
    )
    for _ in range(3):
        size = path.stat().st_size if path.exists() else 0
        process = subprocess.Popen([sys.executable, "-c", program, str(path)])
        until = time.monotonic() + 30
        while (
            not path.exists() or path.stat().st_size < size + 20_000
        ) and time.monotonic() < until:
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    head = AuditLog(path, "run-1").head
    verdict = verify(path, owner="run-1", head=head)
    assert verdict.whole
    assert verdict.lines > 150


def test_a_key_that_is_too_short_or_missing_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("short\n")
    with pytest.raises(UserError, match="at least 16"):
        read_key(tmp_path / "key")
    with pytest.raises(UserError, match="cannot be read"):
        read_key(tmp_path / "none")
    (tmp_path / "key").write_bytes(KEY + b"\n")
    assert read_key(tmp_path / "key") == KEY


def test_a_flood_of_events_is_counted_and_not_written_one_by_one() -> None:
    flood = Flood(window_s=60, singly=3, names=2)
    admitted = [flood.admit("refused", f"agent-{i % 4}", now=i / 100) for i in range(100)]
    assert sum(admitted) == 3
    assert flood.due(59.9) == {}
    counted = flood.due(60.0)
    assert set(counted["refused"]) == {"agent-3", "agent-0", "others"}
    assert sum(counted["refused"].values()) == 97
    assert flood.due(60.0) == {}
    assert flood.admit("refused", "agent-1", now=61.0)


def test_a_head_of_a_line_that_never_was_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "log")
    assert broken_line(tmp_path / "log", head=Head(0, "")) is None
    assert broken_line(tmp_path / "log", head=Head(3, "other")) == 3
