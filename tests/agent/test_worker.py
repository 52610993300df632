"""The worker over real pipes, with a small .npz; and its jobs in this process."""

from __future__ import annotations

import asyncio
import errno
import gc
import io
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from covey.agent.training import learner, torch_learner
from covey.agent.training.models import build, initial, layout_of
from covey.agent.training.torch_learner import COMPILER_FLAG, configure_torch
from covey.agent.worker import worker
from covey.agent.worker.memory_file import MemoryDamaged, StoredMemory, save_memory
from covey.agent.worker.participant import ModelCache
from covey.agent.worker.pool import Pool, WorkerLost
from covey.agent.worker.process import WorkerOptions
from covey.agent.worker.worker import answer
from covey.shared.numerics.split import Split
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.own_code.consent import AllowedCode
from covey.shared.scenario.task import Model, Task
from covey.shared.seeds import generator
from covey.shared.storage import files
from covey.shared.strategies.client_half import LAST_MODEL
from covey.shared.wire import jobs
from covey.shared.wire.codec import Codec, decode, encode_model
from covey.shared.wire.jobs import (
    BadMemory,
    BadModel,
    DataSummary,
    DeviceData,
    InspectData,
    Perform,
    Performed,
)
from covey.shared.wire.messages import INITIAL, ModelRef, ReportContent, digest
from covey.shared.work.execute import with_array
from tests.agent.orders import TASK, order
from tests.hashes import Hashes

ECHO = (
    sys.executable,
    "-u",
    "-c",
    "import covey.shared.wire.jobs as w, sys, time, os\n"
    + """
while (job := w.read(sys.stdin.buffer)) is not None:
    if job.get("die"): os._exit(3)
    time.sleep(job.get("s", 0))
    sys.stdout.buffer.write(w.pack({"pid": os.getpid(), **job})); sys.stdout.buffer.flush()
""",
)

# A real worker that writes the names of its modules to a file after each job
WATCHED = (
    sys.executable,
    "-c",
    """
import sys
from pathlib import Path
from covey.agent.worker import worker
answer = worker.answer
def watched(job, *options):
    done = answer(job, *options)
    Path(sys.argv[1]).write_text(" ".join(sys.modules))
    return done
worker.answer = watched
worker.main()
""",
)
# A worker trains without these; each would cost every worker tenths of a second and tens of megabytes.
UNWANTED = {
    "matplotlib",
    "opacus",
    "pandas",
    "pyarrow",
    "rich",
    "scipy",
    "sklearn",
    "sympy",
    "torch._dynamo",
    "torch._inductor",
    "typer",
}


def data(folder: Path, rows: int = 40) -> Path:
    """Two classes that a line separates."""
    draw = generator(0, "data")
    y = np.arange(rows) % 2
    np.savez(
        folder / "data.npz",
        x=(draw.normal(0, 1, (rows, 4)) + 3 * y[:, None]).astype(np.float32),
        y=y,
    )
    return folder / "data.npz"


def job(folder: Path, **changes: Any) -> Perform:
    """A whole order on disk: train a linear model from its initial weights."""
    task = TASK.model_copy(update={"model": TASK.model.model_copy(update={"name": "linear"})})
    vector, layout = initial(task, 0)
    content = encode_model(vector, layout.digest, Codec(), generator(0, "down"))
    (folder / "model").write_bytes(content)
    reference = ModelRef(key="0", digest=digest(content), parts=1, size=len(content))
    plain = {"task": task.for_agents(), "layout": layout.to_wire()}
    message = order(1, reference, **{**plain, "sizes": {"model": layout.size}, **changes})
    return Perform(
        source=DeviceData(data=str(data(folder))),
        client="pi",
        order=message.to_bytes(),
        models=[folder / "model"],
        report_out=folder / "report",
        memory_out=folder / "memory",
        durable=False,
    )


def test_a_damaged_model_is_found_before_it_is_used(tmp_path: Path) -> None:
    wanted = job(tmp_path)
    content = (tmp_path / "model").read_bytes()
    path = tmp_path / f"{digest(content).hex()}.model"
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert answer(replace(wanted, models=[path])) == BadModel(digest=digest(content))
    path.write_bytes(content)
    assert answer(replace(wanted, models=[path])).failed == ""


