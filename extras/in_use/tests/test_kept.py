"""Models that a device keeps: which one is in use, what is compared, and the owner's command."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from covey.agent.cli.program import app
from covey.agent.policy import OwnersRules, Policy
from covey.agent.training.models import initial
from covey.agent.worker.worker import answer
from covey.extras.in_use.keeper import Keeper, KeepOptions, ModelHook, parse_hook
from covey.extras.in_use.kept_versions import Figure, Figures, Version, judge, main_figure
from covey.extras.in_use.model_dir import INDEX, ModelDir, read_index
from covey.extras.in_use.model_file import read_model, save_model, task_with_scaling
from covey.shared.candidate_names import REFITS
from covey.shared.errors import UserError
from covey.shared.numerics.vectors import Layout, Tensor, Vector
from covey.shared.scenario.task import Model, Task
from covey.shared.seeds import generator
from covey.shared.storage.files import folder_lock, model_file
from covey.shared.wire.codec import Codec, encode_model
from covey.shared.wire.deployments import Deployment
from covey.shared.wire.documents import FELL
from covey.shared.wire.jobs import (
    Adopted,
    AdoptModel,
    DeviceData,
    Failure,
    KeepPlace,
    ModelJudgement,
    Perform,
)
from covey.shared.wire.messages import ModelRef, digest
from covey.shared.wire.topics import Topics, deployed_key
from tests import clock
from tests.agent.orders import MODEL, order, ref
from tests.agent.test_service import FakePool, World, worked
from tests.kit.memory_broker import MemoryBroker

TASK = Task(features=(2,), classes=("no", "yes"), model=Model(name="linear", options={}))
LAYOUT = Layout((Tensor("fc.weight", (2, 2)), Tensor("fc.bias", (2,))), 2)
# logits (-x0, x0): "yes" for positive first features; and the opposite
GOOD = np.array([-1, 0, 1, 0, 0, 0], np.float32)
BAD = -GOOD


@pytest.mark.parametrize(
    ("new", "old", "accepted"),
    [
        ({"n": 50, "accuracy": 0.90}, {"n": 50, "accuracy": 0.94}, True),
        ({"n": 50, "accuracy": 0.88}, {"n": 50, "accuracy": 0.94}, False),
        ({"n": 10, "accuracy": 0.80}, {"n": 10, "accuracy": 0.90}, True),
        ({"n": 10, "accuracy": 0.70}, {"n": 10, "accuracy": 0.90}, False),
        ({"n": 20, "mse": 1.04}, {"n": 20, "mse": 1.0}, True),
        ({"n": 20, "mse": 1.06}, {"n": 20, "mse": 1.0}, False),
        ({"n": 0}, {"n": 0}, True),
        ({"n": 20, "accuracy": 0.1}, None, True),
        ({"n": 20, "diverged": True}, None, False),
        ({"n": 20, "accuracy": 0.1}, {"n": 20, "diverged": True}, True),
        ({"n": 20, "accuracy": 0.1}, {"n": 20, "mse": 1.0}, True),
    ],
)
def test_a_model_that_is_worse_by_more_than_the_margin_is_rejected(
    new: Figures, old: Figures | None, accepted: bool
) -> None:
    verdict = judge(new, old, 0.05)
    assert verdict.accepted == accepted
    if old is not None and not accepted and "diverged" not in new:
        assert "with the model so far" in verdict.why


def put(
    models: ModelDir, version: Version, vector: Vector = GOOD, figure: Figure | None = None
) -> Path:
    save_model(
        models.path(version), version, TASK.for_agents(), mixture=((1.0, vector),), layout=LAYOUT
    )
    return models.take(version, "first", figure)


def compared(models: ModelDir) -> KeepPlace:
    """What a worker's job has about the models on the device."""
    current, accepted = (
        "" if version is None else version.file for version in (models.in_use, models.accepted)
    )
    earlier = tuple(one.version.file for one in models.index.previous)
    return KeepPlace(
        folder=models.folder, current=current, accepted=accepted, margin=0.05, earlier=earlier
    )


