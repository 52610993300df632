"""Make a model ready for use on this device: compare it with the one in use, and write its file if it is good enough.

The agent's process decides nothing about arrays and the worker nothing about which model is in use: the worker judges and
writes, and its answer lets the agent's process name the new file.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from covey.agent.data import Dataset
from covey.agent.data.dataset import folds
from covey.agent.policy import OwnersRules, PolicyError
from covey.agent.training.weights import Named
from covey.agent.worker.learners import learner_for, new_weights
from covey.agent.worker.participant import Participant
from covey.agent.worker.sources import dataset
from covey.extras.in_use.answering import Answering
from covey.extras.in_use.kept_versions import (
    Figure,
    Figures,
    Version,
    VersionVerdict,
    against,
    judge,
    main_figure,
)
from covey.extras.in_use.model_dir import read_index
from covey.extras.in_use.model_file import ModelFile, read_model, save_model, task_with_scaling
from covey.extras.judge.candidates import BeforeHome, with_models
from covey.extras.judge.candidates import Candidate as Answerer
from covey.extras.judge.judge import TELLS, Judgement
from covey.extras.judge.on_device import OnDevice
from covey.extras.judge.trees import trees_for
from covey.shared.candidate_names import in_words
from covey.shared.errors import CoveyError
from covey.shared.numerics.split import Split
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.scenario.task import Task
from covey.shared.sentences import some
from covey.shared.strategies.base import Training
from covey.shared.strategies.bases.hard import lowest_loss
from covey.shared.strategies.client_half import ClientState, Fold, Local, Mixture
from covey.shared.wire.codec import decode_model
from covey.shared.wire.deployments import Deployment
from covey.shared.wire.jobs import DataSource, KeepPlace, ModelJudgement
from covey.shared.wire.messages import OrderMessage
from covey.shared.work.at_hand import AtHand
from covey.shared.work.evaluate import Measured
from covey.shared.work.judging import has_judge
from covey.shared.work.label_prior import own_prior, served, with_prior
from covey.shared.work.use import model_for_use

# what a task asks does not depend on these keys: models that differ in them alone can be compared
NOT_THE_QUESTION = {
    "model",
    "scale",
    "standardise",
    "init",
    "impute",
    "categories",
    "target_scale",
    "label_prior",
    "measure",
    "share",
    "keep",
    "freeze",
}


@dataclass(frozen=True)
class KeptModel:
    """A model that may be taken over."""

    version: Version
    task: Mapping[str, Any]  # as the model's file has it
    mixture: Mixture  # the served models
    layout: Layout
    uses: Mapping[str, float] = field(default_factory=dict)  # what the judge chose; empty: no judge
    candidates: Mapping[str, Answerer] = field(default_factory=dict)  # by the same names

    @property
    def answering(self) -> Answering:
        """What the device answers with."""
        return Answering.of(self.mixture, self.uses, self.candidates)


def keep_of_order(
    order: OrderMessage,
    models: Sequence[Vector],
    at_hand: AtHand,
    memory: ClientState,
    who: Participant,
    *,
    place: KeepPlace,
) -> ModelJudgement | None:
    """Keep the model that an order gives this agent; None if it gives none.

    Args:
        order, models, at_hand: as `execute_order` takes them.
        memory: the one with which the work began, or that replaces it if the judge was asked.
        who: has done the work.
        place: where kept models lie.
    """
    work = order.work
    if work is None:
        return None
    mixture = model_for_use(order, models, at_hand, memory, client=who.client)
    if mixture is None:
        return None
    uses: Mapping[str, float] = {}
    candidates: Mapping[str, Answerer] = {}
    if has_judge(work) and isinstance(at_hand.judge, OnDevice):
        uses, candidates = at_hand.judge.for_use(order, models, at_hand, memory, client=who.client)
    cluster = order.cluster if work.cluster is None else work.cluster
    version = Version(order.run, work.round, cluster, uses=in_words(uses) if uses else "")
    task = task_with_scaling(work.task, work.scaling)
    candidate = KeptModel(version, task, mixture, Layout.from_wire(work.layout), uses, candidates)
    return keep(candidate, at_hand.local, who.dataset(work), place, who.rules)


def keep(
    candidate: KeptModel,
    local: Local,
    dataset: Dataset,
    place: KeepPlace,
    rules: OwnersRules,
    *,
    force: bool = False,
) -> ModelJudgement | None:
    """Compare a candidate with the model in use and the one that a person accepted last; write its file if it may take over.

    With `force` the file is written whatever the figures are.

    Returns:
        The judgement; None if the very same model is in use already.
    """
    current = _read(place, place.current)
    answering = candidate.answering
    if current is not None and _is_same(candidate, answering, current):
        return None
    task = Task.model_validate(candidate.task)
    new = answering.figures(local, task.outputs)
    verdict, is_first = _compared(new, current, task, dataset, place, rules=rules, force=force)
    same = current is not None and _is_judged_again(candidate, current)
    if same and not new.get("diverged"):
        verdict = VersionVerdict(
            accepted=True, why="the same models, weighed again with what is known of the fleet"
        )
    version = candidate.version
    if verdict.accepted:
        path = place.folder / version.file
        save_model(
            path,
            version,
            candidate.task,
            mixture=answering.mixture,
            layout=candidate.layout,
            parts=answering.parts,
        )
    figure = main_figure(new, task.measure)
    return _answer(version, verdict, figure, is_first=is_first)


def _compared(
    new: Figures,
    current: ModelFile | None,
    task: Task,
    dataset: Dataset,
    place: KeepPlace,
    *,
    rules: OwnersRules,
    force: bool,
) -> tuple[VersionVerdict, bool]:
    """Whether a model may take over, and whether none was accepted before that it could be compared with."""
    old = _figures(current, task, dataset, rules)
    accepted = old
    if place.accepted != place.current:
        accepted = _figures(_read(place, place.accepted), task, dataset, rules)
    verdict = judge(new, old, place.margin, accepted, task.measure)
    if force and not verdict.accepted:
        why = f"the operator overrides the check: {verdict.why}"
        verdict = VersionVerdict(accepted=True, why=why)
    return verdict, accepted is None


def _taken_back(
    deployment: Deployment, task: Task, dataset: Dataset, place: KeepPlace, rules: OwnersRules
) -> ModelJudgement | None:
    """The judgement of a version that this device has used before: its file is as it was, and so are its answers.

    None if it is not here, or if what it answers with has not been judged yet.
    """
    published = Version(deployment.run, deployment.round)
    files = [found for name in place.earlier if (found := _read(place, name)) is not None]
    for file in files:
        if not published.is_same_model(file.version) or file.version is None:
            continue
        new = _figures(file, task, dataset, rules)
        if new is None or (deployment.tune and not _has_judged(file)):
            continue
        version = replace(file.version, origin=deployment.origin, name=deployment.name)
        force = deployment.force and rules.policy.forced_models == "taken"
        current = _read(place, place.current)
        verdict, is_first = _compared(new, current, task, dataset, place, rules=rules, force=force)
        return _answer(version, verdict, main_figure(new, task.measure), is_first=is_first)
    return None


def _answer(
    version: Version, verdict: VersionVerdict, figure: Figure | None, *, is_first: bool = False
) -> ModelJudgement:
    """What the agent's process gets of a decision on a model."""
    return ModelJudgement(
        version=version.to_json(),
        accepted=verdict.accepted,
        why=verdict.why,
        figure=figure,
        is_first=is_first,
    )


