"""Local training without torch, held against torch: the same batches, the same vectors to float32 rounding."""

from __future__ import annotations

import asyncio
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from covey.agent.data.dataset import Dataset, dataset
from covey.agent.learner_choice import NEEDED, NUMPY, TORCH, learner_name
from covey.agent.learning import check_layout
from covey.agent.policy import NO_CODE_RULES, UNLIMITED, OwnersRules, PolicyError
from covey.agent.training.learner import TorchLocal
from covey.agent.training.models import initial
from covey.agent.worker.learners import load_learner
from covey.agent.worker.pool import Pool
from covey.agent.worker.start import write_start
from covey.agent.worker.worker import answer
from covey.coordinator.processes.launch import setup_of
from covey.coordinator.run.run import Run
from covey.extras.light.numpy_learner import NumpyLocal, layout_of_task
from covey.extras.simulate.tests.device_run import devices, scenes
from covey.shared.errors import DataError, PublicError, UserError
from covey.shared.numerics.vectors import Layout, Tensor, Vector
from covey.shared.own_code.consent import NO_CODE
from covey.shared.privacy.settings import Budget, LocalPrivacy, Noise, Trainings
from covey.shared.scenario.columns import TargetScale
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.task import Model, Standardise, Task
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import Contrast, Drill, GradientCorrection, Local
from covey.shared.wire.jobs import DataSource, DeviceData, JobRules, Performed
from covey.shared.wire.messages import OrderMessage
from covey.shared.work.at_hand import shuffle
from tests import clock
from tests.agent.test_worker import UNWANTED, WATCHED
from tests.agent.test_worker import job as worker_job
from tests.bowl import softmax_client
from tests.kit.local_clients import local_driver
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import PATIENT, Fleet, Numpy
from tests.kit.small_run import clients, rules, scenario

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.usefixtures("single_thread")

LINEAR = Task(features=(3,), classes=4, model=Model(name="linear"))
TWO_LAYERS = Task(features=(3,), classes=4, model=Model(name="mlp", options={"hidden": [7, 5]}))
IMAGES = Task(
    features=(2, 4, 4),
    classes=4,
    scale=1 / 255,
    standardise=Standardise(mean=(0.5, 0.4), std=(0.2, 0.3)),
    model=Model(name="mlp", options={"hidden": 6}),
)
VALUES = Task(
    features=(3,),
    target_scale=TargetScale(mean=0.5, std=2),
    model=Model(name="mlp", options={"hidden": 6}),
)
TASKS = [LINEAR, TWO_LAYERS, IMAGES, VALUES]
NUMPY_RULES = OwnersRules(UNLIMITED, learner=NUMPY)


def data_of(task: Task, n: int = 43, tests: int = 7) -> Dataset:
    rng = np.random.default_rng(0)
    shape = (n + tests, *task.features)
    x: npt.NDArray[Any] = rng.normal(size=shape).astype(np.float32)
    if task is IMAGES:
        x = rng.integers(0, 256, shape).astype(np.uint8)
    y: npt.NDArray[Any] = rng.integers(0, 4, n + tests)
    if task.classes is None:
        y = rng.normal(size=n + tests).astype(np.float32)
    return dataset(x[:n], y[:n], (x[n:], y[n:]), source="made up")


def both(task: Task, **training: Any) -> tuple[TorchLocal, NumpyLocal, Vector]:
    """A device with torch and one without, with the same data, settings and seed; and the initial model."""
    start, layout = initial(task, 3)
    settings = Training(**({"batch": 5, "lr": 0.1} | training))
    data = data_of(task)
    torch_local = TorchLocal(data, task, layout, training=settings, rng=generator(1, "test"))
    numpy_local = NumpyLocal(data, task, layout, training=settings, rng=generator(1, "test"))
    return torch_local, numpy_local, start


