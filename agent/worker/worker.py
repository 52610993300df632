"""The worker process: the only part of a running agent that imports numpy, and torch if the device trains with it.

`python -m covey.agent.worker.worker` reads jobs from stdin and answers on stdout (`covey.agent.worker.pool`). An error
in a job becomes an answer and never ends the worker. The worker ends when its stdin closes or its parent ends.

Every job has `source` (where the data comes from) and `policy`, `allow` and `learner` (the rules of this device). The jobs:

- `inspect` (task): compare the data with a task. The answer describes the data. If the data does not fit, `problem`
  gives the reason without private values, and `detail` gives it in full for the device's own terminal
- `perform` (order, models, memory, report_out, memory_out, client, account, secure, keep, ahead): do the work of an order. `order`
  is the message's bytes, `models` and `memory` are paths; the report and the new memory are written to the two paths ending
  in `_out`. `account` is the path of the device's privacy account, `secure` the folder of its secure sums, where the work for a
  masked report waits if `ahead` is set. If `keep` names a folder of models (`covey.agent.worker.keep`), the model of the order goes there
- `together` (jobs): do the work of several orders of a simulated fleet; those that train take their steps together
- `partition` (out): write which samples of a simulated fleet belong to which agent, as .npz
- `start` (out): write the initial models of a simulated fleet's scenario, as .npz
- `adopt` (deployment, clusters, models, keep): judge models that were published for use, and write the one that this
  device takes over; `deployment` is the message's bytes, `models` are the paths of the models of `clusters`
- `device` (wanted): check which kind of device the work would be done on
- `bench` (scenario, model, batch): measure how long the work takes here; the first job of a new process
"""

from __future__ import annotations

import os
import platform
import select
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

from covey.agent.kept.privacy_account import DeviceAccount
from covey.agent.learner_choice import TORCH
from covey.agent.policy import (
    SIGNATURES,
    OwnersRules,
    Policy,
    PolicyError,
    PrivacyDemand,
    values_of,
)
from covey.agent.worker.learners import learner_for, load_library
from covey.agent.worker.memory_file import (
    DiskBroken,
    MemoryDamaged,
    ResultDoesNotFit,
    load_memory,
    save_memory,
    unwritten,
)
from covey.agent.worker.process import WorkerOptions, memory_limited, prepared
from covey.shared.disclosures import NUMBERS_OF_EVALUATION, Promise, cleared
from covey.shared.errors import CoveyError, DataError, UserError, public_text
from covey.shared.own_code.consent import AllowedCode, consented, framework_of
from covey.shared.own_code.faults import OwnCodeError, own_code
from covey.shared.programs.child import death_with_parent
from covey.shared.storage.files import write_atomically
from covey.shared.strategies.phase_names import EVALUATE, EXCHANGES, MOMENTS, TRAIN, VOTE
from covey.shared.wire import frames

if TYPE_CHECKING:
    from covey.agent.worker.sources import Source
    from covey.shared.numerics.vectors import Layout, Vector
    from covey.shared.strategies.base import ClientState, Strategy
    from covey.shared.wire.messages import OrderMessage, ReportContent, Work

Read = Callable[[Path, "Layout"], "Vector"]
Name = tuple[str, str]  # of a file, and the digest of a layout
DIGEST_NAMES = ".model"  # the ending of files that are named by the digest of their content


def is_named_by_digest(path: Path) -> bool:
    """An agent names the models that it received by their digest; the coordinator of a simulation does not."""
    return path.suffix == DIGEST_NAMES


class ModelCache:
    """Models (d,) of the newest order by the digest of their content and of their layout; they are read-only.

    The other agents of a simulated fleet mostly need them again.
    """

    def __init__(self) -> None:
        self._models: dict[Name, Vector] = {}

    def __repr__(self) -> str:
        return f"<ModelCache: {len(self._models)} models>"

    def models(self, paths: Sequence[str], layout: Layout, read: Read) -> list[Vector]:
        """The models in some files, of which those are read that the order before this one did not name.

        Args:
            paths: of the files.
            layout: of the models.
            read: reads one file, with its errors.
        """
        names = [_name(path, layout) for path in paths]
        # before new ones are read: they may take all the memory that there is
        self._forget_all_but(names)
        found: list[Vector] = []
        for path, name in zip(paths, names, strict=True):
            model = self._models.get(name)
            if model is None:
                file = Path(path)
                model = read(file, layout)
                if is_named_by_digest(file):
                    self._keep(name, model)
            found.append(model)
        return found

    def _forget_all_but(self, names: Sequence[Name]) -> None:
        for name in tuple(self._models):
            if name not in names:
                del self._models[name]

    def _keep(self, name: Name, model: Vector) -> None:
        model.flags.writeable = False
        self._models[name] = model