def measured_again(
    source: DataSource, place: KeepPlace, rules: OwnersRules
) -> ModelJudgement | None:
    """The model in use on the data as they are now, next to its figure of when it was taken over; None without either."""
    kept, file = read_index(place.folder).in_use, _read(place, place.current)
    if kept is None or kept.figure is None or file is None:
        return None
    now = _figures(
        file, file.task, dataset(source, file.task, leaves_out=rules.policy.demands), rules
    )
    if now is None:
        return None
    name, before = kept.figure
    verdict = against(now, {name: before}, place.margin, "the data before", file.task.measure)
    return _answer(kept.version, verdict, main_figure(now, file.task.measure))


def adopt(
    published: bytes,
    clusters: Sequence[int],
    contents: Sequence[bytes],
    *,
    source: DataSource,
    place: KeepPlace,
    rules: OwnersRules,
) -> ModelJudgement | None:
    """Judge models that were published for use. Of several, the one with the smallest training loss is the candidate.

    The values of tensors that each device keeps for itself (`task.keep`) come from the model in use. The judge
    decides what the device answers with, as at the end of a run (`evaluation.deliver`).

    Args:
        published: a deployment; empty: the model in use is measured again.
        clusters: whose models the contents are, one for each.
        contents: the models as they travelled.
        source: this device's data.
        place: where kept models lie.
        rules: of this device.

    Raises:
        PolicyError: the rules refuse the models.
        DataError: the data does not fit their task.
        DecodeError: a content is no model of the deployment's layout.
    """
    if not published:
        return measured_again(source, place, rules)
    deployment = Deployment.from_bytes(published)
    refusal = rules.refuses_deployment(deployment)
    if refusal is not None:
        raise PolicyError(refusal)
    layout = Layout.from_wire(deployment.layout)
    models = [decode_model(content, layout) for content in contents]
    task = deployment.task
    checked = Task.model_validate(task)
    own, missing = _own_values(checked.keep, layout, _read(place, place.current))
    if missing:
        why = (
            f"this device has no {some(missing)} of its own, which every device keeps for itself; it gets them when it "
            "takes part in a run"
        )
        version = Version(
            deployment.run, deployment.round, None, deployment.origin, name=deployment.name
        )
        return _answer(version, VersionVerdict(accepted=False, why=why), None)
    models = [layout.vector(layout.named(model) | own) for model in models]
    data = dataset(source, checked, leaves_out=rules.policy.demands)
    if (back := _taken_back(deployment, checked, data, place, rules)) is not None:
        return replace(back, tells=deployment.judge.get(TELLS))
    learner = learner_for(checked, rules)
    training = Training.model_validate(deployment.tune)

    def local_of(samples: Dataset) -> Local:
        return learner.local(
            samples, checked, layout, training=training, rng=np.random.default_rng(0), rules=rules
        )

    local = local_of(data)
    prior = None
    if checked.label_prior == "on":
        prior = own_prior(checked.outputs, local, layout)
    number = 0
    if len(models) > 1:
        number = lowest_loss(models, with_prior(local, prior))
    mixture: Mixture = ((1.0, models[number]),)
    cluster = clusters[number] if len(deployment.models) > 1 else None
    version = Version(
        deployment.run, deployment.round, cluster, deployment.origin, name=deployment.name
    )
    force = deployment.force and rules.policy.forced_models == "taken"
    candidate = KeptModel(version, task, served(mixture, prior), layout)
    current = _read(place, place.current)
    if current is not None and _is_judged_again(candidate, current) and _has_judged(current):
        return None
    can_judge = not isinstance(local, Measured) and checked.anomalies is None
    if deployment.tune and can_judge:
        split = None
        if checked.share or checked.freeze or layout.frozen:
            split = Split.by_patterns(layout, checked.share, checked.keep, checked.freeze)
        parts = (
            Fold(with_prior(local_of(part), prior), units)
            for part, units in folds(data, 0, deployment.run)
        )
        trees = trees_for(checked)
        given = BeforeHome(
            mixture,
            checked.outputs,
            split=split,
            new=partial(new_weights, checked, 0),
            others={} if trees is None else {"trees": trees},
        )
        known, found = Judgement.made(
            with_prior(local, prior),
            given,
            parts,
            {},
            measure=checked.measure or "",
            budget_s=deployment.judge.get("budget_s"),
            clock=time.perf_counter,
        )
        choice = known.choice(deployment.judge, single=bool(deployment.judge.get("single")))
        as_used = partial(served, found=prior)
        candidate = KeptModel(
            replace(version, uses=in_words(choice.weights)),
            task,
            candidate.mixture,
            layout,
            choice.weights,
            {name: with_models(found[name], as_used) for name in choice.weights},
        )
    kept = keep(candidate, local, data, place, rules, force=force)
    return kept and replace(kept, tells=deployment.judge.get(TELLS))


