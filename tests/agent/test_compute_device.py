"""The device of a learner. There is no GPU here: torch's meta device, and a watch over every operation, show what is moved."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from covey.agent.policy import UNLIMITED, OwnersRules
from covey.agent.training import learner
from covey.agent.training.compute_device import CUBLAS_VARIABLE, choose_device, prepare_device
from covey.agent.training.learner import TorchLocal
from covey.agent.training.models import initial
from covey.agent.worker.pool import check_device
from covey.agent.worker.worker import answer
from covey.shared.errors import PublicError, UserError
from covey.shared.numerics.vectors import Vector
from covey.shared.programs.child import environment, python
from covey.shared.scenario.task import Model, Standardise, Task
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import Contrast, Drill, GradientCorrection
from covey.shared.wire.jobs import DeviceFound, Failure, FindDevice
from covey.shared.wire.messages import ReportContent
from tests.agent.test_learner import IMAGES, NORMED, TABLE, VALUES, data_of
from tests.agent.test_worker import job
from tests.processes import ROOT

SCALED = IMAGES.model_copy(
    update={"standardise": Standardise(mean=(0.5,), std=(2.0,)), "scale": 0.5}
)
DROPPING = Task(features=(1, 28, 28), classes=4, model=Model(name="femnist_cnn"))
HEADED = Task(features=(1, 16, 16), classes=4, model=Model(name="lenet5", options={"head": 2}))
COLOURED = Task(features=(3, 32, 32), classes=4, model=Model(name="resnet9", options={"head": 2}))


def has(monkeypatch: pytest.MonkeyPatch, *kinds: str) -> None:
    """Let torch say that these kinds of device are there, and the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in kinds)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in kinds)


@pytest.mark.parametrize(
    ("there", "wanted", "kind"),
    [
        ([], "auto", "cpu"),
        (["mps"], "auto", "mps"),
        (["cuda", "mps"], "auto", "cuda"),
        (["cuda"], "cpu", "cpu"),
        (["cuda"], "cuda", "cuda"),
    ],
)
def test_auto_takes_the_fastest_that_is_there(
    there: list[str], wanted: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(monkeypatch, *there)
    assert choose_device(wanted, "training.device") == kind


def test_a_device_that_is_not_there_is_an_error_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, "mps")
    with pytest.raises(
        PublicError,
        match=r"training\.device: torch .* can use no cuda here; it has mps, cpu\. Set auto",
    ):
        choose_device("cuda", "training.device")


def test_the_owner_of_an_agent_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, "cuda")
    owner = OwnersRules(UNLIMITED.model_copy(update={"device": "cpu"}))
    assert owner.device("cuda", choose_device) == "cpu"
    assert OwnersRules.of_job(owner.for_job()).device("cuda", choose_device) == "cpu"
    assert OwnersRules(UNLIMITED).device("cuda", choose_device) == "cuda"
    other = OwnersRules(UNLIMITED.model_copy(update={"device": "mps"}))
    with pytest.raises(PublicError, match=r"policy of this device: device: .* no mps"):
        other.device("cpu", choose_device)


