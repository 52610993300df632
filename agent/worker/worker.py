"""The child process that does the work: the only place of the agent's runtime that imports numpy and torch.

`python -m covey.agent.worker.worker` takes jobs from stdin and answers on stdout (`agent.wire`). What goes wrong in a job is an
answer, never the end of the worker. It ends when stdin does, and with its parent.

Jobs, all with `source`, which says where data comes from, and with `policy` and `allow`, the rules of this device:

- `inspect` (task): what the data is like, or the problem that it has with the task (`problem` for everybody,
  `detail` for the device's own terminal)
- `perform` (order, models, memory, report_out, memory_out, client): the work of an order
- `partition` (out): which samples of a simulated fleet belong to whom, as .npz
- `start` (out): the initial models of a simulated fleet's scenario, as .npz
- `device` (wanted): which kind of device work would be done on, or that it is not there
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.agent.policy import PolicyError, Rules, values_of
from covey.agent.worker import frames
from covey.shared.consent import AllowedCode, consented
from covey.shared.errors import CoveyError, public_text
from covey.shared.files import is_full, write_atomically

if TYPE_CHECKING:
    import numpy as np

    from covey.agent.worker.sources import Source
    from covey.shared.strategies.base import ClientState
    from covey.shared.wire.messages import OrderMessage, ReportContent, Work


def main() -> None:
    """Serve jobs until the parent is gone."""
    # what libraries print must not get between our messages
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    end_with_parent()
    verbose = "--verbose" in sys.argv
    if (
        "--warm" in sys.argv
    ):  # a simulated fleet will train for sure: let no round wait for the import
        _quiet_torch()
    allowed = AllowedCode.parse(words_after("--allow", sys.argv))
    with consented(allowed):
        while (job := frames.read(sys.stdin.buffer)) is not None:
            try:
                answers.write(frames.pack(answer(job, verbose=verbose)))
            except BrokenPipeError:
                return


def words_after(option: str, words: Sequence[str]) -> list[str]:
    """The value of each occurrence of an option that takes one."""
    return [value for word, value in pairwise(words) if word == option]


def answer(job: frames.Job, *, verbose: bool = False) -> frames.Job:
    """Do one job. A failure is {"failure": what may leave the device, "detail": what its own terminal shows}."""
    try:
        match job["job"]:
            case "inspect":
                return _inspect(job)
            case "perform":
                return _perform(job, verbose=verbose)
            case "partition":
                return _partition(job)
            case "start":
                return _start(job)
            case "device":
                return _device(job)
        raise ValueError(f"unknown job {job['job']!r}")
    except DiskFull:
        return {"disk_full": True}
    except Exception as error:
        return {"failure": _line(public_text(error)), "detail": _explain(error, verbose=verbose)}


def end_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends; stdin tells elsewhere."""
    if sys.platform == "linux":
        import ctypes
        import signal

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _inspect(job: frames.Job) -> frames.Job:
    """Data that cannot take part is a finding, not a failure: the problem is told, its detail stays on the device."""
    from covey.agent.worker.sources import found, source_of
    from covey.shared.errors import DataError
    from covey.shared.scenario.task import Task

    task = Task.model_validate(job["task"])
    try:
        return found(source_of(job["source"]).dataset(task), task)
    except DataError as error:
        problem, detail = _line(error.public), _line(str(error))
        return {"samples": 0, "test_samples": 0, "labels": [], "problem": problem, "detail": detail}


def _partition(job: frames.Job) -> frames.Job:
    from covey.agent.worker.sources import FleetSource

    FleetSource(**job["source"]).write_partition(Path(job["out"]))
    return {}


def _start(job: frames.Job) -> frames.Job:
    from covey.agent.training.start_models import write_start
    from covey.shared.scenario.code import check_code
    from covey.shared.scenario.load import load_without_files

    rules = Rules.from_wire(job)
    scenario = load_without_files(Path(job["source"]["scenario"]))
    check_code(scenario, rules.allowed)
    write_start(scenario, Path(job["out"]), rules.allowed)
    return {}


def _device(job: frames.Job) -> frames.Job:
    from covey.agent.training.compute_device import choose_device

    return {"device": Rules.from_wire(job).device(job["wanted"], choose_device)}


def _perform(job: frames.Job, *, verbose: bool) -> frames.Job:
    """Whatever goes wrong with the work itself goes into the report: the coordinator wants to know."""
    from covey.shared.wire.messages import OrderMessage, ReportContent, digest

    order = OrderMessage.from_bytes(job["order"])
    memory_out = Path(job["memory_out"])
    detail = None
    memory_digest = b""
    try:
        with _memory_limited(Rules.from_wire(job).policy.max_memory_mb):
            content, memory_digest = _work(job, order, memory_out)
    except MemoryDamaged:
        return {"memory_damaged": True}
    except ModelDamaged as error:
        return {"model_damaged": error.digest}
    except DiskFull:
        raise
    except Exception as error:
        detail = _explain(error, verbose=verbose)
        content = ReportContent.failed(order, job["client"], _line(public_text(error)))
    report = content.to_bytes()
    _write(Path(job["report_out"]), report, durable=job["durable"])
    return {
        "digest": digest(report),
        "size": len(report),
        "fresh": bool(memory_digest),
        "memory_digest": memory_digest,
        "failed": detail,
    }


class DiskFull(Exception):  # noqa: N818 - the service waits and asks again
    """There is no room for what the work has made."""


class ModelDamaged(Exception):  # noqa: N818 - the service fetches it again
    """The file of a model does not hold what its name says."""

    def __init__(self, digest: bytes) -> None:
        super().__init__(digest.hex())
        self.digest = digest


