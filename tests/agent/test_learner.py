"""Torch behind `Local`, held against plain torch and against arithmetic by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from torch.nn import functional

from covey.agent.data.dataset import Dataset, dataset
from covey.agent.data.survey import DataSurvey
from covey.agent.training.flat_module import FlatModule
from covey.agent.training.learner import TorchLocal
from covey.agent.training.models import build, initial, layout_of
from covey.shared.errors import DataError, UserError
from covey.shared.numerics.vectors import Layout, Tensor, Vector
from covey.shared.scenario.task import Model, Standardise, Task
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import Drill, GradientCorrection, Local

IMAGES = Task(features=(1, 16, 16), classes=4, model=Model(name="lenet5"))
TABLE = Task(features=(3,), classes=4, model=Model(name="mlp", options={"hidden": 5}))
VALUES = Task(features=(3,), model=Model(name="linear"))
NORMED = Task(features=(3, 8, 8), classes=4, model=Model(name="celeba_cnn", options={"blocks": 1}))


pytestmark = pytest.mark.usefixtures("single_thread")


def data_of(task: Task, n: int = 23, tests: int = 7, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n + tests, *task.features)).astype(np.float32)
    y = (
        rng.normal(size=n + tests).astype(np.float32)
        if task.classes is None
        else rng.integers(0, 4, n + tests)
    )
    return dataset(x[:n], y[:n], (x[n:], y[n:]) if tests else None, source="made up")


def local_of(
    task: Task,
    data: Dataset | None = None,
    scaling: dict[str, list[float]] | None = None,
    **training: Any,
) -> tuple[TorchLocal, Vector, Layout]:
    start, layout = initial(task, 3)
    settings = Training(**({"batch": 5, "lr": 0.1} | training))
    local = TorchLocal(
        data or data_of(task),
        task,
        layout,
        training=settings,
        rng=generator(1, "test"),
        scaling=scaling,
    )
    return local, start, layout


def reference(
    task: Task,
    data: Dataset,
    start: Vector,
    training: Training,
    correction: GradientCorrection | None = None,
) -> npt.NDArray[Any]:
    """The same training by autograd on a plain module and torch.optim.SGD, one sample order per epoch."""
    correction = correction or GradientCorrection()
    module = build(task, 0)
    nn.utils.vector_to_parameters(torch.from_numpy(start.copy()), module.parameters())
    anchor = torch.from_numpy(start.copy() if correction.anchor is None else correction.anchor)
    drift = (
        torch.zeros(len(start)) if correction.drift is None else torch.from_numpy(correction.drift)
    )
    sgd = torch.optim.SGD(
        module.parameters(),
        training.lr,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
    )
    rng = generator(1, "test")
    for _ in range(training.epochs):
        order = rng.permutation(len(data.targets))
        for at in range(0, len(order), training.batch):
            batch = order[at : at + training.batch]
            x, y = torch.from_numpy(data.features[batch]), torch.from_numpy(data.targets[batch])
            w = nn.utils.parameters_to_vector(module.parameters())
            term = 0.5 * correction.mu * ((w - anchor) ** 2).sum() + (drift * w).sum()
            sgd.zero_grad()
            (functional.cross_entropy(module(x), y) + term).backward()  # type: ignore[no-untyped-call]
            sgd.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach().numpy()


@pytest.mark.parametrize("task", [IMAGES, TABLE], ids=["lenet5", "mlp"])
@pytest.mark.parametrize(
    "training",
    [
        Training(batch=5, lr=0.1),
        Training(batch=5, lr=0.1, momentum=0.9, epochs=2),
        Training(batch=5, lr=0.1, momentum=0.5, weight_decay=0.1),
        Training(batch=100, lr=0.1),
    ],
    ids=str,
)
def test_training_equals_torchs_own_sgd(task: Task, training: Training) -> None:
    data = data_of(task)
    local, start, _ = local_of(task, data, **training.model_dump())
    done = local.train(start)
    assert np.allclose(done.end, reference(task, data, start, training), atol=1e-6)
    assert done.steps == training.epochs * -(-23 // training.batch)
    assert not np.allclose(done.end, start, atol=1e-4)


def test_the_gradient_correction_is_added_before_momentum() -> None:
    data, start = data_of(TABLE), initial(TABLE, 3)[0]
    rng = np.random.default_rng(5)
    anchor, drift = (rng.normal(size=len(start)).astype(np.float32) for _ in range(2))
    for correction in (
        GradientCorrection(anchor, 0.3),
        GradientCorrection(drift=drift),
        GradientCorrection(anchor, 0.3, drift),
        GradientCorrection(anchor, 0.0),
    ):
        expected = reference(
            TABLE, data, start, Training(batch=5, lr=0.1, momentum=0.9), correction
        )
        fresh, _, _ = local_of(TABLE, data, momentum=0.9)
        assert np.allclose(fresh.train(start, Drill(correction)).end, expected, atol=1e-5)


def test_nothing_moves_the_parameters_that_are_frozen_and_the_rest_learns_as_if_they_were_not_there() -> (
    None
):
    start, layout = initial(TABLE, 3)
    (frozen,) = {
        span.stop for tensor, span in layout.spans() if tensor.name == layout.tensors[1].name
    }
    behind = np.arange(layout.size) >= frozen
    anchor, drift = np.ones_like(start), np.ones_like(start)
    local, *_ = local_of(TABLE, momentum=0.9, weight_decay=0.1, epochs=3)
    end = local.train(start, Drill(GradientCorrection(anchor, 0.3, drift), trained=behind)).end
    assert np.array_equal(end[:frozen], start[:frozen])
    assert np.all(end[frozen:] != start[frozen:])
    one_step: dict[str, Any] = {"batch": 100, "momentum": 0.9, "weight_decay": 0.1}
    ends = [
        local_of(TABLE, **one_step)[0]
        .train(start, Drill(GradientCorrection(anchor, 0.3), trained=of))
        .end
        for of in (None, behind)
    ]
    assert np.array_equal(ends[0][frozen:], ends[1][frozen:])
    nothing = np.zeros(layout.size, np.bool_)
    assert np.array_equal(local_of(TABLE)[0].train(start, Drill(trained=nothing)).end, start)


def test_a_correction_pulls_the_values_that_it_names_alone() -> None:
    start, layout = initial(TABLE, 3)
    first = np.arange(layout.size) < 10
    anchor = start + 5
    ends = {
        name: local_of(TABLE, batch=100)[0]
        .train(start, Drill(GradientCorrection(anchor, 0.3, on=on)))
        .end
        for name, on in (("none", np.zeros_like(first)), ("first", first), ("all", None))
    }
    assert np.array_equal(ends["first"][first], ends["all"][first])
    assert np.array_equal(ends["first"][~first], ends["none"][~first])
    assert not np.array_equal(ends["all"], ends["none"])


def test_a_gradient_correction_of_zero_changes_no_bit() -> None:
    ends = []
    for correction in (
        GradientCorrection(),
        GradientCorrection(np.ones(44, np.float32), 0.0),
        GradientCorrection(drift=np.zeros(44, np.float32)),
    ):
        local, start, layout = local_of(TABLE)
        assert layout.size == 44
        ends.append(local.train(start, Drill(correction)).end.tobytes())
    assert len(set(ends)) == 1


def test_the_same_generator_and_start_give_the_same_bytes() -> None:
    first, second = (local_of(IMAGES, momentum=0.9)[0] for _ in range(2))
    start, _ = initial(IMAGES, 3)
    torch.manual_seed(1)
    one = first.train(start, Drill(epochs=2))
    torch.manual_seed(2)
    first_again = second.train(start, Drill(epochs=2))
    assert one.end.tobytes() == first_again.end.tobytes()
    assert one.loss == first_again.loss
    assert first.train(start).end.tobytes() != second.train(start, Drill(epochs=2)).end.tobytes()


def test_momentum_starts_at_zero_with_every_training() -> None:
    local, start, _ = local_of(
        TABLE, momentum=0.9, batch=100
    )  # one batch: its order does not matter
    assert np.allclose(local.train(start).end, local.train(start).end, atol=1e-6)


def test_a_velocity_that_is_handed_on_makes_two_jobs_one() -> None:
    settings: dict[str, Any] = {
        "momentum": 0.9,
        "batch": 100,
    }  # one batch: its order does not matter
    local, start, _ = local_of(TABLE, **settings, weight_decay=0.1)
    first = local.train(start, Drill(epochs=2))
    assert first.velocity is not None
    before = first.velocity.copy()
    second = local.train(first.end, Drill(epochs=3, velocity=first.velocity))
    assert np.allclose(second.end, local.train(start, Drill(epochs=5)).end, atol=1e-6)
    assert not np.allclose(second.end, local.train(first.end, Drill(epochs=3)).end, atol=1e-3)
    assert np.array_equal(first.velocity, before)
    assert (
        local_of(TABLE)[0].train(start).velocity is None
    )  # without momentum there is nothing to hand on


def test_training_leaves_its_start_and_the_callers_arrays_unchanged() -> None:
    local, start, _ = local_of(TABLE)
    before = start.copy()
    start.flags.writeable = False
    end = local.train(start, Drill(GradientCorrection(start, 0.1))).end
    kept = end.copy()
    local.loss(before)
    assert np.array_equal(start, before)
    assert np.array_equal(end, kept)


def test_epochs_given_override_the_settings_and_none_gives_the_start() -> None:
    local, start, _ = local_of(TABLE, epochs=4)
    assert local.train(start, Drill(epochs=1)).steps == 5
    nothing = local.train(start, Drill(epochs=0))
    assert (nothing.steps, nothing.loss) == (0, local.loss(start))
    assert np.array_equal(nothing.end, start)


def test_steps_given_override_the_epochs_and_begin_another_epoch_where_one_is_too_short() -> None:
    """Five batches make an epoch of 23 samples."""

    def end(epochs: int | None = None, steps: int | None = None) -> tuple[int, bytes]:
        local, start, _ = local_of(TABLE)
        done = local.train(start, Drill(epochs=epochs, steps=steps))
        return done.steps, done.end.tobytes()

    assert end(steps=10) == end(epochs=2)
    assert end(steps=10, epochs=7) == end(epochs=2)
    assert end(steps=7)[0] == 7
    assert end(steps=1)[0] == 1
    assert end(steps=0) == end(epochs=0)


def test_one_full_batch_step_follows_the_gradient() -> None:
    for task in (IMAGES, TABLE, VALUES):
        local, start, _ = local_of(task, batch=100)
        assert np.allclose(
            local.train(start).end, start - np.float32(0.1) * local.gradient(start), atol=1e-6
        )


def test_the_reported_loss_is_the_mean_over_the_steps() -> None:
    local, start, _ = local_of(
        TABLE, lr=1e-12, batch=1
    )  # the model stands still: every step sees the start
    assert local.train(start).loss == pytest.approx(local.loss(start), rel=1e-6)


def test_weights_multiply_losses_and_the_mean_still_divides_by_the_batch_size() -> None:
    local, start, layout = local_of(TABLE, batch=100)
    weights = np.linspace(0, 3, 23).astype(np.float32)  # their mean is not 1
    end = local.train(start, Drill(weights=weights)).end
    data = data_of(TABLE)
    expected = np.zeros(layout.size)
    for i, weight in enumerate(weights):
        single = dataset(
            np.repeat(data.features[i : i + 1], 2, 0), np.repeat(data.targets[i], 2), source="x"
        )
        expected += weight * local_of(TABLE, single)[0].gradient(start) / 23
    assert np.allclose(end, start - 0.1 * expected, atol=1e-6)
    ones = local_of(TABLE)[0].train(start, Drill(weights=np.ones(23, np.float32))).end
    assert np.allclose(ones, local_of(TABLE)[0].train(start).end, atol=1e-6)


def test_losses_are_in_data_order_and_loss_is_their_mean() -> None:
    data = data_of(TABLE, n=600)  # more than one chunk
    local, start, _ = local_of(TABLE, data)
    logits = local.predict(start, "train").astype(np.float64)
    shifted = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(600), data.targets]
    assert np.allclose(local.losses(start), shifted, atol=1e-5)
    assert local.loss(start) == pytest.approx(shifted.mean(), rel=1e-6)


def test_the_gradient_is_that_of_the_loss_whatever_the_chunks() -> None:
    data = data_of(TABLE, n=600)
    local, start, layout = local_of(TABLE, data)
    gradient = local.gradient(start)
    for i in np.random.default_rng(0).integers(0, layout.size, 8):
        step = np.zeros(layout.size, np.float32)
        step[i] = 1e-2
        assert gradient[i] == pytest.approx(
            (local.loss(start + step) - local.loss(start - step)) / 2e-2, abs=1e-3
        )


def test_a_gradient_over_a_drawn_batch_is_unbiased_and_repeats_on_the_seed() -> None:
    (local, start, _), (again, _, _) = local_of(TABLE), local_of(TABLE)
    drawn = [local.gradient(start, batch=5) for _ in range(300)]
    assert np.array_equal(drawn[0], again.gradient(start, batch=5))
    assert not np.array_equal(drawn[0], drawn[1])
    assert np.allclose(np.mean(drawn, axis=0), local.gradient(start), atol=0.05)
    assert np.array_equal(local.gradient(start, batch=99), local.gradient(start))


def test_a_gradient_over_given_rows_is_the_mean_of_theirs() -> None:
    local, start, _ = local_of(TABLE, data_of(TABLE, n=600))
    rows = np.arange(0, 600, 2)
    singles = [local.gradient(start, rows=rows[i : i + 1]) for i in range(len(rows))]
    assert np.allclose(local.gradient(start, rows=rows), np.mean(singles, axis=0), atol=1e-6)
    assert np.array_equal(local.gradient(start, rows=np.arange(600)), local.gradient(start))


def test_steps_along_the_gradients_of_the_batches_equal_a_training() -> None:
    (local, start, _), (other, *_) = local_of(TABLE, epochs=2), local_of(TABLE, epochs=2)
    model, sizes = start, []
    for batches in local.batches():
        for rows in batches:
            model = model - np.float32(0.1) * local.gradient(model, rows=rows)
        sizes.append([len(rows) for rows in batches])
    assert sizes == [[5, 5, 5, 5, 3]] * 2
    assert np.allclose(model, other.train(start).end, atol=1e-6)
    assert [len(batches) for batches in local.batches(3)] == [5, 5, 5]


def test_predictions_of_both_splits_have_one_row_per_sample() -> None:
    local, start, _ = local_of(TABLE)
    assert local.predict(start, "train").shape == (23, 4)
    assert local.predict(start, "test").shape == (7, 4)
    assert local.targets("test").dtype == np.int64
    bare, _, _ = local_of(TABLE, data_of(TABLE, tests=0))
    assert bare.predict(start, "test").shape == (0, 4)


def test_regression_learns_a_line() -> None:
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    data = dataset(x, x @ np.array([1, -2, 0.5], np.float32) + 3, source="line")
    local, start, _ = local_of(VALUES, data)
    end = local.train(start, Drill(epochs=60)).end
    assert np.allclose(end, [1, -2, 0.5, 3], atol=1e-3)
    assert local.predict(end, "train").shape == (60, 1)
    assert local.targets("train").dtype == np.float32
    assert local.loss(end) < 1e-5


def test_features_are_scaled_then_standardised_per_channel() -> None:
    task = Task(features=(2, 4), classes=4, model=Model(name="linear"), scale=0.5)
    raw = np.arange(80, dtype=np.int16).reshape(10, 2, 4)
    data = dataset(raw, np.arange(10) % 4, source="x")
    scaling = {"mean": [3.0, 5.0], "std": [2.0, 0.0]}  # a channel without spread is only shifted
    ready = (raw * 0.5 - np.array([3.0, 5.0])[:, None]) / np.array([2.0, 1.0])[:, None]
    plain = Task(features=(2, 4), classes=4, model=Model(name="linear"))
    expected = local_of(plain, dataset(ready, np.arange(10) % 4, source="x"))[0]
    start, _ = initial(task, 3)
    assert np.allclose(
        local_of(task, data, scaling)[0].predict(start, "train"),
        expected.predict(start, "train"),
        atol=1e-5,
    )
    fixed = task.model_copy(update={"standardise": Standardise(mean=(3.0, 5.0), std=(2.0, 1.0))})
    assert np.allclose(
        local_of(fixed, data)[0].predict(start, "train"),
        expected.predict(start, "train"),
        atol=1e-5,
    )


def test_scaling_for_another_number_of_channels_is_refused() -> None:
    with pytest.raises(UserError, match="2 values, the features have 3 channels"):
        local_of(TABLE, scaling={"mean": [0.0, 0.0], "std": [1.0, 1.0]})


def test_moments_are_sums_after_the_tasks_scale_and_before_standardisation() -> None:
    task = Task(
        features=(2, 4), classes=4, model=Model(name="linear"), scale=0.5, standardise="federated"
    )
    raw = np.random.default_rng(0).integers(-3000, 3000, (700, 2, 4)).astype(np.int16)
    moments = DataSurvey(dataset(raw, np.arange(700) % 4, source="x"), task).statistics()
    values = raw.astype(np.float64).transpose(1, 0, 2).reshape(2, -1) * 0.5
    assert moments["count"].tolist() == [2800, 2800]
    assert np.allclose(moments["sum"], values.sum(axis=1))
    assert np.allclose(moments["square"], (values**2).sum(axis=1))
    assert moments["square"].dtype == np.float64


def test_inputs_are_as_their_file_has_them() -> None:
    task = Task(features=(2, 4), classes=4, model=Model(name="linear"), scale=0.5)
    raw = np.random.default_rng(0).integers(0, 255, (7, 2, 4)).astype(np.uint8)
    scaling = {"mean": [3.0, 5.0], "std": [2.0, 1.0]}
    inputs = local_of(task, dataset(raw, np.arange(7) % 4, source="x"), scaling)[0].inputs()
    assert inputs.dtype == np.float32
    assert np.array_equal(inputs, raw.reshape(7, 8))


def test_batch_norm_moves_its_buffers_in_training_and_not_in_evaluation() -> None:
    local, start, layout = local_of(NORMED, lr=1e-9)
    end = local.train(start).end
    assert not np.allclose(end[layout.parameters :], start[layout.parameters :])
    local.loss(start)
    assert np.array_equal(local.train(start, Drill(epochs=0)).end, start)
    assert not local.gradient(start)[layout.parameters :].any()


@pytest.mark.usefixtures("narrow_vgg16")
def test_dropout_draws_from_the_jobs_own_generator() -> None:
    task = Task(
        features=(3, 32, 32), classes=4, model=Model(name="vgg16", options={"dropout": 0.5})
    )
    start, layout = initial(task, 3)
    ends = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        local = TorchLocal(
            data_of(task, n=2, tests=0), task, layout, training=Training(), rng=generator(1, "test")
        )
        ends.append(local.train(start).end.tobytes())
        assert torch.equal(torch.random.get_rng_state(), before)
    assert ends[0] == ends[1]


@pytest.mark.usefixtures("narrow_vgg16")
def test_losses_predictions_gradients_and_memberships_are_those_of_evaluation() -> None:
    """With dropout and batch norm in training mode each would differ from call to call, or move the buffers."""
    task = Task(
        features=(3, 32, 32),
        classes=4,
        model=Model(name="vgg16", options={"dropout": 0.5, "head": 2}),
    )
    local, start, layout = local_of(task, data_of(task, n=4, tests=2))
    for ask in (
        local.losses,
        local.gradient,
        lambda model: local.predict(model, "test"),
        lambda model: local.memberships(model, 2),
    ):
        assert np.array_equal(ask(start), ask(start))
    normed, start, layout = local_of(NORMED)
    statistics = start.copy()
    statistics[layout.parameters :] += 0.5
    assert not np.allclose(normed.losses(start), normed.losses(statistics), atol=1e-3)
    assert not np.allclose(normed.gradient(start), normed.gradient(statistics), atol=1e-3)


def test_a_layout_of_another_model_is_refused() -> None:
    other = Layout((Tensor("fc.weight", (4, 3)),), 1)
    with pytest.raises(
        UserError, match=r"it has 44 (values|parameters in 4 tensors), the coordinator's has 12"
    ):
        TorchLocal(data_of(TABLE), TABLE, other, training=Training(), rng=generator(1, "test"))
    other = Layout((Tensor("fc.weight", (11, 4)),), 1)  # as many values, but others
    with pytest.raises(
        UserError, match="44 parameters in 4 tensors, the coordinator's has 44 in 1"
    ):
        TorchLocal(data_of(TABLE), TABLE, other, training=Training(), rng=generator(1, "test"))


def test_a_model_of_the_wrong_length_and_data_without_samples_are_refused() -> None:
    local, start, layout = local_of(TABLE)
    with pytest.raises(ValueError, match="model has shape"):
        local.loss(start[:-1])
    data = data_of(TABLE)
    none = Dataset(data.features[:0], data.targets[:0], data.features, data.targets, source="empty")
    with pytest.raises(DataError, match="empty: no training samples"):
        TorchLocal(none, TABLE, layout, training=Training(), rng=generator(1, "test"))


def test_it_is_a_local_and_its_layout_is_the_models() -> None:
    local: Local = local_of(TABLE)[0]
    assert local.examples == 23
    assert layout_of(build(TABLE, 0)).digest == initial(TABLE, 9)[1].digest


def test_real_digits_are_learned() -> None:
    from covey.agent.data import fit, with_test
    from covey.agent.data.named import load_named

    task = Task(features=(1, 8, 8), classes=10, scale=1 / 16)
    data = with_test(fit(load_named("digits"), task))
    local, start, _ = local_of(task, data, batch=32)
    end = local.train(start, Drill(epochs=5)).end
    accuracy = float((local.predict(end, "test").argmax(axis=1) == local.targets("test")).mean())
    assert accuracy > 0.9


def test_layers_that_do_not_train_cost_no_gradient_and_keep_their_statistics() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    layout = layout_of(module)
    net = FlatModule(module, layout, torch.device("cpu"))
    start = np.linspace(0.1, 1, layout.size, dtype=np.float32)
    net.load(start)
    head = np.array([tensor.module == "2" for tensor in layout.tensors])
    trained = np.repeat(head, [tensor.size for tensor in layout.tensors])
    inputs = torch.ones(5, 3)
    with net.training(trained):
        assert not module[1].training
        assert module[2].training
        module(inputs).sum().backward()
    assert np.array_equal(net.gradient.numpy() != 0, trained[: layout.parameters])
    assert np.array_equal(net.vector(), start)
    with net.training(None):
        module(inputs).sum().backward()
    assert module[1].training
    assert (net.gradient.numpy()[~trained[: layout.parameters]] != 0).any()
    assert not np.array_equal(net.vector(), start)  # the statistics have moved
