"""What leaves a device under a demand depends on its rows in sums and under noise alone: a failure is none of the two.

The lists of errors, of calls and of fields are those of the product: a new one is compared without a word here.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import importlib
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from covey.agent.data.local import DataOfLocal
from covey.agent.device.performing import Performer
from covey.agent.policy import OwnersRules, Policy, PolicyError
from covey.agent.training.learner import TorchLocal
from covey.agent.worker import sources
from covey.agent.worker.memory_file import DiskBroken, MemoryDamaged, ResultDoesNotFit, save_memory
from covey.agent.worker.participant import Participant
from covey.agent.worker.pool import WorkerLost
from covey.agent.worker.without_data import Blank
from covey.agent.worker.worker import answer
from covey.coordinator.run.rules import rules_of
from covey.coordinator.simulate.virtual_clock import GivenUpError
from covey.extras.light.numpy_learner import NumpyLocal
from covey.extras.private import private_sgd
from covey.extras.secure import messages
from covey.extras.secure import secured as sums
from covey.extras.secure.figures import FIGURES as FIGURES_VECTOR
from covey.extras.secure.figures import FigureSlots
from covey.extras.secure.messages import Terms
from covey.extras.secure.phases import HEAD
from covey.extras.secure.tests import live
from covey.extras.secure.tests.test_what_leaves import SUMMED, with_keys
from covey.shared.errors import CoveyError
from covey.shared.privacy.settings import Noise
from covey.shared.scenario.task import Task
from covey.shared.strategies.client_half import LAST_MODEL, Drill, Local
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.wire.jobs import DeviceData, Failure, Nothing, Perform, TryStep
from covey.shared.wire.messages import OrderMessage, ReportContent
from covey.shared.work.order_settings import layout_of
from scripts.size import ROOT, module_of, parts_of
from tests.attacks.rogue import order
from tests.attacks.test_what_leaves import NOISY, VALUES, Device

COLUMNS = 3
LARGEST = (
    3.4e38  # nearly the largest float32: twice an output of this weight overflows beyond a bound
)
TASK = {**live.TASK, "standardise": {"mean": [0.0] * COLUMNS, "std": [5.4] * COLUMNS}}
AT_THE_EDGE = [
    LARGEST,
    0,
    0,
    0,
]  # the model that overflows for a row with more than 2.7 in the first column
TABLE = np.clip(np.random.default_rng(5).normal(size=(40, COLUMNS)), -2.4, 2.4)
ROWS = {
    "a row beyond the bound": [2.9, 0, 0],
    "a huge row": [1e30, -1e30, 1e30],
    "a constant row": [0, 0, 0],
}
TOLD = (
    PolicyError,
    MemoryDamaged,
    ResultDoesNotFit,
    DiskBroken,
)  # of rules and disks, not of cells
# where the number of samples and the order decide, and no cell
BUDGETS = {"_enter", "_noise_within", "_multiplier_for", "check_epochs", "check_steps"}
BEFORE = {"adopt"}  # decides by the deployment alone, before the data are read
IN_SUMS = live.LAYOUT.size + 2

Demand = tuple[str, str, dict[str, Any]]  # a policy, a learner, and the work of an order
SECURE, LOCAL = "privacy={secure_least: 4}", "privacy={local_epsilon: 0.5}"
FIGURES: dict[str, Any] = {
    "phase": "evaluate",
    "evaluation": {"tune_epochs": 1, "deliver": {}},
    "numbers": {"judge": 0},
}
DEMANDS: dict[str, Demand] = {
    "figures, sums demanded": (SECURE, "numpy", FIGURES),
    "figures, noise demanded": (LOCAL, "numpy", FIGURES),
    "training with noise": (LOCAL, "torch", {"privacy": NOISY, "sizes": {"model": 4}}),
}


def table(folder: Path, changed: Any = None, rows: Any = TABLE) -> Path:
    """A table, in which one row of all is another one."""
    rows = rows.copy()
    if changed is not None:
        rows[7] = changed
    targets = TABLE[: len(rows)] @ [1, -2, 0.5]
    lines = [f"{','.join(map(str, row))},{y}" for row, y in zip(rows, targets, strict=True)]
    file = folder / "data.csv"
    file.write_text("\n".join(["u,v,w,y", *lines]))
    return file


def stated(report: ReportContent) -> Mapping[str, Any]:
    """What a report has outside of masks and noise."""
    said = report.model_dump(exclude={"work"})
    said["vectors"] = {name: (one.codec, one.length) for name, one in report.vectors.items()}
    said["numbers"] = {name: name == HEAD or one for name, one in report.numbers.items()}
    return said


def told(folder: Path, demand: Demand, data: Path | None = None, **work: Any) -> Mapping[str, Any]:
    """What a device with its own table states on the order of a demand."""
    limit, learner, asked = demand
    folder.mkdir()
    device = Device(folder, limit, data or table(folder), learner)
    whole = {"task": TASK, "layout": live.LAYOUT.to_wire(), "cluster": 0, **asked, **work}
    return stated(device.report(AT_THE_EDGE, **whole))


# -- a row decides ----------------------------------------------------------------------------------


@pytest.mark.parametrize("demand", DEMANDS)
@pytest.mark.parametrize("row", ROWS)
def test_tables_that_differ_in_a_row_state_the_same(tmp_path: Path, demand: str, row: str) -> None:
    (tmp_path / "data").mkdir()
    other = table(tmp_path / "data", ROWS[row])
    as_it_is = told(tmp_path / "a", DEMANDS[demand])
    assert as_it_is["failure"] is None
    assert told(tmp_path / "b", DEMANDS[demand], other) == as_it_is


def of_victim(folder: Path, changed: Any = None, **sections: Any) -> list[Mapping[str, Any]]:
    """All that a device states in a run whose first model is at the edge, under real sums; a fault of the run ends it."""
    devices = live.Devices(folder, SECURE)
    found: list[Mapping[str, Any]] = []
    table(folder / "a3", changed)
    work = devices.work

    def spied(run: Any, client: str, order: Any) -> ReportContent:
        report = work(run, client, order)
        if client == "a3":
            found.append(stated(report))
        return report

    devices.work = spied  # type: ignore[method-assign]
    try:
        live.run_of(devices, "run", evaluation={"deliver": "served"}, **sections)
    except (GivenUpError, CoveyError) as error:  # no agent takes part, or each sum is void
        found.append({"ended": str(error).replace(str(folder), "")})
    return found


@pytest.fixture
def at_the_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    folded: set[str] = set()  # whether the round is over
    # figures are those of another model than training: else they are near to a sum that was answered
    edges = [np.roll(np.array(AT_THE_EDGE, np.float32), place) for place in (0, 1)]
    run_of = live.run_of

    def begun(*given: Any, **sections: Any) -> Any:
        folded.clear()
        return run_of(*given, **sections)

    def kept(_: FedAvg, state: Any, *__: Any) -> Any:
        folded.add("once")
        return state

    monkeypatch.setattr(live, "run_of", begun)
    monkeypatch.setattr(live, "TASK", TASK)
    monkeypatch.setattr(FedAvg, "model", lambda *_: edges[len(folded)])
    monkeypatch.setattr(FedAvg, "fold", kept)


@pytest.mark.usefixtures("at_the_edge")
@pytest.mark.parametrize("row", ROWS)
def test_a_sum_has_a_device_whose_training_overflows(tmp_path: Path, row: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    as_it_is = of_victim(tmp_path / "a")
    assert sum("masked" in one["vectors"] for one in as_it_is) == 2  # of the update, of the figures
    assert of_victim(tmp_path / "b", ROWS[row]) == as_it_is


def another(value: Any) -> Any:
    """A second value of a field of terms."""
    match value:
        case bytes():
            return bytes(len(value))
        case str():
            return f"{value}x"
        case int() | float():
            return 2 * value + 1
        case dict():
            return {f"{name}x": one for name, one in value.items()}
        case list():
            return [*value, *value] or [b"an expelled list"]
    raise AssertionError(value)


@pytest.mark.usefixtures("at_the_edge")
@pytest.mark.parametrize("field", Terms.model_fields)
def test_terms_have_no_field_that_distinguishes_rows(
    tmp_path: Path, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = with_terms(monkeypatch, lambda fields: {field: another(fields.get(field, []))})
    transcripts = []
    for name, row in {"as it is": None, **ROWS}.items():
        (tmp_path / name).mkdir()
        transcripts.append(of_victim(tmp_path / name, row))
    assert asked
    assert all(one == transcripts[0] for one in transcripts)
    print(f"{field}: {len(transcripts[0])} reports of {len(transcripts)} tables compared")


def with_terms(
    monkeypatch: pytest.MonkeyPatch, changes: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> list[Terms]:
    """Let the coordinator offer other terms, and give up after one attempt; the list has them."""
    found: list[Terms] = []

    def made(**fields: Any) -> Terms:
        found.append(Terms.model_construct(**{"expelled": [], **fields, **changes(fields)}))
        return found[-1]

    # in the coordinator alone: an agent imports the same module
    others = SimpleNamespace(**{**vars(messages), "Terms": made})
    monkeypatch.setattr(sums, "messages", others)
    monkeypatch.setattr(live, "rules_of", lambda scene: replace(rules_of(scene), void_limit=1))
    return found


def test_levels_between_the_figures_of_two_tables_distinguish_neither_from_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    norms: list[float] = []
    vector = FigureSlots.vector

    def measured(slots: FigureSlots, *given: Any) -> Any:
        found = vector(slots, *given)
        norms.append(float(np.linalg.norm(found)))
        return found

    monkeypatch.setattr(FigureSlots, "vector", measured)
    changed = [1.0, 2.0, 3.0]
    for name, row in (("as it is", None), ("changed", changed)):
        (tmp_path / name).mkdir()
        of_victim(tmp_path / name, row)
    # of five devices in order of id, the third is the one whose table is another one
    low, high = sorted((norms[2], norms[len(norms) // 2 + 2]))
    assert high - low > 2
    middle = int((low + high) / 2)
    assert (
        with_terms(
            monkeypatch,
            lambda fields: {"levels": middle} if FIGURES_VECTOR in fields["vectors"] else {},
        )
        == []
    )
    transcripts = []
    for name, row in (("ruled", None), ("ruled too", changed)):
        (tmp_path / name).mkdir()
        transcripts.append(of_victim(tmp_path / name, row))
    assert transcripts[0] == transcripts[1]
    assert any("too few levels" in str(one.get("failure")) for one in transcripts[0])


# -- an error of any kind, wherever the data are used -----------------------------------------------


def modules() -> Iterator[tuple[str, ast.Module]]:
    """The product's modules that a device has."""
    for file in parts_of(ROOT):
        text = (ROOT / file).read_text()
        is_of_another = "covey.broker" in text or "covey.coordinator" in text
        if file.startswith(("agent/", "shared/")) or (
            file.startswith("extras/") and not is_of_another
        ):
            yield module_of(file), ast.parse(text)


