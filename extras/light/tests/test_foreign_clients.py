"""Clients of Flower and estimators of scikit-learn, as their users wrote them: in methods, refused by name, and with mistakes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import covey.learners
from covey.agent.cli.program import app
from covey.agent.data.dataset import dataset
from covey.agent.learner_choice import cannot_train, learner_name
from covey.agent.own_loops import loop_of
from covey.agent.policy import NO_CODE_RULES
from covey.agent.worker.learners import learner_for, load_library
from covey.agent.worker.worker import answer
from covey.coordinator.checks import checked_numbers
from covey.coordinator.processes.launch import setup_of
from covey.extras.light.client_data import client_data
from covey.extras.light.flower import TypedClient, named, node_config, numpy_client, packed
from covey.extras.light.own_loop import start_of
from covey.shared.errors import PublicError
from covey.shared.own_code.consent import AllowedCode, ConsentError
from covey.shared.scenario.code import OF_CLIENTS, OF_LOOPS, check_code
from covey.shared.scenario.task import Task
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import Local
from covey.shared.strategies.registry import BUILT_IN
from covey.shared.wire.jobs import DataSummary, DeviceData, InspectData
from covey.shared.wire.messages import OrderMessage
from covey.shared.work.at_hand import shuffle
from tests.kit.local_clients import local_driver
from tests.kit.small_run import clients, rules, scenario
from tests.methods import of_each_kind

FLOWER = "flower:users_client:client_fn"
SKLEARN = "sklearn:users_client:make_estimator"
SOURCE = '''
import numpy as np
from sklearn.linear_model import LinearRegression, SGDClassifier, SGDRegressor
from tests.kit.small_run import clients

class Client:
    """Softmax regression, and a count of batches as modules of torch have one."""

    def __init__(self, cid, fault=""):
        one = clients()[f"agent-{cid}"]
        self.x, self.y, self.fault = np.asarray(one.x, float), one.y, fault
        self.weight, self.bias = np.random.normal(0, 0.01, (4, self.x.shape[1])), np.zeros(4)
        self.batches = np.array(7)

    def get_parameters(self, config):
        if self.fault == "dict":
            return {"weight": self.weight}
        factor = {"huge": 1e300, "complex": 1j}.get(self.fault)
        if factor is not None:
            return [1 + factor * np.ones((4, 5)), self.bias]
        return [self.weight, self.bias, self.batches]

    def shares(self):
        powers = np.exp(self.x @ self.weight.T + self.bias)
        return powers / powers.sum(1, keepdims=True)

    def fit(self, parameters, config):
        self.weight, self.bias, self.batches = parameters
        assert self.batches.dtype == np.int64
        if self.fault == "raises":
            raise KeyError("a name of a patient")
        self.weight = self.weight + np.random.default_rng(config["seed"]).normal(0, 1e-6, self.weight.shape)
        for _ in range(config["epochs"]):
            slopes = self.shares() - np.eye(4)[self.y]
            self.weight = self.weight - config["lr"] * slopes.T @ self.x / len(self.y)
            self.bias = self.bias - config["lr"] * slopes.mean(0)
        if self.fault == "two":
            return [self.weight, self.bias, self.batches], 4
        if self.fault == "shapes":
            return [self.bias, self.weight, self.batches], 4, {}
        return [self.weight, self.bias, self.batches], 0 if self.fault == "none" else len(self.y), {}

    def evaluate(self, parameters, config):
        self.weight, self.bias, self.batches = parameters
        shares, own = self.shares(), np.arange(len(self.y))
        name = "acc" if self.fault == "metrics" else "accuracy"
        hits = float((shares.argmax(1) == self.y).mean()) + 50 * (self.fault == "percent")
        return float(-np.log(shares[own, self.y]).mean()), len(self.y), {name: hits}

def client_fn(cid: str):
    return Client(cid)

def faulty(context):
    return Client(context.node_config["partition-id"], **context.run_config)

def nothing(context):
    return object()

def make_estimator(alpha=1e-4):
    return SGDClassifier(loss="log_loss", alpha=alpha, learning_rate="constant", eta0=0.1)

def without_steps():
    return LinearRegression()

def of_values():
    return SGDRegressor()

def a_class():
    return SGDClassifier
'''
ALLOWED = AllowedCode.parse(["users_client"])
RULES = replace(NO_CODE_RULES, allowed=ALLOWED)


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of a user, where Python finds it."""
    (tmp_path / "users_client.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "users_client", raising=False)


def task_of(model: str, **options: Any) -> Task:
    return Task.model_validate(
        {"features": [5], "classes": 4, "model": {"name": model, "options": options}}
    )


def described(model: str, **options: Any) -> Any:
    """What a device answers about its data."""
    task = task_of(model, **options).model_dump(mode="json")
    source, rules = DeviceData(data="partition-id=1"), replace(RULES, learner=model).for_job()
    return answer(InspectData(source=source, task=task, rules=rules))


def accuracy_of(folder: Path, model: str, method: str) -> float:
    """The mean over eight agents in two planted groups, after a run."""
    sections: dict[str, Any] = {
        "task": {"model": {"name": model}},
        "evaluation": {"deliver": "served"},
    }
    epochs = 8 if model == FLOWER else 2
    scene = scenario(method, training={"epochs": epochs, "lr": 0.5}, **sections)
    loop = loop_of(scene.task, ALLOWED)
    assert loop is not None
    begun = [start_of(loop, number) for number in range(scene.strategy.starts)]
    layout = begun[0][1]
    setup = setup_of(scene, [layout.vector(arrays) for arrays, _ in begun], layout)
    people = {
        client: dataset(one.x, one.y, (one.x, one.y), source=client)
        for client, one in clients().items()
    }
    learner = learner_for(scene.task, RULES)

    def local_for(client: str, order: OrderMessage) -> Local:
        assert order.work is not None
        training = Training.model_validate(order.work.training)
        rng = shuffle(order.work, client)
        node = f"partition-id={client.removeprefix('agent-')}"
        own = client_data(node, scene.task) if model == FLOWER else people[client]
        return learner.local(own, scene.task, setup.whole, training=training, rng=rng, rules=RULES)

    driver = local_driver(folder, scene, setup, rules(scene), local_for)
    run = driver.complete({client: (len(one.targets),) * 2 for client, one in people.items()})
    shares = [figures["server"]["accuracy"] for figures in run.members.evaluation.values()]
    return float(np.mean(shares))


@pytest.mark.parametrize(
    ("model", "method"),
    [
        (model, method)
        for model, named in [
            (FLOWER, of_each_kind("clients", OF_CLIENTS)),
            (SKLEARN, of_each_kind("loops", OF_LOOPS)),
        ]
        for method in named
    ],
)
def test_foreign_training_learns_in_the_methods_that_are_named_for_it(
    tmp_path: Path, model: str, method: str
) -> None:
    assert accuracy_of(tmp_path, model, method) > 0.5, "four classes: chance is 0.25"


@pytest.mark.parametrize(
    ("model", "method"),
    [
        *(
            (FLOWER, method)
            for method in of_each_kind("fewer", sorted({*BUILT_IN} - {*OF_CLIENTS}))
        ),
        *((SKLEARN, method) for method in of_each_kind("more", sorted({*BUILT_IN} - {*OF_LOOPS}))),
    ],
)
def test_a_method_that_is_not_named_for_foreign_training_asks_it_for_more(
    tmp_path: Path, model: str, method: str
) -> None:
    # IndexError: statistics of samples that nobody has
    with pytest.raises((PublicError, IndexError) if model == FLOWER else PublicError):
        accuracy_of(tmp_path, model, method)


def test_each_seed_of_a_run_is_a_training_of_its_own() -> None:
    def end(seed: int) -> list[float]:
        loop = loop_of(task_of(FLOWER), ALLOWED)
        assert loop is not None
        arrays, layout = start_of(loop, 0)
        rng = generator(seed, "shuffle", "device-1", 1, "train")
        learner = learner_for(task_of(FLOWER), RULES)
        own = client_data("partition-id=1", task_of(FLOWER))
        local = learner.local(
            own, task_of(FLOWER), layout, training=Training(), rng=rng, rules=RULES
        )
        start: list[float] = local.train(layout.vector(arrays)).end.tolist()
        return start

    assert end(1) == end(1) != end(2)


@pytest.mark.parametrize(("model", "named_for"), [(FLOWER, OF_CLIENTS), (SKLEARN, OF_LOOPS)])
@pytest.mark.parametrize("method", of_each_kind("at start", BUILT_IN))
def test_any_other_method_is_refused_at_start_with_those_that_work(
    method: str, model: str, named_for: tuple[str, ...]
) -> None:
    scene = scenario(method)
    model_section = scene.task.model.model_copy(update={"name": model})
    task = scene.task.model_copy(update={"model": model_section, "freeze": ()})
    scene = scene.model_copy(update={"task": task})
    if method in named_for:
        if getattr(scene.strategy, "gate", "none") == "none" or model == SKLEARN:
            check_code(scene, ALLOWED)
    else:
        with pytest.raises(PublicError, match=f"strategy {method} asks.*fedavg, fedclust"):
            check_code(scene, ALLOWED)


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"strategy": {"n_clusters": None}}, "strategy.gate: cards"),
        ({"fleet": {"agents": 8, "partition": "iid"}}, "fleet: a client loads its own data"),
        ({"task": {"standardise": "federated"}}, "task.standardise"),
        ({"training": {"weights": "balanced"}}, "training.weights"),
    ],
)
def test_keys_that_need_the_samples_of_a_client_are_refused_by_name(
    sections: dict[str, Any], key: str
) -> None:
    task = {"model": {"name": FLOWER}, **sections.pop("task", {})}
    with pytest.raises(PublicError, match=key):
        check_code(scenario("fedclust", task=task, **sections), ALLOWED)