def assert_close(found: Any, expected: Any) -> None:
    """Within 1e-5 of the length of the expected vector."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    distance = np.linalg.norm(found.astype(np.float64) - expected)
    assert distance <= 1e-5 * np.linalg.norm(expected)


by_task = pytest.mark.parametrize("task", TASKS, ids=["linear", "mlp", "images", "values"])


@by_task
def test_the_layout_is_that_of_the_torch_module(task: Task) -> None:
    _, layout = initial(task, 0)
    assert layout_of_task(task) == layout
    for name in (TORCH, NUMPY):
        assert load_learner(name).layout(task, NO_CODE) == layout


def noise_like(start: Vector, seed: int) -> Vector:
    return np.random.default_rng(seed).normal(0, 0.1, start.size).astype(np.float32)


SETTINGS: dict[str, tuple[dict[str, Any], Callable[[Vector], dict[str, Any]]]] = {
    "plain": ({"epochs": 2}, lambda start: {}),
    "momentum and decay": (
        {"epochs": 2, "momentum": 0.9, "weight_decay": 0.01, "lr": 0.03},
        lambda start: {"velocity": noise_like(start, 1)},
    ),
    "correction": (
        {"momentum": 0.5},
        lambda start: {
            "correction": GradientCorrection(noise_like(start, 2), 0.3, noise_like(start, 3)),
            "steps": 11,
        },
    ),
    "weights": ({}, lambda start: {"weights": np.linspace(0, 2, 43, dtype=np.float32)}),
    "balanced": ({"weights": "balanced"}, lambda start: {}),
    "frozen": (
        {"weight_decay": 0.1, "momentum": 0.5},
        lambda start: {"trained": np.arange(start.size) >= 4, "epochs": 3},
    ),
    "no step": ({"momentum": 0.5}, lambda start: {"steps": 0}),
}


@pytest.mark.parametrize("task", TASKS)
def test_the_layout_is_that_of_torch(task: Task) -> None:
    _, layout = initial(task, 0)
    assert layout_of_task(task) == layout


def test_the_start_of_a_run_needs_torch_only_for_a_model_that_is_not_built_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scenario("ifca")
    known, other = tmp_path / "known.npz", tmp_path / "other.npz"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "covey.agent.training.models", None)
        write_start(scene, known)
        adapted = scenario("fedavg", task={"model": {"name": "mlp", "adapters": {"rank": 2}}})
        with pytest.raises(ImportError):
            write_start(adapted, other)
    with np.load(known) as file:
        starts = file["starts"]
    assert len({start.tobytes() for start in starts}) == scene.strategy.starts > 1


def test_balanced_weights_give_each_class_of_an_agent_the_same_sum() -> None:
    _, balanced, start = both(LINEAR, weights="balanced", batch=100)
    _, plain, _ = both(LINEAR, batch=100)
    classes = plain.targets("train")
    counts = np.bincount(classes, minlength=4)
    assert len(set(counts)) > 1
    weights = (len(classes) / (4 * counts))[classes].astype(np.float32)
    assert weights.mean() == pytest.approx(1)
    assert_close(balanced.train(start).end, plain.train(start, Drill(weights=weights)).end)
    both_kinds = plain.train(start, Drill(weights=weights * 2)).end
    assert_close(balanced.train(start, Drill(weights=np.full(43, 2, np.float32))).end, both_kinds)
    assert balanced.loss(start) == plain.loss(start)


@by_task
@pytest.mark.parametrize("name", SETTINGS)
def test_training_agrees_with_torch(task: Task, name: str) -> None:
    settings, options = SETTINGS[name]
    torch_local, numpy_local, start = both(task, **settings)
    expected = torch_local.train(start, Drill(**options(start)))
    found = numpy_local.train(start, Drill(**options(start)))
    assert_close(found.end, expected.end)
    assert found.steps == expected.steps
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    assert (found.velocity is None) == (expected.velocity is None)
    if found.velocity is not None:
        assert_close(found.velocity, expected.velocity)
    trained = options(start).get("trained", np.ones(start.size, np.bool_))
    assert np.array_equal(found.end[~trained], start[~trained])


@by_task
def test_losses_gradients_and_predictions_agree_with_torch(task: Task) -> None:
    torch_local, numpy_local, start = both(task)
    assert_close(numpy_local.losses(start), torch_local.losses(start))
    assert numpy_local.loss(start) == pytest.approx(torch_local.loss(start), rel=1e-6)
    for options in ({}, {"batch": 9}, {"rows": np.array([4, 1, 1])}):
        expected = torch_local.gradient(start, **options)
        assert_close(numpy_local.gradient(start, **options), expected)
    assert_close(numpy_local.predict(start, "test"), torch_local.predict(start, "test"))
    assert_close(numpy_local.predict(start, "train"), torch_local.predict(start, "train"))


@by_task
def test_data_and_batches_are_those_of_torch(task: Task) -> None:
    torch_local, numpy_local, _ = both(task)
    assert numpy_local.examples == torch_local.examples
    assert np.array_equal(numpy_local.inputs(), torch_local.inputs())
    assert np.array_equal(numpy_local.targets("test"), torch_local.targets("test"))
    rows = [batch.tolist() for epoch in numpy_local.batches(2) for batch in epoch]
    assert rows == [batch.tolist() for epoch in torch_local.batches(2) for batch in epoch]


def test_the_same_order_gives_the_same_bytes() -> None:
    ends = [both(TWO_LAYERS, epochs=2)[1].train(initial(TWO_LAYERS, 3)[0]).end for _ in range(2)]
    assert ends[0].tobytes() == ends[1].tobytes()


def test_a_diverging_training_gives_numbers_that_are_not_finite_without_warnings() -> None:
    _, local, start = both(TWO_LAYERS, lr=3e38, epochs=3)
    assert not np.isfinite(local.train(start).end).all()


# -- refusals ----------------------------------------------------------------------------------------------------------


def refused(name: str, **options: Any) -> str:
    """Why a device with the learner numpy does not take part in a run with this model."""
    task = {"features": [1, 8, 8], "classes": 4, "model": {"name": name, "options": options}}
    return NUMPY_RULES.refuses_task(task) or ""


def test_a_model_that_it_does_not_train_is_refused_before_any_work() -> None:
    assert refused("linear") == refused("mlp", hidden=3) == ""
    assert "(numpy) trains linear and mlp only" in refused("lenet5")
    assert "no projection head" in refused("mlp", head=3)
    assert OwnersRules(UNLIMITED).refuses_task({"model": {"name": "lenet5"}}) is None


def test_other_abilities_of_torch_are_refused_with_the_reason() -> None:
    _, local, start = both(LINEAR)
    contrast = Contrast(clusters=2)
    with pytest.raises(PublicError, match=r"contrastive loss .* --learner torch"):
        local.train(start, Drill(contrast=contrast))
    with pytest.raises(PublicError, match="needs a projection head"):
        local.memberships(start, 2)
    budget = Budget(Trainings(), 3, 0)
    with pytest.raises(PublicError, match=r"no DP-SGD; remove privacy\.local"):
        local.enable_privacy(LocalPrivacy(noise_multiplier=1.0), budget, Noise.secret(), None, None)
    changing = NumpyLocal(
        data_of(LINEAR),
        LINEAR,
        layout_of_task(LINEAR),
        training=Training(augment="shift"),
        rng=generator(1, "test"),
    )
    with pytest.raises(PublicError, match=r"training\.augment is shift, .* --learner torch"):
        changing.train(start)
    with pytest.raises(PublicError, match="can use no cuda"):
        load_learner(NUMPY).device("cuda", "training.device")


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Model(name="lenet5", options={}), "trains linear and mlp only"),
        (Model(name="mlp", options={"hidden": [4, -1]}), "hidden: expected a width of 1 or more"),
        (Model(name="mlp", options={"hidden": "4"}), "hidden: expected a width of 1 or more"),
        (
            Model(name="mlp", options={"width": 4}),
            "does not know the option width; it takes hidden",
        ),
        (Model(name="linear", options={"hidden": 4}), "it takes no options"),
    ],
    ids=lambda value: str(getattr(value, "options", "")),
)
def test_a_model_that_cannot_be_built_is_refused(model: Model, why: str) -> None:
    with pytest.raises(PublicError, match=why):
        layout_of_task(LINEAR.model_copy(update={"model": model}))


def test_another_layout_no_samples_and_too_many_steps_are_refused() -> None:
    _, layout = initial(TWO_LAYERS, 0)
    with pytest.raises(PublicError, match="built here it has 16 parameters"):
        NumpyLocal(data_of(LINEAR), LINEAR, layout, training=Training(), rng=generator(1, "test"))
    rows = data_of(LINEAR)
    empty = replace(rows, features=rows.features[:0], targets=rows.targets[:0])
    with pytest.raises(DataError, match="no training samples"):
        NumpyLocal(
            empty, LINEAR, layout_of_task(LINEAR), training=Training(), rng=generator(1, "test")
        )
    limited = OwnersRules(UNLIMITED.model_copy(update={"max_steps": 3}))
    start, layout = initial(LINEAR, 0)
    local = NumpyLocal(
        data_of(LINEAR),
        LINEAR,
        layout,
        training=Training(),
        rng=generator(1, "test"),
        rules=limited,
    )
    with pytest.raises(PolicyError, match="max_steps"):
        local.train(start)


# -- the choice --------------------------------------------------------------------------------------------------------


def test_torch_is_the_choice_where_it_is_installed_and_numpy_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert learner_name(None) == TORCH
    assert learner_name(NUMPY) == NUMPY
    with pytest.raises(UserError, match="no such learner here; choose one of torch, numpy"):
        learner_name("jax")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert learner_name(None) == NUMPY
    with pytest.raises(UserError, match=r"torch is not installed; .*--learner numpy"):
        learner_name(TORCH)


@pytest.mark.parametrize("package", NEEDED)
def test_an_agent_without_the_packages_that_it_trains_with_does_not_start(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in both extras for agents, so that their absence means that neither was installed."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for extra in ("agent", "agent-light"):
        assert any(one.startswith(package) for one in extras[extra])
    monkeypatch.setattr(
        "covey.agent.learner_choice.find_spec", lambda name: None if name == package else name
    )
    with pytest.raises(
        UserError, match=rf"{package}, .* is not installed; .*\[agent\]'.*agent-light"
    ):
        learner_name(None)


def test_a_fleet_in_one_process_trains_with_numpy_where_torch_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COVEY_LEARNER", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    table = tmp_path / "table.csv"
    table.write_text("x,y\n" + "1,0\n2,1\n" * 10)
    scene = scenes({"features": [1], "classes": 2, "model": "linear"})("fedavg")
    run = devices(tmp_path / "run", scene, {"device-0": table})
    assert set(run.members.by_agent(lambda one: one.device).values()) == {f"cpu ({NUMPY})"}


# -- a worker and whole runs -------------------------------------------------------------------------------------------


@pytest.mark.processes
async def test_a_worker_with_numpy_does_the_work_of_an_order_without_torch(tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    job = replace(worker_job(tmp_path), rules=NUMPY_RULES.for_job())
    async with Pool(1, command=(*WATCHED, str(loaded))) as pool:
        done = await pool.call(job)
    assert isinstance(done, Performed)
    assert done.failed == ""
    names = set(loaded.read_text().split())
    assert "numpy" in names
    assert names & {"torch", "PIL", *UNWANTED} == set()


def run_with(folder: Path, scene: Scenario, learner_of: Callable[[int], Any]) -> Run:
    """The whole run of eight agents in two groups; `learner_of` their number is a class of `Local`."""
    people = clients()
    locals_: Mapping[str, Dataset] = {
        client: dataset(
            person.x.astype(np.float32),
            person.y,
            (person.x.astype(np.float32), person.y),
            source=client,
        )
        for client, person in people.items()
    }
    layout = layout_of_task(scene.task)
    starts = [
        generator(scene.seed, "init", number).normal(0, 0.1, layout.size).astype(np.float32)
        for number in range(scene.strategy.starts)
    ]

    def local_for(client: str, order: OrderMessage) -> Local:
        assert order.work is not None
        training = Training.model_validate(order.work.training)
        kind = learner_of(int(client.removeprefix("agent-")))
        rng = shuffle(order.work, client)
        local: Local = kind(locals_[client], scene.task, layout, training, rng)
        return local

    driver = local_driver(folder, scene, setup_of(scene, starts, layout), rules(scene), local_for)
    return driver.complete({client: (len(one.targets),) * 2 for client, one in locals_.items()})


@pytest.mark.parametrize(
    ("method", "keep"),
    [*((method, []) for method in ("fedavg", "ifca", "pacfl")), ("fedclust", ["fc.bias"])],
)
def test_devices_with_and_without_torch_take_part_in_one_run(
    tmp_path: Path, method: str, keep: list[str]
) -> None:
    scene = scenario(method, task={"keep": keep})
    same = run_with(tmp_path / "torch", scene, lambda number: TorchLocal)
    mixed = run_with(
        tmp_path / "mixed", scene, lambda number: NumpyLocal if number % 3 else TorchLocal
    )
    assert mixed.strategy.assignment(mixed.state) == same.strategy.assignment(same.state)
    for found, expected in zip(mixed.models, same.models, strict=True):
        assert_close(found, expected)


class WorkerHere(Numpy):
    """Does the jobs of worker processes in this one."""

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        await asyncio.sleep(0.5)
        return answer(job)


@pytest.mark.parametrize("keep", [[], ["fc.bias"]])
def test_a_fleet_of_agents_with_numpy_finishes_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: list[str]
) -> None:
    """The service, agents over a broker in memory, and the worker's jobs with the learner numpy."""
    for name in ("learner.TorchLocal", "models.build"):
        monkeypatch.delattr(f"covey.agent.training.{name}")  # nobody may turn to torch
    people = {f"agent-{number}": softmax_client((0, 1, 2, 3), seed=number) for number in range(3)}
    sources: dict[str, DataSource] = {}
    for client, person in people.items():
        path = tmp_path / f"{client}.npz"
        np.savez(path, x=person.x.astype(np.float32), y=person.y)
        sources[client] = DeviceData(data=str(path))
    rounds = {"participation": 1.0, "start_agents": 3}
    scene = scenario("fedavg", task={"keep": keep}, rounds=rounds)
    layout = layout_of_task(scene.task)

    async def whole() -> tuple[Run, list[Mapping[str, Any]]]:
        broker = MemoryBroker(seed=5)
        fleet = Fleet(tmp_path, scene, rules(scene, **PATIENT), broker, people)
        fleet.sources = sources
        fleet.device_rules = NUMPY_RULES
        fleet.pool = WorkerHere(people)
        now = asyncio.get_running_loop().time()
        setup = setup_of(scene, [np.zeros(layout.size, np.float32)], layout)
        run = Run.start(
            tmp_path / "run", scene, setup, rules=rules(scene, **PATIENT), run="r1", now=now
        )
        async with fleet:
            await fleet.serve(run)
        return run, fleet.rows

    run, rows = clock.run(whole())
    trained = [row["reported"] for row in rows if row.get("phase") == "train"]
    assert trained == [["agent-0", "agent-1", "agent-2"]] * 3
    [evaluated] = [row for row in rows if row.get("phase") == "evaluate"]
    assert evaluated["reported"] == ["agent-0", "agent-1", "agent-2"]
    [model] = run.models
    for person in people.values():
        predicted = person.predict(model, "test").argmax(axis=1)
        assert np.mean(predicted == person.y) > 0.6  # 0.25 by chance


def test_rules_without_a_learner_mean_torch() -> None:
    assert OwnersRules.of_job(JobRules()).learner == NO_CODE_RULES.learner == TORCH


def test_a_model_whose_tensors_have_other_names_is_refused_by_the_first_of_them() -> None:
    own = layout_of_task(scenario("fedavg").task)
    renamed = Layout((Tensor("head.weight", own.tensors[0].shape), *own.tensors[1:]), own.trainable)
    with pytest.raises(PublicError, match=r"first that differs: fc\.weight .* here, head\.weight"):
        check_layout(own, renamed)
    shorter = Layout(own.tensors[:1], 1)
    with pytest.raises(PublicError, match=r"fc\.bias \[4\] here, missing there"):
        check_layout(own, shorter)
