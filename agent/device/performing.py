"""The jobs that an agent gives to its workers: inspect the data, do the work of an order, judge a model.

A job takes long and changes nothing of this agent. Its answer is settled at once, with the event that the session has to
know, unless the job was given up meanwhile. Reports, models and memories are only handed around by path: the
worker reads and writes them, this process never holds them.

Whether the work of a task fits into the memory that the owner of a device allows, and what would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from covey.agent.device import events as e
from covey.agent.device import notices as n
from covey.agent.device.fetching import is_exchange
from covey.agent.device.identity import Identity
from covey.agent.device.model_store import ModelStore
from covey.agent.device.outbox import Outbox
from covey.agent.kept import privacy_account
from covey.agent.policy import OF_THE_OWNER, TAKES_MORE, OwnersRules, chosen_rows
from covey.agent.worker.pool import PoolLike, WorkerLost
from covey.shared.errors import UserError
from covey.shared.storage.files import obstacle, write_atomically
from covey.shared.strategies.phase_names import AHEAD
from covey.shared.wire.deployments import Deployment
from covey.shared.wire.jobs import (
    Adopted,
    BadDisk,
    BadMemory,
    BadModel,
    Failure,
    InspectData,
    Perform,
    Performed,
    TryStep,
    WorkerJob,
)
from covey.shared.wire.messages import OrderMessage, ReportContent, digest

if TYPE_CHECKING:
    from covey.extras.in_use.keeper import Keeper


Call = Callable[[TryStep], Awaitable[object]]


async def too_large(call: Call, job: TryStep) -> str:
    """Why a job exceeds a limit of the owner, and for memory a smaller batch that fits; empty if the job is within the limits,
    whatever else is wrong: the work itself reports that.

    Args:
        call: gives a job to a worker.
        job: trains with its `batch`.
    """
    answer = await call(job)
    if not isinstance(answer, Failure) or not answer.why.startswith(OF_THE_OWNER):
        return ""
    return f"{answer.why}; {await what_fits(call, job)}" if TAKES_MORE in answer.why else answer.why


async def what_fits(call: Call, job: TryStep) -> str:
    """What to change where the work of a batch takes too much memory: each half of the batch is tried."""
    advice = "freeze more of the model (task.freeze, task.share), or choose a smaller one"
    batch = job.batch
    while batch > 1:
        batch //= 2
        if not isinstance(await call(replace(job, batch=batch)), Failure):
            return f"a batch of {batch} fits (training.batch); or {advice}"
    return f"no batch fits; {advice}"


A = TypeVar("A")
BeforeReport = Callable[[OrderMessage], Awaitable[None]]
FULL_NOTICE_S = 60.0  # between two notices about a full disk
FULL_PAUSE_S = 1.0  # between two attempts to write to it
MAX_FAILURE_CHARACTERS = 1000
FIRST = float("inf")  # the weight of a job that goes before all others


def of_work(order: OrderMessage) -> OrderMessage:
    """The order of a method's work that an order for boxes announces."""
    assert order.work is not None  # noqa: S101 - it has one
    numbers = dict(order.work.numbers)
    work = order.work.model_copy(update={"phase": str(numbers.pop(AHEAD)), "numbers": numbers})
    return order.model_copy(update={"work": work})


class DiskWait:
    """Waits for a disk that cannot be written to, and lets a person know about it from time to time."""

    def __init__(self, observer: n.DeviceObserver) -> None:
        self._observer = observer
        self._noticed_at = -FULL_NOTICE_S  # when the latest notice was given

    def notice(self, why: str) -> None:
        """Give notice of the obstacle, at most once a minute."""
        now = asyncio.get_running_loop().time()
        if now >= self._noticed_at + FULL_NOTICE_S:
            self._noticed_at = now
            self._observer(n.DiskFull(f"{why}; this agent waits until then"))

    async def wait(self, why: str) -> None:
        """Give notice of the obstacle, and let a little time pass."""
        self.notice(why)
        await asyncio.sleep(FULL_PAUSE_S)


@dataclass(frozen=True)
class DeviceParts:
    """What an agent has on its device."""

    identity: Identity  # who the agent is, and whose data the worker reads
    rules: OwnersRules  # what a coordinator may ask
    outbox: Outbox  # where reports and memories go
    store: ModelStore  # where models come from
    deployed: ModelStore | None  # models that were published for use; None if it keeps none
    keeper: Keeper | None  # names the model that the device uses; None if it keeps none
    observer: n.DeviceObserver  # receives notices


