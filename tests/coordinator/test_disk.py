"""Spool and checkpoint: what was written is read, mapped, and a damaged file is refused."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.coordinator.disk.array_files import open_arrays, save_arrays
from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.disk.spool import REPORTS, Circumstances, Spool
from covey.shared.errors import UserError
from covey.shared.numerics.vectors import Vector, mean
from covey.shared.storage import files
from covey.shared.strategies.client_half import Report
from tests.kit import spooled


@dataclass(frozen=True)
class State:
    models: tuple[Vector, ...]
    stored: dict[str, Vector]
    assign: dict[str, int]
    lam: float
    note: str | None = None


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


def state(**changes: Any) -> State:
    base: dict[str, Any] = {
        "models": (vector(1, 2), vector(3, 4)),
        "stored": {"a": vector(5, 6)},
        "assign": {"a": 1},
        "lam": float("inf"),
    }
    return State(**base | changes)


def same(a: State, b: State) -> bool:
    return repr(a).replace("memmap", "array") == repr(b).replace("memmap", "array")


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.float16, np.int64, np.uint8, np.bool_]
)
def test_arrays_come_back_mapped_with_dtype_and_shape(tmp_path: Path, dtype: type) -> None:
    array: Any = np.arange(6).reshape(2, 3).astype(dtype)
    save_arrays(tmp_path / "x", {"one": array, "empty": array[:0]}, {"why": ["not"]})
    arrays, facts = open_arrays(tmp_path / "x")
    assert facts == {"why": ["not"]}
    assert isinstance(arrays["one"], np.memmap)
    np.testing.assert_array_equal(arrays["one"], array, strict=True)
    assert arrays["empty"].shape == (0, 3)


def test_every_cut_of_an_array_file_is_refused(tmp_path: Path) -> None:
    save_arrays(tmp_path / "x", {"one": vector(1, 2, 3)})
    whole = (tmp_path / "x").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(ValueError):
            open_arrays(tmp_path / "cut")


@pytest.mark.parametrize("durable", [True, False])
def test_only_a_durable_spool_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    spool = Spool(tmp_path)
    spool.durable = durable
    spool.keep(4, "pi-7", Report({"model": vector(1, 2)}, 7), Circumstances(1.25))
    spool.sync()
    assert bool(synced) == durable
    assert [path.name for path in (tmp_path / "4").iterdir()] == [REPORTS]


def test_a_durable_spool_survives_a_power_cut_with_the_folders_that_lead_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync", synced.append)
    spool = Spool(tmp_path / "run" / "spool")
    spool.keep(4, "pi-7", Report({"model": vector(1, 2)}, 7), Circumstances(1.25))
    spool.sync()
    assert {tmp_path / "run", tmp_path / "run" / "spool", tmp_path / "run" / "spool" / "4"} <= set(
        synced
    )


@pytest.mark.parametrize("durable", [True, False])
def test_a_spooled_report_comes_back_whole_and_mapped(tmp_path: Path, durable: bool) -> None:
    spool = Spool(tmp_path)
    spool.durable = durable
    report = Report(
        {"model": vector(1, 2), "extra": vector(9)}, 7, {"choice": 1, "losses": [0.1, 0.2]}, 3, 0.5
    )
    spool.keep(4, "pi-7", report, Circumstances(1.25))
    [(client, read)] = Spool(tmp_path).reports(4, ["pi-7"])
    assert (client, read.examples, read.numbers, read.steps, read.loss) == (
        "pi-7",
        7,
        report.numbers,
        3,
        0.5,
    )
    assert isinstance(read.vectors["model"], np.memmap)
    np.testing.assert_array_equal(read.vectors["model"], [1, 2])
    assert spool.circumstances(4, ["pi-7"]) == {"pi-7": Circumstances(1.25)}


def test_a_spool_knows_who_has_reported_a_step_and_forgets_old_steps(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for step, client in [(1, "b"), (1, "a"), (2, "c")]:
        spool.keep(step, client, Report({}, 1), Circumstances(0.0))
    mapped = spool.reports(1, ["a"])
    assert (spool.who(1), spool.who(2), spool.who(3)) == (["a", "b"], ["c"], [])
    spool.drop(1)
    assert (spool.who(1), spool.who(2)) == ([], ["c"])
    assert mapped[0][1].examples == 1


def test_half_arrived_contents_are_gone_after_a_restart(tmp_path: Path) -> None:
    sink = Spool(tmp_path).new_sink(10)
    sink.write(0, b"half")
    Spool(tmp_path)
    assert not list((tmp_path / "incoming").iterdir())


def test_a_checkpoint_gives_back_facts_and_state(tmp_path: Path) -> None:
    saved = Checkpoint(tmp_path / "c").save({"round": 3}, state())
    again = Checkpoint(tmp_path / "c")
    assert again.facts() == {"round": 3}
    assert same(again.state(state()), saved)
    assert same(saved, state())
    assert isinstance(saved.models[0], np.memmap)


def test_an_unchanged_array_is_written_once_and_an_unused_one_is_removed(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    first = checkpoint.save({}, state())
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "arrays").iterdir()}
    checkpoint.save({}, State((first.models[0], vector(7, 8)), first.stored, {}, 0.0))
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "arrays").iterdir()}
    assert len(before) == len(after) == 3
    assert len(before.items() & after.items()) == 2


def test_a_state_stays_readable_after_its_files_are_swept(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    old = checkpoint.save({}, state())
    checkpoint.save({}, state(models=(vector(0, 0),)))
    np.testing.assert_array_equal(mean([(old.models[0], 1.0), (old.models[1], 1.0)]), [2, 3])


def test_a_checkpoint_cut_short_anywhere_is_refused_and_left_alone(tmp_path: Path) -> None:
    Checkpoint(tmp_path).save({"round": 1}, state())
    manifest = tmp_path / "manifest.json"
    whole = manifest.read_bytes()
    for length in range(len(whole) - 1):
        manifest.write_bytes(whole[:length])
        with pytest.raises(UserError, match="cut short"):
            Checkpoint(tmp_path).facts()
        assert manifest.read_bytes() == whole[:length]


def test_a_missing_array_is_named_when_the_state_is_read(tmp_path: Path) -> None:
    Checkpoint(tmp_path).save({}, state())
    next((tmp_path / "arrays").iterdir()).unlink()
    with pytest.raises(UserError, match="missing or damaged"):
        Checkpoint(tmp_path).state(state())


def flip(path: Path) -> None:
    """One bit of the file's last byte: a value of an array."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_an_array_of_the_checkpoint_that_was_damaged_is_refused_by_name_and_left_alone(
    tmp_path: Path,
) -> None:
    Checkpoint(tmp_path).save({}, state())
    path = next((tmp_path / "arrays").iterdir())
    flip(path)
    damaged = path.read_bytes()
    with pytest.raises(UserError, match=f"{path.name}.*damaged.*Restore"):
        Checkpoint(tmp_path).state(state())
    assert path.read_bytes() == damaged


