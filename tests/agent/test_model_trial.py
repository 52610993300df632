"""Models as people write them: each is trained as torch would train it, or refused by the name of what is in the way."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import covey
from covey.agent.policy import OwnersRules
from covey.agent.training.flat_module import DRAW_NOTHING, SEEDS, may_draw
from covey.agent.training.learner import TorchLocal
from covey.agent.training.models import build, initial, layout_of, model_of, tensors_of
from covey.coordinator.record.notices import ModelChosen, Notice
from covey.coordinator.view.lines import phase_line
from covey.shared.errors import PublicError, UserError
from covey.shared.numerics.split import Split
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.own_code.consent import AllowedCode
from covey.shared.own_code.faults import OwnCodeError, own_code
from covey.shared.privacy.settings import Budget, LocalPrivacy, Noise, Trainings
from covey.shared.scenario.task import Model, Task
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import Drill, GradientCorrection
from tests.agent.test_learner import data_of

pytestmark = pytest.mark.usefixtures("single_thread", "nets")

NETS = '''
import random
import sys
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Plain(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.trunk = nn.Linear(features[0], 6)
        self.head = nn.Linear(6, outputs)
        self.prepare()

    def prepare(self):
        pass

    def inner(self, x):
        return x.relu()

    def forward(self, x):
        return self.head(self.inner(self.trunk(x)))


class Frozen(Plain):
    def prepare(self):
        self.trunk.requires_grad_(False)


class UnderNoGrad(Plain):
    def forward(self, x):
        with torch.no_grad():
            x = self.trunk(x)
        return self.head(x.relu())


class Unused(Plain):
    def prepare(self):
        self.other = nn.Linear(6, 2)


class Branches(Plain):
    """Each sample takes one of two ways, so that two samples may leave one of them out."""

    def prepare(self):
        self.ways = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])

    def forward(self, x):
        if len(x) <= 2:
            return self.head(self.ways[0](self.trunk(x)))
        return self.head(self.ways[0](self.trunk(x)) + self.ways[1](self.trunk(x)))


class Sync(Plain):
    def prepare(self):
        self.norm = nn.SyncBatchNorm(6)

    def inner(self, x):
        return self.norm(x).relu()


class Functional(Plain):
    def prepare(self):
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("spread", torch.ones(6))

    def inner(self, x):
        return F.batch_norm(x, self.mean, self.spread, training=self.training)


class Assigned(Plain):
    def prepare(self):
        self.register_buffer("mean", torch.zeros(6))

    def inner(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return x - self.mean


class MaxNorm(Plain):
    def inner(self, x):
        self.head.weight.data = torch.renorm(self.head.weight.data, 2, 0, 0.3)
        return x.relu()


class Masked(Plain):
    persistent = False

    def prepare(self):
        mask = torch.triu(torch.full((6, 6), float("-inf")), 1)
        self.register_buffer("mask", mask, persistent=self.persistent)

    def inner(self, x):
        return (x.unsqueeze(1) + self.mask).softmax(-1).sum(1)


class Kept(Masked):
    persistent = True


class Tied(Plain):
    def prepare(self):
        self.again = nn.Linear(6, 6)
        self.once_more = nn.Linear(6, 6)
        self.once_more.weight = self.again.weight

    def inner(self, x):
        return self.once_more(self.again(x).relu())


class SameMemory(Tied):
    def prepare(self):
        super().prepare()
        self.once_more.weight = nn.Parameter(self.again.weight.data)


class Places(Plain):
    def prepare(self):
        self.register_buffer("places", torch.tensor([5, 4, 3, 2, 1, 0]))

    def inner(self, x):
        return x[:, self.places]


class Counter(Plain):
    def prepare(self):
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def inner(self, x):
        if self.training:
            self.step += 1
        return x * (self.step / 100)


class Grows(Plain):
    def prepare(self):
        self.register_buffer("seen", torch.zeros(1))

    def inner(self, x):
        self.seen = torch.cat([self.seen, torch.zeros(1)])
        return x


class InDict(Plain):
    def forward(self, x):
        return {"logits": super().forward(x)}


class InTuple(Plain):
    def forward(self, x):
        return super().forward(x), x


class TupleInTraining(Plain):
    def forward(self, x):
        return (super().forward(x), x) if self.training else super().forward(x)


class Squeezed(Plain):
    def forward(self, x):
        return super().forward(x).squeeze()


class Detached(Plain):
    def forward(self, x):
        return super().forward(x).detach()


class NarrowOutputs(Plain):
    def forward(self, x):
        return super().forward(x).bfloat16()


class InPlace(Plain):
    def forward(self, x):
        x += 1
        return super().forward(x)


class DrawsAlways(Plain):
    def inner(self, x):
        return F.dropout(x, 0.5, True)


class Attribute(Plain):
    """A warm-up, counted where no state has it."""

    step = 0

    def inner(self, x):
        if self.training:
            self.step += 1
        return x * min(1.0, self.step / 50)


class LocalMean(Plain):
    def prepare(self):
        self.register_buffer("mean", torch.zeros(6), persistent=False)

    def inner(self, x):
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x - self.mean


class Experts(Plain):
    """Each batch takes one of three ways, by its values."""

    def prepare(self):
        self.ways = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        way = 0 if abs(x).max() <= 2 else 1 if x.mean() > 0 else 2
        return self.head(self.ways[way](self.trunk(x)))


class DrawsOfNumpy(Plain):
    def inner(self, x):
        return x * float(np.random.rand()) if self.training else x


class DrawsOfPython(Plain):
    def inner(self, x):
        return x * random.random() if self.training else x


class Odd(Exception):
    pass


class Raising(Plain):
    error = Odd("no moon")

    def inner(self, x):
        raise self.error


class Asserting(Plain):
    def inner(self, x):
        assert x.shape[1] == 7, "wrong width"
        return x


class Leaving(Plain):
    def inner(self, x):
        sys.exit(3)


class InBackward(Plain):
    def inner(self, x):
        if x.requires_grad:
            x.register_hook(lambda gradient: {}["gone"])
        return x


def scripted(features, outputs):
    return torch.jit.script(nn.Sequential(nn.Linear(features[0], 6), nn.ReLU(), nn.Linear(6, outputs)))


def bfloat16(features, outputs):
    return Plain(features, outputs).to(torch.bfloat16)


def double(features, outputs):
    return Plain(features, outputs).double()


def rrelu(features, outputs):
    return nn.Sequential(nn.Linear(features[0], 6), nn.RReLU(), nn.Linear(6, outputs))


def image_norm(features, outputs):
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, outputs))


def row_norm(features, outputs):
    return nn.Sequential(nn.BatchNorm1d(features[0]), nn.Linear(features[0], outputs))


def lazy(features, outputs):
    return nn.Sequential(nn.LazyLinear(6), nn.ReLU(), nn.Linear(6, outputs))


def frozen_norm(features, outputs):
    trunk = nn.Sequential(nn.Linear(features[0], 6), nn.BatchNorm1d(6)).requires_grad_(False)
    return nn.Sequential(trunk, nn.Linear(6, outputs))


def points(path):
    rng = np.random.default_rng(0)
    groups = np.repeat([0, 1, 2, 3], [1, 11, 12, 12])
    tests = np.repeat([0, 1, 2], 5)

    def drawn(n):
        x = rng.normal(size=(n, 3)).astype(np.float32)
        return x, (x[:, 0] > 0).astype(np.int64)

    (x, y), (x_test, y_test) = drawn(36), drawn(15)
    return dict(x=x, y=y, groups=groups, x_test=x_test, y_test=y_test, test_groups=tests)


def trained_elsewhere(features, outputs):
    class Flawed(Plain):
        def inner(self, x):
            if self.training and len(x) > 20:
                raise Odd("too many")
            return x

    return Flawed(features, outputs)
'''
ALLOWED = AllowedCode(frozenset({"own_nets"}))
RULES = OwnersRules(allowed=ALLOWED)


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_nets.py").write_text(NETS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder / "own_nets.py"


def task_of(name: str) -> Task:
    features = (1, 8, 8) if name == "image_norm" else (3,)
    return Task(features=features, classes=4, model=Model(name=f"own_nets:{name}"))


def local_of(name: str, n: int = 11, **training: Any) -> tuple[TorchLocal, Vector, Layout]:
    task = task_of(name)
    start, layout = initial(task, 3, allowed=ALLOWED)
    settings = Training(**({"batch": 5, "lr": 0.1, "weight_decay": 0.1, "epochs": 3} | training))
    data = data_of(task, n=n)
    local = TorchLocal(data, task, layout, training=settings, rng=generator(1, "test"), rules=RULES)
    return local, start, layout


def by_torch(name: str, start: Vector, layout: Layout, n: int, training: Training) -> Vector:
    """The same training with torch alone: its own SGD on the module as its author wrote it."""
    task = task_of(name)
    data = data_of(task, n=n)
    module = build(task, 0, ALLOWED)
    tensors = tensors_of(module)
    with torch.no_grad():
        for key, array in layout.named(start).items():
            tensors[key].copy_(torch.from_numpy(array.copy()))
    module.train()
    sgd = torch.optim.SGD(
        module.parameters(),
        training.lr,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
    )
    rng = generator(1, "test")
    if any(may_draw(layer) for layer in module.modules()):
        torch.manual_seed(int(rng.integers(SEEDS)))
    for _ in range(training.epochs):
        order = rng.permutation(n)
        for at in range(0, n, training.batch):
            rows = order[at : at + training.batch]
            sgd.zero_grad()
            try:
                outputs = module(torch.from_numpy(data.features[rows]))
            except ValueError:  # batch norm has no variance of one sample
                continue
            loss = functional.cross_entropy(outputs, torch.from_numpy(data.targets[rows]))
            loss.backward()  # type: ignore[no-untyped-call]
            sgd.step()
    return layout.vector(
        {
            key: one.detach().numpy()
            for key, one in tensors_of(module).items()
            if key in {t.name for t in layout.tensors}
        }
    )


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    ("name", "frozen"),
    [
        ("Plain", ()),
        ("Frozen", ("trunk.weight", "trunk.bias")),
        ("UnderNoGrad", ("trunk.weight", "trunk.bias")),
        ("Unused", ("other.weight", "other.bias")),
        ("Sync", ()),
        ("Functional", ()),
        ("Assigned", ()),
        ("MaxNorm", ()),
        ("Masked", ()),
        ("Tied", ()),
        ("Places", ()),
        ("rrelu", ()),
        ("image_norm", ()),
        ("row_norm", ()),
        ("lazy", ()),
        ("frozen_norm", ("0.0.weight", "0.0.bias", "0.1.weight", "0.1.bias")),
    ],
)
def test_a_model_of_the_users_own_trains_as_torch_trains_it(
    name: str, frozen: tuple[str, ...], momentum: float
) -> None:
    local, start, layout = local_of(name, momentum=momentum)
    assert layout.frozen == frozen
    trained = Split.by_patterns(layout, (), (), ()).trains
    end = local.train(start, Drill(trained=trained)).end
    training = Training(batch=5, lr=0.1, weight_decay=0.1, epochs=3, momentum=momentum)
    expected = by_torch(name, start, layout, 11, training)
    assert np.allclose(end, expected, atol=1e-6)
    assert not np.array_equal(end, start)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Counter", r"step changed in training.*integers stay behind"),
        ("Grows", "shape of seen changed"),
        ("Kept", "mask holds NaN or infinity.*persistent=False"),
        ("SameMemory", r"once_more\.weight lies in the memory of again\.weight"),
        ("InDict", r"gives dict in evaluation; expected one tensor of shape \(2, 4\)"),
        ("InTuple", "gives tuple in evaluation"),
        ("TupleInTraining", "gives tuple in training"),
        ("Squeezed", r"shape \(4,\) for 1 sample; the task needs \(1, 4\); a squeeze"),
        ("Detached", "no parameter has a gradient"),
        ("NarrowOutputs", r"gives torch\.bfloat16 in evaluation; expected float32"),
        ("InPlace", "changes its inputs in place in evaluation, and with them the data"),
        ("DrawsAlways", "answers the same samples in two ways in evaluation"),
        ("Attribute", "a training changed its answers by something that does not travel"),
        ("LocalMean", r"something that does not travel.*persistent=False"),
        ("scripted", "the model is TorchScript"),
        ("bfloat16", r"trunk\.weight is torch\.bfloat16; use float32 throughout"),
        ("double", r"trunk\.weight is torch\.float64; use float32 throughout"),
        ("Raising", r"Odd: no moon \(.*own_nets\.py, line \d+\)$"),
        ("Asserting", r"AssertionError: wrong width \(.*own_nets\.py, line \d+\)$"),
        ("Leaving", r"SystemExit: 3 \(.*own_nets\.py, line \d+\)$"),
        ("InBackward", r"no gradient: KeyError: 'gone' \(.*own_nets\.py, line \d+\)$"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_by_the_name_of_what_is_in_the_way(
    name: str, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        initial(task_of(name), 0, allowed=ALLOWED)
    with pytest.raises(UserError, match=words):
        model_of(task_of(name), ALLOWED)


def test_a_branch_that_two_samples_leave_out_is_not_taken_for_frozen() -> None:
    assert model_of(task_of("Branches"), ALLOWED)[1].frozen == ()


def test_of_many_ways_none_is_taken_for_frozen() -> None:
    assert model_of(task_of("Experts"), ALLOWED)[1].frozen == ()


@pytest.mark.parametrize("name", ["DrawsOfNumpy", "DrawsOfPython", "rrelu"])
def test_one_seed_gives_one_training_whichever_generator_a_model_takes(name: str) -> None:
    one, other = (local.train(start).end for local, start, _ in (local_of(name), local_of(name)))
    assert np.array_equal(one, other)


def test_nothing_moves_what_the_models_own_code_has_frozen() -> None:
    local, start, layout = local_of("Frozen", momentum=0.9)
    drift = np.full(layout.parameters, 0.5, np.float32)
    correction = GradientCorrection(mu=1.0, anchor=np.zeros_like(start), drift=drift)
    split = Split.by_patterns(layout, (), (), ())
    end = local.train(start, Drill(correction, trained=split.trains)).end
    assert split.values("freeze") == 24
    assert np.array_equal(end[:24], start[:24])
    assert split.shared.frozen == ()
    assert [part.role for part in split.parts()] == ["share", "freeze"]


@pytest.mark.whole
@pytest.mark.parametrize("name", ["Frozen", "UnderNoGrad", "Unused"])
def test_noise_and_clipping_see_only_what_trains(name: str) -> None:
    pytest.importorskip("opacus")
    local, start, layout = local_of(name)
    budget = Budget(Trainings(), 1, 0, True)
    noise = Noise.simulated(1, "test")
    local.enable_privacy(LocalPrivacy(noise_multiplier=1.0), budget, noise, None)
    trained = Split.by_patterns(layout, (), (), ()).trains
    assert trained is not None
    end = local.train(start, Drill(trained=trained)).end
    assert np.array_equal(end[~trained], start[~trained])
    assert not np.array_equal(end[trained], start[trained])


@pytest.mark.whole
@pytest.mark.parametrize("name", ["Sync", "Functional", "row_norm"])
def test_whatever_mixes_the_samples_of_a_batch_is_refused_under_local_privacy(name: str) -> None:
    pytest.importorskip("opacus")
    local, _, _ = local_of(name)
    budget = Budget(Trainings(), 1, 0, True)
    with pytest.raises(PublicError, match="mixes the examples of a batch"):
        local.enable_privacy(
            LocalPrivacy(noise_multiplier=1.0), budget, Noise.simulated(1, "test"), None
        )


@pytest.mark.parametrize(
    ("name", "n", "batch", "steps"),
    [
        ("image_norm", 1, 5, 3),  # one image has a variance
        ("image_norm", 4, 1, 12),
        ("Sync", 11, 5, 6),  # the last batch of one sample has none
        ("Functional", 1, 5, 0),
        ("Plain", 11, 5, 9),
    ],
)
def test_a_batch_of_one_sample_is_left_out_only_where_the_model_cannot_train_on_it(
    name: str, n: int, batch: int, steps: int
) -> None:
    local, start, _ = local_of(name, n, batch=batch)
    assert local.train(start).steps == steps


def test_steps_given_are_made_where_a_batch_of_every_epoch_is_left_out() -> None:
    local, start, _ = local_of("row_norm")
    assert local.train(start, Drill(steps=5)).steps == 5


@pytest.mark.parametrize("name", ["Sync", "Functional", "row_norm"])
def test_batches_that_can_never_train_are_refused(name: str) -> None:
    local, start, _ = local_of(name, batch=1)
    with pytest.raises(PublicError, match=r"training\.batch is 1.*set training\.batch to 2"):
        local.train(start)


def test_an_error_in_the_middle_of_a_training_is_one_sentence_with_its_line() -> None:
    local, start, _ = local_of("trained_elsewhere", n=30, batch=25)
    with (
        pytest.raises(OwnCodeError, match=r"own_nets\.py, line \d+: Odd: too many$") as caught,
        own_code(),
    ):
        local.train(start)
    assert caught.value.public.startswith("the user's own code raised Odd; ")


def test_a_layout_has_the_names_of_what_is_frozen_on_the_wire_and_only_then() -> None:
    _, layout = model_of(task_of("Frozen"), ALLOWED)
    assert Layout.from_wire(layout.to_wire()) == layout
    plain = layout_of(build(task_of("Plain"), 0, ALLOWED))
    assert "frozen" not in plain.to_wire()
    assert plain.digest != layout.digest


def test_a_device_whose_code_freezes_something_else_is_refused() -> None:
    _, layout = model_of(task_of("Frozen"), ALLOWED)
    task = task_of("Plain")
    with pytest.raises(PublicError, match=r"trains all but nothing, .* all but trunk\.weight"):
        TorchLocal(
            data_of(task), task, layout, training=Training(), rng=generator(1, "test"), rules=RULES
        )


def small(model: str) -> dict[str, Any]:
    """One round of four agents, of which one has a single sample and one has none for tests."""
    return {
        "name": "small",
        "seed": 1,
        "rounds": {"count": 1, "quorum": 3},
        "strategy": {"name": "fedavg"},
        "training": {"epochs": 1, "batch": 5, "lr": 0.1},
        "task": {"features": [3], "classes": 4, "model": {"name": f"own_nets:{model}"}},
        "fleet": {
            "agents": 4,
            "data": "own_nets:points",
            "partition": {"name": "by_group"},
            "workers": 1,
        },
    }


@pytest.fixture
def nets_of_workers(nets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(nets.parent))


@pytest.mark.whole
@pytest.mark.usefixtures("nets_of_workers")
def test_a_run_names_the_tensors_that_do_not_train(tmp_path: Path) -> None:
    said: list[Notice] = []
    covey.run(small("Unused"), tmp_path / "run", allow=["own_nets"], observe=said.append)
    [chosen] = [notice for notice in said if isinstance(notice, ModelChosen)]
    assert chosen.still == ["other.weight", "other.bias"]


def test_a_line_names_the_agents_that_no_figure_counts() -> None:
    line = phase_line({"phase": "evaluate", "untested": ["a", "b"]})
    assert line.warnings == ("no test samples, so that no figure counts them: a, b",)


LAYERS = [one for one in vars(nn).values() if isinstance(one, type) and issubclass(one, nn.Module)]
ARGUMENTS: list[tuple[Any, ...]] = [(), (4,), (4, 4), (4, 4, 3), (2, 4), (1, 4, 2), (4, 2), (2,)]
INPUTS = [torch.rand(shape) for shape in [(4, 4), (2, 4, 8), (2, 4, 8, 8), (2, 4, 8, 8, 8)]]


def draws(kind: type[nn.Module]) -> bool | None:
    """Whether a layer of torch draws in training; None: no arguments were found with which it computes."""
    computed = None
    for arguments in ARGUMENTS:
        try:
            layer = kind(*arguments).train()
        except Exception:  # noqa: S112 - these are not its arguments
            continue
        for inputs in [*INPUTS, torch.ones(4, 4, dtype=torch.int64)]:
            before = torch.random.get_rng_state()
            try:
                layer(inputs)
            except Exception:  # noqa: S112
                continue
            computed = computed or not torch.equal(before, torch.random.get_rng_state())
    return computed


def test_a_layer_of_torch_that_draws_gets_a_seed() -> None:
    assert {kind.__name__ for kind in LAYERS if draws(kind)} & DRAW_NOTHING == set()


def test_every_name_of_a_layer_that_draws_nothing_is_one_of_torchs() -> None:
    assert {kind.__name__ for kind in LAYERS} >= DRAW_NOTHING
    assert not may_draw(nn.LSTM(2, 2))
    assert may_draw(nn.LSTM(2, 2, num_layers=2, dropout=0.5))
    assert may_draw(nn.RReLU())
    assert sum(draws(kind) is not None for kind in LAYERS) > math.floor(len(DRAW_NOTHING) / 2)