def _name(path: str, layout: Layout) -> Name:
    return Path(path).name, layout.digest


MAX_LINE = 1000  # characters of an error in an answer or a report
DEFAULTS = WorkerOptions()

_newest_models = ModelCache()  # of the newest order of a simulated agent


def main() -> None:
    """Serve jobs until the parent closes stdin."""
    # libraries may print to stdout: redirect that to stderr, and keep stdout for the answers
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    if end_with_parent := death_with_parent():  # on other systems our input ends instead
        end_with_parent()
    options = WorkerOptions.parse(sys.argv[1:])
    with consented(AllowedCode.parse(options.allow)):
        _serve(sys.stdin.buffer, answers, options)


def _serve(jobs: BinaryIO, answers: IO[bytes], options: WorkerOptions) -> None:
    is_warm = not options.warm
    while True:
        if not is_warm and not select.select([jobs], [], [], 0)[0]:
            # a simulated fleet is certain to train: import torch while no job waits, so that no round waits for it
            load_library(TORCH).prepare(options.threads)
            is_warm = True
        job = frames.read(jobs)
        if job is None:
            return
        try:
            answers.write(frames.pack(answer(job, options)))
        except BrokenPipeError:
            return


def answer(job: frames.Job, options: WorkerOptions = DEFAULTS) -> frames.Job:
    """Do one job.

    Args:
        job: what to do, as the module describes it.
        options: of this worker.

    Returns:
        The answer. After an error: {"failure": text that may leave the device, "detail": text for its own terminal};
        of a disk that cannot be written to: {"disk_full": why}, or {"disk_broken": why} where waiting does not help.
    """
    try:
        return _done(job, options)
    except ResultDoesNotFit as error:
        return {"disk_full": str(error)}
    except DiskBroken as error:
        return {"disk_broken": str(error)}
    except Exception as error:
        return {"failure": _line(public_text(error)), "detail": _explain(error, options)}


@own_code()
def _done(job: frames.Job, options: WorkerOptions) -> frames.Job:
    match job["job"]:
        case "inspect":
            return _inspect(job)
        case "fits":
            return _fits(job, options.threads)
        case "perform":
            return _perform(job, options)
        case "together":
            return _together(job, options)
        case "partition":
            return _partition(job)
        case "start":
            return _start(job)
        case "adopt":
            return _adopt(job, options.threads)
        case "device":
            return _device(job)
        case "bench":
            return _bench(job, options.threads)
    raise ValueError(f"unknown job {job['job']!r}")


def _inspect(job: frames.Job) -> frames.Job:
    """Describe the data for a task. Data that does not fit is an answer, not a failure; its detail stays on the device."""
    from covey.agent.worker.sources import describe, source_of
    from covey.shared.scenario.task import Task

    task = Task.model_validate(job["task"])
    try:
        with memory_limited(OwnersRules.from_wire(job), None):
            data = source_of(job["source"]).dataset(task)
            if framework_of(task.model.name) == "flower":
                return _described(data, task, OwnersRules.from_wire(job))
            return describe(data, task)
    except DataError as error:
        return {
            "samples": 0,
            "test_samples": 0,
            "labels": [],
            "problem": _line(_told(error, OwnersRules.from_wire(job))),
            "detail": _line(str(error)),
        }


def _described(data: Any, task: Any, rules: OwnersRules) -> frames.Job:
    """The description of a client's own data, which only its functions know. A client that fails is an answer."""
    try:
        learner: Any = learner_for(task, rules)
        return cast(frames.Job, learner.description(data, task, rules))
    except UserError as error:
        problem, detail = _line(error.public), _line(str(error))
        return {"samples": 0, "test_samples": 0, "labels": [], "problem": problem, "detail": detail}


def _fits(job: frames.Job, threads: int) -> frames.Job:
    """Train one step and evaluate, within the owner's limits on memory. Nothing is kept of the model."""
    from covey.agent.worker.bench import one_step
    from covey.agent.worker.sources import source_of
    from covey.shared.scenario.task import Task
    from covey.shared.strategies.base import Training

    rules = OwnersRules.from_wire(job)
    task = Task.model_validate(job["task"])
    with memory_limited(rules, threads):
        one_step(source_of(job["source"]).dataset(task), task, Training(batch=job["batch"]), rules)
    return {}


