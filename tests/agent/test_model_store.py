"""The models on an agent's disk: what was damaged is never used, and what is kept survives a power cut."""

from __future__ import annotations

import errno
import io
from pathlib import Path

import pytest

from covey.agent.device.model_store import ModelStore, ReceivedModels
from covey.shared.storage import files
from covey.shared.wire.messages import Part, digest
from covey.shared.wire.parts import split

CONTENT = b"a model" * 100
NAME = digest(CONTENT)
PART = Part(digest=NAME, index=0, count=1, size=len(CONTENT), about=1, data=CONTENT)
PARTS = list(split(io.BytesIO(CONTENT), digest=NAME, size=len(CONTENT), part_bytes=300, about=1))


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
    monkeypatch.setattr(files, "sync", lambda path: synced.append(path.name))
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


def test_agents_of_one_process_write_a_model_once(tmp_path: Path) -> None:
    received = ReceivedModels(tmp_path / "received")
    stores = [store_of(tmp_path, name, received) for name in "ab"]
    payloads = [part.to_bytes() for part in PARTS]
    for payload in payloads[:-1]:
        for store in stores:
            assert store.feed(store.decode(payload), 0.0) is False
    first, second = stores
    last = first.decode(payloads[-1])
    assert second.decode(bytes(bytearray(payloads[-1]))) is last
    assert first.feed(last, 0.0) is True
    assert second.feed(last, 0.0) is True
    assert second.feed(last, 0.0) is None
    assert first.path(NAME).read_bytes() == second.path(NAME).read_bytes() == CONTENT
    assert first.path(NAME).samefile(second.path(NAME))
    first.keep([], 1.0)
    assert len(list((tmp_path / "received").iterdir())) == 1  # the second one still needs it
    second.keep([], 1.0)
    assert list((tmp_path / "received").iterdir()) == []
    received.close()


def test_a_damaged_model_of_several_agents_is_received_again(tmp_path: Path) -> None:
    received = ReceivedModels(tmp_path / "received")
    stores = [store_of(tmp_path, name, received) for name in "ab"]
    for store in stores:
        store.feed(PART, 0.0)
    stores[0].path(NAME).write_bytes(b"?")  # one file with several names
    for store in stores:
        store.remove(NAME)
        assert store.feed(PART, 1.0)
    assert [store.path(NAME).read_bytes() for store in stores] == [CONTENT, CONTENT]


def test_a_damaged_part_is_no_part_that_came_before(tmp_path: Path) -> None:
    received = ReceivedModels(tmp_path / "received")
    payload = PART.to_bytes()
    received.decode(payload)
    assert received.decode(payload[:-1] + b"?").data == PART.data[:-1] + b"?"


def test_agents_share_a_model_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    store = store_of(tmp_path, "a", ReceivedModels(tmp_path / "received"))
    assert store.feed(PART, 0.0)
    assert store.path(NAME).read_bytes() == CONTENT


def store_of(folder: Path, name: str, received: ReceivedModels) -> ModelStore:
    return ModelStore(folder / name, durable=False, received=received)
