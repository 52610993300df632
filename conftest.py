"""How all tests run, and what tests of several folders share."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from hypothesis import settings

from covey.shared import extras
from covey.shared.mqtt.link import Link
from covey.shared.own_code import faults
from tests import brokers, forked
from tests.kit.memory_broker import MemoryBroker
from tests.night import examples, is_night

# The suite tries the same examples in each run, so that it fails only when the code has changed.
# `--hypothesis-profile random` tries others. Time is no property: a machine may be busy.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=examples(15))
settings.register_profile("random", deadline=None, max_examples=1000)
settings.register_profile("night", deadline=None, max_examples=20_000)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _nobodys_own_code() -> Iterator[None]:
    """A package that a test has loaded as own code is none in the next test."""
    yield
    faults._loaded.clear()


def pytest_configure() -> None:
    """Undo three settings of the surroundings, which all programs of the tests would inherit, and do not wait for disks.

    A shell starts background jobs with SIGINT ignored, and `nohup` programs with SIGHUP; a program that a test starts does not
    inherit a handler, so this process alone outlives its terminal. Images for containers often set PYTHONDONTWRITEBYTECODE: then each
    program compiles all modules for itself, which takes 0.15 s of hundreds of programs.

    What lies on the disk after a power cut, no test can see. Tests of the order of writes count the calls of `os.fsync`
    themselves, and programs that tests start wait for the disk as usual.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["COVEY_THREADS"] = "1"  # the bytes of agents are compared with those of a simulation
    for library in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[library] = "1"  # threads that wait for each other take the cores of other tests
    forked.one_core()
    sys.dont_write_bytecode = False
    gc.disable()  # until all tests are collected
    os.fsync = lambda fd: None
    if in_memory():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    forked.surroundings()


MEMORY = Path("/dev/shm")  # pytest makes a folder of its own there
NEEDED_BYTES = 4 << 30  # more than the folders of a run whose tests all fail


def in_memory() -> bool:
    """Whether the folders of tests fit into memory: a file that is replaced there waits for no disk.

    A container often has 64 MB of it, and where no program may start from it, those of the tests could not.
    """
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < NEEDED_BYTES:
        return False
    return not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC


def pytest_collection_finish() -> None:
    """Look for garbage from now on, and never among what the imports of all test modules left: a million objects."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files that start real programs first, and long files before short ones: no worker should be left with one at the end.

    Long stories wait for the night.
    """
    for item in items:
        if item.get_closest_marker("night") and not is_night():
            item.add_marker(pytest.mark.skip(reason="a long story: COVEY_NIGHT=1 runs it"))
    slow = {item.path for item in items if item.get_closest_marker("processes")}
    length = {path: path.stat().st_size for path in {item.path for item in items}}
    items.sort(key=lambda item: (item.path not in slow, -length[item.path]))


@pytest.fixture(scope="session")
def broker_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """A function from the name of a broker (`tests.brokers.NAMES`) to its url. It starts the broker at the first call."""
    urls: dict[str, str] = {}
    with contextlib.ExitStack() as stack:

        def url(name: str) -> str:
            if name not in urls:
                urls[name] = stack.enter_context(brokers.start(name, tmp_path_factory.mktemp(name)))
            return urls[name]

        yield url


@pytest.fixture(scope="module")
def numpy_learner() -> Iterator[None]:
    """Programs that these tests start train with NumPy where they can: a worker with torch takes seconds to start."""
    with pytest.MonkeyPatch.context() as patch:
        if extras.has("light"):
            patch.setenv("COVEY_LEARNER", "numpy")
        yield


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> MemoryBroker:
    """The broker that the commands reach, whatever address is typed."""
    broker = MemoryBroker()

    def link(_url: object, *, client_id: str, **_: object) -> AbstractAsyncContextManager[Link]:
        return broker.link(client_id)

    monkeypatch.setattr("covey.coordinator.serve.connect.MqttLink", link)
    monkeypatch.setattr("covey.shared.mqtt.retained.QUIET_S", 0.05)
    return broker


@pytest.fixture
def single_thread() -> Iterator[None]:
    """As the worker sets it; more threads only get in the way of models this small."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def narrow_vgg16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The built-in model with dropout, with a sixtieth of its values."""
    monkeypatch.setattr("covey.shared.models.built_in.VGG16_GROUPS", ((4, 1),) * 5)
