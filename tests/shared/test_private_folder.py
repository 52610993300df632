"""Folders of ours are closed to other users, also those that were there before, and every error of a disk is one message."""

from __future__ import annotations

import ast
import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from covey.shared.errors import UserError, os_errors_as_user_errors
from covey.shared.storage import files
from covey.shared.storage.files import obstacle, private_folder, sync, write_private
from covey.shared.storage.journal import Journal
from covey.shared.wire.parts import FileSink
from scripts.size import parts_of
from tests.kit.others import NOBODY, is_root, masked, read_by_others
from tests.processes import ROOT

needs_root = pytest.mark.skipif(not is_root, reason="only root may become another user")


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
@pytest.mark.parametrize("mode", [None, 0o755, 0o777, 0o750, 0o700])
def test_a_folder_of_ours_is_private_also_if_it_was_there(
    tmp_path: Path, mask: int, mode: int | None
) -> None:
    folder = tmp_path / "above" / "state"
    with masked(mask):
        if mode is not None:
            folder.mkdir(parents=True)
            folder.chmod(mode)
        private_folder(folder)
        (folder / "secret").write_text("x")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not [path for path in read_by_others(tmp_path) if "secret" in path]


def test_a_folder_that_all_users_share_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    for shared in (folder, Path("/")):
        with pytest.raises(UserError, match="all users of this machine share this folder"):
            private_folder(shared)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777


@needs_root
def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    with pytest.raises(UserError, match=r"belongs to another user \(uid 0\)"):
        private_folder(folder)


def test_a_file_system_without_modes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(Path, "chmod", lambda *_: None)
    with pytest.raises(UserError, match="keeps no permissions"):
        private_folder(tmp_path)


def test_a_folder_that_may_not_be_written_is_refused_before_anything_is_kept_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o500)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    refused = pytest.raises(UserError, match="this user may not read or write it")
    with refused, os_errors_as_user_errors():
        private_folder(tmp_path)


# -- errors of a disk ------------------------------------------------------------------------------

LIMITED = """
import resource, sys
from pathlib import Path
from covey.shared.errors import os_errors_as_user_errors
from covey.shared.storage.journal import Journal
from covey.shared.wire.parts import FileSink
place = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
with os_errors_as_user_errors():
    if sys.argv[2] == "journal":
        journal = Journal(place, str.encode, keep=None)
        for number in range(1000):
            journal.add(f"line {number}" * 50)
            journal.flush()
    else:
        FileSink(place, 1 << 20)
"""


@pytest.mark.parametrize("what", ["journal", "sink"])
def test_a_limit_on_the_size_of_files_is_named_as_such(tmp_path: Path, what: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "file"), what],
        capture_output=True,
        text=True,
    )
    assert f"{tmp_path / 'file'}: File too large (EFBIG); " in done.stderr
    content = (tmp_path / "file").read_bytes()
    assert content == b"" or content.endswith(b"\n")


def unnamed_writes(tree: ast.AST, is_named: bool = False) -> Iterator[int]:
    """The lines that write a whole file outside of a block that names it in an error."""
    if isinstance(tree, ast.With):
        calls = [one.context_expr for one in tree.items]
        is_named |= any("naming(" in ast.unparse(call) for call in calls)
        is_named |= any("atomic_replace(" in ast.unparse(call) for call in calls)
    if isinstance(tree, ast.Attribute) and tree.attr in ("write_text", "write_bytes"):
        of_help = ast.unparse(tree.value) == "formatter"  # Click's, which writes no file
        yield from [] if is_named or of_help else [tree.lineno]
    for child in ast.iter_child_nodes(tree):
        yield from unnamed_writes(child, is_named)


def test_every_write_of_a_file_names_it_in_an_error() -> None:
    """The system's error of a write to an open file has no name."""
    found = [
        f"{path}:{line}"
        for path in (ROOT / file for file in parts_of(ROOT))
        if ".write_" in (text := path.read_text())
        for line in unnamed_writes(ast.parse(text))
    ]
    assert found == []


def test_every_error_of_a_file_is_a_message_with_its_path() -> None:
    for number, path in product(errno.errorcode, ("a/file", None)):
        error = OSError(number, os.strerror(number), path)
        is_of_network = path is None and isinstance(error, ConnectionError | TimeoutError)
        with (
            pytest.raises(OSError if is_of_network else UserError) as told,
            os_errors_as_user_errors(),
        ):
            raise error
        assert path is None or path in str(told.value)


def test_a_sync_that_fails_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    journal = Journal(tmp_path / "lines", str.encode, keep=None)
    journal.add("one")
    for action in (
        journal.flush,
        lambda: sync(tmp_path),
        lambda: write_private(tmp_path / "key", b"x"),
    ):
        with (
            pytest.raises(UserError, match=rf"{tmp_path}.*\(EIO\); the disk cannot be"),
            os_errors_as_user_errors(),
        ):
            action()


def test_only_what_can_pass_is_waited_for(tmp_path: Path) -> None:
    waited = {number for number in errno.errorcode if obstacle(OSError(number, ""), tmp_path)}
    assert waited == {
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ESTALE)
    }
    assert "no room" in obstacle(OSError(errno.ENOSPC, ""), tmp_path)
    others = waited - {errno.ENOSPC}
    assert not any("no room" in obstacle(OSError(number, ""), tmp_path) for number in others)
    assert files.obstacle(OSError(errno.ENOENT, ""), tmp_path / "gone").startswith(str(tmp_path))


def test_a_file_of_parts_names_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = FileSink(tmp_path / "part", 4)

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwrite", broken)
    with pytest.raises(OSError, match="part"):
        sink.write(0, b"abcd")


# -- the folders of a device -----------------------------------------------------------------------