def test_the_newest_models_stay_and_older_ones_leave_the_disk(tmp_path: Path) -> None:
    models = ModelDir(tmp_path, runs=3)
    versions = [Version(f"r{number}", number, 0, "run") for number in range(1, 6)]
    for version in versions:
        put(models, version)
    again = ModelDir(tmp_path, runs=3)
    assert again.in_use == versions[-1]
    assert [kept.version for kept in again.index.previous] == versions[-2:-4:-1]
    names = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert names == [f"r{n}-round-0000{n}-cluster-0.safetensors" for n in (1, 3, 4, 5)]
    assert again.accepted == versions[0], "until a person promotes one, the first counts"
    put(again, versions[2])  # back to an earlier one
    assert [kept.version.round for kept in again.index.previous] == [5, 4]


def test_the_best_model_of_each_run_and_the_one_before_stay(tmp_path: Path) -> None:
    models = ModelDir(tmp_path, runs=2)
    accuracies = {("a", 1): 0.7, ("b", 1): 0.8, ("b", 2): 0.9, ("b", 3): 0.6, ("c", 1): 0.5}
    accuracies |= {("c", 2): 0.4, ("c", 3): 0.3}
    stayed = []
    for (run, round_), accuracy in accuracies.items():
        put(models, Version(run, round_, 0), figure=("accuracy", accuracy))
        stayed.append([(one.version.run, one.version.round) for one in models.index.previous])
    assert stayed[2] == [("b", 1), ("a", 1)]
    assert stayed[3] == [("b", 2), ("a", 1)]
    assert stayed[4] == [("b", 3), ("b", 2)]
    assert stayed[-1] == [("c", 2), ("c", 1), ("b", 3), ("b", 2)], "b's last is what was in use"
    assert models.accepted == Version("a", 1, 0)


def test_later_models_are_compared_with_the_one_that_a_person_promoted(tmp_path: Path) -> None:
    models = ModelDir(tmp_path, runs=1)
    put(models, Version("a", 1, 0, "run"))
    put(models, Version("b", 1, 0, "run"))
    assert models.accepted == Version("a", 1, 0, "run")
    models.settle(5, pinned=True)  # it was promoted while in use
    assert models.accepted == Version("b", 1, 0, "run")
    put(models, Version("c", 1, 0, "run"))
    models.settle(6, pinned=False)
    assert models.accepted == Version("b", 1, 0, "run")
    assert ModelDir(tmp_path).accepted == Version("b", 1, 0, "run")
    models.path(Version("b", 1, 0)).unlink()
    assert models.accepted is None


def test_small_losses_within_the_margin_do_not_add_up() -> None:
    steps = [0.90, 0.86, 0.82]
    figures = [{"n": 200, "accuracy": step} for step in steps]
    accepted = figures[0]
    assert judge(figures[1], accepted, 0.05, accepted).accepted
    assert judge(figures[2], figures[1], 0.05).accepted, "each step is within the margin"
    verdict = judge(figures[2], figures[1], 0.05, accepted)
    assert not verdict.accepted
    assert verdict.why.endswith("0.9 with the model that was accepted last")
    assert not judge(figures[2], None, 0.05, accepted).accepted


def test_a_damaged_index_is_named_and_does_not_stop_the_agent(tmp_path: Path) -> None:
    put(ModelDir(tmp_path), Version("r1", 1))
    (tmp_path / INDEX).write_text('{"format": 1, "in_use": ')
    with pytest.raises(UserError, match=r"in_use\.json: the list of models is damaged"):
        read_index(tmp_path)
    models = ModelDir(tmp_path)
    assert "damaged" in models.damage
    assert models.in_use is None
    put(models, Version("r1", 2))
    assert read_index(tmp_path).in_use is not None


def test_an_index_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    put(ModelDir(tmp_path), Version("r1", 1))
    index = json.loads((tmp_path / INDEX).read_text())
    index["in_use"]["run"] = "../r1"
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(UserError, match="damaged"):
        read_index(tmp_path)


