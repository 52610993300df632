"""The contrastive loss against its formula, models with a projection head, and training with both."""

import json
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from covey.agent.cli.program import app
from covey.agent.training.architectures import Headed
from covey.agent.training.learner import TorchLocal
from covey.agent.training.models import build, initial
from covey.agent.training.objective import contrastive_loss
from covey.shared.errors import UserError
from covey.shared.scenario.task import Model, Standardise, Task
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import Contrast, Drill, Job
from covey.shared.strategies.fuzzy import Fuzzy
from tests.agent.test_learner import data_of

HEADED = Task(features=(1, 16, 16), classes=4, model=Model(name="lenet5", options={"head": 3}))
COLOURED = HEADED.model_copy(
    update={
        "features": (3, 16, 16),
        "standardise": Standardise(mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.3)),
    }
)
By = Literal["columns", "rows"]


def by_formula(first: Any, second: Any, tau: float, kappa: float, by: By) -> float:
    """Section 4.3, word for word."""

    def similar(u: Any, v: Any) -> float:
        return math.exp(float(u @ v / np.linalg.norm(u) / np.linalg.norm(v)) / tau)

    a, b = (first.T, second.T) if by == "columns" else (first, second)
    total = 0.0
    for x, y in ((a, b), (b, a)):
        for k in range(len(x)):
            below = sum(similar(x[k], x[j]) for j in range(len(x)) if j != k)
            below += sum(similar(x[k], y[j]) for j in range(len(x)))
            total -= math.log(similar(x[k], y[k]) / below)
    entropy = sum(
        math.log(v.shape[1]) + sum(p * math.log(p) for p in v.mean(axis=0)) for v in (first, second)
    )
    return float(total / (2 * len(a)) + kappa * entropy)


@pytest.mark.parametrize("by", ["columns", "rows"])
@pytest.mark.parametrize(("tau", "kappa"), [(1.0, 1.0), (0.5, 0.0), (0.3, 0.1)])
def test_the_contrastive_loss_is_the_formula(by: By, tau: float, kappa: float) -> None:
    rng = np.random.default_rng(0)
    first, second = (rng.dirichlet(np.ones(3), 7) for _ in range(2))
    contrast = Contrast(3, temperature=tau, kappa=kappa, by=by)
    loss = contrastive_loss(torch.from_numpy(first), torch.from_numpy(second), contrast)
    assert float(loss) == pytest.approx(by_formula(first, second, tau, kappa, by))


def test_one_cluster_has_nothing_to_distinguish() -> None:
    alone = torch.ones(5, 1)
    assert float(contrastive_loss(alone, alone, Contrast(1))) == pytest.approx(0, abs=1e-6)


def test_everything_in_one_cluster_costs_ln_k_of_entropy() -> None:
    lumped = torch.tensor([[1.0, 0.0]]).repeat(6, 1)
    costs = [
        float(contrastive_loss(lumped, lumped, Contrast(2, kappa=kappa))) for kappa in (0.0, 1.0)
    ]
    assert costs[1] - costs[0] == pytest.approx(2 * math.log(2))


def local_of(task: Task, **training: Any) -> tuple[TorchLocal, Any]:
    start, layout = initial(task, 3)
    settings = Training(**({"batch": 5, "lr": 0.1} | training))
    return TorchLocal(
        data_of(task), task, layout, training=settings, rng=generator(1, "test")
    ), start


def test_a_head_leaves_the_weights_of_its_model_unchanged() -> None:
    plain = HEADED.model_copy(update={"model": Model(name="lenet5")})
    bare, full = build(plain, 3).state_dict(), build(HEADED, 3)
    assert isinstance(full, Headed)
    for name, tensor in bare.items():
        assert torch.equal(full.state_dict()[name], tensor)
    assert set(full.state_dict()) - set(bare) == {
        f"head.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias")
    }
    assert initial(HEADED, 3)[1].modules[-1] == "fc3"  # the final layer is still the last


def test_a_head_of_null_is_none() -> None:
    module = build(
        HEADED.model_copy(update={"model": Model(name="lenet5", options={"head": None})}), 3
    )
    assert not isinstance(module, Headed)


@pytest.mark.parametrize("head", [0, "two"])
def test_a_head_for_no_clusters_is_refused(head: Any) -> None:
    with pytest.raises(UserError, match=r"task\.model\.options\.head"):
        build(HEADED.model_copy(update={"model": Model(name="lenet5", options={"head": head})}), 0)


@pytest.mark.parametrize("name", ["mlp", "linear", "femnist_cnn"])
def test_other_built_in_models_take_a_head_too(name: str) -> None:
    module = build(HEADED.model_copy(update={"model": Model(name=name, options={"head": 2})}), 0)
    assert isinstance(module, Headed)
    x = torch.rand(2, 1, 16, 16)
    assert module.head(module.features(x)).shape == (2, 2)


def test_a_strategy_with_other_clusters_than_the_head_names_the_option_to_set() -> None:
    local, start = local_of(HEADED)
    with pytest.raises(UserError, match=r"a head for 3.*options\.head to 2"):
        local.memberships(start, 2)
    bare, other = local_of(HEADED.model_copy(update={"model": Model(name="lenet5")}))
    with pytest.raises(UserError, match="no projection head"):
        bare.train(other, Drill(contrast=Contrast(3)))


