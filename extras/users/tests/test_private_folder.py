"""Folders of ours are closed to other users, also those that were there before, and every error of a disk is one message: what needs `users`."""

from __future__ import annotations

from pathlib import Path

from covey.extras.users.folder import BrokerFolder
from tests.kit.others import read_by_others


def test_the_folder_of_a_broker_is_closed_again_by_each_change(tmp_path: Path) -> None:
    home = BrokerFolder.create(tmp_path / "home", ["localhost"], 8883)
    home.folder.chmod(0o755)
    assert str(home.folder) in read_by_others(tmp_path)
    home.enroll("pi-7")
    assert read_by_others(tmp_path) == []
