"""The models that a device uses itself: what the worker has judged becomes the model in use, or stays out.

The command of the device's owner that runs after a new model was taken over (`agent start --on-model`).

It comes from the command line alone, never from the network. It runs without a shell, and nothing that it does can hurt
the agent: its failure is reported and counted, and after a time limit it is ended together with its children.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from covey.agent.device.events import ModelSettled
from covey.agent.device.notices import (
    Damaged,
    DeviceObserver,
    HookFailed,
    ModelNotKept,
    ModelRejected,
    ModelTaken,
    Problem,
)
from covey.agent.policy import OwnersRules
from covey.extras.in_use.kept_versions import DEFAULT_MARGIN, Version, shown_figure
from covey.extras.in_use.model_dir import DEFAULT_RUNS, ModelDir
from covey.shared.errors import UserError
from covey.shared.storage.files import folder_lock
from covey.shared.wire.deployments import Deployment
from covey.shared.wire.documents import FELL, IN_USE, MAX_USES, ModelInUse
from covey.shared.wire.framing import MAX_TEXT
from covey.shared.wire.jobs import (
    Adopted,
    AdoptModel,
    DataSource,
    Failure,
    KeepPlace,
    ModelJudgement,
)
from covey.shared.wire.messages import OrderMessage

LIMIT_S = 60.0
SHARE = 0.05  # of its time in which a device may measure the model in use, on data that change all the time
# the agent's options, a broker's password among them: the command gets none of them
OWN_VARIABLES = "COVEY_"

OnFailure = Callable[[str], None]


def parse_hook(command: str) -> tuple[str, ...]:
    """The words of a command. Raises UserError if there are none, or a quotation has no end."""
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UserError(f"--on-model {command}: {error}; close the quotation") from None
    if not words:
        raise UserError("--on-model: expected a command, such as 'systemctl restart predictor'")
    return words


class ModelHook:
    """Runs the command, one at a time. If models arrive faster than it ends, those in between are left out.

    Args:
        words: the command and its arguments; the path of the new model follows as the last one.
        limit_s: how long it may run.
        failed: called with the reason of each failure.
    """

    def __init__(self, words: Sequence[str], limit_s: float, failed: OnFailure) -> None:
        self._words = tuple(words)
        self._limit_s = limit_s
        self._failed = failed
        self._next: tuple[Path, Version] | None = None  # what to run for once the present run ends
        self._running: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<ModelHook {shlex.join(self._words)}>"

    def start(self, path: Path, version: Version) -> None:
        """Run the command for this model, now or when the present run has ended."""
        self._next = (path, version)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run_all())

    async def close(self) -> None:
        """End the command if it runs."""
        if self._running is None:
            return
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    async def _run_all(self) -> None:
        while self._next is not None:
            path, version = self._next
            self._next = None
            try:
                why = await self._run(path, version)
            except Exception as error:  # whatever happens to the command, the agent lives on
                why = f"{type(error).__name__}: {error}"
            if why:
                self._failed(f"{self._words[0]}: {why}")

    async def _run(self, path: Path, version: Version) -> str:
        """Run the command once. Returns why it failed; empty if it did not."""
        process = await asyncio.create_subprocess_exec(
            *self._words,
            str(path),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sys.stderr,  # the agent's own stdout may be read by a program
            env=_environment(path, version),
            start_new_session=True,  # so that its children can be ended with it
        )
        try:
            async with asyncio.timeout(self._limit_s):
                code = await process.wait()
        except TimeoutError:
            return f"it was stopped after {self._limit_s:g} s"
        finally:
            await _end(process)
        return f"it ended with exit code {code}" if code else ""


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a command and its children."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _environment(path: Path, version: Version) -> dict[str, str]:
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(OWN_VARIABLES)
    }
    variables["COVEY_MODEL"] = str(path)
    variables["COVEY_MODEL_RUN"] = version.run
    variables["COVEY_MODEL_ROUND"] = str(version.round)
    variables["COVEY_MODEL_CLUSTER"] = "" if version.cluster is None else str(version.cluster)
    return variables


KEPT_PHASES = frozenset({"train", "evaluate"})  # whose orders may name a model for use


@dataclass(frozen=True)
class KeepOptions:
    """What the device's owner set for the models that the device uses."""

    folder: Path
    margin: float = DEFAULT_MARGIN  # how much worse a new model may be
    runs: int = DEFAULT_RUNS  # whose best models stay on disk
    hook: tuple[str, ...] = ()  # words of a command that runs after each change; none: no command
    hook_limit_s: float = LIMIT_S
    data: str = ""  # that the device trains on: an absolute path


