"""What exported models score on each super-class of a simulated fleet's data, by prediction alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from covey.agent.data import Dataset, fit
from covey.agent.data.dataset import Array
from covey.agent.data.partition import Split, fleet_data
from covey.agent.data.partition_rules import superclass
from covey.agent.policy import NO_CODE_RULES
from covey.agent.training.learner import TorchLocal
from covey.agent.training.models import build, layout_of
from covey.shared.consent import NO_CODE, AllowedCode
from covey.shared.errors import UserError
from covey.shared.model_files import model_files
from covey.shared.numerics import metrics
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.scenario.partition import SuperclassMixture
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import generator


def accuracies(
    scenario: Scenario,
    models: Path,
    data_root: Path | None,
    scaling: Mapping[str, Sequence[float]] | None = None,
    allowed: AllowedCode = NO_CODE,
) -> list[list[float]]:
    """Accuracy of each cluster-<k>.safetensors in `models` (rows) on the pooled test data of each super-class (columns).

    `scaling` is what the run's federated standardisation found. Empty where a super-class has no test data. Raises
    UserError where the partition has no super-classes or a model file is not of the scenario's model.
    """
    rule = scenario.fleet.partition if scenario.fleet is not None else None
    if not isinstance(rule, SuperclassMixture):
        raise UserError(
            "fleet.partition: super-classes are known to the rule superclass_mixture alone"
        )
    if scenario.task.standardise == "federated" and scaling is None:
        raise UserError(
            "task.standardise is federated: --scaling with the run's mean and std is wanted"
        )
    found = model_files(models)
    if not found:
        raise UserError(
            f"{models}: no cluster-0.safetensors is here; the models folder of a finished run is wanted"
        )
    pooled = _pooled(*fleet_data(scenario, data_root))
    of_sample = superclass(rule, pooled.test_targets)  # before fit() renames classes
    if not {0, 1} <= set(of_sample.tolist()):
        return []
    task = scenario.task
    layout = layout_of(build(task, 0, allowed))
    rng = generator(scenario.seed, "superclasses")  # nothing is drawn: there are only predictions
    local = TorchLocal(
        fit(pooled, task),
        task,
        layout,
        scenario.training,
        rng,
        scaling,
        rules=replace(NO_CODE_RULES, allowed=allowed),
    )
    return [_tested(local, _vector(path, layout), of_sample) for path in found]


def _pooled(data: Dataset, split: Split) -> Dataset:
    """With the whole test part; where the set has none of its own, all agents' test samples together."""
    if split.test_of == "test":
        return data
    rows = np.unique(split.test_idx)
    return replace(data, test_features=data.features[rows], test_targets=data.targets[rows])


def _tested(local: TorchLocal, model: Vector, of_sample: Array) -> list[float]:
    predicted, truth = np.argmax(local.predict(model, "test"), axis=1), local.targets("test")
    return [metrics.accuracy(truth[of_sample == k], predicted[of_sample == k]) for k in range(2)]


def _vector(path: Path, layout: Layout) -> Vector:
    try:
        return layout.vector(load_file(path))
    except ValueError:
        raise UserError(
            f"{path}: the tensors are not those of task.model; was it made by this scenario?"
        ) from None