def test_a_run_whose_model_lacks_the_strategys_head_ends_before_it_starts(tmp_path: Path) -> None:
    task = {
        "features": [1, 8, 8],
        "classes": 10,
        "model": {"name": "mlp", "options": {"hidden": 4}},
    }
    scene = tmp_path / "scene.yaml"
    for strategy, ends in (({"name": "fuzzy"}, True), ({"name": "fuzzy", "n_clusters": 1}, False)):
        scene.write_text(json.dumps({"name": "s", "task": task, "strategy": strategy}))
        result = CliRunner().invoke(
            app, ["lab", "model", str(scene), "--out", str(tmp_path / "start.npz")]
        )
        assert (result.exit_code == 2) == ends


def test_memberships_count_every_sample_once_by_the_heads_largest_output() -> None:
    local, start = local_of(HEADED)
    counts = local.memberships(start, 3)
    module = build(HEADED, 3).eval()
    assert isinstance(module, Headed)
    with torch.no_grad():
        chosen = module.head(module.features(torch.from_numpy(data_of(HEADED).features))).argmax(
            dim=1
        )
    assert counts.tolist() == [int((chosen == k).sum()) for k in range(3)]
    assert counts.sum() == local.examples


@pytest.mark.parametrize("task", [HEADED, COLOURED], ids=["grey", "coloured and standardised"])
def test_contrastive_training_moves_the_head_and_repeats_bit_for_bit(task: Task) -> None:
    ends = [
        local.train(start, Drill(contrast=Contrast(3)))
        for local, start in (local_of(task) for _ in range(2))
    ]
    assert ends[0].end.tobytes() == ends[1].end.tobytes()
    (local, start), (plain, _) = local_of(task), local_of(task)
    span = initial(task, 3)[1].span_of("head.2")[0]
    assert np.array_equal(plain.train(start).end[span], start[span])
    assert not np.array_equal(
        local.train(start, Drill(contrast=Contrast(3))).end[span], start[span]
    )


def test_a_contrast_without_weight_trains_the_model_as_without_it() -> None:
    # the draw of the views comes before the order of the samples: one batch holds them all, so order is no matter
    (local, start), (plain, _) = (local_of(HEADED, batch=100) for _ in range(2))
    ends = local.train(start, Drill(contrast=Contrast(3, beta=0))).end, plain.train(start).end
    assert np.allclose(*ends, atol=1e-6)


@pytest.mark.parametrize("counts", ["received", "trained"])
def test_fuzzy_works_on_torch_from_training_to_counts(
    counts: Literal["received", "trained"],
) -> None:
    local, start = local_of(HEADED)
    job = Job("train", 0, "c", 0, (start,), {}, None, initial(HEADED, 3)[1], Training())
    report, _ = Fuzzy(n_clusters=3, counts=counts).work(job, local, {})
    counted = start if counts == "received" else report.vectors["model"]
    assert report.numbers["counts"] == local.memberships(counted, 3).tolist()
    assert not np.array_equal(report.vectors["model"], start)


def test_training_lowers_the_contrastive_loss() -> None:
    local, start = local_of(COLOURED, epochs=40, lr=0.05, batch=23)

    def usual_loss(model: Any) -> float:
        """Views are random: the loss of one batch alone varies too much."""
        return float(
            np.mean(
                [local.train(model, Drill(epochs=1, contrast=Contrast(3))).loss for _ in range(10)]
            )
        )

    end = local.train(start, Drill(contrast=Contrast(3))).end
    assert usual_loss(end) < usual_loss(start) - 0.3


def test_a_contrast_sees_two_different_views_as_shares_of_clusters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[Tensor, Tensor]] = []

    def watched(first: Tensor, second: Tensor, contrast: Contrast) -> Tensor:
        seen.append((first.detach(), second.detach()))
        return contrastive_loss(first, second, contrast)

    monkeypatch.setattr("covey.agent.training.objective.contrastive_loss", watched)
    local, start = local_of(HEADED)
    local.train(start, Drill(contrast=Contrast(3)))
    assert seen
    for first, second in seen:
        assert not torch.equal(first, second)
        for shares in (first, second):
            assert shares.shape[1] == 3
            assert torch.allclose(shares.sum(dim=1), torch.ones(len(shares)))


@pytest.mark.parametrize("contrast", [None, Contrast(3)], ids=["supervised", "with views"])
def test_training_on_changed_images_repeats_bit_for_bit_and_differs(
    contrast: Contrast | None,
) -> None:
    ends = []
    for augment in ("none", "shift", "shift", "shift_flip"):
        local, start = local_of(COLOURED, augment=augment)
        ends.append(local.train(start, Drill(contrast=contrast)).end.tobytes())
    assert ends[1] == ends[2]
    assert len(set(ends)) == 3


def test_changed_images_are_those_of_the_task_loss_and_views_see_the_originals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Tensor] = []

    def blank(images: Tensor, draw: torch.Generator) -> Tensor:
        return torch.zeros_like(images)

    def view(images: Tensor, draw: torch.Generator) -> Tensor:
        seen.append(images)
        return images

    monkeypatch.setattr("covey.agent.training.learner.augmentation_for", lambda features: view)
    monkeypatch.setattr(
        "covey.agent.training.learner.augmentation_of_training", lambda augment: blank
    )
    local, start = local_of(HEADED, batch=100)
    local.train(start, Drill(contrast=Contrast(3)))
    assert len(seen) == 2
    assert all(float(images.std()) > 0.1 for images in seen)


def test_losses_and_gradients_are_of_unchanged_images() -> None:
    (plain, start), (changing, _) = local_of(COLOURED), local_of(COLOURED, augment="shift_flip")
    assert changing.loss(start) == plain.loss(start)
    assert np.array_equal(changing.gradient(start), plain.gradient(start))