class Keeper:
    """Names the model in use.

    Args:
        options: of the device's owner.
        observer: receives notices.
        settled: called after each decision.
        durable: whether models survive a power cut.

    Raises:
        UserError: another agent uses the folder.
    """

    def __init__(
        self,
        options: KeepOptions,
        observer: DeviceObserver,
        settled: Callable[[ModelSettled], None],
        *,
        durable: bool = True,
    ) -> None:
        self._options = options
        self._observer = observer
        self._settled = settled
        self.models = ModelDir(options.folder, options.runs, durable, options.data)
        self._lock = contextlib.ExitStack()
        self._lock.enter_context(
            folder_lock(
                options.folder,
                f"--model-dir {options.folder}: another agent keeps its models here; give each agent a folder of its own",
            )
        )
        self._is_changed = False  # the data, since the model in use was measured
        self._measuring: asyncio.Task[None] | None = None
        self._refused: Deployment | None = None  # the newest publication that the policy refused
        self._hook: ModelHook | None = None
        if options.hook:
            self._hook = ModelHook(options.hook, options.hook_limit_s, self._hook_failed)

    def __repr__(self) -> str:
        return f"<Keeper {self._options.folder}: {self.models.in_use}>"

    def report_damage(self) -> None:
        """Give notice of an index that could not be read."""
        if self.models.damage:
            self._observer(Damaged(self.models.damage))

    @property
    def status(self) -> ModelInUse:
        """The model in use as the agent's status shows it."""
        index = self.models.index
        version = self.models.in_use
        refused = self._refused
        note = index.note
        if refused is not None:
            note = f"refused by the policy of this device: {refused.title}"
        measured, uses = None, ""
        if version is not None and index.in_use is not None and index.tells:
            measured, uses = shown_figure(index.in_use.figure), version.uses
        return ModelInUse(
            run=version.run if version is not None else "",
            round=version.round if version is not None else 0,
            name=version.name if version is not None else "",
            cluster=version.cluster if version is not None else None,
            serial=index.serial if refused is None else refused.serial,
            rejected=index.rejected,
            hook_failures=index.hook_failures,
            note=note[:MAX_TEXT],
            figure=None if measured is None else measured[1],
            measure="" if measured is None else measured[0],
            uses=uses[:MAX_USES],
        )

    def place(self) -> KeepPlace:
        """The folder of models and what a new one is compared with, for a worker's job."""
        version, accepted = self.models.in_use, self.models.accepted
        earlier = [one.version for one in self.models.index.previous]
        return KeepPlace(
            folder=self._options.folder.absolute(),
            current=version.file if version is not None else "",
            accepted=accepted.file if accepted is not None else "",
            margin=self._options.margin,
            earlier=tuple(one.file for one in [*earlier, *filter(None, [accepted])]),
        )

    def job(
        self,
        source: DataSource,
        rules: OwnersRules,
        deployment: bytes = b"",
        clusters: Sequence[int] = (),
        models: Sequence[Path] = (),
    ) -> AdoptModel:
        """A worker's job: judge models that were published; without any, measure the one in use."""
        return AdoptModel(
            source=source,
            deployment=deployment,
            clusters=[*clusters],
            models=[*models],
            keep=self.place(),
            rules=rules.for_job(),
        )

    def place_for(self, order: OrderMessage) -> KeepPlace | None:
        """The same for the work of an order; None if its model is not to be kept."""
        work = order.work
        if (
            work is None
            or not order.use
            or work.phase not in KEPT_PHASES
            or self.models.index.pinned
        ):
            return None
        return self.place()

    def settle(self, answer: ModelJudgement | Failure | None) -> Version | None:
        """Make the worker's answer about a model the device's own.

        Args:
            answer: about the model; None if nothing changes.

        Returns:
            The version that was judged; None if none was.
        """
        if answer is None:
            return None
        if isinstance(answer, Failure):
            self._observer(ModelNotKept(answer.why))
            return None
        version = Version.from_json(answer.version)
        try:
            if answer.tells is not None and answer.tells is not self.models.index.tells:
                self.models.note_telling(tells=answer.tells)
            if answer.accepted:
                self._take(version, answer)
            else:
                self._reject(version, answer.why)
        except OSError as error:  # a full disk, for instance: the model in use stays
            self._observer(ModelNotKept(str(error)))
            return None
        self._announce()
        return version

    def data_changed(self, ask: Callable[[Keeper], Awaitable[object]]) -> None:
        """Measure the model in use again, after a while if it was measured lately: data may grow by a row a second."""
        self._is_changed = True
        if self._measuring is None or self._measuring.done():
            self._measuring = asyncio.create_task(self._measure(ask))

    async def _measure(self, ask: Callable[[Keeper], Awaitable[object]]) -> None:
        clock = asyncio.get_running_loop().time
        while self._is_changed:
            self._is_changed, began = False, clock()
            if self.models.in_use is not None:
                self._measured(await ask(self))
            await asyncio.sleep((clock() - began) / SHARE)

    def _measured(self, answer: object) -> None:
        kept = answer.kept if isinstance(answer, Adopted) else None
        version, index = self.models.in_use, self.models.index
        if kept is None or version is None or kept.version != version.to_json():
            return
        note = f"{IN_USE}{version.title}"
        if not kept.accepted:
            self._observer(Problem(f"{version.title}{FELL}{kept.why}"))
            note += f"{FELL}{kept.why}" if index.tells else ""
        if index.note.startswith(IN_USE) and note != index.note:
            with contextlib.suppress(OSError):  # a full disk: the next change reports it
                self.models.note_measured(note)
            self._announce()

    def has_settled(self, deployment: Deployment) -> bool:
        """Whether the device uses these models already, or a finished run publishes what the device has judged.

        The last evaluation of a run gives devices their models, before the run publishes them. A method with a personal
        part gives others than it publishes: what an operator publishes replaces these.
        """
        published = Version(deployment.run, deployment.round)
        in_use = self.models.in_use
        if deployment.origin == "run":
            rejected = self.models.index.last_rejected
            return published.is_same_model(in_use) or published.is_same_model(rejected)
        return in_use is not None and in_use.origin != "order" and published.is_same_model(in_use)

    def deployment_settled(self, deployment: Deployment) -> None:
        """A deployment was dealt with. If the model in use is an operator's choice, models of orders do not replace it."""
        self._refused = None
        published = Version(deployment.run, deployment.round, name=deployment.name)
        pinned = published.is_same_model(self.models.in_use) and deployment.origin == "operator"
        try:
            self.models.settle(deployment.serial, pinned=pinned, published=published)
        except OSError as error:  # a full disk: the next start deals with it again
            self._observer(ModelNotKept(str(error)))
        self._announce()

    def deployment_refused(self, deployment: Deployment) -> None:
        """The policy refuses a deployment. The disk does not note it: the next start asks the policy again."""
        self._refused = deployment
        self._announce()

    def _reject(self, version: Version, why: str) -> None:
        self.models.reject(version, why)
        self._observer(
            ModelRejected(version.run, version.round, version.cluster, str(version), why)
        )

    def _take(self, version: Version, answer: ModelJudgement) -> None:
        why, figure = answer.why, answer.figure
        measured = None if figure is None else (figure[0], figure[1])
        path = self.models.take(version, why, measured, is_first=answer.is_first)
        taken = ModelTaken(
            version.run, version.round, version.cluster, str(version), str(path), why
        )
        self._observer(taken)
        if self._hook is not None:
            self._hook.start(path.absolute(), version)

    def _announce(self) -> None:
        self._settled(ModelSettled(self.status))

    def _hook_failed(self, why: str) -> None:
        self._observer(HookFailed(why))
        with contextlib.suppress(OSError):  # a full disk: the count is of no great importance
            self.models.count_hook_failure()
        self._announce()

    async def close(self) -> None:
        """End the command and the measuring if they run, and give the folder free."""
        if self._measuring is not None:
            self._measuring.cancel()
        if self._hook is not None:
            await self._hook.close()
        self._lock.close()
