"""Built-in models: exact counts, seeds, the user's own, and how a misfit is named."""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

from covey.agent.training.models import build, initial, layout_of
from covey.shared.errors import PublicError, UserError
from covey.shared.own_code.consent import AllowedCode, ConsentError
from covey.shared.scenario.task import Model, Task
from covey.shared.storage.files import model_file


def task(
    name: str, *features: int, classes: int | None = 10, init: str | None = None, **options: Any
) -> Task:
    return Task(
        features=features, classes=classes, model=Model(name=name, options=options), init=init
    )


@pytest.mark.parametrize(
    ("described", "parameters", "final"),
    [
        (task("lenet5", 1, 28, 28), 44_426, 850),
        (task("lenet5", 3, 32, 32), 62_006, 850),
        (task("mlp", 1, 28, 28), 159_010, 2_010),
        (task("mlp", 64, hidden=[32, 16]), 64 * 32 + 32 + 32 * 16 + 16 + 170, 170),
        (task("linear", 12, classes=3), 39, 39),
        (task("cnn1d", 9, 128, classes=6), 44_998, 390),
        (task("gru", 9, 128, classes=6), 14_790, 390),
        (task("cnn4", 3, 32, 32), 262_026, 20_490),
        (task("mobilenet", 3, 32, 32), 2_236_682, 12_810),
        (task("mobilenet", 3, 96, 96, width=0.5), 700_490, 12_810),
        (task("resnet9", 3, 32, 32), 6_575_370, 5_130),
        (task("resnet9", 3, 32, 32, classes=100), 6_621_540, 51_300),
        (task("femnist_cnn", 1, 28, 28, classes=62), 6_603_710, 127_038),
        (task("femnist_cnn", 1, 28, 28, classes=62, hidden=248), 845_510, 15_438),
        (task("celeba_cnn", 3, 84, 84, classes=2), 31_202, 2_306),
        (task("vgg16", 3, 32, 32), 15_245_130, 5_130),
    ],
    ids=lambda value: value.model.name if isinstance(value, Task) else str(value),
)
def test_a_built_in_model_has_exactly_the_published_parameters(
    described: Task, parameters: int, final: int
) -> None:
    vector, layout = initial(described, seed=0)
    assert layout.parameters == parameters
    assert layout.final_layer == slice(parameters - final, parameters)
    assert vector.dtype == np.float32
    assert vector.shape == (layout.size,)


def test_celeba_with_two_blocks_has_fesems_flat_width() -> None:
    _, layout = initial(task("celeba_cnn", 3, 84, 84, classes=2, blocks=2), 0)
    assert layout.tensors[layout.trainable - 2].shape == (2, 14_112)


def test_float_buffers_follow_the_parameters_and_integer_buffers_are_left_out() -> None:
    vector, layout = initial(task("celeba_cnn", 3, 84, 84, classes=2), 0)
    assert layout.size - layout.parameters == 4 * 64
    assert [tensor.name for tensor in layout.tensors[layout.trainable :]][:2] == [
        "bn1.running_mean",
        "bn1.running_var",
    ]
    assert not any("num_batches" in tensor.name for tensor in layout.tensors)
    assert layout.named(vector)["bn4.running_var"].tolist() == [1.0] * 32


def test_batch_mode_of_batch_norm_keeps_no_buffers() -> None:
    _, layout = initial(task("celeba_cnn", 3, 84, 84, classes=2, bn_mode="batch"), 0)
    assert layout.size == layout.parameters


def test_weights_depend_on_the_seed_alone_and_the_global_generator_stays_as_it_was() -> None:
    described = task("lenet5", 1, 28, 28)
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first, _ = initial(described, seed=7)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    assert np.array_equal(initial(described, seed=7)[0], first)
    assert not np.array_equal(initial(described, seed=8)[0], first)


def test_regression_has_one_output() -> None:
    assert initial(task("mlp", 12, classes=None, hidden=4), 0)[1].tensors[-1].shape == (1,)