def raised(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(function, name of the class) of each `raise` of a module."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                made = node.exc if isinstance(node, ast.Raise) else None
                if isinstance(made, ast.Call) and isinstance(made.func, ast.Name):
                    yield function.name, made.func.id


@cache
def errors() -> dict[str, type[Exception]]:
    """All errors that the product raises on a device, by name, and those of Python itself."""
    found: dict[str, Any] = dict(vars(builtins))
    for module, tree in modules():
        names = {name for _, name in raised(tree)}
        for name in names - found.keys():
            found[name] = getattr(importlib.import_module(module), name, None)
    return {
        name: one
        for name, one in found.items()
        if isinstance(one, type) and issubclass(one, Exception) and not issubclass(one, TOLD)
        if one.__module__.startswith(("builtins", "covey"))
    }


def made_of(kind: type[Exception]) -> Exception:
    if issubclass(kind, ExceptionGroup):
        return kind("row 7 has 2.9", [ValueError()])
    try:
        return kind("row 7 has 2.9")
    except (TypeError, AttributeError):  # it is made of something else
        error = kind.__new__(kind)
        error.args = ("row 7 has 2.9",)
        return error


def calls() -> list[str]:
    """What a method may call of the data."""
    return [name for name, one in vars(Local).items() if callable(one) and name[0] != "_"]


def fails(monkeypatch: pytest.MonkeyPatch, place: str, error: Exception) -> list[str]:
    """Let the data be unreadable, or a call on them fail; the list has an entry for each time."""
    came: list[str] = []
    if place == "dataset":
        dataset = Participant.dataset

        def read(who: Participant, work: Any) -> Any:
            if isinstance(who.source, Blank):
                return dataset(who, work)
            came.append(place)
            raise error

        monkeypatch.setattr(Participant, "dataset", read)
        return came
    for learner in (NumpyLocal, TorchLocal):
        call = getattr(learner, place)

        def failing(local: DataOfLocal, *given: Any, call: Any = call, **more: Any) -> Any:
            if (local.rows("train") == 1).all():  # of no device
                return call(local, *given, **more)
            came.append(place)
            raise error

        monkeypatch.setattr(learner, place, failing)
    return came


@pytest.mark.parametrize("demand", DEMANDS)
def test_no_report_names_an_error_once_the_data_are_read(
    tmp_path: Path, demand: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_it_is = told(tmp_path / "a", DEMANDS[demand])
    compared = []
    pairs = [(kind, "dataset") for kind in errors().values()]
    pairs += [(ValueError, place) for place in calls()]
    for number, (kind, place) in enumerate(pairs):
        with monkeypatch.context() as patch:
            came = fails(patch, place, made_of(kind))
            found = told(tmp_path / str(number), DEMANDS[demand])
            # the number of samples is known without the data only to an agent that has inspected them
            same = ("examples", "numbers") if place == "dataset" else ()
            assert {**found, **{name: as_it_is[name] for name in same}} == as_it_is, (kind, place)
            compared += [(kind.__name__, place)] * bool(came)
    print(f"{demand}: {len(errors())} errors, {len(compared)} compared")
    assert len(compared) > len(errors())


def test_only_budgets_are_named_of_what_is_decided_after_the_data_are_read() -> None:
    of_data = ("agent.data", "agent.training", "extras", "shared.work", "shared.strategies")
    sites = {
        function
        for module, tree in modules()
        for function, name in raised(tree)
        if name == "PolicyError" and module.removeprefix("covey.").startswith(of_data)
    }
    assert sites > BEFORE
    assert sites - BEFORE <= BUDGETS


OF_CLASSES: dict[str, Any] = {
    "features": [1],
    "columns": ["age"],
    "target": "diagnosis",
    "model": {"name": "linear"},
}
TWO_OUTPUTS = {"tensors": [["fc.weight", [2, 1]], ["fc.bias", [2]]], "trainable": 2}


def diagnoses(folder: Path, last: str) -> Path:
    """A table of people, of whom the last has this diagnosis."""
    file = folder / f"{last}.csv"
    found = [*(["none", "flu"] * 30), last]
    file.write_text(
        "\n".join(["age,diagnosis", *(f"{20 + n},{one}" for n, one in enumerate(found))])
    )
    return file


@pytest.mark.parametrize("limit", ["labels=hidden", SECURE, LOCAL])
@pytest.mark.parametrize(
    ("most", "epochs", "steps"), [("max_steps", 9, None), ("max_epochs", 1, 90)]
)
def test_a_limit_of_the_owner_counts_the_rows_of_the_file(
    tmp_path: Path, limit: str, most: str, epochs: int, steps: int | None
) -> None:
    """Rows of other classes are left out, and a refusal names the steps of the others: their number is that of any diagnosis."""
    policy = Policy(**{most: 1}).with_limits([limit])
    rules = OwnersRules(policy, learner="torch" if limit == LOCAL else "numpy")
    said = set()
    for last in ("none", "syphilis"):
        source = DeviceData(data=str(diagnoses(tmp_path, last)))
        who = Participant(client="a1", source=source, rules=rules)
        for classes in (["none", "syphilis"], ["flu", "syphilis"], ["none", "flu"]):
            asked = {"task": {**OF_CLASSES, "classes": classes}, "layout": TWO_OUTPUTS}
            training = {"epochs": epochs, "batch": 1, "lr": 0.1}
            job = Device(tmp_path).job(np.zeros(4), training=training, **asked)
            work = OrderMessage.from_bytes(job.order).work
            assert work is not None
            local = who.at_hand(work, layout_of(work), {}, Noise.secret()).local
            with pytest.raises(PolicyError) as refused:
                local.train(np.zeros(4, np.float32), Drill(steps=steps))
            said.add(str(refused.value))
    assert len(said) == 1


def kept(folder: Path, value: float) -> Device:
    """A device that has trained in a run before, with these values."""
    folder.mkdir()
    with_keys(folder / "secure")
    device = Device(folder, SECURE)
    own = np.full(VALUES, value, np.float32)
    memory = {LAST_MODEL: own, "fedala/weights": np.ones(VALUES, np.float32)}
    save_memory(folder / "memory", memory, durable=False)
    device.memory = folder / "memory"
    return device


def test_an_order_is_tried_without_what_a_device_keeps(tmp_path: Path) -> None:
    """Own values of a method were made of the data: a model at the edge of what a float holds is compared with each of them."""
    edge = np.full(VALUES, -np.finfo(np.float32).max)
    asked = {"strategy": {"name": "fedala"}, "privacy": SUMMED, "sizes": {"model": VALUES}}
    failures = set()
    for value in (1e33, -1e33):
        device = kept(tmp_path / str(value), value)
        job = device.job(edge, **asked)
        order = OrderMessage.from_bytes(job.order)
        assert order.work is not None
        [model] = order.work.models
        message = [model.model_copy(update={"key": key}) for key in ("list", "inbox")]
        with_messages = order.work.model_copy(update={"models": [model, *message]})
        order = order.model_copy(update={"work": with_messages})
        answer(replace(job, order=order.to_bytes(), models=3 * job.models))
        report = ReportContent.from_bytes((device.folder / "report").read_bytes(), verified=True)
        failures.add(report.failure)
    assert failures == {"secure sums: this agent has not joined a sum for this order"}


def test_a_device_whose_first_training_fails_keeps_values_as_one_whose_training_does_not(
    tmp_path: Path,
) -> None:
    """The next order brings it none: that it has none would tell how the one before ended."""
    device = Device(tmp_path, "labels=hidden", table(tmp_path, ROWS["a huge row"]))
    asked: dict[str, Any] = {"cluster": 0, "sizes": {"model": COLUMNS}}
    asked |= {"task": {**TASK, "keep": ["fc.bias"]}, "layout": live.LAYOUT.to_wire()}
    first = device.report(AT_THE_EDGE[:COLUMNS], own=np.zeros(1), **asked)
    memory = tmp_path / "memory"
    device.memory = memory if memory.exists() else None
    assert [first.failure, device.report(np.zeros(COLUMNS), **asked).failure] == [None, None]


def test_whether_a_step_fits_into_the_memory_is_tried_without_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit would count the rows of whatever classes a task names."""
    monkeypatch.setattr(sources, "_local", None)  # reads them
    rules = OwnersRules(Policy().with_limits(["labels=hidden"]), learner="numpy").for_job()
    source = DeviceData(data=str(diagnoses(tmp_path, "syphilis")))
    task = Task.model_validate({**OF_CLASSES, "classes": ["flu", "syphilis"]}).for_agents()
    assert answer(TryStep(source=source, task=task, batch=4, rules=rules)) == Nothing()


@pytest.mark.parametrize("learner", ["numpy", "torch"])
def test_rows_of_ones_take_no_memory_that_the_data_do_not(learner: str) -> None:
    """A limit on memory that they exceed and the data do not would name each failure with the data."""
    rules = OwnersRules(learner=learner)
    who = Participant(client="a1", source=Blank(200_000), rules=rules)
    width = 200
    task = {"features": [width], "classes": 2, "model": {"name": "linear"}}
    layout = {"tensors": [["fc.weight", [2, width]], ["fc.bias", [2]]], "trainable": 2}
    work = order(task=Task.model_validate(task).for_agents(), layout=layout).work
    assert work is not None
    tracemalloc.start()
    local = who.at_hand(work, layout_of(work), {}, Noise.secret()).local
    local.loss(np.zeros(2 * width + 2, np.float32))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000 * width


# -- durations --------------------------------------------------------------------------------------


class Ended:
    """A pool whose workers end where the data are read; `how` ends them."""

    def __init__(self, how: Callable[[], Any]) -> None:
        self._how = how

    async def call(self, job: Perform, **_: Any) -> Any:
        if job.lost:
            return answer(job)
        return await asyncio.sleep(60) if self._how is TimeoutError else self._how()


def lost() -> None:
    raise WorkerLost("killed")


def refused() -> Failure:
    return Failure(why="took more than 100 MB")


@pytest.mark.parametrize("how", [TimeoutError, lost, refused])
@pytest.mark.parametrize("demand", DEMANDS)
def test_a_worker_that_is_ended_states_what_one_does_that_works(
    tmp_path: Path, demand: str, how: Callable[[], Any]
) -> None:
    limit, learner, work = DEMANDS[demand]
    as_it_is = told(tmp_path / "a", DEMANDS[demand])
    job = Device(tmp_path, limit, table(tmp_path), learner)
    performer = Performer.__new__(Performer)
    rules = OwnersRules(
        Policy(max_seconds=0.1).with_limits([limit] if limit else []), learner=learner
    )
    performer._rules, performer._pool = rules, Ended(how)  # type: ignore[assignment]
    performer._samples, performer._observer = 32.0, lambda *_: None
    performer._is_free = asyncio.Event()
    performer._is_free.set()
    performer._before_report = no_drill
    asked = {"task": TASK, "layout": live.LAYOUT.to_wire(), "cluster": 0, **work}
    made = job.job(AT_THE_EDGE, **asked)
    performer._job = lambda order: made  # type: ignore[method-assign]
    asyncio.run(performer.perform(OrderMessage.from_bytes(made.order)))
    report = ReportContent.from_bytes((tmp_path / "report").read_bytes(), verified=True)
    assert stated(report) == as_it_is


async def no_drill(_: Any) -> None:
    """None between the work and its report."""


# -- what is named all the same ----------------------------------------------------------------------


def test_an_order_that_no_device_could_carry_out_is_refused_before_its_data_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    came = fails(monkeypatch, "dataset", ValueError("read"))
    limit, _, work = DEMANDS["training with noise"]
    said = told(tmp_path / "a", (limit, "numpy", work))
    assert "the learner of this device (numpy) has no DP-SGD" in said["failure"]
    assert not came


def test_without_a_demand_a_failure_names_what_happened(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    other = table(tmp_path / "data", ROWS["a row beyond the bound"])
    said = told(tmp_path / "a", ("", "numpy", {"sizes": {"model": 4}}), other)
    assert "the training diverged" in said["failure"]


# -- DP-SGD -----------------------------------------------------------------------------------------


def trained(
    folder: Path, monkeypatch: pytest.MonkeyPatch, rows: Any, model: Any
) -> tuple[Any, Any]:
    """The model and the account after DP-SGD with noise and draws of a fixed seed."""
    monkeypatch.setattr(Noise, "secret", classmethod(lambda cls: cls(b"fixed")))
    folder.mkdir()
    device = Device(folder, LOCAL, table(folder, rows=rows), "torch")
    work = {
        "task": TASK,
        "layout": live.LAYOUT.to_wire(),
        "cluster": 0,
        **DEMANDS["training with noise"][2],
    }
    report = device.report(model, **work)
    return report.vectors["model"].data, (folder / "privacy.json").read_text()


def test_the_account_and_the_bytes_of_an_honest_training_are_as_without_the_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = trained(tmp_path / "a", monkeypatch, TABLE, np.zeros(4))
    monkeypatch.setattr(private_sgd, "_drop_not_finite", lambda _: None)
    assert trained(tmp_path / "b", monkeypatch, TABLE, np.zeros(4)) == honest


def test_a_sample_whose_gradient_overflows_counts_as_zero_and_the_others_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    gradients = [
        torch.tensor([[1.0, 2.0], [np.inf, 0.0], [3.0, np.nan], [4.0, 5.0]]),
        torch.ones(4, 1),
    ]
    private_sgd._drop_not_finite(gradients)
    assert gradients[0].tolist() == [[1, 2], [0, 0], [0, 0], [4, 5]]
    assert gradients[1].tolist() == [[1], [0], [0], [1]]
