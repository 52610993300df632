"""The scenario: one file that says what is trained, by whom, how, and under which conditions.

Everything has a default but `name`, `task` and `strategy`. A key that is not listed here is refused. The
discriminated union of strategies is the registry of methods; there is no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from covey.shared.privacy.settings import Privacy
from covey.shared.scenario.aggregation import Aggregation, Clip
from covey.shared.scenario.compare import Compare, Method
from covey.shared.scenario.evaluation import Evaluation, Tune
from covey.shared.scenario.fleet import Fleet
from covey.shared.scenario.rounds import Rounds
from covey.shared.scenario.section import Section
from covey.shared.scenario.task import Task
from covey.shared.scenario.wire import Wire
from covey.shared.strategies.base import Strategy, Training
from covey.shared.strategies.registry import AnyStrategy
from covey.shared.wire.messages import Name

FILES = (("task", "init"), ("fleet", "partition"), ("rounds", "participants"))
USUAL_SKETCH = 64  # values: keeps a distance to about a tenth of it


class Records(Section):
    """What a run keeps for pictures, besides its results. Changes no model, and is no part of what names a run."""

    sketch: int | None = Field(
        None,
        ge=0,
        le=1024,
        description="values of the random projection that is kept of each reported model, in each round; 0: none; null: "
        "64 where the method keeps agents' models anyway (fesem, fesem_ma) and no privacy section is there, else none",
    )


class Scenario(Section):
    """A whole run."""

    name: Name
    seed: int = Field(0, ge=0)
    federation: Name = "default"
    broker: str | None = Field(
        None, description="mqtt[s]://[user:password@]host[:port]; null: start one here"
    )
    task: Task
    training: Training = Training()
    strategy: AnyStrategy
    rounds: Rounds = Rounds()
    evaluation: Evaluation = Evaluation()
    wire: Wire = Wire()
    aggregation: Aggregation = Aggregation()
    records: Records = Records()
    privacy: Privacy | None = Field(None, description="differential privacy; null: none")
    fleet: Fleet | None = None
    compare: Compare | None = Field(None, description="methods and seeds of `coordinator compare`")

    @model_validator(mode="after")
    def _the_rule_suits_the_method(self) -> Self:
        methods = self.compare.methods if self.compare is not None else ()
        for strategy in (self.strategy, *(method.strategy for method in methods)):
            if why := strategy.refuses(self.aggregation.rule):
                raise ValueError(
                    f"aggregation.rule {self.aggregation.rule} is not for {strategy.name}: {why}"
                )
        return self

    @model_validator(mode="after")
    def _partitions_are_of_a_fleet(self) -> Self:
        if self.compare is not None and self.compare.partitions and self.fleet is None:
            raise ValueError("compare.partitions: only a fleet section has a partition to replace")
        return self

    @model_validator(mode="after")
    def _quorum_is_within_the_fleet(self) -> Self:
        if self.fleet is not None and self.rounds.quorum > self.fleet.agents:
            raise ValueError(
                f"rounds.quorum {self.rounds.quorum} is more than the {self.fleet.agents} agents of the fleet"
            )
        return self

    @model_validator(mode="after")
    def _what_is_laid_over_training_is_training(self) -> Self:
        for method in self.compare.methods if self.compare is not None else ():
            where = f"compare, method {method.label}: training"
            try:
                self._training_with(method.training)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                raise ValueError(
                    f"{'.'.join(map(str, (where, *first['loc'])))}: {first['msg']}"
                ) from None
        return self

    @model_validator(mode="after")
    def _the_schedule_suits_the_method(self) -> Self:
        methods = self.compare.methods if self.compare is not None else ()
        rows = [
            (f"compare, method {method.label}: ", method.strategy, self.training_of(method))
            for method in methods
        ]
        for where, strategy, training in [("", self.strategy, self.training), *rows]:
            if training.lr_steps and (why := strategy.refuses_schedule()):
                leave_out = "lay training: {lr_steps: []} over it" if where else "leave it out"
                raise ValueError(
                    f"{where}training.lr_steps is not for {strategy.name}: {why}; {leave_out}"
                )
        return self

    @model_validator(mode="after")
    def _models_of_methods_have_the_heads_they_need(self) -> Self:
        """Said now, for a comparison may run for hours before it comes to the method."""
        for method in self.compare.methods if self.compare is not None else ():
            model, wanted = self.task_of(method).model, method.strategy.head
            if wanted and model.options.get("head") != wanted and ":" not in model.name:
                raise ValueError(
                    f"compare, method {method.label}: the model needs a projection head for {wanted} clusters; "
                    f"set task.model.options.head or the method's model_options.head to {wanted}"
                )
        return self

    @model_validator(mode="after")
    def _privacy_can_be_kept(self) -> Self:
        """Said now: a run that promises what it cannot keep is worse than none."""
        privacy = self.privacy
        if privacy is None:
            return self
        if self.records.sketch:
            raise ValueError(
                "privacy: records.sketch keeps a projection of each agent's model in the run's folder, outside the account; "
                "leave it out"
            )
        if self.task.standardise == "federated" and (
            privacy.client is not None or privacy.local is not None
        ):
            raise ValueError(
                "privacy: federated standardisation sends sums of the data without noise; give task.standardise fixed "
                "means and standard deviations, or none"
            )
        if privacy.client is not None:
            self._aggregation_leaves_sums_alone()
        compared = self.compare.methods if self.compare is not None else ()
        for strategy in [self.strategy, *(method.strategy for method in compared)]:
            _check_privacy(strategy, privacy)
        alone = privacy.signatures is not None and not compared
        if alone and not self.strategy.signature_phases:
            raise ValueError(
                f"privacy.signatures: {self.strategy.name} sends no signature; leave it out"
            )
        return self

    def _aggregation_leaves_sums_alone(self) -> None:
        aggregation = self.aggregation
        if aggregation.rule != "mean" or aggregation.clip != Clip():
            raise ValueError(
                "privacy.client clips each report and adds noise to the mean: leave aggregation.rule at mean and "
                "aggregation.clip out"
            )

    def task_of(self, method: Method) -> Task:
        """The task with the model options that a method of the comparison lays over it."""
        model = self.task.model
        options = {**model.options, **method.model_options}
        return self.task.model_copy(update={"model": model.model_copy(update={"options": options})})

    def training_of(self, method: Method) -> Training:
        """The training section with what a method of the comparison lays over it."""
        return self._training_with(method.training)

    @property
    def sketch(self) -> int:
        """Values of the projection that is kept of each reported model; 0: none is kept."""
        if self.records.sketch is not None:
            return self.records.sketch
        return USUAL_SKETCH if self.strategy.keeps_models and self.privacy is None else 0

    @property
    def tuning(self) -> Training:
        """How mode E-tuned trains, for `evaluation.tune_epochs`."""
        return self._training_with(self.evaluation.tune.model_dump())

    @property
    def fine_tuning(self) -> dict[str, float] | None:
        """The settings that mode E-tuned is made with, for records and tables; None where the mode is left out."""
        epochs = self.evaluation.tune_epochs
        settings = {key: getattr(self.tuning, key) for key in Tune.model_fields}
        return {"epochs": epochs, **settings} if epochs else None

    def evaluation_of(self, method: Method) -> Evaluation:
        """The evaluation of one method of the comparison: fine-tuned as the others are, whatever it trains with."""
        common, own = self.tuning, self.training_of(method)
        kept = {
            key: getattr(common, key)
            for key in Tune.model_fields
            if getattr(own, key) != getattr(common, key)
        }
        tune = Tune.model_validate({**kept, **self.evaluation.tune.model_dump()})
        return self.evaluation.model_copy(update={"tune": tune})

    def _training_with(self, over: Mapping[str, Any]) -> Training:
        return Training.model_validate({**self.training.model_dump(), **over})


def _check_privacy(strategy: Strategy[Any], privacy: Privacy) -> None:
    """Raises ValueError where a method cannot keep what the section promises, with the reason."""
    if privacy.client is not None:
        try:
            strategy.private_routes()
        except ValueError as error:
            raise ValueError(f"privacy.client: {error}") from None
        if strategy.signature_phases and privacy.signatures is None:
            phases = " and ".join(strategy.signature_phases)
            raise ValueError(
                f"privacy.client: the phases {phases} send what clusters are made from without noise; add "
                "privacy.signatures, so that they are in the account"
            )
    if privacy.local is not None:
        try:
            strategy.check_local_privacy()
        except ValueError as error:
            raise ValueError(f"privacy.local: {error}") from None


def named_files(data: Mapping[str, Any], folder: Path) -> dict[tuple[str, str], Path]:
    """The files that a scenario's text names, by section and key; relative paths start at the scenario's own folder."""
    return {
        (section, key): (folder / data[section][key]).resolve()
        for section, key in FILES
        if isinstance(data.get(section), dict) and isinstance(data[section].get(key), str)
    }
