"""Durable writers keep their promise in a power cut that takes all that was not synced."""

from __future__ import annotations

import ast
import asyncio
import io
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from covey.agent.device.identity import Identity
from covey.agent.device.model_store import ModelStore
from covey.agent.device.outbox import Outbox
from covey.agent.device.service import Agent
from covey.agent.worker import perform
from covey.agent.worker.memory_file import MemoryDamaged, StoredMemory, save_memory
from covey.coordinator.disk.array_files import open_arrays, save_arrays
from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.disk.spool import Circumstances, Spool
from covey.coordinator.record.store import Store
from covey.coordinator.run.effects import SendModel
from covey.coordinator.run.own_orders import OwnOrders
from covey.extras.in_use.keeper import Keeper, KeepOptions
from covey.extras.in_use.model_dir import ModelDir, read_index
from covey.extras.secure.agent_state import AgentState
from covey.extras.secure.secure_folder import SecureFolder
from covey.extras.secure.simulated import simulated_identity
from covey.shared.storage.files import (
    append,
    atomic_replace,
    make_folder,
    private_folder,
    sync_folder,
    write_atomically,
)
from covey.shared.storage.journal import Journal
from covey.shared.strategies.client_half import Report
from covey.shared.wire.jobs import FleetShare
from covey.shared.wire.messages import ModelRef, OrderMessage, digest
from covey.shared.wire.parts import split
from scripts.size import parts_of
from tests.shared.samples import SAMPLES
from tests.simulator.disk import Disk, Disks

ROOT = Path(__file__).parents[2]
CONTENT = b"content" * 100
Check = Callable[[], bool]  # after the power cut


class Worst(random.Random):
    """A power cut takes all that it can."""

    def randint(self, a: int, b: int) -> int:
        return a

    def choice(self, seq: Any) -> Any:
        return seq[0]


@contextmanager
def power_cut(folder: Path) -> Iterator[None]:
    """The machine of this folder loses power at the end of the block."""
    disks, disk = Disks(folder.parent), Disk(folder, "worst")
    disk._random = Worst()
    disks.add(disk)
    with disks.watched():
        yield
    disk.lose_power()


def has(path: Path, content: bytes = CONTENT) -> Check:
    return lambda: path.read_bytes() == content


# -- the outbox --------------------------------------------------------------------------------------


def put(box: Outbox, step: int) -> None:
    report, memory = box.places(step)
    perform._write(report, CONTENT, durable=True)
    seal = save_memory(memory, {"step": np.full(3, step)})
    box.put(
        step,
        digest(CONTENT),
        len(CONTENT),
        work=b"work",
        part_bytes=1024,
        with_memory=True,
        memory_digest=seal,
    )


CALLS: tuple[Callable[[Outbox], None], ...] = (
    lambda box: box.switch("r1"),
    lambda box: put(box, 1),
    lambda box: box.commit(1),
    lambda box: put(box, 2),
    lambda box: box.commit(2),
    lambda box: box.go_back(1),
    lambda box: box.drop(2),
    lambda box: box.lose(4, 2),
    lambda box: box.switch("r2"),
    lambda box: box.switch("r1"),
)


def is_as_it_was(folder: Path, before: Outbox) -> bool:
    with Outbox(folder) as after:
        assert after.damaged == []
        if after.memory is not None:
            StoredMemory(after.memory, after.state.memory_digest)
        return after.state == before.state and after.outboxed == before.outboxed


@pytest.mark.parametrize("calls", range(1, len(CALLS) + 1))
def test_an_outbox_knows_after_a_power_cut_what_it_knew_before(tmp_path: Path, calls: int) -> None:
    (folder := tmp_path / "disk").mkdir()
    with power_cut(folder), Outbox(folder) as box:
        for call in CALLS[:calls]:
            call(box)
    assert is_as_it_was(folder, box)


# -- each writer that can be durable -------------------------------------------------------------------


def outbox(folder: Path) -> Check:
    with Outbox(folder, durable=True) as box:
        box.switch("r1")
        put(box, 1)
    return lambda: is_as_it_was(folder, box)


def identity(folder: Path) -> Check:
    place = Identity("a", "default", FleetShare(scenario=Path()), folder, durable=True)
    agent = Agent(place, cast(Any, None), session="s")
    with agent.outbox as box:
        box.switch("r1")
        put(box, 1)
    return lambda: is_as_it_was(folder, box)


