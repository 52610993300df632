"""Folders of ours are closed to other users, also those that were there before, and every error of a disk is one message: what needs `in_use` and `secure`."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from covey.agent.device.outbox import Outbox
from covey.extras.in_use.model_dir import ModelDir
from covey.extras.secure.secure_folder import SecureFolder
from tests.kit.others import masked, read_by_others


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
@pytest.mark.parametrize("first", ["keys", "credentials", "outbox", "models", "a person"])
def test_no_folder_of_a_device_can_be_read_by_others(tmp_path: Path, mask: int, first: str) -> None:
    state, kept = tmp_path / "state", tmp_path / "models"
    makers: dict[str, Callable[[], object]] = {
        "a person": lambda: list(map(os.mkdir, (state, kept))),
        "keys": lambda: SecureFolder.signing_key(state / "secure"),
        "credentials": lambda: SecureFolder.take_entry(state / "secure", b"entry", b"fleet"),
        "models": lambda: ModelDir(kept),
        "outbox": lambda: Outbox(state).close(),
    }
    with masked(mask):
        makers[first]()
        if first != "a person":
            assert read_by_others(tmp_path) == []
        for name in ("outbox", "models", "keys", "credentials"):
            makers[name]()
        (state / "memory-1").write_bytes(b"the device's own model")
        (kept / "model.safetensors").write_bytes(b"another")
    assert read_by_others(tmp_path) == []
    for name in ("signing.key", "entry", "fleet.pub"):
        found = [path for path in (state / "secure").iterdir() if path.name.startswith(name)]
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in found)