def test_a_device_learns_from_a_trial_how_many_samples_its_client_has() -> None:
    count = len(clients()["agent-1"].y)
    assert described(FLOWER) == DataSummary(samples=count, test_samples=count)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("dict", "get_parameters returned dict; expected a list of arrays"),
        ("two", r"fit returned \(list, int\); expected a list of arrays, the number"),
        ("shapes", "expected the names and shapes of start"),
        ("none", "fit returned 0 samples; expected 1 or more"),
        ("metrics", r"the metrics \['acc'\]; expected 'accuracy' among them"),
        ("percent", r"evaluate returned 50\.?\d* as accuracy; expected a number from 0 to 1"),
        ("huge", "start returned layer1.weight with NaN, infinity or values beyond float32"),
        ("complex", "start returned values that are not numbers"),
    ],
)
def test_a_mistake_of_a_client_has_a_reason_that_its_author_understands(
    fault: str, why: str
) -> None:
    found = described("flower:users_client:faulty", fault=fault)
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(found.problem)


def test_an_error_in_a_client_is_one_sentence_with_its_line_and_none_of_its_values_leave() -> None:
    found = described("flower:users_client:faulty", fault="raises")
    line = SOURCE.splitlines().index('            raise KeyError("a name of a patient")') + 1
    assert found.problem.endswith(f"fit failed with KeyError at users_client.py, line {line}")
    assert f"line {line}: KeyError: 'a name of a patient'; correct it there" in found.detail


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("flower:users_client:nothing", "object without get_parameters, fit, evaluate"),
        ("sklearn:users_client:without_steps", "LinearRegression has no partial_fit"),
        (
            "sklearn:users_client:of_values",
            "SGDRegressor learns values, and the task's target has classes",
        ),
        (
            "sklearn:users_client:a_class",
            r"the class SGDClassifier; expected an estimator: SGDClassifier\(\)",
        ),
    ],
)
def test_an_object_that_cannot_take_part_is_refused_with_the_methods_that_it_lacks(
    model: str, why: str
) -> None:
    loop = loop_of(task_of(model), ALLOWED)
    assert loop is not None
    with pytest.raises(PublicError, match=why):
        loop.start(0)