def _own_values(
    names: Sequence[str], layout: Layout, current: ModelFile | None
) -> tuple[Named, list[str]]:
    """The tensors that this device keeps for itself, as its model in use has them, and the names of those that it lacks."""
    shapes = {tensor.name: tensor.shape for tensor in layout.tensors}
    has: Named = {}
    if current is not None:
        has = current.models[0]
    own = {name: has[name] for name in names if name in has and has[name].shape == shapes.get(name)}
    return own, [name for name in names if name in shapes and name not in own]


def _read(place: KeepPlace, file: str) -> ModelFile | None:
    """A kept model; None if there is none, or its file is damaged."""
    if not file:
        return None
    try:
        return read_model(place.folder / file)
    except CoveyError:
        return None


def _is_same(candidate: KeptModel, answering: Answering, current: ModelFile) -> bool:
    """Same version, same task, same values."""
    if not _has_same_task(candidate, current) or len(answering.mixture) != len(current.models):
        return False
    if tuple(float(weight) for weight, _ in answering.mixture) != current.weights:
        return False
    before = {part.name: part for part in current.parts}
    if before.keys() != {part.name for part in answering.parts}:
        return False
    same = all(before[part.name].weight == part.weight for part in answering.parts)
    return same and _has_same_models(answering.mixture, candidate.layout, current)