def _partition(job: frames.Job) -> frames.Job:
    """Write the partition of a simulated fleet."""
    from covey.agent.worker.sources import FleetSource

    FleetSource(**job["source"]).write_partition(Path(job["out"]))
    return {}


def _start(job: frames.Job) -> frames.Job:
    """Write the initial models of a scenario, if the rules allow its code."""
    from covey.agent.worker.start import write_start
    from covey.shared.scenario.code import check_code
    from covey.shared.scenario.load import load_without_files

    rules = OwnersRules.from_wire(job)
    scenario = load_without_files(Path(job["source"]["scenario"]))
    check_code(scenario, rules.allowed)
    write_start(scenario, Path(job["out"]), rules.allowed)
    return {}


def _adopt(job: frames.Job, threads: int) -> frames.Job:
    """Judge models that were published for use."""
    from covey.agent.worker.keep import KeepPlace, adopt
    from covey.agent.worker.sources import source_of
    from covey.shared.wire.deployments import Deployment

    rules = OwnersRules.from_wire(job)
    prepared(rules, threads)
    deployment = Deployment.from_bytes(job["deployment"])
    try:
        contents = [_model_content(Path(path)) for path in job["models"]]
        with memory_limited(rules, threads):
            kept = adopt(
                deployment,
                job["clusters"],
                contents,
                source=source_of(job["source"]),
                place=KeepPlace.of(job["keep"]),
                rules=rules,
            )
    except DamagedModel as error:
        return {"model_damaged": error.digest}
    return {"kept": kept}


def _device(job: frames.Job) -> frames.Job:
    """The kind of device that the work would be done on; an error if it does not exist here."""
    rules = OwnersRules.from_wire(job)
    learner = load_library(rules.learner)
    return {"device": rules.device(job["wanted"], learner.device)}


def _bench(job: frames.Job, threads: int) -> frames.Job:
    """The fields of a `Benchmark`. The import of the learner is measured, too, so this is the process's first job."""
    rules = OwnersRules.from_wire(job)
    began = time.perf_counter()
    prepared(rules, threads)
    import_s = time.perf_counter() - began

    from covey.agent.worker.bench import measure, peak_memory_mb, task_of
    from covey.shared.strategies.base import Training

    data = job["source"]["data"]
    label = job["source"]["label"]
    task = task_of(data, label, job["scenario"], job["model"])
    with memory_limited(rules, threads):
        figures = measure(data, label, task, Training(batch=job["batch"]), rules)
    return {
        **asdict(figures),
        "batch": job["batch"],
        "threads": threads,
        "import_s": import_s,
        "memory_mb": peak_memory_mb(),
    }


def _perform(job: frames.Job, options: WorkerOptions) -> frames.Job:
    """Do the work of an order and write its report. The report carries an error in the work to the coordinator."""
    from covey.shared.wire.messages import OrderMessage, ReportContent, digest

    order = OrderMessage.from_bytes(job["order"])
    memory_out = Path(job["memory_out"])
    detail = None
    memory_digest = b""
    kept: frames.Job | None = None
    frozen_once = 0
    try:
        with memory_limited(OwnersRules.from_wire(job), options.threads), own_code():
            content, memory_digest, kept, frozen_once = _work(
                job, order, memory_out, options.threads
            )
    except MemoryDamaged:
        return {"memory_damaged": True}
    except DamagedModel as error:
        return {"model_damaged": error.digest}
    except (ResultDoesNotFit, DiskBroken):
        raise
    except Exception as error:
        detail = _explain(error, options)
        why = _told(error, OwnersRules.from_wire(job))
        from covey.agent.worker.sources import is_simulated

        if isinstance(error, OwnCodeError) and is_simulated(job["source"]):
            why = detail  # both ends are this machine, and there is no log of a device
        content = ReportContent.failed(order, job["client"], _line(why))
    report = content.packed()
    _write(Path(job["report_out"]), report, durable=job["durable"])
    done: frames.Job = {
        "digest": digest(report),
        "size": len(report),
        "fresh": bool(memory_digest),
        "memory_digest": memory_digest,
        "failed": detail,
        "examples": content.examples,
    }
    if frozen_once:
        done["frozen_once"] = frozen_once
    if kept is not None:
        done["kept"] = kept
    return done