def test_cuda_is_set_to_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CUBLAS_VARIABLE, raising=False)
    for name in ("benchmark", "deterministic", "allow_tf32"):
        monkeypatch.setattr(torch.backends.cudnn, name, name != "deterministic")
    products = SimpleNamespace(allow_tf32=True)
    monkeypatch.setattr(torch.backends.cuda, "matmul", products)
    environ: dict[str, str] = {}
    monkeypatch.setattr("covey.agent.training.compute_device.os.environ", environ)
    assert prepare_device("cuda") == torch.device("cuda")
    assert environ == {CUBLAS_VARIABLE: ":4096:8"}
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    assert not torch.backends.cudnn.allow_tf32
    assert not products.allow_tf32


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at every operation of torch: one whose tensors lie on two devices is an error, as it is on a GPU.

    `crossed` holds the numbers of values that came from the device to the CPU, `products` where layers were computed.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.crossed: list[int] = []
        self.products: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [
            one
            for one in tree_leaves((args, kwargs))
            if isinstance(one, torch.Tensor) and one.dim()
        ]
        devices = {tensor.device.type for tensor in tensors}
        name = str(func)
        if len(devices) > 1 and not name.startswith("aten.copy_"):
            raise RuntimeError(f"{name} of tensors on {sorted(devices)}")
        if any(word in name for word in ("mm", "convolution")):
            self.products |= devices
        return func(*args, **(kwargs or {}))


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """A learner whose device is meta. What comes from there has no values: zeros take their place."""
    real = torch.Tensor.cpu
    with Watch() as watch:

        def cpu(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.is_meta:
                return real(tensor)
            watch.crossed.append(tensor.numel())
            return torch.zeros(tensor.shape, dtype=tensor.dtype)

        monkeypatch.setattr(torch.Tensor, "cpu", cpu)
        monkeypatch.setattr(learner, "prepare_device", lambda kind: torch.device("meta"))
        yield watch


def local_of(task: Task, **training: Any) -> tuple[TorchLocal, Vector]:
    start, layout = initial(task, 3)
    settings = Training(**({"batch": 5, "lr": 0.1} | training))
    return TorchLocal(
        data_of(task), task, layout, training=settings, rng=generator(1, "test")
    ), start


def test_the_watch_sees_an_operation_on_two_devices(elsewhere: Watch) -> None:
    """Else the tests below would prove nothing."""
    here, there = torch.ones(2, 2), torch.ones(2, 2, device="meta", requires_grad=True)
    with pytest.raises(RuntimeError, match="of tensors on"):
        here @ there
    with pytest.raises(RuntimeError, match="of tensors on"):
        there + here
    (there @ there).sum().backward()  # type: ignore[no-untyped-call]
    assert elsewhere.products == {"meta"}


@pytest.mark.parametrize(
    "task", [IMAGES, SCALED, TABLE, VALUES, NORMED, DROPPING], ids=lambda task: task.model.name
)
def test_models_and_batches_are_moved_and_vectors_come_back_as_float32_on_the_cpu(
    task: Task, elsewhere: Watch
) -> None:
    local, start = local_of(task, momentum=0.9, weight_decay=0.1)
    elsewhere.products.clear()  # a model that is built computes its shape, on the CPU
    drift = np.ones(local._layout.parameters, np.float32)
    done = local.train(start, Drill(GradientCorrection(start, 0.1, drift), epochs=1))
    assert done.velocity is not None
    assert elsewhere.crossed == [
        done.steps,
        local._layout.size,
        local._layout.parameters,
    ]  # losses, model, velocity
    for vector in (
        done.end,
        done.velocity,
        local.gradient(start),
        local.losses(start),
        local.predict(start, "test"),
    ):
        assert type(vector) is np.ndarray
        assert vector.dtype == np.float32
    assert done.end.shape == start.shape
    again = local.train(
        start, Drill(velocity=done.velocity, weights=np.ones(local.examples, np.float32), steps=2)
    )
    assert again.steps == 2
    assert elsewhere.products == {"meta"}


def test_images_of_a_training_are_changed_on_the_device(elsewhere: Watch) -> None:
    local, start = local_of(COLOURED, augment="shift_flip")
    elsewhere.products.clear()
    assert local.train(start, Drill(epochs=1)).steps > 0
    assert elsewhere.products == {"meta"}


@pytest.mark.parametrize("task", [HEADED, COLOURED], ids=lambda task: task.model.name)
def test_contrastive_views_are_made_on_the_device(task: Task, elsewhere: Watch) -> None:
    local, start = local_of(task)
    done = local.train(start, Drill(contrast=Contrast(2), epochs=1))
    assert done.steps > 0
    assert local.memberships(start, 2).sum() == local.examples
    assert (
        "meta" in elsewhere.products
    )  # matrices of colours are made on the CPU, where they are drawn


def test_a_job_for_a_device_that_is_not_there_fails_with_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(monkeypatch)
    training = Training(device="cuda").model_dump(mode="json")
    answer(job(tmp_path, training=training))
    failed = ReportContent.from_bytes((tmp_path / "report").read_bytes(), verified=True)
    assert failed.failure is not None
    assert failed.failure.startswith("training.device: torch")
    owner = OwnersRules(UNLIMITED.model_copy(update={"device": "cpu"}))
    answer(replace(job(tmp_path, training=training), rules=owner.for_job()))
    done = ReportContent.from_bytes((tmp_path / "report").read_bytes(), verified=True)
    assert (done.failure, done.device) == (None, "cpu")


def test_a_worker_is_asked_whether_a_device_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, "mps")
    assert answer(FindDevice(wanted="auto")) == DeviceFound(kind="mps")
    assert answer(FindDevice(wanted="cuda")).why.startswith("training.device: torch")


def test_a_report_names_what_it_was_computed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(monkeypatch, "mps")
    monkeypatch.setattr(
        learner, "prepare_device", lambda kind: torch.device("cpu")
    )  # there is no such device here
    answer(job(tmp_path, training=Training(device="auto").model_dump(mode="json")))
    assert (
        ReportContent.from_bytes((tmp_path / "report").read_bytes(), verified=True).device == "mps"
    )


def test_a_report_names_a_kind_of_machine_whose_arithmetic_may_round_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    answer(job(tmp_path))
    report = ReportContent.from_bytes((tmp_path / "report").read_bytes(), verified=True)
    assert report.device == "cpu aarch64"


class Asked:
    """A pool whose worker has no GPU."""

    def __init__(self) -> None:
        self.jobs: list[Any] = []

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        self.jobs.append(job)
        return Failure(why="no GPU", detail="no cuda here")


async def test_only_a_gpu_that_is_asked_for_by_name_is_looked_for() -> None:
    pool = Asked()
    await check_device(pool, "cpu", OwnersRules(UNLIMITED))
    await check_device(pool, "auto", OwnersRules(UNLIMITED))
    assert pool.jobs == []
    with pytest.raises(UserError, match="no cuda here"):
        await check_device(pool, "cuda", OwnersRules(UNLIMITED))
    assert pool.jobs[0].wanted == "cuda"


@pytest.mark.processes
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_an_agent_whose_gpu_is_missing_refuses_to_start(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("a,label\n1,0\n2,1\n")
    words = ["--data", str(tmp_path / "data.csv"), "--state", str(tmp_path / "state")]
    command = python(
        "covey.agent.cli", "start", *words, "--broker", "mqtt://127.0.0.1:9", "--device", "cuda"
    )
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=ROOT, env=environment()
    )
    assert done.returncode == 2, done.stderr
    assert "policy of this device: device: torch" in done.stderr
    assert "can use no cuda here" in done.stderr
