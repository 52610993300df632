"""Accuracy of exported models on each super-class of a simulated fleet's data, by prediction alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from covey.agent.data import Dataset, fit
from covey.agent.data.dataset import Array
from covey.agent.data.partition import Split, fleet_data
from covey.agent.data.superclass_mixture import superclass
from covey.agent.learning import learner_for
from covey.agent.policy import NO_CODE_RULES
from covey.shared.consent import NO_CODE, AllowedCode
from covey.shared.errors import UserError
from covey.shared.model_files import model_files
from covey.shared.numerics import metrics
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.scenario.fleet_statistics import resolved
from covey.shared.scenario.partition import SuperclassMixture
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import generator
from covey.shared.strategies.base import Local


def accuracies(
    scenario: Scenario,
    models: Path,
    data_root: Path | None,
    scaling: Mapping[str, Sequence[float]] | None = None,
    allowed: AllowedCode = NO_CODE,
) -> list[list[float]]:
    """Accuracy of each cluster-<k>.safetensors (rows) on the pooled test data of each super-class (columns).

    Args:
        scenario: names the data, the partition and the model.
        models: the folder of a finished run's models.
        data_root: the folder of the larger data sets.
        scaling: `mean` and `std` that the run's federated standardisation found.
        allowed: which code of the user's own may be imported for the model.

    Returns:
        Two accuracies per model file, or nothing if a super-class has no test data.

    Raises:
        UserError: the partition has no super-classes, or a model file is not of the scenario's model.
    """
    rule = scenario.fleet.partition if scenario.fleet is not None else None
    if not isinstance(rule, SuperclassMixture):
        raise UserError(
            "fleet.partition: only the rule superclass_mixture has super-classes; use a scenario "
            "with this rule"
        )
    if scenario.task.standardise == "federated" and scaling is None:
        raise UserError("task.standardise is federated: give the run's mean and std with --scaling")
    found = model_files(models)
    if not found:
        raise UserError(
            f"{models}: no cluster-0.safetensors; expected the models folder of a finished run"
        )
    data, split = fleet_data(scenario, data_root)
    pooled = _pooled(data, split)
    of_sample = superclass(rule, pooled.test_targets)  # before fit() renames classes
    if not {0, 1} <= set(of_sample.tolist()):
        return []
    task = scenario.task
    rules = replace(NO_CODE_RULES, allowed=allowed)
    learner = learner_for(task, rules)
    layout = learner.layout(task, allowed)
    rng = generator(scenario.seed, "superclasses")  # nothing is drawn: there are only predictions
    resolved_task = resolved(task, scaling)
    local = learner.local(fit(pooled, task), resolved_task, layout, scenario.training, rng, rules)
    return [_tested(local, _vector(path, layout), of_sample) for path in found]


def _pooled(data: Dataset, split: Split) -> Dataset:
    """The data with its whole test part; all agents' test samples together if it has no part of its own."""
    if split.test_of == "test":
        return data
    rows = np.unique(split.test_idx)
    return replace(data, test_features=data.features[rows], test_targets=data.targets[rows])


def _tested(local: Local, model: Vector, of_sample: Array) -> list[float]:
    """The model's accuracy on the test samples of super-class 0 and of super-class 1."""
    predicted = np.argmax(local.predict(model, "test"), axis=1)
    truth = local.targets("test")
    scores: list[float] = []
    for number in range(2):
        own = of_sample == number
        scores.append(metrics.accuracy(truth[own], predicted[own]))
    return scores


def _vector(path: Path, layout: Layout) -> Vector:
    try:
        return layout.vector(load_file(path))
    except ValueError:
        raise UserError(
            f"{path}: the tensors are not those of task.model; give the scenario that made it"
        ) from None
