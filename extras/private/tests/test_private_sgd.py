"""DP-SGD on the device: the noise is there, the account is right, it repeats in a simulation only, and models are checked."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from torch import nn

from covey.agent.data.dataset import Dataset, dataset
from covey.agent.kept.privacy_account import FILE, DeviceAccount
from covey.agent.policy import OwnersRules, Policy, PrivacyDemand
from covey.agent.training.learner import TorchLocal
from covey.agent.training.models import initial
from covey.agent.worker.memory_file import StoredMemory
from covey.agent.worker.worker import answer
from covey.coordinator.record import records
from covey.coordinator.run.options import RunOptions
from covey.extras.private import private_sgd
from covey.extras.simulate.driver import simulate
from covey.extras.simulate.tests.device_run import here
from covey.shared.errors import PublicError
from covey.shared.numerics.vectors import Vector
from covey.shared.privacy.settings import Budget, LocalPrivacy, Noise, Trainings
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.task import Model, Task
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import Contrast, Drill, GradientCorrection
from covey.shared.wire.codec import decode
from covey.shared.wire.messages import ReportContent
from covey.shared.work.at_hand import PRIVACY_LEDGER
from tests.agent.test_worker import job

TASK = Task(features=(1, 8, 8), classes=4, model=Model(name="mlp", options={"hidden": 8}))
ONE_TRAINING = Trainings()
THREE_ROUNDS = Budget(ONE_TRAINING, rounds=3, round=0)
NORMED = Task(features=(3, 8, 8), classes=4, model=Model(name="celeba_cnn", options={"blocks": 1}))


def data_of(task: Task, examples: int = 60) -> Dataset:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(examples + 10, *task.features)).astype(np.float32)
    y = draw.integers(0, 4, examples + 10)
    return dataset(x[:examples], y[:examples], (x[examples:], y[examples:]), source="made up")


def local_of(
    privacy: LocalPrivacy | None,
    task: Task = TASK,
    *,
    noise: Noise | None = None,
    budget: Budget = THREE_ROUNDS,
    ledger: npt.NDArray[np.float64] | None = None,
    **training: Any,
) -> tuple[TorchLocal, Vector]:
    start, layout = initial(task, 3)
    settings = Training(**{"batch": 6, "lr": 0.1, "epochs": 2, **training})
    local = TorchLocal(data_of(task), task, layout, training=settings, rng=generator(1, "test"))
    if privacy is not None:
        local.enable_privacy(privacy, budget, noise or Noise.simulated(1, "test"), ledger)
    return local, start


def test_with_hardly_any_noise_and_a_wide_clip_a_full_batch_is_plain_gradient_descent() -> None:
    privacy = LocalPrivacy(noise_multiplier=1e-9, max_grad_norm=1e6)
    private, start = local_of(privacy, batch=60, epochs=1)
    plain, _ = local_of(None, batch=60, epochs=1)
    assert np.allclose(private.train(start).end, plain.train(start).end, atol=1e-5)


def test_frozen_values_do_not_count_in_the_norm_of_a_gradient() -> None:
    """Clipping what trains alone moves a shared head by the whole norm, whatever the gradient of the frozen body is."""
    privacy = LocalPrivacy(noise_multiplier=1e-9, max_grad_norm=0.01)
    local, start = local_of(privacy, batch=60, epochs=1, lr=1.0)
    _, layout = initial(TASK, 3)
    head = np.zeros(start.size, bool)
    head[layout.span_of("fc2")[0]] = head[layout.span_of("fc2")[1]] = True
    moved = local.train(start, Drill(trained=head)).end - start
    plain, _ = local_of(None, batch=60, epochs=1, lr=1.0)
    gradients = []
    for row in range(60):
        gradient = plain.gradient(start, rows=np.array([row])) * head
        gradients.append(gradient * min(1.0, 0.01 / float(np.linalg.norm(gradient))))
    assert np.allclose(moved, -np.mean(gradients, axis=0), atol=1e-6)


def test_each_examples_gradient_is_shortened_to_the_norm() -> None:
    """A batch of n examples moves the model by at most lr * norm, however long their gradients are."""
    privacy = LocalPrivacy(noise_multiplier=1e-9, max_grad_norm=0.01)
    local, start = local_of(privacy, batch=60, epochs=1, lr=1.0)
    moved = np.linalg.norm(local.train(start).end - start)
    gradient = np.linalg.norm(local.gradient(start))
    assert gradient > 0.05
    assert moved <= 0.01 * (1 + 1e-3)


def test_the_noise_of_a_step_is_what_was_declared() -> None:
    quiet, start = local_of(
        LocalPrivacy(noise_multiplier=1e-9, max_grad_norm=2.0), batch=60, epochs=1, lr=1.0
    )
    noisy, _ = local_of(
        LocalPrivacy(noise_multiplier=3.0, max_grad_norm=2.0), batch=60, epochs=1, lr=1.0
    )
    difference = noisy.train(start).end - quiet.train(start).end
    assert np.std(difference) == pytest.approx(3.0 * 2.0 / 60, rel=0.1)


def test_gradient_correction_and_momentum_work_as_without_noise() -> None:
    correction = GradientCorrection(np.zeros_like(local_of(None)[1]), 0.5)
    privacy = LocalPrivacy(noise_multiplier=1e-9, max_grad_norm=1e6)
    private, start = local_of(privacy, batch=60, epochs=3, momentum=0.9, weight_decay=0.01)
    plain, _ = local_of(None, batch=60, epochs=3, momentum=0.9, weight_decay=0.01)
    assert np.allclose(
        private.train(start, Drill(correction)).end,
        plain.train(start, Drill(correction)).end,
        atol=1e-4,
    )


def test_a_sample_holds_each_example_with_the_sampling_rate() -> None:
    local, _ = local_of(LocalPrivacy(noise_multiplier=1.0))
    private = local._private
    assert private is not None
    assert private.rate == 0.1
    sizes = [len(private.sample()) for _ in range(3000)]
    assert np.mean(sizes) == pytest.approx(6.0, rel=0.05)
    assert np.var(sizes) == pytest.approx(60 * 0.1 * 0.9, rel=0.15)


def test_an_empty_sample_is_a_step_of_noise_alone() -> None:
    privacy = LocalPrivacy(noise_multiplier=1.0)
    local, _ = local_of(privacy, batch=1, epochs=1, lr=1.0)
    private = local._private
    assert private is not None
    gradients = private.gradients(
        lambda outputs: outputs.sum(), local._gathered(private_rows([]))[0]
    )
    assert np.std(np.concatenate([one.numpy().ravel() for one in gradients])) == pytest.approx(
        1.0, rel=0.1
    )


def private_rows(rows: list[int]) -> Any:
    import torch

    return torch.tensor(rows, dtype=torch.int64)


def test_the_same_noise_gives_the_same_bytes_and_secret_noise_others() -> None:
    privacy = LocalPrivacy(noise_multiplier=1.0)
    one, other = ((local := local_of(privacy))[0].train(local[1]).end for _ in range(2))
    assert np.array_equal(one, other)
    secret, start = local_of(privacy, noise=Noise.secret())
    assert not np.array_equal(one, secret.train(start).end)


def test_the_account_of_several_kinds_of_steps_is_that_of_opacus_to_the_bit() -> None:
    from opacus.accountants import RDPAccountant

    history = [(1.1, 0.01, 300), (0.7, 0.2, 41), (1.1, 0.05, 7)]
    accountant = RDPAccountant()
    accountant.history = list(history)
    assert private_sgd.epsilon_of(np.array(history), 1e-5) == accountant.get_epsilon(1e-5)


def test_the_account_is_the_published_one_and_grows_over_orders() -> None:
    """Rate 0.01, noise 1.1, 10 000 steps, delta 1e-5: 5.63 (TensorFlow Privacy's and Opacus' RDP accountants)."""
    ledger = np.array([[1.1, 0.01, 10_000.0]])
    assert private_sgd.epsilon_of(ledger, 1e-5) == pytest.approx(5.632, abs=0.001)
    local, start = local_of(LocalPrivacy(noise_multiplier=1.0))
    assert local.spent() == 0.0
    local.train(start)
    first = local.spent()
    again, _ = local_of(LocalPrivacy(noise_multiplier=1.0), ledger=local.ledger)
    again.train(start)
    assert again.spent() > first > 0.0
    assert again.ledger is not None
    assert again.ledger.tolist() == [[1.0, 0.1, 40.0]]


@pytest.fixture
def few_orders(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Accounts at whole orders alone: less tight, bounds as before, and a search for noise takes a tenth of its time."""
    accountants = pytest.importorskip("opacus").accountants
    monkeypatch.setattr(accountants.RDPAccountant, "DEFAULT_ALPHAS", [*range(2, 64)])
    caches = (private_sgd._divergence, private_sgd._multiplier_for)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def spent_by(
    rounds: Iterable[int], facet: Trainings = ONE_TRAINING, trainings: int = 1
) -> TorchLocal:
    """Train in these rounds of three, with a target epsilon of 3; a round of -1 is the phase before them."""
    ledger = None
    for round_ in rounds:
        budget = Budget(facet, 3, max(round_, 0), round_ >= 0)
        local, start = local_of(LocalPrivacy(target_epsilon=3.0), budget=budget, ledger=ledger)
        if round_ < 0:
            local.train(start, Drill(epochs=facet.first_epochs, steps=facet.first_steps))
        else:
            for _ in range(trainings):
                local.train(start)
        ledger = local.ledger
    assert local.spent() <= 3.0 * private_sgd.TOLERANCE
    return local