class Typed:
    """A `Client` of Flower: values with fields, and arrays as files."""

    def get_parameters(self, ins: Any) -> Any:
        return self._answer(parameters=packed([np.ones(2)]))

    def fit(self, ins: Any) -> Any:
        return self._answer(parameters=ins.parameters, num_examples=3, metrics=dict(ins.config))

    def evaluate(self, ins: Any) -> Any:
        return self._answer(loss=0.5, num_examples=len(ins.parameters.tensors), metrics={})

    @staticmethod
    def _answer(**fields: Any) -> Any:
        return type("Answer", (), fields)


def test_a_client_with_typed_messages_and_a_wrapped_one_are_called_alike() -> None:
    client = numpy_client(Typed(), FLOWER)
    assert isinstance(client, TypedClient)
    [array], count, metrics = client.fit([np.arange(3)], {"lr": 0.1})
    assert (array.tolist(), count, metrics) == ([0, 1, 2], 3, {"lr": 0.1})
    assert client.evaluate([array], {})[:2] == (0.5, 1)
    wrapped = type("Wrapper", (), {"numpy_client": client})
    assert numpy_client(wrapped, FLOWER) is client


def test_arrays_get_the_names_of_layers() -> None:
    arrays = [np.ones(shape) for shape in ((4, 3), (4,), (4,), (4,), (), (2, 4), (2,))]
    assert list(named(arrays)) == [
        "layer1.weight",
        "layer1.bias",
        "layer2.weight",
        "layer3.weight",
        "layer4.weight",
        "layer5.weight",
        "layer5.bias",
    ]