THEIRS = """
import torch
def good(features, outputs, *, width=3):
    return torch.nn.Sequential(torch.nn.Linear(features[0], width), torch.nn.Linear(width, outputs))
def not_a_module(features, outputs): return 3
def wrong_width(features, outputs): return torch.nn.Linear(features[0], outputs + 1)
def wrong_input(features, outputs): return torch.nn.Linear(features[0] + 1, outputs)
def double(features, outputs): return torch.nn.Linear(features[0], outputs).double().float().half()
def empty(features, outputs): return torch.nn.Identity()
number = 3
from os import system
"""
ALLOWED = AllowedCode(frozenset({"their_models", "absent_module"}))


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_models.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("theirs")
def test_a_model_of_the_users_own_is_called_with_features_outputs_and_options() -> None:
    layout = layout_of(build(task("their_models:good", 5, width=4), 0, ALLOWED))
    assert layout.parameters == 5 * 4 + 4 + 4 * 10 + 10


@pytest.mark.usefixtures("theirs")
def test_a_model_of_the_users_own_that_was_not_allowed_is_not_imported() -> None:
    sys.modules.pop("their_models", None)
    with pytest.raises(ConsentError, match=r"their_models:good; .* with --allow their_models$"):
        build(task("their_models:good", 5), 0)
    assert "their_models" not in sys.modules


def test_an_installed_entry_point_is_a_name_that_can_be_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    point = EntryPoint("tiny", "tests.kit.own_model:linear", "covey.models")
    monkeypatch.setattr(
        "covey.shared.own_code.plugins.metadata.entry_points",
        lambda group, name: [point] * (name == "tiny"),
    )
    assert layout_of(build(task("tiny", 5), 0, AllowedCode(frozenset({"tiny"})))).parameters == 60
    with pytest.raises(UserError, match="no installed package has an entry point 'small'"):
        build(task("small", 5), 0, AllowedCode(frozenset({"small"})))