def _together(job: frames.Job, options: WorkerOptions) -> frames.Job:
    """The answers of several jobs, in their order."""
    from covey.agent.training.together import together

    def trained(requests: Sequence[Any]) -> Sequence[Any]:
        from covey.agent.training.batched import batched  # torch, which the learner has loaded

        return batched(requests)

    return {"answers": together([partial(answer, one, options) for one in job["jobs"]], trained)}


class DamagedModel(Exception):  # noqa: N818 - the service fetches it again
    """The content of a model's file does not match the digest in its name.

    Attributes:
        digest: the digest in the file's name.
    """

    def __init__(self, digest: bytes) -> None:
        super().__init__(digest.hex())
        self.digest = digest


def _work(
    job: frames.Job, order: OrderMessage, memory_out: Path, threads: int
) -> tuple[ReportContent, bytes, frames.Job | None, int]:
    """Execute an order.

    Returns:
        The report; the seal of the new memory's file, b"" if the memory is unchanged; what became of the model
        that the device may use, None if the order has none or the device keeps none; and the samples on whose outputs of
        frozen layers a model trained, 0 for none.

    Raises:
        PolicyError: the rules of this device refuse the order.
        ModelDamaged, MemoryDamaged: a file that the work needs is damaged.
        DiskFull: the new memory does not fit on the disk.
    """
    from covey.agent.worker.sources import is_simulated, source_of
    from covey.shared.privacy.noise import Noise
    from covey.shared.privacy.settings import AgentPrivacy, Budget, Trainings
    from covey.shared.wire.messages import device_name, is_base
    from covey.shared.work.client import PRIVACY_LEDGER, execute_order, simulated_noise
    from covey.shared.work.judge import forgotten, has_judge, is_last
    from covey.shared.work.order_settings import layout_of, settings_of, task_of

    work = order.work
    if work is None:
        raise ValueError(f"order {order.step} has no work")
    rules = OwnersRules.from_wire(job)
    client = job["client"]
    refusal = rules.refuses(order, client)
    if refusal is not None:
        raise PolicyError(refusal)
    strategy, _ = settings_of(work)
    values_of(work.layout)  # raises PolicyError before anything is built from a malformed layout
    layout = layout_of(work)
    simulated = is_simulated(job["source"])
    # a device works on each model once, and has no memory to spare
    models_of_order = _newest_models if simulated else ModelCache()
    paths = list(job["models"])
    named_last = work.models[-1].key if work.models else ""
    base = [_base(Path(paths.pop()), layout)] if is_base(named_last) else []
    models = [*models_of_order.models(paths, layout, _model), *base]
    memory: ClientState = {}
    if job["memory"]:
        memory = load_memory(Path(job["memory"]), job.get("memory_digest", ""))
    noise = simulated_noise(work, client) if simulated else Noise.secret()
    source = source_of(job["source"])
    if work.phase in EXCHANGES:
        local: Any = _Late(
            lambda: _locals(source, work, layout, client=client, rules=rules, threads=threads)[0],
            lambda: source.dataset(task_of(work), work.round).test_targets,
        )
        held_back: Any = None
        folds: Iterable[Any] = ()
    else:
        local, held_back, folds = _locals(
            source, work, layout, client=client, rules=rules, threads=threads
        )
    others: Mapping[str, Any] = {}
    budget_s = None
    if has_judge(work):
        others = _others(task_of(work))
        if not simulated:
            budget_s = work.evaluation["deliver"].get("budget_s")
    privacy = AgentPrivacy.from_wire(work.privacy)
    demand = rules.policy.privacy
    promises = _promises(rules.policy, work, strategy)
    _check_noise(demand, work, strategy, promises)
    # an evaluation trains without noise; what reads that training stays here (`covey.shared.disclosures`)
    if privacy.local is not None and work.phase != EVALUATE:
        facet = strategy.privacy.local or Trainings()
        budget = Budget(facet, privacy.rounds, work.round, work.phase == TRAIN)
        account = None
        if not simulated and "account" in job:
            account = DeviceAccount(Path(job["account"]), demand.local_epsilon, demand.local_delta)
        local.enable_privacy(privacy.local, budget, noise, memory.get(PRIVACY_LEDGER), account)
    content, new = execute_order(
        order,
        models,
        local,
        memory,
        client=client,
        noise=noise,
        held_back=held_back,
        folds=folds,
        others=others,
        budget_s=budget_s,
        secure=_secure(job, work, rules, simulated=simulated),
    )
    circumstances = {
        "client_state": job.get("client_state", "whole"),
        "device": device_name(
            local.device, platform.machine(), framework_of(rules.learner) or rules.learner
        ),
    }
    content = content.model_copy(update=circumstances)
    content = cleared(content, work.phase, promises)
    frozen_once = getattr(local, "frozen_once", 0)
    judged = new if has_judge(work) else memory
    kept = _kept(job, order, models, local, memory=judged, others=others)
    if kept is not None:  # whether a status may have its figure
        kept["tells"] = NUMBERS_OF_EVALUATION["delivered"].leaves(promises)
    if has_judge(work) and is_last(work):
        new = forgotten(new)
    if new is memory:
        return content, b"", kept, frozen_once
    return content, save_memory(memory_out, new, durable=job["durable"]), kept, frozen_once