@dataclass(frozen=True)
class Done:
    """A worker's answer to an order."""

    order: OrderMessage
    answer: Performed | BadModel | Failure

    def known(self) -> Done:
        """The same where its number of samples is not compared any more."""
        assert isinstance(self.answer, Performed)  # noqa: S101 - it had more
        return replace(self, answer=replace(self.answer, examples=0))


@dataclass(frozen=True)
class JudgedForUse:
    """A worker's answer about a model that was published for use."""

    deployment: Deployment
    answer: Adopted | BadModel | Failure


class Performer:
    """Turns orders and tasks into jobs, and answers into reports and events.

    Args:
        device: of the agent.
        pool: the workers.
        before_report: awaited between the work and its report, for drills.
    """

    def __init__(self, device: DeviceParts, pool: PoolLike, before_report: BeforeReport) -> None:
        self._identity = device.identity
        self._rules = device.rules
        self._outbox = device.outbox
        self._store = device.store
        self._keeper = device.keeper
        self._observer = device.observer
        self._pool = pool
        self.disk = DiskWait(device.observer)  # while it has no room for a report
        self._before_report = before_report
        self._is_free = asyncio.Event()  # cleared while work is done ahead
        self._is_free.set()
        self._samples = 0.0  # training samples of the newest inspection: the weight of later jobs

    async def inspect(self, task: dict[str, Any], task_digest: str, batch: int = 0) -> e.Inspected:
        """Compare the data with a task, and the memory of a training step with the owner's limits, if there are any."""
        source, rules = self._identity.source, self._rules.for_job()
        # who takes part must be known before any work
        found = await self._first_call(InspectData(source=source, task=task, rules=rules))
        if isinstance(found, Failure):
            return e.Inspected(task_digest, problem=found.why, detail=found.detail)
        if found.problem:
            return e.Inspected(task_digest, problem=found.problem, detail=found.detail)
        if batch and self._rules.policy.limits_memory:
            step = TryStep(source=source, task=task, batch=batch, rules=rules)
            problem = await too_large(self._first_call, step)
            if problem:
                return e.Inspected(task_digest, problem=problem, detail=problem)
        self._samples = float(found.samples)
        remarks = [f"the task {one}" for one in chosen_rows(task).values()]
        if found.detail:
            remarks.append(f"left out without a word to the coordinator: {found.detail}")
        self._observer(n.DataFits(found.samples, found.test_samples, "; ".join(remarks)))
        return e.Inspected(task_digest, found.samples, found.test_samples, tuple(found.labels))

    async def _first_call(self, job: WorkerJob[A]) -> A | Failure:
        return await self._call(job, weight=FIRST)

    async def perform(self, order: OrderMessage) -> Done:
        """Do the work of an order."""
        limit_s = self._rules.policy.max_seconds
        try:
            async with asyncio.timeout(limit_s):
                answer = await self._work(order)
        except TimeoutError:
            rule = "policy of this device: max_seconds"
            answer = Failure(why=f"{rule}: the work took longer than {limit_s:g} s")
        assert order.work is not None  # noqa: S101 - only work is performed
        if isinstance(answer, Failure) and self._rules.hides_failures(order.work):
            answer = await self._work(order, lost=answer.in_full)
        if isinstance(answer, Performed):
            await self._before_report(order)
        return Done(order, answer)

    async def write_failure(self, order: OrderMessage, why: str) -> Done:
        """Write a report that names why there is no result."""
        failure = ReportContent.failed(order, self._identity.agent, why[:MAX_FAILURE_CHARACTERS])
        content = failure.to_bytes()
        report, _ = self._outbox.places(order.step)
        while why := self._obstacle_to(report, content):
            await self.disk.wait(why)
        return Done(order, Performed(digest=digest(content), size=len(content)))

    def has_more_than_known(self, done: Done) -> bool:
        """Whether the work had more samples than the newest inspection of a device's own data: they came since."""
        found = done.answer.examples if isinstance(done.answer, Performed) else 0
        return self._identity.data is not None and 0 < self._samples < found

    def settle(self, done: Done) -> e.WorkDone | e.WorkerGone | e.ModelDamaged:
        """Put the report of an order into the outbox."""
        order, answer = done.order, done.answer
        if isinstance(answer, BadModel):
            self._observer(n.Damaged(self._store.remove(answer.digest)))
            return e.ModelDamaged(answer.digest)
        if isinstance(answer, Failure):
            self._observer(n.OrderFailed(order.step, answer.in_full))
            return e.WorkerGone(order.step, answer.why)
        if answer.failed:
            self._observer(n.OrderFailed(order.step, answer.failed))
        if answer.frozen_once:
            self._observer(n.FrozenOnce(order.step, answer.frozen_once))
        if self._keeper is not None:
            self._keeper.settle(answer.kept)
        assert order.work is not None  # noqa: S101 - only work makes a report
        self._outbox.put(
            order.step,
            answer.digest,
            answer.size,
            work=order.work.digest,
            part_bytes=order.work.part_bytes,
            with_memory=bool(answer.memory_digest),
            memory_digest=answer.memory_digest,
        )
        return e.WorkDone(order.step)

    async def judge(
        self, keeper: Keeper, store: ModelStore, deployment: Deployment, clusters: Sequence[int]
    ) -> JudgedForUse:
        """Let the worker judge a model that was published for use."""
        models = [store.path(deployment.models[cluster].digest) for cluster in clusters]
        job = keeper.job(
            self._identity.source, self._rules, deployment.to_bytes(), clusters, models
        )
        return JudgedForUse(deployment, await self._call(job, weight=self._samples))

    async def measured(self, keeper: Keeper) -> Adopted | BadModel | Failure:
        """The worker's answer about the model in use, on data that have changed."""
        job = keeper.job(self._identity.source, self._rules)
        return await self._call(job, weight=self._samples)

    def settle_deployment(
        self, keeper: Keeper, store: ModelStore, judged: JudgedForUse
    ) -> e.DeploymentSettled | e.DeployedModelDamaged:
        """Take a published model over if it is good enough."""
        deployment, answer = judged.deployment, judged.answer
        if isinstance(answer, BadModel):
            self._observer(n.Damaged(store.remove(answer.digest)))
            return e.DeployedModelDamaged(answer.digest)
        if isinstance(answer, Failure):  # the next start tries again
            keeper.settle(answer)
        else:
            keeper.settle(answer.kept)
            keeper.deployment_settled(deployment)
        return e.DeploymentSettled(deployment.serial)

    async def work_ahead(self, order: OrderMessage) -> None:
        """Train for a secure sum while its messages are exchanged. What comes of it stays on the device."""
        self._is_free.clear()
        try:
            place = self._identity.state / "ahead"
            job = replace(
                self._job(of_work(order)), ahead=True, keep=None, report_out=place, memory_out=place
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(self._rules.policy.max_seconds):
                    await self._call(job, weight=self._samples)
        finally:
            self._is_free.set()

    async def _work(self, order: OrderMessage, lost: str = "") -> Performed | BadModel | Failure:
        """The worker's answer to an order. If its memory is damaged, the work begins again without it.

        Args:
            order: with work.
            lost: why the data have no part in it; empty: they have.
        """
        weight = self._samples
        if is_exchange(order):
            weight = FIRST  # others wait for these messages
        else:
            await self._is_free.wait()
        while True:
            answer = await self._call(replace(self._job(order), lost=lost), weight=weight)
            match answer:
                case BadMemory():
                    self._observer(n.Damaged(self._outbox.set_memory_aside()))
                case BadDisk(why=why, waits=True):
                    await self.disk.wait(why)
                case BadDisk(why=why):
                    raise UserError(why)
                case _:
                    return answer

    def _job(self, order: OrderMessage) -> Perform:
        report, memory = self._outbox.places(order.step)
        state = self._outbox.state
        folder = self._identity.state
        return Perform(
            source=self._identity.source,
            client=self._identity.agent,
            order=order.to_bytes(),
            models=[self._store.path(ref.digest) for ref in order.work.models]
            if order.work
            else [],
            memory=self._outbox.memory,
            memory_digest=state.memory_digest,
            client_state=state.lost or "whole",
            report_out=report,
            memory_out=memory,
            durable=self._identity.durable,
            account=folder / privacy_account.FILE,
            secure=folder / "secure",
            keep=None if self._keeper is None else self._keeper.place_for(order),
            rules=self._rules.for_job(),
        )

    async def _call(self, job: WorkerJob[A], *, weight: float) -> A | Failure:
        """The answer to a job. If the worker dies, the job gets a second chance: mostly it was an accident."""
        try:
            return await self._pool.call(job, weight=weight)
        except WorkerLost as error:
            self._observer(n.WorkerDied(job.called, f"{error}; the job is done again"))
        try:
            return await self._pool.call(job, weight=weight)
        except WorkerLost as error:
            return Failure(why=error.public, detail=str(error))

    def _obstacle_to(self, path: Path, content: bytes) -> str:
        """Write a file whole: "", or why the disk cannot take it for the time being."""
        try:
            write_atomically(path, content, durable=self._identity.durable)
        except OSError as error:
            if why := obstacle(error, path.parent):
                return why
            raise
        return ""
