"""The label prior: an agent's shares of the classes are in its outputs, and in no vector that it sends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from covey.shared.errors import PublicError
from covey.shared.numerics.vectors import Layout, Tensor
from covey.shared.scenario.load import load
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import Drill, GradientCorrection
from covey.shared.wire.codec import decode
from covey.shared.work.at_hand import AtHand
from covey.shared.work.execute import execute_order
from covey.shared.work.label_prior import own_prior, served, with_prior
from covey.shared.work.use import model_for_use
from tests.agent.orders import order, ref
from tests.bowl import softmax_client
from tests.kit.scenes import VECTORS
from tests.kit.small_run import in_process, scenario
from tests.processes import ROOT

CLIENT = replace(softmax_client((0, 1), seed=3, n=30), training=Training(epochs=1, batch=8, lr=0.1))
LAYOUT = CLIENT.layout
PLAIN = np.random.default_rng(1).standard_normal(LAYOUT.size).astype(np.float32)
COUNTS = np.bincount(CLIENT.y, minlength=4)
PRIOR = np.log((COUNTS + 0.5) / (30 + 2))


def worked(model: Any, setting: str, phase: str = "train", **numbers: Any) -> Any:
    """The report of an order, and its model for use."""
    asked = {**VECTORS, "features": [5], "label_prior": setting}
    task = Task.model_validate(asked).for_agents()
    layout = LAYOUT.to_wire()
    method: dict[str, Any] = {"strategy": {"name": "kin"}, "numbers": numbers} if numbers else {}
    if phase == "evaluate":
        method["sizes"] = {}
    message = order(1, ref(), phase=phase, round_=1, task=task, layout=layout, **method)
    report, _ = execute_order(message, [model], AtHand(CLIENT), {}, client="c")
    return report, model_for_use(message, [model], AtHand(CLIENT), {}, client="c")


def trained(setting: str, **numbers: Any) -> Any:
    report, _ = worked(PLAIN, setting, **numbers)
    return decode(report.vectors["model"], length=LAYOUT.size)


def test_outputs_have_the_logarithm_of_the_agents_shares() -> None:
    local = with_prior(CLIENT, own_prior(4, CLIENT, LAYOUT))
    apart = local.predict(PLAIN, "test") - CLIENT.predict(PLAIN, "test")
    np.testing.assert_allclose(apart, np.tile(PRIOR, (30, 1)), atol=1e-5)
    assert local.loss(PLAIN) < CLIENT.loss(PLAIN)
    assert local.examples == 30


def test_a_vector_that_leaves_the_learner_is_without_the_prior() -> None:
    """A training without steps returns its start; one with the prior is the plain one from a shifted start."""
    found = own_prior(4, CLIENT, LAYOUT)
    local = with_prior(CLIENT, found)
    [(_, shifted)] = served(((1.0, PLAIN),), found)
    [(_, end)] = served(((1.0, local.train(PLAIN).end),), found)
    np.testing.assert_allclose(end, CLIENT.train(shifted).end, atol=1e-6)
    pulled = local.train(PLAIN, Drill(GradientCorrection(PLAIN, 0.5))).end
    expected = CLIENT.train(shifted, Drill(GradientCorrection(shifted, 0.5))).end
    np.testing.assert_allclose(served(((1.0, pulled),), found)[0][1], expected, atol=1e-6)


def test_a_bias_that_is_not_trained_keeps_its_bits() -> None:
    local = with_prior(CLIENT, own_prior(4, CLIENT, LAYOUT))
    end = local.train(PLAIN, Drill(weights=np.zeros(30, np.float32))).end
    np.testing.assert_array_equal(end, PLAIN)


@pytest.mark.parametrize("word", ["on", "off", "auto"])
def test_the_setting_needs_no_quotes_in_a_scenario(word: str, tmp_path: Path) -> None:
    """YAML reads on and off as true and false."""
    smoke = (ROOT / "scenarios" / "smoke.yaml").read_text("utf-8")
    (tmp_path / "s.yaml").write_text(smoke.replace("task:", f"task:\n  label_prior: {word}", 1))
    assert load(tmp_path / "s.yaml").task.label_prior == word


@pytest.mark.whole
def test_the_setting_decides_and_with_auto_the_method_does() -> None:
    plain, adjusted = trained("off"), trained("on")
    assert not np.array_equal(plain, adjusted)
    for setting, numbers, expected in (
        ("auto", {}, plain),
        ("auto", {"prior": 1}, adjusted),
        ("off", {"prior": 1}, plain),
    ):
        np.testing.assert_array_equal(trained(setting, **numbers), expected)


def test_a_device_measures_and_uses_the_model_with_its_prior() -> None:
    for phase in ("train", "evaluate"):
        _, use = worked(PLAIN, "on", phase)
        assert use is not None
        [(_, model)] = use
        np.testing.assert_allclose((model - PLAIN)[-4:], PRIOR, atol=1e-5)
        np.testing.assert_array_equal(model[:-4], PLAIN[:-4])
    report, _ = worked(PLAIN, "on", "evaluate")
    without, _ = worked(PLAIN, "off", "evaluate")
    assert report.numbers["server"]["loss"] < without.numbers["server"]["loss"]


def test_a_model_without_a_bias_for_each_class_is_refused_only_if_the_task_asks() -> None:
    bare = Layout((Tensor("out.weight", (4, 5)),), 1)
    assert own_prior(4, CLIENT, bare) is None
    task = {**VECTORS, "features": [5], "label_prior": "on"}
    message = order(1, ref(), round_=1, task=task, layout=bare.to_wire())
    with pytest.raises(PublicError, match="no bias for each of 4 classes"):
        execute_order(message, [np.zeros(20, np.float32)], AtHand(CLIENT), {}, client="c")


def test_a_regression_has_no_shares_of_classes() -> None:
    with pytest.raises(ValidationError, match="label_prior is for classes"):
        scenario("fedavg", task={"classes": None, "label_prior": "on"})


@pytest.mark.parametrize("method", ["fedavg", "fesem", "ditto"])
def test_a_run_serves_lower_losses_with_the_prior(tmp_path: Path, method: str) -> None:
    """Agents with two of four classes each."""
    losses = []
    for setting in ("off", "on"):
        plan = scenario(method, task={"label_prior": setting}, rounds={"participation": 1.0})
        run = in_process(tmp_path / setting, plan)
        figures = run.members.evaluation.values()
        losses.append(np.mean([figure["server"]["loss"] for figure in figures]))
    assert losses[1] < losses[0]
