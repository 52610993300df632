"""A model of the user's own that brings its own training, in methods, on devices of either learner, and with mistakes in it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.agent.data.dataset import dataset
from covey.agent.policy import NO_CODE_RULES, OwnersRules
from covey.agent.training.models import build, initial
from covey.agent.worker.learners import learner_for
from covey.coordinator.processes.launch import setup_of
from covey.extras.light.own_loop import LoopLocal
from covey.shared.errors import PublicError, UserError
from covey.shared.own_code.consent import AllowedCode, ConsentError
from covey.shared.scenario.task import Task
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import Contrast, Drill, GradientCorrection, Local
from covey.shared.wire.messages import OrderMessage
from covey.shared.work.at_hand import shuffle
from tests.kit.local_clients import local_driver
from tests.kit.small_run import clients, rules, scenario

SOURCE = '''
import numpy as np

class Softmax:
    """Softmax regression by full gradients; `fault` makes one of the mistakes that a user can make."""

    def __init__(self, features, outputs, fault=""):
        self.shapes = {"weight": (outputs, *features), "bias": (outputs,)}
        self.fault = fault

    def start(self, seed):
        draws = np.random.default_rng(seed)
        return {name: draws.normal(0, 0.01, shape) for name, shape in self.shapes.items()}

    def train(self, state, data, settings):
        weight, bias = state["weight"], state["bias"]
        own = np.eye(len(bias))[data.targets]
        for _ in range(settings.epochs):
            slopes = self._shares(state, data.features) - own
            weight -= settings.lr * slopes.T @ data.features / len(own)
            bias -= settings.lr * slopes.mean(0)
        state = {"weight": weight, "bias": bias}
        count = len(own) - 1
        match self.fault:
            case "names":
                state = {"weights": weight, "bias": bias}
            case "words":
                state = {"weight": weight, "bias": "none"}
            case "list":
                state = [weight, bias]
            case "count":
                count = 0
        return state, count, {"loss": 0.5}

    def evaluate(self, state, features):
        outputs = features @ state["weight"].T + state["bias"]
        return outputs[:, 0] if self.fault == "outputs" else outputs

    def _shares(self, state, features):
        powers = np.exp(features @ state["weight"].T + state["bias"])
        return powers / powers.sum(1, keepdims=True)
'''
ALLOWED = AllowedCode.parse(["own_softmax"])
RULES = replace(NO_CODE_RULES, allowed=ALLOWED)
TASK = Task.model_validate(
    {"features": [3], "classes": 4, "scale": 0.5, "model": {"name": "own_softmax:Softmax"}}
)


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of a user, where Python finds it."""
    (tmp_path / "own_softmax.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_softmax", raising=False)


def local(fault: str = "", rules: OwnersRules = RULES, **training: Any) -> tuple[Any, Any]:
    """A device with twelve samples, and the initial model."""
    model = {"name": "own_softmax:Softmax", "options": {"fault": fault} if fault else {}}
    task = Task.model_validate({**TASK.model_dump(exclude_unset=True), "model": model})
    start, layout = initial(task, 1, allowed=ALLOWED)
    draws = generator(1, "samples")
    features = draws.normal(size=(12, 3)).astype(np.float32)
    data = dataset(features, np.arange(12) % 4, source="test")
    settings = Training(lr=0.5, **training)
    learner = learner_for(task, rules)
    return learner.local(
        data, task, layout, training=settings, rng=generator(1, "test"), rules=rules
    ), start


def test_a_loop_trains_for_the_epochs_of_the_order_and_counts_by_the_samples_that_it_returns() -> (
    None
):
    device, start = local(epochs=3, batch=5)
    before = start.copy()
    trained = device.train(start)
    assert np.array_equal(start, before), "the loop changes a copy"
    assert device.loss(trained.end) < device.loss(start)
    assert (device.examples, trained.steps, trained.loss) == (11, 9, 0.5)
    again, _ = local(epochs=1, batch=5)
    longer = again.train(start, Drill(epochs=3)).end
    assert np.array_equal(longer, trained.end)