class MemoryDamaged(Exception):  # noqa: N818 - what becomes of it is the service's to say
    """The file of an agent's memory does not hold what was written."""


def _work(job: frames.Job, order: OrderMessage, memory_out: Path) -> tuple[ReportContent, bytes]:
    """The report, and the digest of the new memory's file; empty where the memory stays what it is."""
    from covey.agent.worker.sources import is_simulated, source_of
    from covey.shared.client import (
        PRIVACY_LEDGER,
        decode_model,
        execute_order,
        settings_of,
        shuffle,
        simulated_noise,
    )
    from covey.shared.numerics.vectors import Layout
    from covey.shared.privacy.noise import Noise
    from covey.shared.privacy.settings import AgentPrivacy

    work = order.work
    if work is None:
        raise ValueError(f"order {order.step} has no work")
    rules = Rules.from_wire(job)
    if (refusal := rules.refuses(order, job["client"])) is not None:
        raise PolicyError(refusal)
    settings_of(work)
    values_of(work.layout)  # a layout, before it is taken for one
    layout = Layout.from_wire(work.layout)
    models = [decode_model(_model_content(Path(path)), layout) for path in job["models"]]
    memory = load_memory(Path(job["memory"]), job.get("memory_digest", "")) if job["memory"] else {}
    simulated = is_simulated(job["source"])
    noise = simulated_noise(work, job["client"]) if simulated else Noise.secret()
    local = _local(source_of(job["source"]), work, layout, shuffle(work, job["client"]), rules)
    privacy = AgentPrivacy.from_wire(work.privacy)
    if (
        privacy.local is not None and work.phase != "evaluate"
    ):  # a model that is tuned for a test stays here
        local.enable_privacy(privacy.local, privacy.rounds, noise, memory.get(PRIVACY_LEDGER))
    content, new = execute_order(order, models, local, memory, client=job["client"], noise=noise)
    content = content.model_copy(
        update={"client_state": job.get("client_state", "whole"), "device": local.device}
    )
    if new is memory:
        return content, b""
    return content, save_memory(memory_out, new, durable=job["durable"])


def _model_content(path: Path) -> bytes:
    """What lies in a model's file, whose name is its digest. Raises ModelDamaged."""
    from covey.shared.wire.messages import digest

    content = path.read_bytes()
    if path.suffix == ".model" and digest(content).hex() != path.stem:
        raise ModelDamaged(bytes.fromhex(path.stem))
    return content


@contextlib.contextmanager
def _memory_limited(most_mb: int | None) -> Iterator[None]:
    """Let the work take so many MB more than torch and our own code did when they were imported. Linux only."""
    if most_mb is None or sys.platform != "linux":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_own_data_bytes() + (most_mb << 20), hard))
    try:
        yield
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        raise PolicyError(
            f"policy of this device: max_memory_mb: the work takes more than the {most_mb} MB that are allowed"
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Is this error, or what led to it, a lack of memory? Torch has no type of its own for it."""
    while error is not None:
        if isinstance(error, MemoryError) or (
            isinstance(error, RuntimeError) and "memory" in str(error)
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


@cache
def _own_data_bytes() -> int:
    """What this process takes before its first work, all imports done."""
    import covey.shared.client  # noqa: F401

    _quiet_torch()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) << 10
    return 0


def _local(source: Source, work: Work, layout: Any, rng: np.random.Generator, rules: Rules) -> Any:
    from covey.agent.training.learner import TorchLocal
    from covey.shared.scenario.task import Task
    from covey.shared.strategies.base import Training

    _quiet_torch()
    task = Task.model_validate(work.task)
    training = Training.model_validate(work.training)
    return TorchLocal(source.dataset(task), task, layout, training, rng, work.scaling, rules=rules)


def _quiet_torch() -> None:
    """One thread per worker, and the same result each time."""
    import torch

    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)


def save_memory(path: Path, memory: ClientState, *, durable: bool = True) -> bytes:
    """Named arrays as .npz. Returns the digest of the file."""
    import io

    import numpy as np

    from covey.shared.wire.messages import digest

    buffer = io.BytesIO()
    np.savez(buffer, **dict(memory))  # type: ignore[arg-type]  # the stubs fear an array named allow_pickle
    content = buffer.getbuffer()
    _write(path, content, durable=durable)
    return digest(content)


def load_memory(path: Path, digest: str = "") -> ClientState:
    """What `save_memory` wrote, with this digest in hex where it is known. Raises MemoryDamaged."""
    import hashlib

    import numpy as np

    from covey.shared.wire.messages import DIGEST_BYTES

    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES))
            if digest and found.hexdigest() != digest:
                raise MemoryDamaged(path)
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
    except (MemoryDamaged, MemoryError):
        raise
    except (
        Exception
    ) as error:  # numpy and zipfile raise a dozen types for a file that is not what it was
        raise MemoryDamaged(path) from error


def _write(path: Path, content: bytes | memoryview, *, durable: bool) -> None:
    """The same step may have been given up before, and still be under way in another process."""
    try:
        write_atomically(path, content, durable=durable, mark=str(os.getpid()))
    except OSError as error:
        if is_full(error):
            raise DiskFull(path) from error
        raise


def _explain(error: Exception, *, verbose: bool) -> str:
    if verbose:
        traceback.print_exception(error)
    text = str(error) if isinstance(error, CoveyError) else f"{type(error).__name__}: {error}"
    return _line(text)


def _line(text: str) -> str:
    return " ".join(text.split())[:1000]


if __name__ == "__main__":
    main()
