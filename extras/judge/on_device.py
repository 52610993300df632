"""The last evaluation on a device that decides itself what it answers with, and what it has chosen, for use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

from covey.extras.judge.candidates import BeforeHome, Candidate, Make, made, with_models
from covey.extras.judge.in_run import fleet_of
from covey.extras.judge.judge import Judgement, figures_with, only_served
from covey.extras.judge.trees import trees_for
from covey.shared.candidate_names import TREES
from covey.shared.numerics.vectors import Vector
from covey.shared.scenario.companion import brought
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import Strategy
from covey.shared.strategies.client_half import ClientState, Job, Local, Mixture, Report
from covey.shared.strategies.part_local import of_whole
from covey.shared.wire.messages import OrderMessage, Work
from covey.shared.work.at_hand import AtHand, prepared
from covey.shared.work.evaluate import Measured, evaluated, plain, served_by
from covey.shared.work.judging import forgotten
from covey.shared.work.label_prior import Prior, served, with_prior
from covey.shared.work.order_settings import settings_of, task_of
from covey.shared.work.use import without_messages


@dataclass(frozen=True)
class OnDevice:
    """The judge on an agent, with what it needs besides the order: without anything it takes what is served.

    Attributes:
        others: makers of further candidates of those that train, by name.
        budget_s: seconds for training at home; None for as long as it takes.
        new: weights of the model that nothing has trained; None where only its own code makes them.
    """

    others: Mapping[str, Make] = field(default_factory=dict)
    budget_s: float | None = None
    new: Callable[[], Vector | None] = lambda: None

    @classmethod
    def of(
        cls, task: Task, *, is_table: bool, budget_s: float | None, new: Callable[[], Vector | None]
    ) -> Self:
        """That of some samples: of a table with trees, where they suit the task."""
        trees = trees_for(task) if is_table else None
        return cls({} if trees is None else {TREES: trees}, budget_s, new)

    def evaluated(
        self,
        strategy: Strategy[Any],
        job: Job,
        local: Local,
        client_state: ClientState,
        *,
        work: Work,
        prior: tuple[slice, Prior] | None,
        clock: Callable[[], float],
    ) -> tuple[Report, ClientState]:
        """The report of the last evaluation, with what the agent answers with from then on."""
        mixture = served_by(strategy, job, local, client_state)
        on_whole = of_whole(local)
        if isinstance(on_whole, Measured) or work.task.get("anomalies") is not None:
            report, _ = evaluated(strategy, job, local, client_state, work=work)
            return replace(report, numbers=only_served(report.numbers)), client_state
        given = self._before_home(mixture, job, work)
        fleet, state = fleet_of(work.numbers), client_state
        known = Judgement.of_memory(client_state, mixture)
        candidates: Mapping[str, Candidate] = {}
        if known is None:
            report, _ = evaluated(strategy, job, local, client_state, work=work)
            known, candidates = Judgement.made(
                on_whole,
                given,
                (replace(fold, local=with_prior(fold.local, prior)) for fold in job.folds),
                plain(report.numbers),
                measure=str(work.task.get("measure") or ""),
                budget_s=self.budget_s,
                clock=clock,
            )
            if TREES in candidates:  # what people compare with
                alone = plain(figures_with(candidates, {TREES: 1.0}, on_whole))
                known = replace(known, figures={**known.figures, TREES: alone})
            state = {**forgotten(client_state), **known.to_memory()}
        choice = known.choice_after(work)
        if not candidates:
            candidates = made(on_whole, given, known.snapshots, choice.weights)
        numbers = known.numbers(choice, candidates, fleet, on_whole)
        return Report({}, local.examples, numbers), state

    def for_use(
        self,
        order: OrderMessage,
        models: Sequence[Vector],
        at_hand: AtHand,
        client_state: ClientState,
        *,
        client: str,
    ) -> tuple[Mapping[str, float], dict[str, Candidate]]:
        """What the agent has chosen, the weights and the candidates by name; empty if it has judged nothing.

        Args:
            order, models, at_hand, client: as `execute_order` takes them.
            client_state: the state that replaces the one with which the work began.
        """
        work = order.work
        if work is None:
            return {}, {}
        strategy, _ = settings_of(work)
        job, local, prior = prepared(work, models, at_hand, client_state, client=client)
        job = without_messages(job, work)
        mixture = served_by(strategy, job, local, client_state)
        known = Judgement.of_memory(client_state, mixture)
        if known is None:
            return {}, {}
        uses = known.choice_after(work).weights
        given = self._before_home(mixture, job, work)
        found = made(of_whole(local), given, known.snapshots, uses)
        return uses, {
            name: with_models(one, partial(served, found=prior)) for name, one in found.items()
        }

    def _before_home(self, mixture: Mixture, job: Job, work: Work) -> BeforeHome:
        return BeforeHome(
            mixture,
            task_of(work).outputs,
            split=job.split,
            new=self.new,
            others=self.others,
            companion=brought(job, work.evaluation, task_of(work)),
        )