def _check_noise(
    demand: PrivacyDemand, work: Work, strategy: Strategy[Any], promises: set[Promise]
) -> None:
    """Raise PolicyError where this device demands noise, and the method's reports have none; or DP-SGD would not hide all."""
    from covey.shared.work.label_prior import asks_for_prior

    method = work.strategy["name"]
    if Promise.NOISED in promises and asks_for_prior(work):
        raise PolicyError(
            "privacy.local: task.label_prior adds counts of this device's classes without noise; set it to off"
        )
    if (
        demand.local_epsilon is not None
        and work.phase != EVALUATE
        and strategy.privacy.local is None
    ):
        raise PolicyError(
            f"policy of this device: privacy.local_epsilon: {method}'s reports hold more than models of DP-SGD"
        )
    lacks_noise = work.phase in SIGNATURES and work.phase not in strategy.facts.signatures
    if demand.signatures is not None and lacks_noise:
        raise PolicyError(
            f"policy of this device: privacy.signatures: {method} adds no noise in the phase {work.phase}"
        )


def _promises(policy: Policy, work: Work, strategy: Strategy[Any]) -> set[Promise]:
    """What keeps fields of the report of this work back: what the owner demands, and what the order promises."""
    from covey.shared.work.client import serves_own

    found = set(policy.promises)
    asked = work.privacy or {}
    if asked.get("secure"):
        found.add(Promise.SUMMED)
    if asked.get("local"):
        found.add(Promise.NOISED)
    demand = policy.privacy
    may_be_clear = demand.secure_least is None or demand.secure_clear
    if (
        may_be_clear
        and strategy.facts.sealed is not None
        and work.phase in strategy.facts.sealed.clear
    ):
        found.discard(Promise.SUMMED)
    if Promise.NOISED in found and serves_own(strategy):
        found.add(Promise.AT_HOME)
    return found


class _Late:
    """A learner that is made once something is asked of it: exchanges of messages need no torch, and no data but the targets
    of the test part, if any are there for an evaluation."""

    device = "cpu"

    def __init__(self, make: Callable[[], Any], tests: Callable[[], Any]) -> None:
        self._make = cache(make)
        self._tests = tests

    def targets(self, split: str) -> Any:
        return self._tests() if split == "test" else self._make().targets(split)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._make(), name)


def _secure(job: frames.Job, work: Work, rules: OwnersRules, *, simulated: bool) -> Any:
    """The keys and the state of secure sums; None if the order has none, or this device no keys for them."""
    if not (work.privacy or {}).get("secure"):
        return None
    from covey.agent.kept.secure_folder import SecureFolder
    from covey.shared.secure.simulated import simulated_identity

    place, demand, ahead = (
        Path(job["secure"]),
        rules.policy.privacy.of_sums(),
        bool(job.get("ahead")),
    )
    if simulated:
        identity = simulated_identity(work.seed, job["client"])
        return SecureFolder(place, identity, demand, simulated=True, ahead=ahead)
    return SecureFolder.of_device(place, demand, ahead=ahead)


def _kept(
    job: frames.Job,
    order: OrderMessage,
    models: Sequence[Any],
    local: Any,
    *,
    memory: ClientState,
    others: Mapping[str, Any],
) -> frames.Job | None:
    """Keep the model of an order for the device's own use. A failure is an answer: it must not cost the report."""
    if job.get("keep") is None or order.work is None:
        return None
    from covey.agent.worker.keep import KeepPlace, keep_of_order
    from covey.agent.worker.sources import source_of
    from covey.shared.scenario.task import Task

    try:
        task = Task.model_validate(order.work.task)
        return keep_of_order(
            order,
            models,
            local,
            memory,
            client=job["client"],
            others=others,
            dataset=source_of(job["source"]).dataset(task, order.work.round),
            place=KeepPlace.of(job["keep"]),
            rules=OwnersRules.from_wire(job),
        )
    except Exception as error:
        return {"failure": _explain(error)}