def noises(local: TorchLocal) -> list[float]:
    assert local.ledger is not None
    multipliers: list[float] = local.ledger[:, 0].tolist()
    return multipliers


@pytest.mark.usefixtures("few_orders")
def test_a_target_is_reached_by_all_rounds_and_one_that_is_repeated_and_never_exceeded() -> None:
    local = spent_by([0, 1, 1, 2])
    assert local.spent() == pytest.approx(3.0, rel=0.01)
    assert len(noises(local)) == 1
    with pytest.raises(PublicError, match="the agent trains no more in this run"):
        spent_by([0, 1, 1, 2, 2, 2])


@pytest.mark.usefixtures("few_orders")
@pytest.mark.parametrize(
    "first", [{"first_epochs": 9}, {"first_epochs": None}, {"first_steps": 70}]
)
def test_a_target_lasts_for_a_longer_first_phase_and_several_trainings_in_a_round(
    first: dict[str, int | None],
) -> None:
    facet = Trainings(trainings=2, **first)
    local = spent_by([-1, 0, 1, 2], facet, trainings=2)
    assert len(noises(local)) == 1
    assert local.spent() > 2.5


@pytest.mark.usefixtures("few_orders")
def test_noise_grows_where_more_trainings_are_repeated_than_planned_so_that_all_rounds_fit() -> (
    None
):
    usual, *more = noises(spent_by([0, 0, 0, 1, 2]))
    assert more
    assert max(more) <= 2.0 * usual