def test_a_model_file_has_all_that_a_prediction_needs(tmp_path: Path) -> None:
    scaling = {"mean": [1.0, 2.0], "std": [3.0, 4.0]}
    task = task_with_scaling(TASK.for_agents(), scaling)
    version = Version("r1", 3, 1, "operator")
    path = tmp_path / version.file
    save_model(path, version, task, mixture=((0.25, GOOD), (0.75, BAD)), layout=LAYOUT)
    file = read_model(path)
    assert file.version == version
    assert file.weights == (0.25, 0.75)
    assert file.task.classes == ("no", "yes")
    assert file.task.standardise.std == (3.0, 4.0)  # type: ignore[union-attr]
    assert [LAYOUT.vector(named).tolist() for named in file.models] == [GOOD.tolist(), BAD.tolist()]
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UserError, match="expected a model file"):
        read_model(path)


# -- the worker ------------------------------------------------------------------------------------


def samples(folder: Path) -> Path:
    """The class follows the sign of the first feature."""
    x = generator(0, "kept").normal(0, 1, (60, 2)).astype(np.float32)
    np.savez(folder / "data.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    return folder / "data.npz"


def perform(folder: Path, vector: Vector, models: ModelDir, data: str = "", **changes: Any) -> Any:
    """Do the work of an order with this model, and make the model in use of what the worker accepted."""
    content = encode_model(vector, LAYOUT.digest, Codec(), generator(0, "down"))
    (folder / "model").write_bytes(content)
    reference = ModelRef(key="0", digest=digest(content), parts=1, size=len(content))
    plain = {"task": TASK.for_agents(), "layout": LAYOUT.to_wire(), "cluster": 0}
    message = order(1, reference, **{**plain, "sizes": {"model": LAYOUT.size}, **changes})
    job = Perform(
        source=DeviceData(data=str(folder / data if data else samples(folder))),
        client="pi",
        order=message.to_bytes(),
        models=[folder / "model"],
        durable=False,
        report_out=folder / "report",
        memory_out=folder / "memory",
        keep=compared(models),
    )
    done = answer(job)
    assert done.failed == ""
    kept: ModelJudgement | None = done.kept
    if kept is not None and kept.accepted:
        assert kept.figure is not None
        models.take(Version.from_json(kept.version), kept.why, kept.figure)
    return kept


def test_the_worker_keeps_a_model_unless_it_is_worse_here(
    tmp_path: Path, single_thread: None
) -> None:
    models = ModelDir(tmp_path / "models")
    assert perform(tmp_path, GOOD, models, round_=0) is None, "an untrained model is of no use"
    assert perform(tmp_path, GOOD, models, round_=1).accepted
    assert perform(tmp_path, GOOD, models, round_=1) is None, "the very same model"
    worse = perform(tmp_path, BAD, models, phase="evaluate", sizes={}, round_=2)
    assert not worse.accepted
    assert "accuracy" in worse.why
    assert models.in_use == Version("run-1", 1, 0)
    better = perform(tmp_path, 2 * GOOD, models, phase="evaluate", sizes={}, round_=3)
    assert better.accepted
    models.path(Version("run-1", 3, 0)).write_bytes(b"damaged")
    assert not perform(tmp_path, BAD, models, round_=4).accepted, "the first model is better"
    models.path(Version("run-1", 1, 0)).write_bytes(b"damaged")
    alone = perform(tmp_path, BAD, models, round_=4)
    assert (alone.accepted, alone.is_first) == (True, True), "nothing to compare with"


def adopted(
    folder: Path,
    models: ModelDir,
    *limits: str,
    force: bool = False,
    keep: tuple[str, ...] = (),
    freeze: tuple[str, ...] = (),
    vector: Vector = BAD,
    tune: dict[str, Any] | None = None,
    judge: dict[str, Any] | None = None,
) -> Any:
    """The worker's answer about a published model, by default one that is worse here than the one in use."""
    content = encode_model(vector, LAYOUT.digest, Codec(), generator(0, "down"))
    path = folder / f"{digest(content).hex()}.model"
    path.write_bytes(content)
    deployment = Deployment(
        serial=1,
        run="run-0",
        round=9,
        origin="operator",
        task=TASK.model_copy(update={"keep": keep, "freeze": freeze}).for_agents(),
        layout=LAYOUT.to_wire(),
        models=[ref(deployed_key(0), content)],
        force=force,
        tune=tune or {},
        judge=judge or {},
    )
    job = AdoptModel(
        source=DeviceData(data=str(samples(folder))),
        deployment=deployment.to_bytes(),
        clusters=[0],
        models=[path],
        keep=compared(models),
        rules=OwnersRules(Policy().with_limits(limits)).for_job(),
    )
    done = answer(job)
    return done if isinstance(done, Failure) else done.kept


def test_a_model_in_use_is_measured_again_on_data_that_have_changed(
    tmp_path: Path, single_thread: None
) -> None:
    models = ModelDir(tmp_path / "models")
    assert perform(tmp_path, GOOD, models, round_=1).accepted

    def measured(sign: int) -> ModelJudgement | None:
        data = np.load(samples(tmp_path))
        np.savez(tmp_path / "now.npz", x=sign * data["x"], y=data["y"])
        rules = OwnersRules(Policy()).for_job()
        source = DeviceData(data=str(tmp_path / "now.npz"))
        job = AdoptModel(source=source, deployment=b"", clusters=[], models=[], keep=compared(models), rules=rules)  # fmt: skip
        done = answer(job)
        assert isinstance(done, Adopted)
        return done.kept

    as_before, other = measured(1), measured(-1)
    assert as_before is not None
    assert other is not None
    assert (as_before.accepted, other.accepted) == (True, False)
    assert other.why == "accuracy 0 on 12 test samples, 1 with the data before"
    assert Version.from_json(other.version) == models.in_use
    models.path(Version("run-1", 1, 0)).write_bytes(b"damaged")
    assert measured(-1) is None


def test_force_overrides_the_check_of_a_device_unless_its_policy_forbids_it(
    tmp_path: Path, single_thread: None
) -> None:
    models = ModelDir(tmp_path / "models")
    put(models, Version("run-1", 1, 0))
    assert not adopted(tmp_path, models, force=False).accepted
    forced = adopted(tmp_path, models, force=True)
    assert forced.accepted
    assert forced.why.startswith("the operator overrides the check: accuracy 0")
    checked = adopted(tmp_path, models, "forced_models=checked", force=True)
    assert not checked.accepted


def test_a_published_model_is_completed_by_the_values_that_this_device_keeps(
    tmp_path: Path, single_thread: None
) -> None:
    models = ModelDir(tmp_path / "models")
    put(models, Version("run-1", 1, 0))
    assert not adopted(tmp_path, models, force=False, keep=("fc.bias",)).accepted
    done = adopted(tmp_path, models, force=False, keep=("fc.weight",))
    assert done.accepted, "all that was published is its bias"
    kept = read_model(models.path(Version.from_json(done.version)))
    assert LAYOUT.vector(kept.models[0]).tolist() == [*GOOD[:4], *BAD[4:]]


def test_a_published_model_is_rejected_where_the_values_that_devices_keep_are_missing(
    tmp_path: Path, single_thread: None
) -> None:
    done = adopted(tmp_path, ModelDir(tmp_path / "models"), force=True, keep=("fc.bias",))
    assert not done.accepted
    assert "has no fc.bias of its own" in done.why


TUNE = {"epochs": 5, "lr": 0.5, "batch": 10}


def test_a_device_judges_at_adoption_what_it_answers_with(
    tmp_path: Path, single_thread: None
) -> None:
    models = ModelDir(tmp_path / "models")
    served = adopted(tmp_path, models)
    assert (served.version["uses"], served.figure[1] < 0.2) == ("", True)
    judged = adopted(tmp_path, models, tune=TUNE)
    assert judged.tells is None
    assert adopted(tmp_path, models, tune=TUNE, judge={"tells": True}).tells is True
    assert judged.figure[1] > 0.8
    assert "at home" in judged.version["uses"]
    version = Version.from_json(judged.version)
    models.take(version, "first")
    assert not adopted(tmp_path, models, tune=TUNE), "these models are judged"
    good = adopted(tmp_path, models, vector=100 * GOOD, tune=TUNE)
    assert good.version["uses"] == "100 % served", "anything else has to be clearly better"


def test_a_version_that_comes_back_answers_as_it_did_to_the_byte(
    tmp_path: Path, single_thread: None
) -> None:
    models = ModelDir(tmp_path / "models")
    judged = adopted(tmp_path, models, tune=TUNE)
    version = Version.from_json(judged.version)
    path = models.take(version, "first", judged.figure)
    before = path.read_bytes()
    put(models, Version("run-2", 1, 0))
    weighed = {"budget_s": 60.0}
    back = adopted(tmp_path, models, tune={**TUNE, "lr": 0.001}, judge=weighed, force=True)
    assert back.accepted
    assert (path.read_bytes(), Version.from_json(back.version)) == (before, version)
    models.path(version).write_bytes(before[:-9])  # what is damaged is judged again
    again = adopted(tmp_path, models, tune={**TUNE, "lr": 0.001}, force=True)
    assert again.accepted
    assert read_model(path).version is not None


def test_a_version_that_comes_back_is_checked_as_any_other(
    tmp_path: Path, single_thread: None
) -> None:
    models = ModelDir(tmp_path / "models")
    put(models, Version("run-0", 9), vector=BAD)
    put(models, Version("run-2", 1, 0), vector=100 * GOOD)
    back = adopted(tmp_path, models)
    assert not back.accepted
    assert "with the model so far" in back.why
    forced = adopted(tmp_path, models, force=True)
    assert forced.accepted
    assert forced.why.startswith("the operator overrides the check")


@pytest.mark.parametrize("at", ["extras.in_use.keep", "agent.worker.participant"])
def test_a_model_that_cannot_learn_is_left_for_new_weights_at_adoption_and_in_a_run(
    tmp_path: Path, single_thread: None, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    asked = []

    def new(task: Task, seed: int) -> Vector:
        asked.append(seed)
        return 100 * GOOD

    monkeypatch.setattr(f"covey.{at}.new_weights", new)
    stands, models = {**TUNE, "lr": 1e-9}, ModelDir(tmp_path / "models")
    if at.endswith("keep"):
        done = adopted(tmp_path, models, tune=stands)
    else:
        ordered: dict[str, Any] = {
            "numbers": {"judge": REFITS},
            "evaluation": {"deliver": {}},
            "training": stands,
        }
        done = perform(tmp_path, BAD, models, phase="evaluate", sizes={}, round_=2, **ordered)
    assert "at home" in done.version["uses"]
    assert done.figure[1] == 1.0
    assert asked == [0]


def test_training_at_home_at_adoption_leaves_frozen_tensors_and_limits_of_the_owner_alone(
    tmp_path: Path, single_thread: None
) -> None:
    models = ModelDir(tmp_path / "models")
    done = adopted(tmp_path, models, tune=TUNE, freeze=("fc.bias",), vector=BAD + 0.5)
    assert "at home" in done.version["uses"]
    kept = read_model(models.path(Version.from_json(done.version)))
    assert len(kept.models) > 1
    assert all(LAYOUT.vector(model)[4:].tolist() == [0.5, 0.5] for model in kept.models)
    refused = adopted(tmp_path, models, "max_epochs=4", tune=TUNE)
    assert "max_epochs: tune.epochs is 5, at most 4" in refused.why


# -- the agent -------------------------------------------------------------------------------------


class KeepingPool(FakePool):
    """Its worker accepts each model, unless `accepts` is False. A judge needs a minute."""

    accepts = True
    tells: bool | None = None

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        if isinstance(job, AdoptModel):
            await asyncio.sleep(60)
            version = Version("run-0", 9, origin="operator", uses="60 % served, 40 % neighbours")
            (job.keep.folder / version.file).write_bytes(b"a model")
            return Adopted(
                kept=ModelJudgement(
                    version=version.to_json(), accepted=True, why="", figure=None, tells=self.tells
                )
            )
        done = await super().call(job, weight=weight)
        if not isinstance(job, Perform) or job.keep is None:
            return done
        version = Version("run-1", len(self.jobs), 0)
        (job.keep.folder / version.file).write_bytes(b"a model")
        kept = ModelJudgement(
            version=version.to_json(), accepted=self.accepts, why="as it is", figure=None
        )
        return replace(worked(job), kept=kept)


@clock.virtual(within_s=3600)
async def test_an_agent_shows_which_model_is_in_use_and_which_was_rejected(tmp_path: Path) -> None:
    pool = KeepingPool()
    keep = KeepOptions(tmp_path / "models")
    async with (
        World.open(tmp_path, broker=MemoryBroker(), pool=pool) as world,
        world.living(keep=keep),
    ):
        await world.model()
        await world.order(order(1, ref(), use=True))
        await asyncio.sleep(2)
        first = world.statuses[-1].model
        assert first is not None
        assert (first.run, first.cluster, first.rejected) == ("run-1", 0, 0)
        pool.accepts = False
        await world.order(order(2, ref(), accepted=1, use=True))
        await asyncio.sleep(2)
        second = world.statuses[-1].model
        assert second is not None
        assert (second.round, second.rejected) == (first.round, 1)
        assert second.note.startswith("rejected: run run-1")
        assert "as it is" not in second.note, "figures stay on the device"
    events = [notice["event"] for notice in world.notices]
    assert events.count("model") == 1
    assert events.count("model rejected") == 1
    kept = read_index(tmp_path / "models").in_use
    assert kept is not None
    assert kept.version.round == first.round


@clock.virtual(within_s=3600)
async def test_a_model_that_is_still_in_training_does_not_go_into_use(tmp_path: Path) -> None:
    pool = KeepingPool()
    keep = KeepOptions(tmp_path / "models")
    async with (
        World.open(tmp_path, broker=MemoryBroker(), pool=pool) as world,
        world.living(keep=keep),
    ):
        await world.model()
        await world.order(order(1, ref()))
        await asyncio.sleep(2)
        shown = world.statuses[-1].model
        assert shown is not None, "the operator sees that this device keeps models"
        assert shown.run == ""
    [perform] = [job for job in pool.jobs if isinstance(job, Perform)]
    assert perform.keep is None


@pytest.mark.parametrize("tells", [True, False, None])
@clock.virtual(within_s=3600)
async def test_a_device_that_judges_between_runs_states_so_and_then_what_it_uses(
    tmp_path: Path, tells: bool | None
) -> None:
    pool = KeepingPool()
    pool.tells = tells
    published = Deployment(
        serial=7,
        run="run-0",
        round=9,
        name="june",
        origin="operator",
        task=TASK.for_agents(),
        layout=LAYOUT.to_wire(),
        models=[ref(deployed_key(0), MODEL)],
    )
    async with (
        World.open(tmp_path, broker=MemoryBroker(), pool=pool) as world,
        world.living(keep=KeepOptions(tmp_path / "models")),
    ):
        await world.publish(Topics("default").deployment, published.to_bytes())
        await world.model(deployed_key(0))
        await asyncio.sleep(30)
        shown = world.statuses[-1].model
        assert shown is not None
        assert (shown.run, shown.note, shown.uses) == ("", "judging: june", "")
        await asyncio.sleep(60)
        shown = world.statuses[-1].model
        assert shown is not None
        assert (shown.run, shown.note) == ("run-0", "in use: june")
        assert shown.uses == ("60 % served, 40 % neighbours" if tells else "")


@pytest.mark.parametrize("tells", [True, False])
@clock.virtual(within_s=3600)
async def test_a_device_whose_model_is_worse_on_changed_data_states_so_where_figures_may_leave(
    tmp_path: Path, tells: bool
) -> None:
    data = tmp_path / "data.csv"
    version = Version("run-0", 9, name="june")
    found = ModelJudgement(version=version.to_json(), accepted=False, why="worse", figure=None)

    class Measuring(FakePool):
        async def call(self, job: Any, *, weight: float = 0) -> Any:
            self.jobs.append(job)
            await asyncio.sleep(10)
            return Adopted(kept=replace(found, accepted=data.read_text() == "as before"))

    pool = Measuring()
    put(ModelDir(tmp_path / "models"), version)
    ModelDir(tmp_path / "models").note_telling(tells=tells)

    def shown() -> str:
        model = world.statuses[-1].model
        assert model is not None
        return model.note

    data.write_text("as before")
    async with (
        World.open(tmp_path, broker=MemoryBroker(), pool=pool) as world,
        world.living(data=str(data), keep=KeepOptions(tmp_path / "models")),
    ):
        for text, fell in (("changed", True), ("as before", False), ("changed", True)):
            data.write_text(text)
            await asyncio.sleep(700)
            worse = f"june{FELL}worse" if fell else "june"
            assert shown() == f"in use: {worse if tells else 'june'}"
        asked = len(pool.jobs)
        for row in range(60):  # data that grow all the time are measured now and then
            data.write_text(f"changed {row}" + "x" * row)
            await asyncio.sleep(20)
    assert 5 <= len(pool.jobs) - asked <= 7, "20 minutes, of which a minute at work"
    assert all(job.deployment == b"" for job in pool.jobs)
    assert f"june{FELL}worse" in str(world.notices), "its own log has it, anyone who else may"


@clock.virtual(within_s=3600)
async def test_a_publication_that_the_policy_refuses_is_shown_and_asked_again_after_a_restart(
    tmp_path: Path,
) -> None:
    keep = KeepOptions(tmp_path / "models")
    refused = Deployment(
        serial=7,
        run="run-0",
        round=9,
        origin="operator",
        task={**TASK.for_agents(), "model": {"name": "os:system"}},
        layout=LAYOUT.to_wire(),
        models=[ref(deployed_key(0), b"model")],
    )
    async with (
        World.open(tmp_path, broker=MemoryBroker(), pool=KeepingPool()) as world,
        world.living(keep=keep),
    ):
        await world.publish(Topics("default").deployment, refused.to_bytes())
        await asyncio.sleep(2)
        shown = world.statuses[-1].model
        assert shown is not None
        assert (shown.serial, shown.run) == (7, "")
        assert "refused by the policy" in shown.note
    assert read_index(tmp_path / "models").serial == 0


@pytest.mark.parametrize(
    ("origin", "in_use", "has"),
    [
        ("run", "order", True),
        ("run", "operator", True),
        ("operator", "run", True),
        ("operator", "operator", True),
        ("operator", "order", False),  # it may be a personal model
    ],
)
async def test_a_device_knows_the_published_models_that_it_uses_already(
    tmp_path: Path, origin: Any, in_use: Any, has: bool
) -> None:
    put(ModelDir(tmp_path), Version("r1", 3, 0, in_use))
    keeper = Keeper(KeepOptions(tmp_path), print, print)
    published = Deployment(
        serial=1,
        run="r1",
        round=3,
        origin=origin,
        task=TASK.for_agents(),
        layout=LAYOUT.to_wire(),
        models=[ref(deployed_key(0), b"model")],
    )
    assert keeper.has_settled(published) == has
    assert not keeper.has_settled(published.model_copy(update={"round": 4}))
    await keeper.close()


async def test_two_agents_do_not_share_a_folder(tmp_path: Path) -> None:
    first = Keeper(KeepOptions(tmp_path), print, print)
    with pytest.raises(UserError, match="another agent keeps its models here"):
        Keeper(KeepOptions(tmp_path), print, print)
    await first.close()
    await Keeper(KeepOptions(tmp_path), print, print).close()


async def test_the_command_gets_the_path_and_its_failures_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COVEY_BROKER", "mqtts://pi:secret@server")
    script = tmp_path / "hook.sh"
    script.write_text(
        '#!/bin/sh\necho "$@" "$COVEY_MODEL_ROUND" "$COVEY_BROKER" >> "$1.log"\nexit $2\n'
    )
    script.chmod(0o700)
    failures: list[str] = []
    path = tmp_path / "a model"

    async def run(command: str, limit_s: float = 20) -> None:
        hook = ModelHook(parse_hook(command), limit_s, failures.append)
        hook.start(path, Version("r1", 7))
        assert hook._running is not None
        await hook._running

    await run(f"'{script}' {tmp_path}/out 0")
    assert (tmp_path / "out.log").read_text() == f"{tmp_path}/out 0 {path} 7 \n"
    assert failures == []
    await run(f"{script} {tmp_path}/out 3")
    assert failures.pop().endswith("it ended with exit code 3")
    await run("/nowhere/command")
    assert "No such file" in failures.pop()
    await run(f"{sys.executable} -c 'while True: pass'", 0.2)
    assert "stopped after 0.2 s" in failures.pop()


@pytest.mark.parametrize("command", ["", "say 'hello"])
def test_a_command_that_is_none_is_refused(command: str) -> None:
    with pytest.raises(UserError, match="--on-model"):
        parse_hook(command)


def test_a_reset_device_takes_the_next_publication_and_keeps_its_model(tmp_path: Path) -> None:
    models = ModelDir(tmp_path / "models")
    version = Version("r1", 3, 0)
    save_model(
        models.path(version), version, TASK.for_agents(), mixture=((1.0, GOOD),), layout=LAYOUT
    )
    models.take(version, "first")
    models.settle(2**53 - 1, pinned=True)
    with folder_lock(models.folder, "unused"):
        refused = CliRunner().invoke(app, ["lab", "reset", "--model-dir", str(models.folder)])
    assert refused.exit_code == 2
    assert "stop it first" in refused.stderr
    assert (
        CliRunner().invoke(app, ["lab", "reset", "--model-dir", str(models.folder)]).exit_code == 0
    )
    index = read_index(models.folder)
    assert (index.serial, index.pinned) == (0, False)
    assert index.in_use is not None
    assert index.in_use.version == version
    missing = CliRunner().invoke(app, ["lab", "reset", "--model-dir", str(tmp_path)])
    assert missing.exit_code == 2


def test_a_verdict_on_a_regression_is_in_the_units_of_the_target() -> None:
    verdict = judge({"n": 20, "mse": 373.6}, {"n": 20, "mse": 302.7}, 0.05)
    assert verdict.why == "RMSE 19.33 on 20 test samples, 17.4 with the model so far"


def test_a_device_checks_a_model_by_the_measure_of_its_task() -> None:
    old = {"n": 200, "accuracy": 0.94, "recall": 0.5, "auc": 0.7}
    rare = {"n": 200, "accuracy": 0.90, "recall": 0.9, "auc": 0.6}
    assert judge(old, rare, 0.05).accepted
    verdict = judge(old, rare, 0.05, measure="recall")
    assert not verdict.accepted
    assert verdict.why.startswith("recall 0.5 on 200 test samples, 0.9")
    assert not judge(rare, old, 0.05, measure="auc").accepted
    assert main_figure(rare, "recall") == ("recall", 0.9)
    squares = {"n": 200, "mse": 4.0, "mae": 1.0}
    assert judge(squares, {"n": 200, "mse": 3.0, "mae": 1.0}, 0.05, measure="mae").accepted
    assert not judge(squares, {"n": 200, "mse": 3.0, "mae": 1.0}, 0.05, measure="r2").accepted


def test_a_kept_model_is_a_start(tmp_path: Path) -> None:
    """The first of those that it mixes."""
    plain = Task(features=(4,), classes=2, model=Model(name="linear", options={}))
    vectors = [initial(plain, seed)[0] for seed in (7, 8)]
    layout = initial(plain, 7)[1]
    for count in (1, 2):
        path = model_file(tmp_path, count)
        mixture = tuple((1 / count, vector) for vector in vectors[:count])
        save_model(path, Version("r1", 3, 0), plain.for_agents(), mixture=mixture, layout=layout)
        started, _ = initial(plain.model_copy(update={"init": str(path)}), 0)
        assert np.array_equal(started, vectors[0])