def test_data_of_a_device_are_flowers_node_config_or_a_path() -> None:
    found = node_config('partition-id=2 num-partitions=6 rate=0.5 name="pump"')
    assert found == {"partition-id": 2, "num-partitions": 6, "rate": 0.5, "name": "pump"}
    assert node_config("/data/day.csv") == {"data-path": "/data/day.csv"}


@pytest.mark.parametrize("name", [FLOWER, SKLEARN])
def test_nothing_is_imported_that_the_owner_has_not_allowed(name: str) -> None:
    for words in ([], ["flower"], ["sklearn"], ["users_client:other"]):
        allowed = AllowedCode.parse(words)
        with pytest.raises(ConsentError, match="--allow users_client"):
            loop_of(task_of(name), allowed)
        with pytest.raises(ConsentError, match="--allow users_client"):
            check_code(scenario("fedavg", task={"model": {"name": name}}), allowed)
    assert "users_client" not in sys.modules


def test_a_device_trains_the_client_that_its_owner_typed_and_no_other() -> None:
    assert learner_name(FLOWER) == FLOWER
    assert load_library(FLOWER).device("auto", "training.device") == "cpu"
    assert cannot_train(FLOWER, {"model": {"name": FLOWER}}) is None
    for other in ("mlp", "flower:users_client:faulty", SKLEARN):
        assert f"trains {FLOWER} only" in str(cannot_train(FLOWER, {"model": {"name": other}}))
    asked = cannot_train("numpy", {"model": {"name": FLOWER}})
    assert f"start the agent with --learner {FLOWER}" in str(asked)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([], "--allow users_client"),
        (["--allow", "users_client", "--model-dir", "models"], "--model-dir: a client of Flower"),
    ],
)
def test_agent_start_refuses_in_one_sentence(
    options: list[str], why: str, started: Callable[..., Any]
) -> None:
    done = started(options)
    assert done.exit_code == 2
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], Any]:
    """Runs `agent start` up to a refusal."""
    monkeypatch.chdir(tmp_path)
    words = ["start", "--learner", FLOWER, "--data", "partition-id=0", "--state", "state"]
    return lambda options: CliRunner().invoke(app, [*words, "--broker", "mqtt://x", *options])


def test_figures_without_f1_are_those_of_a_client_that_knows_its_accuracy_alone() -> None:
    from covey.shared.strategies.base import Phase
    from covey.shared.strategies.phase_names import EVALUATE

    figures = {"n": 3, "accuracy": 0.5, "loss": 0.1}
    report = type(
        "Facts",
        (),
        {"examples": 3, "steps": 0, "loss": 0.0, "seconds": 0.0, "numbers": {"server": figures}},
    )
    kept = checked_numbers(Phase(EVALUATE), report, scenario("fedavg"))  # type: ignore[arg-type]
    assert kept == {"server": figures}


def test_one_seed_gives_one_training_of_an_estimator() -> None:
    task = task_of(SKLEARN)
    loop = loop_of(task, ALLOWED)
    assert loop is not None
    start, layout = start_of(loop, 0)
    own = clients()["agent-0"]
    data = dataset(own.x, own.y, source="test")
    ends = [
        learner_for(task, RULES)
        .local(data, task, layout, training=Training(), rng=generator(1, "test"), rules=RULES)
        .train(layout.vector(start))
        .end
        for _ in range(2)
    ]
    assert np.array_equal(ends[0], ends[1])
    assert ends[0].any()


def test_the_protocol_is_public() -> None:
    assert {"Loop", "OrderedTraining", "TrainingData"} <= set(covey.learners.__all__)
    assert all(
        getattr(covey.learners, name).__doc__ for name in covey.learners.__all__ if name != "State"
    )