@pytest.mark.parametrize("learner", ["torch", "numpy"])
def test_a_device_with_either_learner_trains_by_the_loop_of_the_model(learner: str) -> None:
    rules = replace(RULES, learner=learner)
    device, _ = local(rules=rules)
    assert isinstance(device, LoopLocal)
    order = {"model": {"name": "own_softmax:Softmax"}}
    rules._check_task(order)
    with pytest.raises(UserError, match="--allow own_softmax"):
        replace(rules, allowed=NO_CODE_RULES.allowed)._check_task(order)


def test_a_loop_that_the_owner_has_not_allowed_is_not_imported() -> None:
    with pytest.raises(ConsentError):
        learner_for(TASK, NO_CODE_RULES)
    assert "own_softmax" not in sys.modules


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"correction": GradientCorrection(mu=0.1, anchor=np.zeros(16, np.float32))}, "gradient"),
        ({"weights": np.ones(12, np.float32)}, "weights of samples"),
        ({"contrast": Contrast(2)}, "contrastive"),
        ({"trained": np.ones(16, bool)}, "frozen values"),
    ],
)
def test_a_method_that_reaches_into_the_training_is_refused(
    asked: Mapping[str, Any], what: str
) -> None:
    device, start = local()
    with pytest.raises(PublicError, match=f"own_softmax:Softmax trains by code of its own.*{what}"):
        device.train(start, Drill(**asked))


@pytest.mark.parametrize("call", ["gradient", "memberships", "enable_privacy"])
def test_calls_that_a_loop_cannot_answer_are_refused(call: str) -> None:
    device, start = local()
    arguments = {"gradient": (start,), "memberships": (start, 2), "enable_privacy": (None,) * 5}
    with pytest.raises(PublicError, match="choose a method that does without"):
        getattr(device, call)(*arguments[call])


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("names", "expected the names and shapes of start"),
        ("words", "values that are not numbers"),
        ("list", "returned list; expected arrays by name"),
        ("count", "returned 0 samples; expected 1 to 12"),
    ],
)
def test_a_mistake_in_a_loop_has_a_reason_that_its_author_understands(fault: str, why: str) -> None:
    device, start = local(fault)
    with pytest.raises(PublicError, match=why):
        device.train(start)


def test_outputs_of_another_shape_are_refused() -> None:
    device, start = local("outputs")
    with pytest.raises(PublicError, match=r"evaluate returned shape \(12,\); expected \(12, 4\)"):
        device.loss(start)


def test_options_that_a_loop_does_not_take_are_named() -> None:
    task = TASK.model_copy(
        update={"model": TASK.model.model_copy(update={"options": {"depth": 2}})}
    )
    with pytest.raises(UserError, match=r"own_softmax:Softmax.*depth"):
        learner_for(task, RULES)


def test_a_loop_is_not_exported_as_a_module() -> None:
    with pytest.raises(UserError, match=r"returned Softmax; expected a torch\.nn\.Module"):
        build(TASK, 0, ALLOWED)


@pytest.mark.parametrize(
    ("method", "keep"),
    [*((method, []) for method in ("fedavg", "fedclust", "ifca", "pacfl")), ("fedavg", ["bias"])],
)
def test_methods_that_average_and_compare_models_train_a_loop(
    tmp_path: Path, method: str, keep: list[str]
) -> None:
    task = {"model": {"name": "own_softmax:Softmax"}, "keep": keep}
    scene = scenario(method, task=task, training={"epochs": 20, "lr": 0.5})
    learner = learner_for(scene.task, RULES)
    starts = [
        initial(scene.task, number, allowed=ALLOWED) for number in range(scene.strategy.starts)
    ]
    setup = setup_of(scene, [start for start, _ in starts], starts[0][1])
    people = {
        client: dataset(one.x, one.y, (one.x, one.y), source=client)
        for client, one in clients().items()
    }

    def local_for(client: str, order: OrderMessage) -> Local:
        assert order.work is not None
        training = Training.model_validate(order.work.training)
        rng = shuffle(order.work, client)
        return learner.local(
            people[client], scene.task, setup.whole, training=training, rng=rng, rules=RULES
        )

    driver = local_driver(tmp_path, scene, setup, rules(scene), local_for)
    run = driver.complete({client: (len(one.targets),) * 2 for client, one in people.items()})
    shares = [figures["server"]["accuracy"] for figures in run.members.evaluation.values()]
    assert np.mean(shares) > 0.7, "four classes: chance is 0.25"