@pytest.mark.parametrize("damage", ["one bit", "half of it", "nothing is left"])
def test_damaged_memory_is_found_before_it_is_used(tmp_path: Path, damage: str) -> None:
    wanted = job(tmp_path)
    done = answer(wanted)
    memory = tmp_path / "memory"
    content = memory.read_bytes()
    held = StoredMemory(memory)[LAST_MODEL].tobytes()
    lengths = {"one bit": len(content), "half of it": len(content) // 2, "nothing is left": 0}
    damaged = bytearray(content[: lengths[damage]])
    if damage == "one bit":
        damaged[content.index(held)] ^= 1
    memory.write_bytes(damaged)
    measured = job(
        tmp_path, phase="evaluate", sizes={}
    )  # reads what the training would only replace
    again = replace(measured, memory=memory, memory_digest=done.memory_digest.hex())
    assert answer(again) == BadMemory()
    assert answer(replace(again, memory=None, client_state="lost")).failed == ""
    assert report(tmp_path).client_state == "lost"


def test_any_damaged_byte_of_a_memory_is_found_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    arrays = {"a": np.arange(3.0), "b": np.ones(2, np.int64)}
    seal = save_memory(path, arrays, durable=False).hex()
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 4
        path.write_bytes(damaged)
        try:
            found = dict(StoredMemory(path, seal))
        except MemoryDamaged:
            continue
        assert found.keys() == arrays.keys(), place
        for name, array in found.items():
            assert array.dtype == arrays[name].dtype, place
            assert array.tobytes() == arrays[name].tobytes(), place


def test_the_values_of_a_report_and_of_a_memory_are_hashed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report gets its digest. The memory has the same model, with a checksum of its own."""
    wanted = job(tmp_path)
    hashes = Hashes()
    hashes.watch(monkeypatch)
    done = answer(wanted)
    again = replace(wanted, memory=tmp_path / "memory", memory_digest=done.memory_digest.hex())
    trained = report(tmp_path).vectors["model"].data
    assert hashes.of(trained) == 1
    hashes.inputs.clear()
    assert answer(again).failed == ""
    assert hashes.of(trained) == 1


def report(folder: Path) -> ReportContent:
    return ReportContent.from_bytes((folder / "report").read_bytes(), verified=True)


def lives(pid: int) -> bool:
    """Is there such a process, other than as a zombie?"""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def until(reached: Callable[[], bool], within_s: float = 30.0) -> None:
    """Look until it is so: another process has no event to wait for."""
    async with asyncio.timeout(within_s):
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def pool(workers: int = 1, **options: Any) -> AsyncIterator[Any]:  # its workers repeat jobs
    async with Pool(workers, command=ECHO, **options) as it:
        yield it


@pytest.mark.processes
async def test_workers_that_are_certain_to_train_start_at_once() -> None:
    async with pool(2, warm=True) as it:
        await until(lambda: len(it.processes) == 2)
    async with pool(2) as it:
        await asyncio.sleep(0)
        assert it.processes == []


@pytest.mark.processes
async def test_a_worker_inspects_and_works_over_its_pipes(tmp_path: Path) -> None:
    wanted = job(tmp_path)
    loaded = tmp_path / "modules"
    async with Pool(1, command=(*WATCHED, str(loaded))) as it:
        task = TASK.for_agents()
        found = await it.call(InspectData(source=wanted.source, task=task))
        assert found == DataSummary(samples=32, test_samples=8, labels=["0", "1"])
        assert "torch" not in loaded.read_text().split()
        done = await it.call(wanted)
        modules = set(loaded.read_text().split())
        assert "torch" in modules
        assert not modules & UNWANTED
        wrong = await it.call(InspectData(source=DeviceData(data="nowhere.npz"), task=task))
        assert isinstance(wrong, DataSummary)
        assert "nowhere.npz" in wrong.detail
        assert "nowhere.npz" not in wrong.problem
        (pid,) = it.processes
    assert isinstance(done, Performed)
    assert done.memory_digest
    assert done == Performed(
        digest=digest((tmp_path / "report").read_bytes()),
        size=(tmp_path / "report").stat().st_size,
        examples=32,
        memory_digest=done.memory_digest,
    )
    assert (report(tmp_path).examples, report(tmp_path).steps) == (32, 4)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_torch_is_set_to_results_that_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_deterministic_debug_mode("default")
    monkeypatch.delenv(COMPILER_FLAG, raising=False)
    configure_torch()
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.get_num_threads() == 1
    assert os.environ[COMPILER_FLAG] == "1"
    assert gc.isenabled()


def test_the_report_holds_the_trained_model_and_the_memory_too(tmp_path: Path) -> None:
    assert answer(job(tmp_path)).failed == ""
    content = report(tmp_path)
    held = StoredMemory(tmp_path / "memory")[LAST_MODEL]
    assert np.array_equal(decode(content.vectors["model"], length=10), held)


def test_layers_that_compute_once_for_all_epochs_are_in_the_answer(tmp_path: Path) -> None:
    model = Model(name="mlp", options={"hidden": 8})
    for share, samples in ((("fc2",), 32), ((), 0)):
        task = TASK.model_copy(update={"model": model, "share": share})
        vector, layout = initial(task, 0)
        parts = {"0": vector}
        if share:
            split = Split.by_patterns(layout, share, (), ())
            parts = {"0": split.share_of(vector), INITIAL[0]: split.rest_of(vector)}
        refs = []
        for key, part in parts.items():
            content = encode_model(part, layout.digest, Codec(), generator(0, "down"))
            (tmp_path / key).write_bytes(content)
            refs.append(ModelRef(key=key, digest=digest(content), parts=1, size=len(content)))
        plain: dict[str, Any] = {"task": task.for_agents(), "layout": layout.to_wire()}
        message = order(1, *refs, **plain, sizes={"model": parts["0"].size})
        models = [tmp_path / key for key in parts]
        done = answer(replace(job(tmp_path), order=message.to_bytes(), models=models))
        assert (done.failed, done.frozen_once) == ("", samples)


def test_the_same_job_twice_makes_the_same_vectors(tmp_path: Path) -> None:
    answer(job(tmp_path))
    first = report(tmp_path).vectors
    answer(job(tmp_path))
    assert report(tmp_path).vectors == first


def test_a_model_is_built_for_the_first_of_its_orders_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []

    def counted(task: Task, *arguments: Any, **options: Any) -> torch.nn.Module:
        built.append(task.model.name)
        return build(task, *arguments, **options)

    monkeypatch.setattr(learner, "build", counted)
    monkeypatch.setattr(torch_learner, "LEARNER", torch_learner.TorchLearner())
    for _ in range(3):
        assert answer(job(tmp_path)).failed == ""
    assert built == ["linear"]


def test_a_model_of_the_users_own_is_built_for_each_order() -> None:
    task = TASK.model_copy(update={"model": Model(name="tests.kit.own_model:linear", options={})})
    allowed = AllowedCode(frozenset({task.model.name}))
    layout = layout_of(build(task, 0, allowed))
    kept = learner.Nets()
    first, second = (kept.net(task, layout, torch.device("cpu"), allowed) for _ in range(2))
    assert first is not second


def test_an_evaluation_reports_all_modes_and_does_not_change_the_memory(tmp_path: Path) -> None:
    answer(job(tmp_path))
    (tmp_path / "memory").rename(tmp_path / "kept")
    done = answer(replace(job(tmp_path, phase="evaluate", sizes={}), memory=tmp_path / "kept"))
    assert done.failed == ""
    assert not done.memory_digest
    assert not (tmp_path / "memory").exists()
    numbers = report(tmp_path).numbers
    assert set(numbers) == {"server", "tuned", "last", "baseline"}
    assert numbers["last"]["n"] == 8
    assert numbers["last"]["accuracy"] >= numbers["server"]["accuracy"]


def test_moments_are_summed_per_channel(tmp_path: Path) -> None:
    done = answer(replace(job(tmp_path, phase="moments", sizes={}), models=[]))
    assert done.failed == ""
    assert {name: len(values) for name, values in report(tmp_path).numbers.items()} == {
        "count": 4,
        "sum": 4,
        "square": 4,
    }


def test_an_error_in_the_work_is_reported_in_one_line_without_a_path(tmp_path: Path) -> None:
    done = answer(replace(job(tmp_path), source=DeviceData(data=str(tmp_path / "none.npz"))))
    assert "none.npz" in done.failed
    assert "\n" not in done.failed
    assert report(tmp_path).failure == "the given path does not exist"
    assert report(tmp_path).vectors == {}


def test_a_training_that_diverges_is_reported_as_a_failure(tmp_path: Path) -> None:
    done = answer(job(tmp_path, training={"epochs": 200, "batch": 4, "lr": 3e38}))
    assert "diverged" in done.failed
    assert "diverged" in str(report(tmp_path).failure)


def test_an_unknown_job_gets_a_failure_as_its_answer(tmp_path: Path) -> None:
    assert answer(cast(Any, "dance")).detail == "TypeError: str is no job of a worker"


def test_memory_is_read_as_it_was_written(tmp_path: Path) -> None:
    memory = {
        "held": np.ones(3, np.float32),
        "codec/model": np.zeros(2, np.float32),
        "n": np.array(3),
    }
    save_memory(tmp_path / "memory", memory)
    back = StoredMemory(tmp_path / "memory")
    assert {name: (value.dtype, value.tolist()) for name, value in back.items()} == {
        name: (value.dtype, value.tolist()) for name, value in memory.items()
    }


@pytest.mark.processes
async def test_a_pool_starts_no_more_workers_than_allowed_and_reuses_them() -> None:
    async with pool(2) as it:
        answers = await asyncio.gather(*(it.call({"s": 0.01}) for _ in range(6)))
        assert len({answer["pid"] for answer in answers}) <= 2
        assert len(it.processes) <= 2


@pytest.mark.processes
async def test_heavier_jobs_start_first() -> None:
    async with pool(1) as it:
        finished: list[float] = []

        async def run(weight: float) -> None:
            await it.call({"s": 0.01}, weight=weight)
            finished.append(weight)

        await asyncio.gather(*map(run, [1.0, 3.0, 2.0]))
        assert finished == [3.0, 2.0, 1.0]


@pytest.mark.processes
async def test_a_worker_that_dies_during_a_job_is_replaced() -> None:
    async with pool(1) as it:
        with pytest.raises(WorkerLost, match="exit code 3"):
            await it.call({"die": True})
        assert (await it.call({"s": 0}))["s"] == 0


@pytest.mark.processes
async def test_a_cancelled_job_that_does_not_finish_has_its_worker_killed() -> None:
    async with pool(1, cancel_grace_s=0.05) as it:
        long = asyncio.create_task(it.call({"s": 60}))
        await until(lambda: bool(it.processes))
        await asyncio.sleep(0.1)
        long.cancel()
        assert (await asyncio.wait_for(it.call({"s": 0}), 60))["s"] == 0


@pytest.mark.processes
async def test_a_cancelled_job_that_finishes_soon_keeps_its_worker() -> None:
    async with pool(1, cancel_grace_s=30) as it:
        first = (await it.call({"s": 0}))["pid"]
        short = asyncio.create_task(it.call({"s": 0.1}))
        await asyncio.sleep(0.02)
        short.cancel()
        assert (await it.call({"s": 0}))["pid"] == first


@pytest.mark.processes
async def test_an_idle_worker_ends_after_a_while() -> None:
    async with pool(1, keep_warm_s=0.05) as it:
        pid = (await it.call({"s": 0}))["pid"]
        await until(lambda: not it.processes and not lives(pid))


@pytest.mark.processes
async def test_a_worker_ends_with_its_parent() -> None:
    program = (
        "import asyncio, sys\nfrom covey.agent.worker.pool import Pool\n"
        "async def main():\n"
        "    pool = Pool(1)\n"
        "    await pool.call({})\n"
        "    print(*pool.processes, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await asyncio.wait_for(parent.stdout.readline(), 60))
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    await until(lambda: not lives(pid))


async def test_ctrl_c_in_a_terminal_does_not_reach_the_workers() -> None:
    """A terminal signals the whole foreground group: a worker there would print its traceback."""
    async with pool() as it:
        await it.call({"job": "any"})
        (pid,) = it.processes
        assert os.getpgid(pid) != os.getpgid(0)


def test_a_stored_model_that_a_method_only_replaces_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = job(tmp_path)
    done = answer(wanted)
    read: list[str] = []
    of_file = StoredMemory.__getitem__

    def watched(self: StoredMemory, name: str) -> Any:
        read.append(name)
        return of_file(self, name)

    monkeypatch.setattr(StoredMemory, "__getitem__", watched)
    again = replace(wanted, memory=tmp_path / "memory", memory_digest=done.memory_digest.hex())
    assert answer(again).memory_digest
    assert LAST_MODEL in StoredMemory(tmp_path / "memory")
    assert LAST_MODEL not in read


def test_arrays_of_a_memory_keep_their_order_when_one_is_replaced(tmp_path: Path) -> None:
    arrays = {name: np.full(3, number) for number, name in enumerate("abc")}
    save_memory(tmp_path / "memory", arrays, durable=False)
    stored = StoredMemory(tmp_path / "memory")
    assert list(stored) == ["a", "b", "c"]
    assert stored.get("d") is None
    assert stored["b"] is stored["b"]
    assert list(with_array(stored, "b", np.zeros(3, np.float32))) == ["a", "b", "c"]


def test_agents_of_a_simulated_fleet_share_the_models_of_an_order(tmp_path: Path) -> None:
    layout = layout_of(build(TASK, 0))
    read: list[str] = []

    def paths(*names: str) -> list[Path]:
        return [Path(name) for name in names]

    def reads(path: Path, _: Layout) -> Vector:
        read.append(path.name)
        return np.zeros(layout.size, np.float32)

    cache = ModelCache()
    first = cache.models(paths("agent-0/aa.model", "agent-0/bb.model"), layout, reads)
    second = cache.models(paths("agent-1/bb.model"), layout, reads)
    assert second[0] is first[1]
    assert not second[0].flags.writeable
    assert read == ["aa.model", "bb.model"]
    cache.models(paths("agent-1/aa.model"), layout, reads)  # the order before did not name it
    cache.models(paths("model", "model"), layout, reads)  # such a name identifies no content
    assert read[2:] == ["aa.model", "model", "model"]


@pytest.mark.parametrize("durable", [True, False])
def test_a_worker_syncs_contents_and_leaves_their_names_to_the_outbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    wanted = replace(job(tmp_path), durable=durable)
    synced: list[str] = []
    monkeypatch.setattr(files, "sync", lambda path: synced.append(path.stem))
    assert answer(wanted).failed == ""
    assert synced == (["memory", "report"] if durable else [])


def test_a_worker_reads_the_options_that_its_pool_wrote() -> None:
    for options in (
        WorkerOptions(),
        WorkerOptions(3, warm=True, verbose=True, allow=("my.models", "tiny")),
    ):
        assert WorkerOptions.parse(["wrapper", *options.words()]) == options


def test_a_job_that_waits_is_done_before_torch_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Learner:
        def prepare(self, threads: int) -> None:
            done.append("loaded")
            os.close(ours)

    def answer_of(job: object, options: WorkerOptions) -> jobs.Nothing:
        done.append(type(job).__name__)
        return jobs.Nothing()

    monkeypatch.setattr(worker, "load_library", lambda name: Learner())
    monkeypatch.setattr(worker, "answer", answer_of)
    theirs, ours = os.pipe()
    os.write(ours, jobs.pack(jobs.FindDevice(wanted="cpu")))
    with os.fdopen(theirs, "rb") as pipe:
        worker._serve(pipe, io.BytesIO(), WorkerOptions(warm=True))
    assert done == ["FindDevice", "loaded"]


@pytest.mark.parametrize("place", ["zipfile.ZipFile.__init__", "zipfile.ZipFile.open"])
@pytest.mark.parametrize("sealed", [True, False])
def test_a_memory_that_cannot_be_opened_for_want_of_descriptors_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, sealed: bool
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    seal = save_memory(tmp_path / "x", {"a": np.arange(3)})
    monkeypatch.setattr(place, full)
    with pytest.raises(OSError, match="too many open files"):
        StoredMemory(tmp_path / "x", seal.hex() if sealed else "")["a"]