def _base(path: Path, layout: Layout) -> Vector:
    """The values of a base (d,). Raises ModelDamaged if the file does not match the digest in its name."""
    from covey.shared.scenario.base import base_vector, check_size

    check_size(path.stat().st_size, layout)
    return base_vector(_model_content(path), layout)


def _model(path: Path, layout: Layout) -> Vector:
    """The model (d,) in a file. Raises ModelDamaged if the file does not match the digest in its name."""
    from covey.shared.work.client import decode_model

    return decode_model(_model_content(path), layout, verified=is_named_by_digest(path))


def _model_content(path: Path) -> bytes:
    """The content of a model's file. Raises ModelDamaged if it does not match the digest in the name."""
    from covey.shared.wire.messages import digest

    content = path.read_bytes()
    if is_named_by_digest(path) and digest(content).hex() != path.stem:
        raise DamagedModel(bytes.fromhex(path.stem))
    return content


def _locals(
    source: Source, work: Work, layout: Any, *, client: str, rules: OwnersRules, threads: int
) -> tuple[Any, Any | None, Iterable[Any]]:
    """The learner on this device's data; one on the samples that it holds back for votes, if the run has any; and of an
    evaluation those on which it chooses a model, made when they are used.

    In the phase that only describes the data: its description.
    """
    prepared(rules, threads)  # before any other module imports torch

    from covey.agent.data.dataset import folds, hold_back
    from covey.agent.data.survey import DataSurvey
    from covey.shared.scenario.fleet_statistics import resolved
    from covey.shared.strategies.base import HOLD_BACK, Fold
    from covey.shared.work.client import shuffle
    from covey.shared.work.order_settings import settings_of, task_of

    task = task_of(work)
    data = source.dataset(task, work.round)
    held = None
    if HOLD_BACK in work.numbers:
        data, held = hold_back(data, work.seed, client)
    if work.phase == MOMENTS:
        return DataSurvey(data, task), None, ()
    task = resolved(task, work.scaling)
    learner = learner_for(task, rules)
    _, training = settings_of(work)

    def local_of(samples: Any) -> Any:
        return learner.local(
            samples, task, layout, training=training, rng=shuffle(work, client), rules=rules
        )

    local = local_of(data)
    if work.phase not in (EVALUATE, VOTE):
        return local, None, ()
    own = (Fold(local_of(part), units) for part, units in folds(data, work.seed, client))
    return local, held and local_of(held), own


def _others(task: Any) -> Mapping[str, Any]:
    """What makes candidates that need more than models, by name."""
    if len(task.features) != 1:  # no table
        return {}
    from covey.agent.data.trees import trees_for

    trees = trees_for(task)
    return {} if trees is None else {"trees": trees}


def _write(path: Path, content: bytes | memoryview, *, durable: bool) -> None:
    """Write a file under a temporary name of this process, because another process may still work on the same step.

    Its name becomes durable with the state of the outbox, which lies in the same folder and names it before it is sent.

    Raises:
        DiskFull: the disk has no room for it.
    """
    try:
        write_atomically(path, content, durable=durable, mark=str(os.getpid()), name_durable=False)
    except OSError as error:
        raise unwritten(error, path) from error


def _explain(error: Exception, options: WorkerOptions = DEFAULTS) -> str:
    """An error in one line for the device's own terminal; verbose: with its traceback on stderr."""
    if options.verbose:
        traceback.print_exception(error)
    text = str(error) if isinstance(error, CoveyError) else f"{type(error).__name__}: {error}"
    return _line(text)


def _told(error: Exception, rules: OwnersRules) -> str:
    """The text about an error that may leave the device.

    A task names the classes that data should have, and a fault the first row that has another one: of enough tasks these are
    the data. An owner who keeps anything back keeps that back too.
    """
    if isinstance(error, DataError) and rules.policy.promises:
        return DataError(str(error)).public
    return public_text(error)


def _line(text: str) -> str:
    """One line of at most MAX_LINE characters."""
    return " ".join(text.split())[:MAX_LINE]


if __name__ == "__main__":
    main()