def test_a_model_that_stays_at_home_is_trained_without_noise_and_spends_nothing() -> None:
    private, start = local_of(LocalPrivacy(noise_multiplier=50.0))
    plain, _ = local_of(None)
    assert np.array_equal(private.train(start, Drill(at_home=True)).end, plain.train(start).end)
    assert private.spent() == 0.0


def test_a_batch_norm_is_refused_with_its_name_and_the_way_out() -> None:
    with pytest.raises(PublicError, match=r"layer \S+ is BatchNorm2d.*nn\.GroupNorm"):
        local_of(LocalPrivacy(noise_multiplier=1.0), NORMED)


def test_a_layer_that_opacus_does_not_know_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PublicError, match="Opacus cannot train this model"):
        private_sgd.check_layers(nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 3)))


def test_without_opacus_the_user_is_given_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(PublicError, match=r"pip install '\.\[privacy\]'"):
        local_of(LocalPrivacy(noise_multiplier=1.0))


def test_losses_that_need_other_examples_are_refused() -> None:
    local, start = local_of(LocalPrivacy(noise_multiplier=1.0))
    with pytest.raises(PublicError, match="weighs examples"):
        local.train(start, Drill(weights=np.ones(60, np.float32)))
    with pytest.raises(PublicError, match="weighs examples"):
        local.train(start, Drill(contrast=Contrast(2)))


LOCAL = {"signatures": None, "local": {"noise_multiplier": 1.0}, "rounds": 3}


def done(folder: Path, **changes: Any) -> ReportContent:
    folder.mkdir()
    assert answer(job(folder, **changes)).failed == ""
    return ReportContent.from_bytes((folder / "report").read_bytes(), verified=True)


def test_a_worker_trains_privately_and_reports_epsilon_and_no_figure_of_the_data(
    tmp_path: Path,
) -> None:
    report = done(tmp_path / "a", privacy=LOCAL)
    assert set(report.numbers) == {"epsilon"}
    assert report.numbers["epsilon"] > 0.0
    assert (report.loss, report.steps) == (0.0, 0)
    assert StoredMemory(tmp_path / "a" / "memory")[PRIVACY_LEDGER].shape == (1, 3)
    other = done(tmp_path / "b", privacy=LOCAL)
    first, second = (
        decode(one.vectors["model"], length=one.vectors["model"].length) for one in (report, other)
    )
    assert not np.array_equal(first, second), (
        "a device's noise must be secret, and the order's seed is not"
    )


