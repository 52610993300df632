"""The worker process: the only part of a running agent that imports numpy, and torch if the device trains with it.

`python -m covey.agent.worker.worker` reads jobs from stdin and answers on stdout (`covey.shared.wire.jobs` has them all;
`covey.agent.worker.pool` is the other end). An error in a job becomes an answer and never ends the worker. The worker ends
when its stdin closes or its parent ends.

The modules behind a kind of job are imported with the first of them: most workers see two or three kinds.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Sequence
from functools import partial
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from covey.agent.learner_choice import TORCH
from covey.agent.policy import OwnersRules
from covey.agent.worker.learners import learner_for, load_library
from covey.agent.worker.process import WorkerOptions, memory_limited, prepared
from covey.shared import extras
from covey.shared.errors import DataError, UserError, public_text
from covey.shared.own_code.consent import AllowedCode, consented, framework_of
from covey.shared.own_code.faults import own_code
from covey.shared.programs.child import death_with_parent
from covey.shared.scenario.task import Task
from covey.shared.wire import jobs as j

if TYPE_CHECKING:
    from covey.agent.data import Dataset

DEFAULTS = WorkerOptions()


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
        job = j.read(jobs)
        if job is None:
            return
        try:
            answers.write(j.pack(answer(job, options)))
        except BrokenPipeError:
            return


def answer(job: j.WorkerJob[Any], options: WorkerOptions = DEFAULTS) -> Any:
    """Do one job.

    Args:
        job: what to do.
        options: of this worker.

    Returns:
        The job's answer, or a `Failure`.
    """
    try:
        return _done(job, options)
    except Exception as error:
        from covey.agent.worker.perform import explained, one_line

        why = one_line(public_text(error))
        return j.Failure(why=why, detail=explained(error, verbose=options.verbose))


@own_code()
def _done(job: j.WorkerJob[Any], options: WorkerOptions) -> object:
    match job:
        case j.InspectData():
            return _inspected(job)
        case j.TryStep():
            return _tried(job, options.threads)
        case j.Perform():
            from covey.agent.worker.participant import Participant
            from covey.agent.worker.perform import perform

            who = Participant.of(job, options.threads)
            return perform(job, who, verbose=options.verbose)
        case j.PerformTogether():
            return _performed_together(job, options)
        case j.WritePartition():
            from covey.agent.worker.fleet_share import write_partition

            write_partition(job.source, job.out)
            return j.Nothing()
        case j.WriteStart():
            from covey.agent.worker.start import write_start_of

            write_start_of(job.source.scenario, job.out, OwnersRules.of_job(job.rules).allowed)
            return j.Nothing()
        case j.AdoptModel():
            return _adopted(job, options.threads)
        case j.FindDevice():
            rules = OwnersRules.of_job(job.rules)
            return j.DeviceFound(kind=rules.device(job.wanted, load_library(rules.learner).device))
    raise TypeError(f"{type(job).__name__} is no job of a worker")


def _inspected(job: j.InspectData) -> j.DataSummary:
    """Describe the data for a task. Data that does not fit is an answer, not a failure; its detail stays on the device."""
    task, rules = Task.model_validate(job.task), OwnersRules.of_job(job.rules)
    if rules.policy.demands and isinstance(job.source, j.DeviceData):
        return _form_inspected(job, job.source, task, rules)
    return _cells_inspected(job, task, rules)


def _form_inspected(
    job: j.InspectData, source: j.DeviceData, task: Task, rules: OwnersRules
) -> j.DataSummary:
    """Describe the form of the data. Which cells do not fit is for the device's own terminal: they are left out of the work."""
    from covey.agent.worker.perform import explained, one_line
    from covey.agent.worker.sources import stated_counts

    try:
        with memory_limited(rules, None):
            train, test = stated_counts(source, task)
    except DataError as error:
        return _problem(error.public, error)
    try:
        found = _cells_inspected(job, task, rules)
    except Exception as error:
        found = j.DataSummary(detail=one_line(explained(error)))
    return j.DataSummary(samples=train, test_samples=test, detail=found.detail)


def _cells_inspected(job: j.InspectData, task: Task, rules: OwnersRules) -> j.DataSummary:
    from covey.agent.data.check import disclosed
    from covey.agent.worker.sources import dataset

    try:
        with memory_limited(rules, None):
            data = dataset(job.source, task)
            if framework_of(task.model.name) == "flower":
                return _of_client(data, task, rules)
            found = disclosed(data, task)
    except DataError as error:
        return _problem(error.public, error)
    return j.DataSummary(
        samples=found.samples,
        test_samples=found.test_samples,
        labels=list(found.labels),
        problem=found.problem or "",
    )


def _of_client(data: Dataset, task: Task, rules: OwnersRules) -> j.DataSummary:
    """The description of a client's own data, which only its functions know. A client that fails is an answer."""
    try:
        learner: Any = learner_for(task, rules)
        samples, test_samples = learner.counts(data, task, rules)
    except UserError as error:
        return _problem(error.public, error)
    return j.DataSummary(samples=samples, test_samples=test_samples)


def _problem(why: str, error: Exception) -> j.DataSummary:
    from covey.agent.worker.perform import one_line

    return j.DataSummary(problem=one_line(why), detail=one_line(str(error)))


def _tried(job: j.TryStep, threads: int) -> j.Nothing:
    """Train one step and evaluate, within the owner's limits on memory. Nothing is kept of the model."""
    from covey.agent.worker.sources import dataset, stated_counts
    from covey.agent.worker.trial_step import one_step
    from covey.agent.worker.without_data import Blank
    from covey.shared.strategies.base import Training

    task, rules = Task.model_validate(job.task), OwnersRules.of_job(job.rules)
    source: j.DataSource | Blank = job.source
    if rules.policy.demands and isinstance(job.source, j.DeviceData):
        source = Blank(stated_counts(job.source, task)[0])
    with memory_limited(rules, threads):
        data = dataset(source, task)
        one_step(data, task, Training(batch=job.batch), rules)
    return j.Nothing()


def _performed_together(job: j.PerformTogether, options: WorkerOptions) -> j.Answers:
    from covey.agent.training.together import together

    def trained(requests: Sequence[Any]) -> Sequence[Any]:
        answers: Sequence[Any] = extras.part("simulate", "batched").batched(requests)
        return answers

    works = [partial(answer, one, options) for one in job.jobs]
    return j.Answers(answers=together(works, trained))


def _adopted(job: j.AdoptModel, threads: int) -> j.Adopted | j.BadModel:
    """Judge models that were published for use, or without any the one in use on data that have changed."""
    from covey.agent.worker.perform import DamagedModel, model_content

    rules = OwnersRules.of_job(job.rules)
    prepared(rules, threads)
    try:
        contents = [model_content(path) for path in job.models]
        with memory_limited(rules, threads):
            kept = extras.part("in_use", "keep").adopt(
                job.deployment,
                job.clusters,
                contents,
                source=job.source,
                place=job.keep,
                rules=rules,
            )
    except DamagedModel as error:
        return j.BadModel(digest=error.digest)
    return j.Adopted(kept=kept)


if __name__ == "__main__":
    main()