def written(folder: Path) -> Check:
    perform._write(folder / "x", CONTENT, durable=True)
    sync_folder(folder)  # as the outbox does, which names it
    return has(folder / "x")


def appended(folder: Path) -> Check:
    (folder / "x").touch()
    sync_folder(folder)
    append(folder / "x", CONTENT, durable=True)
    return has(folder / "x")


def memory(folder: Path) -> Check:
    seal = save_memory(folder / "x", {"a": np.arange(5)}, durable=True)
    sync_folder(folder)
    return lambda: bool((StoredMemory(folder / "x", seal.hex())["a"] == np.arange(5)).all())


def model_store(folder: Path) -> Check:
    store = ModelStore(folder / "models", durable=True)
    name, content = digest(CONTENT), io.BytesIO(CONTENT)
    for part in split(content, digest=name, size=len(CONTENT), part_bytes=1024, about=1):
        assert store.feed(part, 0.0)
    return has(store.path(name))


def model_dir(folder: Path) -> Check:
    ModelDir(folder / "models", durable=True).settle(7, pinned=False)
    return lambda: read_index(folder / "models").serial == 7


def keeper(folder: Path) -> Check:
    options = KeepOptions(folder / "models")
    one = Keeper(options, lambda _: None, lambda _: None, durable=True)
    one.models.settle(7, pinned=False)
    asyncio.run(one.close())
    return lambda: read_index(folder / "models").serial == 7


def replaced(folder: Path) -> Check:
    with atomic_replace(folder / "x", durable=True) as beside:
        beside.write_bytes(CONTENT)
    return has(folder / "x")


def whole(folder: Path) -> Check:
    write_atomically(folder / "x", b"old")
    write_atomically(folder / "x", CONTENT, durable=True)
    return has(folder / "x")


def folders(folder: Path) -> Check:
    make_folder(folder / "a" / "b" / "c", durable=True)
    return (folder / "a" / "b" / "c").is_dir


def private(folder: Path) -> Check:
    private_folder(folder / "a" / "b", durable=True)
    return (folder / "a" / "b").is_dir


def arrays(folder: Path) -> Check:
    save_arrays(folder / "x", {"a": np.arange(5)}, durable=True)
    return lambda: bool((open_arrays(folder / "x")[0]["a"] == np.arange(5)).all())


def spool(folder: Path) -> Check:
    here = Spool(folder / "spool")
    report = Report({"model": np.ones(10, np.float32)}, 32)
    here.keep(1, "alone", report, Circumstances(1.0))
    here.keep(1, "a", report, Circumstances(1.0))
    here.keep(2, "b", report, Circumstances(1.0))
    here.keep_sum(3, CONTENT, digest(CONTENT))
    here.sync()

    def is_there() -> bool:
        after = Spool(folder / "spool")
        sums = [path.read_bytes() for path in after.sum_files(3)]
        return (after.sound(1), after.sound(2), sums) == (["a", "alone"], ["b"], [CONTENT])

    return is_there


def version(folder: Path, about: int = 1) -> SendModel:
    ref = ModelRef(key="model.0", digest=digest(CONTENT), parts=1, size=len(CONTENT))
    return SendModel(ref, folder / ref.key, about=about, values=10)


def own_orders(folder: Path) -> Check:
    orders, send = OwnOrders(folder, Store(folder, "r1")), version(folder)
    order = cast(OrderMessage, SAMPLES["order"])
    assert order.work is not None
    orders.keep_version(send, CONTENT)
    orders.keep(1, order.work, order)
    return lambda: send.path.read_bytes() == CONTENT and (folder / "order-1").exists()


def journal(folder: Path) -> Check:
    for name, keep in (("new", None), ("kept", 0)):
        lines = Journal(folder / name, str.encode, keep=keep, durable=True)
        lines.add("1")
        lines.flush()
    later = Journal(folder / "later", str.encode, keep=None, durable=False)
    later.add("1")
    later.sync()
    return lambda: all((folder / name).read_bytes() == b"1\n" for name in ("new", "kept", "later"))


