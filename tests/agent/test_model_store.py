"""The models on an agent's disk: what was damaged is never used, and what is kept survives a power cut."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from covey.agent.device.model_store import ModelStore
from covey.shared import files
from covey.shared.wire.messages import Part, digest

CONTENT = b"a model" * 100
NAME = digest(CONTENT)
PART = Part(digest=NAME, index=0, count=1, size=len(CONTENT), about=1, data=CONTENT)


def filled(folder: Path, *, durable: bool = False) -> ModelStore:
    store = ModelStore(folder, durable=durable)
    assert store.feed(PART, 0.0)
    return store


def test_a_model_is_found_by_the_next_process(tmp_path: Path) -> None:
    filled(tmp_path)
    store = ModelStore(tmp_path, durable=False)
    assert (store.digests, store.damaged) == ([NAME], [])


@pytest.mark.parametrize(
    "content", [CONTENT[:-1] + b"?", CONTENT[:-1], b""], ids=["one byte", "cut short", "empty"]
)
def test_a_damaged_model_is_named_and_can_be_fetched_again(tmp_path: Path, content: bytes) -> None:
    path = filled(tmp_path).path(NAME)
    path.write_bytes(content)
    store = ModelStore(tmp_path, durable=False)
    assert store.digests == []
    assert len(store.damaged) == 1
    assert path.name in store.damaged[0]
    assert store.feed(PART, 0.0)


@pytest.mark.parametrize("durable", [True, False])
def test_only_a_durable_store_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(files, "_sync", lambda path: synced.append(path.name))
    filled(tmp_path / "models", durable=durable)
    expected = [tmp_path.name, f"{NAME.hex()}.model.new", "models"] if durable else []
    assert synced == expected


def test_a_model_is_stored_again_after_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ModelStore(tmp_path, durable=False)
    with monkeypatch.context() as patch:

        def full(self: Path, target: Path) -> Path:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            store.feed(PART, 0.0)
    assert store.feed(PART, 1.0)
    assert store.path(NAME).read_bytes() == CONTENT