def _is_judged_again(candidate: KeptModel, current: ModelFile) -> bool:
    """Whether the model in use came with the same served models."""
    fits = len(candidate.mixture) <= len(current.models)
    return (
        fits
        and _has_same_task(candidate, current)
        and _has_same_models(candidate.mixture, candidate.layout, current)
    )


def _has_judged(current: ModelFile) -> bool:
    """Whether the judge decided how the model in use is used."""
    return current.version is not None and bool(current.version.uses)


def _has_same_task(candidate: KeptModel, current: ModelFile) -> bool:
    same = candidate.version.is_same_model(current.version)
    return same and Task.model_validate(candidate.task) == current.task


def _has_same_models(mixture: Mixture, layout: Layout, current: ModelFile) -> bool:
    """Whether the file begins with these models."""
    return all(
        layout.fits(named) and np.array_equal(model, layout.vector(named))
        for (_, model), named in zip(mixture, current.models, strict=False)
    )


def _figures(
    kept: ModelFile | None, task: Task, dataset: Dataset, rules: OwnersRules
) -> Figures | None:
    """Figures of a kept model on the same samples; None if there is none, it solves another task, or it cannot be built here."""
    if kept is None or _question(kept.task) != _question(task):
        return None
    try:
        learner = learner_for(kept.task, rules)
        layout = learner.layout(kept.task, rules.allowed)
        answering = Answering.of_file(kept, layout)
        generator = np.random.default_rng(0)
        local = learner.local(
            dataset, kept.task, layout, training=Training(), rng=generator, rules=rules
        )
    except (CoveyError, ValueError):
        return None
    return answering.figures(local, kept.task.outputs)


def _question(task: Task) -> dict[str, Any]:
    return task.model_dump(mode="json", exclude=NOT_THE_QUESTION)