CASES: dict[str, Callable[[Path], Check]] = {
    "agent/device/identity.py Identity": identity,
    "extras/in_use/keeper.py Keeper": keeper,
    "agent/device/model_store.py ModelStore": model_store,
    "agent/device/outbox.py Outbox": outbox,
    "extras/in_use/model_dir.py ModelDir": model_dir,
    "agent/worker/memory_file.py save_memory": memory,
    "agent/worker/perform.py _write": written,
    "coordinator/disk/array_files.py save_arrays": arrays,
    "coordinator/disk/spool.py Spool": spool,
    "coordinator/record/store.py Store": own_orders,
    "shared/wire/jobs.py Perform": written,  # carried out so
    "shared/storage/files.py append": appended,
    "shared/storage/files.py atomic_replace": replaced,
    "shared/storage/files.py make_folder": folders,
    "shared/storage/files.py private_folder": private,
    "shared/storage/files.py write_atomically": whole,
    "shared/storage/journal.py Journal": journal,
}


def has_durable(node: ast.AST) -> bool:
    """Whether this is a parameter, a field or an attribute for whether writes survive a power cut."""
    match node:
        case ast.arg(arg="durable") | ast.AnnAssign(target=ast.Name(id="durable")):
            return True
        case ast.Assign(targets=[ast.Attribute(attr="durable", value=ast.Name(id="self"))]):
            return True
    return False


def writers() -> set[str]:
    """Functions and classes of the product that can be durable or not."""
    found: set[str] = set()
    for path in (ROOT / file for file in parts_of(ROOT)):
        source = path.read_text()
        if "durable" not in source:
            continue
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and any(
                has_durable(inner) for inner in ast.walk(node)
            ):
                found.add(f"{path.relative_to(ROOT)} {node.name}")
    return found


def test_each_writer_that_can_be_durable_has_a_case() -> None:
    assert writers() == set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_a_durable_writer_has_written_when_it_returns(tmp_path: Path, case: str) -> None:
    (folder := tmp_path / "disk").mkdir()
    with power_cut(folder):
        is_there = CASES[case](folder)
    assert is_there()


# -- writers that are always durable -------------------------------------------------------------------


def test_a_device_knows_after_a_power_cut_which_sums_it_has_answered(tmp_path: Path) -> None:
    (folder := tmp_path / "disk").mkdir()
    device = SecureFolder(folder / "secure", simulated_identity(3, "a"))
    vector = np.arange(5, dtype=np.uint32)
    with power_cut(folder):
        device.save(AgentState(spent=1.0))
        device.save(AgentState(spent=2.0))
        device.save_vector("x", vector)
        device.keep_work(b"name", {"a": np.arange(3)})
    assert device.state().spent == 2.0
    assert np.array_equal(cast(Any, device.vector("x")), vector)
    assert device.kept_work(b"name") is not None


def test_a_checkpoint_is_whole_after_a_power_cut(tmp_path: Path) -> None:
    (folder := tmp_path / "disk").mkdir()
    report = Report({"model": np.ones(10, np.float32)}, 32)
    with power_cut(folder):
        checkpoint = Checkpoint(folder / "checkpoint")
        checkpoint.save({"number": 1}, report)
        checkpoint.save({"number": 2}, replace(report, examples=33))
    after = Checkpoint(folder / "checkpoint")
    assert after.facts() == {"number": 2}
    assert after.state(report).examples == 33


@pytest.mark.parametrize("case", CASES)
def test_a_writer_that_does_not_wait_for_its_disk_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    monkeypatch.setattr(Disk, "synced", lambda *_: None)
    (folder := tmp_path / "disk").mkdir()
    with power_cut(folder):
        is_there = CASES[case](folder)
    found = False
    with suppress(OSError, AssertionError, MemoryDamaged):
        found = is_there()
    assert not found


# -- models in use -------------------------------------------------------------------------------------


def test_a_model_that_comes_back_into_use_keeps_its_file(tmp_path: Path) -> None:
    store = Store(tmp_path, "r1")
    orders, send = OwnOrders(tmp_path, store), version(tmp_path)
    orders.keep_version(send, CONTENT)
    assert [gone.key for gone in orders.tidy((), ())] == ["model.0"]
    orders.keep_version(version(tmp_path, about=2), CONTENT)  # a fold led back to this model
    store.checkpoint_written()
    assert send.path.exists()
    orders.tidy((), ())
    store.checkpoint_written()
    assert not send.path.exists()