@pytest.mark.parametrize("options", [{"hidden": 10**9}, {"hidden": [1] * 65}], ids=str)
def test_a_model_of_another_size_than_its_layout_is_refused_before_it_takes_memory(
    options: dict[str, Any],
) -> None:
    with pytest.raises(
        UserError,
        match=r"built here it has 75000000010 values, the coordinator's has 650|use fewer than 64",
    ):
        build(task("mlp", 64, **options), 0, values=650)


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize(
    ("described", "words"),
    [
        (task("resnet50", 3, 32, 32), "'resnet50' is unknown; expected lenet5"),
        (task("absent_module:f", 3), "install the module"),
        (task("their_models:absent", 3), "no attribute 'absent'"),
        (task("their_models:number", 3), "not callable"),
        (
            task("their_models:system", 3),
            r"only imports system from elsewhere; .* allow it by --allow their_models:system",
        ),
        (task("their_models:not_a_module", 3), r"returned int; expected a torch\.nn\.Module"),
        (task("their_models:wrong_width", 3), r"gives shape \(2, 11\) for 2 samples; the task needs \(2, 10\)"),
        (task("their_models:wrong_input", 3), r"does not take features \[3\]"),
        (task("their_models:good", 3, depth=9), r"depth.*it takes \(features, outputs, \*, width=3\)"),
        (task("mlp", 3, hiden=9), r"hiden.*it takes \(features"),
        (task("lenet5", 64), "images"),
        (task("lenet5", 1, 8, 8), "at least 16x16"),
        (task("cnn1d", 64), r"\[channels, length"),
        (task("celeba_cnn", 3, 84, 84, bn_mode="x"), "running or batch"),
    ],
    ids=str,
)  # fmt: skip
def test_a_model_that_does_not_fit_is_refused_with_the_exact_reason(
    described: Task, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        build(described, 0, ALLOWED)


@pytest.mark.usefixtures("theirs")
def test_a_model_without_float32_parameters_is_refused() -> None:
    with pytest.raises(UserError, match=r"does not take|float16"):
        initial(task("their_models:double", 3), 0, allowed=ALLOWED)
    with pytest.raises(UserError, match="no parameters"):
        initial(task("their_models:empty", 10), 0, allowed=ALLOWED)


def test_stored_initial_weights_replace_the_drawn_ones(tmp_path: Path) -> None:
    path = tmp_path / "start.npz"
    theta = np.arange(33, dtype=np.float32)
    np.savez(path, theta0=theta)
    assert np.array_equal(initial(task("linear", 10, classes=3, init=str(path)), 0)[0], theta)


def test_stored_weights_are_one_start_and_the_others_are_drawn_unless_each_has_a_row(
    tmp_path: Path,
) -> None:
    described = task("linear", 10, classes=3, init=str(tmp_path / "start.npz"))
    rows = np.arange(66, dtype=np.float32).reshape(2, 33)
    np.savez(tmp_path / "start.npz", theta0=rows[0])
    second = initial(described, 1, 1)[0]
    assert np.array_equal(second, initial(task("linear", 10, classes=3), 1)[0])
    assert not np.array_equal(second, rows[0])  # starts that are equal would never separate
    np.savez(tmp_path / "start.npz", theta0=rows)
    assert [initial(described, 0, j)[0].tolist() for j in range(2)] == rows.tolist()
    with pytest.raises(UserError, match="2 rows, this method needs one more for start 2"):
        initial(described, 0, 2)


def test_starts_that_agent_model_wrote_replace_whole_models_with_statistics_of_batch_norms(
    tmp_path: Path,
) -> None:
    normed = Task(
        features=(3, 8, 8), classes=4, model=Model(name="celeba_cnn", options={"blocks": 1})
    )
    drawn = [initial(normed, seed)[0] + 1 for seed in (1, 2)]
    np.savez(tmp_path / "start.npz", starts=np.stack(drawn), layout=np.array("{}"))
    again = normed.model_copy(update={"init": str(tmp_path / "start.npz")})
    assert [initial(again, 0, j)[0].tolist() for j in range(2)] == [
        vector.tolist() for vector in drawn
    ]
    with pytest.raises(UserError, match="starts is float32"):
        initial(task("linear", 10, classes=3, init=str(tmp_path / "start.npz")), 0)


def test_batch_norm_that_averages_over_all_batches_is_refused() -> None:
    with pytest.raises(UserError, match=r"task\.model: 0 averages over all batches"):
        layout_of(nn.Sequential(nn.BatchNorm1d(2, momentum=None)))
    assert layout_of(nn.Sequential(nn.BatchNorm1d(2))).parameters == 4


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"theta0": np.zeros(32, np.float32)}, r"\(32,\); the model has\s33 parameters"),
        ({"theta0": np.zeros(33)}, "float64"),
        ({"theta0": np.full(33, np.nan, np.float32)}, "NaN"),
        ({"theta": np.zeros(33, np.float32)}, "no array theta0; it holds theta"),
        ({"theta0": np.array([None] * 33)}, "pickle"),
    ],
)
def test_faulty_initial_weights_are_refused(
    tmp_path: Path, arrays: dict[str, Any], words: str
) -> None:
    path = tmp_path / "start.npz"
    np.savez(path, **arrays)
    with pytest.raises(UserError, match=words):
        initial(task("linear", 10, classes=3, init=str(path)), 0)
    with pytest.raises(UserError, match=r"absent\.npz"):
        initial(task("linear", 10, classes=3, init=str(tmp_path / "absent.npz")), 0)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("theta.npy", "this is a single array without a name"),
        ("weights.bin", "this is not an .npz file"),
    ],
)
def test_a_start_that_is_no_npz_is_named_for_what_it_is(
    name: str, what: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(b"\x40\x00\x00\x00\x00\x00\x00\x00{}")
    task = Task(features=(4,), classes=2, model=Model(name="linear", options={}), init=str(path))
    with pytest.raises(UserError, match=f"{name}: {what}; expected an .npz") as raised:
        initial(task, 0)
    assert "pickle" not in str(raised.value)


def test_trained_models_are_starts(tmp_path: Path) -> None:
    plain = Task(features=(4,), classes=2, model=Model(name="linear", options={}))
    vectors = []
    for number in range(2):
        vector, layout = initial(plain, 7 + number)
        path = model_file(tmp_path, number)
        facts = {"facts": json.dumps({"task": plain.for_agents()})}  # as a run leaves it
        save_file(layout.named(vector), path, metadata=facts)
        vectors.append(vector)
    one = plain.model_copy(update={"init": str(model_file(tmp_path, 1))})
    assert np.array_equal(initial(one, 0)[0], vectors[1])
    assert not np.array_equal(initial(one, 0, 1)[0], vectors[1]), "other starts stay random"
    every = plain.model_copy(update={"init": str(tmp_path)})
    assert [np.array_equal(initial(every, 0, k)[0], vectors[k]) for k in range(2)] == [True, True]
    with pytest.raises(UserError, match=r"no cluster-2\.safetensors"):
        initial(every, 0, 2)
    other = one.model_copy(update={"features": (5,)})
    with pytest.raises(UserError, match="its tensors are not those of the scenario's model"):
        initial(other, 0)
    model_file(tmp_path, 0).write_bytes(b"\x40\x00\x00\x00\x00\x00\x00\x00{}")
    with pytest.raises(UserError, match="expected a model file"):
        initial(every, 0)


def test_weights_of_the_users_own_may_lack_what_trains(tmp_path: Path) -> None:
    plain = task("mlp", 12, classes=3, hidden=[8, 4])
    vector, layout = initial(plain, 7)
    named = layout.named(vector)
    body = {name: array.copy() for name, array in named.items() if not name.startswith("fc3")}

    def started(arrays: dict[str, Any], **parts: Any) -> Any:
        file = tmp_path / "backbone.safetensors"
        save_file(arrays, file)
        found, _ = initial(plain.model_copy(update={"init": str(file), **parts}), 9)
        return layout.named(found)

    head = started(body, share=("fc3",))
    assert np.array_equal(head["fc1.weight"], named["fc1.weight"])
    assert np.array_equal(head["fc3.weight"], layout.named(initial(plain, 9)[0])["fc3.weight"])
    for arrays, parts, why in (
        (body, {}, r"missing: fc3\.weight, fc3\.bias"),
        (
            {**body, "fc4.bias": body["fc2.bias"]},
            {"share": ("fc3",)},
            r"not in the model: fc4\.bias",
        ),
        ({"fc1.bias": body["fc1.bias"]}, {"share": ("fc3",)}, r"missing: fc1\.weight, .* and"),
        (
            {**body, "fc1.bias": body["fc2.bias"]},
            {"share": ("fc3",)},
            r"fc1\.bias \[4\], here \[8\]",
        ),
        ({**body, "fc1.bias": body["fc1.bias"] * np.nan}, {"share": ("fc3",)}, "not finite: fc1"),
    ):
        with pytest.raises(UserError, match=why):
            started(arrays, **parts)


@pytest.mark.parametrize(
    ("described", "message"),
    [
        (task("mobilenet", 3, 32, 32, width=0.1), "options.width is 0.1; expected a number from"),
        (task("mobilenet", 3, 8, 8), "of at least 16x16"),
        (task("gru", 12), "gru: features [12]; expected [channels, length]"),
    ],
)
def test_options_and_features_that_a_model_does_not_take_are_named(
    described: Task, message: str
) -> None:
    with pytest.raises(PublicError, match=re.escape(message)):
        build(described, 0)


@pytest.mark.parametrize("described", [task("mobilenet", 1, 16, 16, width=0.25), task("gru", 3, 9)])
def test_a_model_trains_and_treats_each_sample_alone(described: Task) -> None:
    module = build(described, 1)
    x = torch.randn(6, *described.features, generator=torch.Generator().manual_seed(1))
    alone = torch.cat([module(x[row : row + 1]) for row in range(6)])
    assert torch.allclose(module(x), alone, atol=1e-4)
    loss = module(x).logsumexp(1).sum()
    loss.backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