def test_a_device_draws_its_signatures_noise_in_secret(tmp_path: Path) -> None:
    """An order of the same seed twice: who can repeat the noise can take it off."""
    privacy = {"signatures": {"clip": 1.0, "noise_multiplier": 1.0}, "local": None, "rounds": 3}
    size = 5 * 2  # the linear model's only layer is its final one
    order = {
        "phase": "signature",
        "strategy": {"name": "fedclust"},
        "sizes": {"signature": size},
        "privacy": privacy,
    }
    one, other = (done(tmp_path / name, **order).vectors["signature"] for name in ("a", "b"))
    first, second = (decode(vector, length=vector.length) for vector in (one, other))
    assert np.linalg.norm(first - second) > 0.5


def under(folder: Path, demand: dict[str, Any], **changes: Any) -> str | None:
    """Why a worker refuses an order under this policy; None if it did the work."""
    folder.mkdir()
    rules = OwnersRules(Policy(privacy=PrivacyDemand(**demand))).for_job()
    found = answer(replace(job(folder, **changes), rules=rules, account=folder.parent / FILE))
    return found.failed or None


def test_the_account_of_a_device_holds_all_runs_and_ends_at_the_owners_bound(
    tmp_path: Path,
) -> None:
    """Before: each run began again at zero."""
    pytest.importorskip("opacus")
    demand = {"local_epsilon": 8.0}
    assert under(tmp_path / "0", demand, privacy=LOCAL) is None
    first = DeviceAccount(tmp_path / FILE).rows()
    once = private_sgd.epsilon_of(np.array(first), 1e-5)
    bound = {"local_epsilon": 1.5 * once}
    before = (tmp_path / FILE).read_bytes()
    others = [
        under(tmp_path / str(run), bound, run=f"run-{run}", privacy=LOCAL) for run in range(1, 9)
    ]
    assert others[-1] is not None
    assert "policy of this device: privacy.local_epsilon: this training would bring" in others[-1]
    rows = DeviceAccount(tmp_path / FILE).rows()
    assert private_sgd.epsilon_of(np.array(rows), 1e-5) <= 1.5 * once * private_sgd.TOLERANCE
    assert (tmp_path / FILE).read_bytes() != before or others[0] is not None
    assert sum(row[2] for row in rows) == (1 + others.count(None)) * first[0][2]


def test_a_method_whose_reports_hold_more_than_private_models_is_refused_under_a_bound(
    tmp_path: Path,
) -> None:
    pytest.importorskip("opacus")
    ifca = {"strategy": {"name": "ifca"}, "privacy": LOCAL}
    assert "ifca's reports hold more than models" in str(
        under(tmp_path / "a", {"local_epsilon": 8.0}, **ifca)
    )
    assert not (tmp_path / FILE).exists()
    noise = {"signatures": {"clip": 1.0, "noise_multiplier": 1.0}, "local": None, "rounds": 3}
    strange = {"phase": "signature", "strategy": {"name": "ifca"}, "privacy": noise}
    assert "ifca adds no noise in the phase signature" in str(
        under(tmp_path / "b", {"signatures": 0.1}, **strange)
    )


def test_a_damaged_account_is_no_new_one(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    (tmp_path / FILE).write_text('{"format":1,"rows":[[1')
    assert "cannot be read" in str(under(tmp_path / "a", {"local_epsilon": 8.0}, privacy=LOCAL))


RUN = {
    "name": "private",
    "seed": 1,
    "task": {"features": [1, 8, 8], "classes": 10, "scale": 0.0625, "model": {"name": "linear"}},
    "training": {"epochs": 1, "batch": 20, "lr": 0.1},
    "privacy": {"local": {"target_epsilon": 8.0, "delta": 1e-4}},
    "evaluation": {"deliver": "served"},
    "fleet": {"agents": 2, "data": "digits", "limit": 200},
}


@pytest.mark.parametrize(
    ("strategy", "rounds"),
    [
        ({"name": "ditto"}, 4),
        ({"name": "fedclust", "n_clusters": 2, "first_epochs": 5}, 4),
        ({"name": "fesem"}, 4),
        ({"name": "local", "epochs": 12}, 4),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else None,
)
@pytest.mark.usefixtures("single_thread", "few_orders")
def test_a_target_epsilon_lasts_for_all_trainings_of_a_method(
    tmp_path: Path, strategy: dict[str, Any], rounds: int
) -> None:
    pytest.importorskip("opacus")
    scene = Scenario.model_validate({**RUN, "strategy": strategy, "rounds": {"count": rounds}})
    simulate(scene, RunOptions(tmp_path), here(), lambda notice: None)
    last = records.lines(tmp_path)[-1]
    account = last["privacy"]["local"]
    assert (last["round"], account["agents"]) == (rounds, 2)
    assert account["epsilon"] <= 8.0 * private_sgd.TOLERANCE
    sends_models = strategy["name"] != "local"
    assert (account["epsilon"] > 7.0) == sends_models