def test_an_array_that_an_earlier_process_left_damaged_is_written_again(tmp_path: Path) -> None:
    Checkpoint(tmp_path).save({}, state())
    for path in (tmp_path / "arrays").iterdir():
        flip(path)
    Checkpoint(tmp_path).save({}, state())
    Checkpoint(tmp_path).state(state())


def test_a_damaged_report_in_the_spool_is_named_and_removed_and_the_others_stay(
    tmp_path: Path,
) -> None:
    spool = Spool(tmp_path)
    for client in ("a", "b", "c"):
        spool.keep(4, client, Report({"model": vector(1, 2)}, 7), Circumstances(1.25))
    path = tmp_path / "4" / REPORTS
    spooled.flip(path, "b")
    path.write_bytes(path.read_bytes().replace(b'"client":"c"', b'"client":"x"'))
    again = Spool(tmp_path)
    assert again.sound(4) == ["a"]
    [lost, damaged] = again.damaged
    assert "its text is damaged" in lost
    assert "the report of b is damaged; b is asked for it again" in damaged
    once_more = Spool(tmp_path)
    assert once_more.sound(4) == ["a"]
    assert not any("report of b" in why for why in once_more.damaged)


def test_a_report_whose_facts_were_changed_is_damaged_too(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.keep(4, "a", Report({"model": vector(1, 2)}, 7), Circumstances(1.25))
    path = tmp_path / "4" / REPORTS
    changed = path.read_bytes().replace(b'"examples":7', b'"examples":9')
    assert changed != path.read_bytes()
    path.write_bytes(changed)
    assert Spool(tmp_path).sound(4) == []


def test_a_resume_without_a_checkpoint_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="without --resume"):
        Checkpoint(tmp_path / "nowhere").facts()


def test_a_state_that_cannot_be_saved_is_our_mistake(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="set"):
        Checkpoint(tmp_path).save({}, state(note={1, 2}))
