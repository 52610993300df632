"""The scenario: one file that describes a whole run - the task, the agents, the method and the conditions.

Every key has a default except `name`, `task` and `strategy`. Unknown keys are refused. The discriminated union of
strategies is the registry of methods; there is no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from covey.shared import extras
from covey.shared.privacy.settings import Privacy
from covey.shared.scenario import checks
from covey.shared.scenario.aggregation import Aggregation, Wire
from covey.shared.scenario.checks import check_buffered
from covey.shared.scenario.companion import KEY as COMPANION_KEY
from covey.shared.scenario.companion import accompanied, companion
from covey.shared.scenario.compare import Compare, Method
from covey.shared.scenario.evaluation import Evaluation, Tune
from covey.shared.scenario.fleet import Fleet
from covey.shared.scenario.partition import RULES
from covey.shared.scenario.rounds import Rounds
from covey.shared.scenario.section import Section
from covey.shared.scenario.task import IMAGE_AXES, SPLIT, Task
from covey.shared.strategies.base import Strategy, Training
from covey.shared.strategies.facts import MIN_CELL
from covey.shared.strategies.registry import AnyStrategy
from covey.shared.strategies.training import unfit_for_dp_sgd
from covey.shared.wire.framing import Name
from covey.shared.written import FIRST

FILE_KEYS = (
    ("task", "init"),
    ("task", "base", "file"),
    ("fleet", "partition"),
    ("rounds", "participants"),
)
BrokerCount = Annotated[int, Field(ge=1, le=64, strict=True)]
DEFAULT_SKETCH = 64  # values: distances between sketches are then right to about a tenth

if TYPE_CHECKING:
    from covey.extras.secure.secured import Secured


class Records(Section):
    """What a run stores for plots, besides its results. It changes no model and does not identify a run."""

    sketch: int | None = Field(
        None,
        ge=0,
        le=1024,
        description="Number of values of the random projection that is stored of each reported model in each round. 0: none. "
        "null: 64 if the method stores agents' models anyway (fesem, fesem_ma) and there is no privacy section, otherwise "
        "none.",
    )


class Scenario(Section):
    """A whole run: the task, how agents train, the method, the rounds, and perhaps a simulated fleet and a comparison.

    A scenario is immutable and complete: every key has a value, its default where the file does not name it.

    Example:
        >>> scenario = covey.load("scenarios/smoke.yaml")
        >>> scenario.strategy.name, scenario.rounds.count
        ('fedclust', 3)
    """

    name: Name = Field(
        description="Name of the run and of its folder: letters, digits, '.', '_' and '-', at most 64 characters."
    )
    seed: int = Field(
        0,
        ge=0,
        json_schema_extra=FIRST,
        description="Seed of every random draw. The same scenario and seed give the same models.",
    )
    federation: Name = Field(
        "default",
        description="First level of the topics below covey/. Runs with different federations can share a broker.",
    )
    broker: str | None = Field(
        None,
        json_schema_extra=FIRST,
        description="Address of the broker, mqtt[s]://[user:password@]host[:port] or ws[s]://[user:password@]host[:port][/path]. null: start one on this machine.",
    )
    brokers: tuple[str, ...] | BrokerCount | None = Field(
        None,
        description="Addresses of several independent brokers (shards), in the order of their numbers, instead of broker. Each "
        "agent lives on one of them; if one is lost, the run continues with the agents of the others. A number starts that many "
        "brokers on this machine for a simulated fleet. null: there is one broker.",
    )
    task: Task = Field(description="The data, the classes and the model.")
    training: Training = Field(
        Training(), json_schema_extra=FIRST, description="Local training on the agents."
    )
    strategy: AnyStrategy = Field(description="The training method and its hyper-parameters.")
    rounds: Rounds = Field(
        Rounds(), json_schema_extra=FIRST, description="Who takes part and when a round closes."
    )
    evaluation: Evaluation = Field(
        Evaluation(), json_schema_extra=FIRST, description="Which figures are measured, and when."
    )
    wire: Wire = Field(Wire(), description="How models and reports travel.")
    aggregation: Aggregation = Field(
        Aggregation(), description="Limits on the influence of single agents."
    )
    records: Records = Field(Records(), description="What a run stores for plots.")
    privacy: Privacy | None = Field(
        None,
        json_schema_extra=FIRST,
        description="Differential privacy. null: no differential privacy.",
    )
    fleet: Fleet | None = Field(
        None,
        json_schema_extra=FIRST,
        description="A simulated fleet. null: the run waits for real agents.",
    )
    compare: Compare | None = Field(
        None,
        json_schema_extra=FIRST,
        description="Methods and seeds of `coordinator compare`. null: there is nothing to compare.",
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults_under_privacy(cls, data: Any) -> Any:
        """Fine-tuning has no noise, and its figure is sent."""
        if not isinstance(data, Mapping):
            return data
        privacy, evaluation = data.get("privacy"), data.get("evaluation") or {}
        if not isinstance(privacy, Mapping) or not isinstance(evaluation, Mapping):
            return data
        if privacy.get("local") is None:
            return data
        return {**data, "evaluation": {"tune_epochs": 0, **evaluation}}

    # -- checks across sections ------------------------------------------------------------------------------------

    @model_validator(mode="after")
    def _check_extras(self) -> Self:
        for key, extra, is_set in (
            ("privacy.secure", "secure", self.is_summed),
            ("compare", "compare", self.compare is not None),
            ("records.sketch", "dashboard", bool(self.records.sketch)),
        ):
            if is_set and not extras.has(extra):
                raise extras.missing(extra, key)
        name = self.evaluation.companion
        if name and (why := companion(name).refuses(self)):
            raise ValueError(f"{COMPANION_KEY}: {name}: {why}")
        return self

    @model_validator(mode="after")
    def _check_rule(self) -> Self:
        """Some methods average nothing, or only quantities that a robust rule would distort."""
        rule = self.aggregation.average
        for strategy in self._strategies:
            if why := strategy.refuses(rule):
                raise ValueError(f"aggregation.rule {rule.rule} is not for {strategy.name}: {why}")
        return self

    @model_validator(mode="after")
    def _check_brokers(self) -> Self:
        match self.brokers:
            case None:
                return self
            case int():
                if self.fleet is None:
                    raise ValueError(
                        "brokers is a number, which starts brokers for a simulated fleet; list the addresses of yours"
                    )
            case addresses:
                if not addresses or len(set(addresses)) < len(addresses):
                    raise ValueError("brokers expects at least one address, each of them once")
        if self.broker is not None:
            raise ValueError("broker and brokers are both set; keep one of them")
        return self

    @model_validator(mode="after")
    def _check_buffered(self) -> Self:
        check_buffered(self.rounds, self.wire, self.privacy, self._strategies)
        return self

    @model_validator(mode="after")
    def _check_fleet(self) -> Self:
        if self.fleet is None:
            if self.compare is not None and self.compare.partitions:
                raise ValueError("compare.partitions needs a fleet section, whose data it divides")
            return self
        quorum = self.rounds.quorum
        start_agents = self.rounds.start_agents or 0
        agents = self.fleet.agents
        if quorum > agents:
            raise ValueError(
                f"rounds.quorum is {quorum}, but the fleet has {agents} agents; lower the quorum"
            )
        if start_agents > agents:
            raise ValueError(
                f"rounds.start_agents is {start_agents}, but the fleet has {agents} agents; leave the key out to wait for all "
                "of them"
            )
        return self

    @model_validator(mode="after")
    def _check_measure(self) -> Self:
        if self.compare is not None:
            self.compare.check_measure(self.task.main_measure, regression=self.task.classes is None)
        return self

    @model_validator(mode="after")
    def _check_stop(self) -> Self:
        stop = self.rounds.stop
        if stop is None:
            return self
        stop.measure(self.task.main_measure, regression=self.task.classes is None)
        if self.evaluation.every == 0:
            raise ValueError(
                "rounds.stop needs evaluations between rounds; set evaluation.every, for example to 1"
            )
        return self

    @model_validator(mode="after")
    def _check_training_of_methods(self) -> Self:
        """Validate the merged training settings of each compared method now, not hours into the comparison."""
        for method in self._compared:
            try:
                self.training_of(method)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                keys = ".".join(map(str, ("training", *first["loc"])))
                problem = first["msg"]
                if first["type"] == "extra_forbidden":
                    from covey.shared.scenario.explain import unknown

                    problem = (
                        f"unknown key; {unknown(str(first['loc'][-1]), Training.model_fields)}"
                    )
                raise ValueError(f"compare, method {method.label}: {keys}: {problem}") from None
        return self

    @model_validator(mode="after")
    def _check_schedules(self) -> Self:
        _check_schedule(self.strategy, self.training, "", "leave it out")
        for method in self._compared:
            place = f"compare, method {method.label}: "
            remedy = "give the method training: {lr_steps: []}"
            _check_schedule(method.strategy, self.training_of(method), place, remedy)
        return self

    @model_validator(mode="after")
    def _check_projection_heads(self) -> Self:
        """Check now that models have the heads that methods need, not hours into the comparison."""
        for method in self._compared:
            model = self.task_of(method).model
            clusters = method.strategy.projection_head
            is_built_in = ":" not in model.name
            if clusters and is_built_in and model.options.get("head") != clusters:
                raise ValueError(
                    f"compare, method {method.label}: the model needs a projection head for {clusters} groups; set "
                    f"task.model.options.head or the method's model_options.head to {clusters}"
                )
        return self

    @model_validator(mode="after")
    def _check_privacy(self) -> Self:
        if self.privacy is not None:
            checks.check_data_stays_private(self.privacy, self.task, self.records.sketch)
            checks.check_figures(self.privacy, self.rounds, self.evaluation, self.compare)
            checks.check_aggregation(self.privacy, self.aggregation)
            checks.check_methods(self.privacy, self._strategies)
            checks.check_secure(
                self.privacy,
                self.aggregation,
                self.rounds,
                wire=self.wire,
                task=self.task,
                evaluation=self.evaluation,
                compare=self.compare,
                strategies=self._strategies,
            )
        return self

    @model_validator(mode="after")
    def _check_training(self) -> Self:
        settings = [self.training, *(self.training_of(method) for method in self._compared)]
        augments = any(training.augment != "none" for training in settings)
        weighs = any(training.weights != "none" for training in settings)
        if augments and len(self.task.features) != IMAGE_AXES:
            raise ValueError(
                f"training.augment needs images, and task.features is {list(self.task.features)}; expected "
                "[channels, height, width]"
            )
        if weighs and self.task.kind != "classes":
            raise ValueError(
                f"training.weights: balanced is for classes, and the task has {self.task.kind}; remove it"
            )
        if self.privacy is not None and self.privacy.local is not None:
            finds_anomalies = self.task.anomalies is not None
            for training in settings:
                if why := unfit_for_dp_sgd(training, finds_anomalies=finds_anomalies):
                    raise ValueError(f"privacy.local: {why}")
        return self

    # -- what follows from several sections ------------------------------------------------------------------------

    @property
    def shards(self) -> int:
        """The number of independent brokers."""
        if self.brokers is None:
            return 1
        return self.brokers if isinstance(self.brokers, int) else len(self.brokers)

    @property
    def holds_models(self) -> bool:
        """Whether agents stay subscribed to their models from round to round."""
        rounds = self.rounds
        draws = rounds.participation < 1 or rounds.agents is not None or rounds.participants
        invites_all = rounds.mode == "synchronous" and not draws
        return invites_all or self.wire.delivery == "all"

    @property
    def method(self) -> Strategy[Any]:
        """The method as the coordinator runs it: under secure sums, if the section `privacy` asks for them."""
        return self.sums or self.accompanied

    @property
    def accompanied(self) -> Strategy[Any]:
        """The method with the companion that travels along with it, if `evaluation.deliver` names one."""
        return accompanied(self.strategy, self.evaluation.companion, self.task)

    @property
    def is_summed(self) -> bool:
        """Whether agents send their updates under secure sums."""
        return self.privacy is not None and self.privacy.secure is not None

    @property
    def is_open(self) -> bool:
        """Whether devices may state their own figures and weights: no sum and no noise hides them."""
        return not self.is_summed and (self.privacy is None or self.privacy.local is None)

    @property
    def sums(self) -> Secured | None:
        """The method under secure sums, which plans evaluations too; None without them."""
        if not self.is_summed:
            return None
        sums: Secured = extras.part("secure", "around").secured(self)
        return sums

    @property
    def min_cell(self) -> int:
        """The fewest samples of a class whose sums are in a card. Simulated agents have no owner who minds the sums of one."""
        if self.task.min_cell is not None:
            return self.task.min_cell
        return MIN_CELL if self.fleet is None else self.strategy.facts.cell

    @property
    def _compared(self) -> tuple[Method, ...]:
        return self.compare.methods if self.compare is not None else ()

    @property
    def _strategies(self) -> list[AnyStrategy]:
        """The method of the scenario, then those of its comparison."""
        return [self.strategy, *(method.strategy for method in self._compared)]

    def task_of(self, method: Method) -> Task:
        """The task of a compared method: its model options replace those of the same name, its split that of the task."""
        model = self.task.model
        options = {**model.options, **method.model_options}
        changed_model = model.model_copy(update={"options": options})
        changes: dict[str, Any] = {"model": changed_model}
        if method.split:
            changes |= {key: method.split.get(key, ()) for key in SPLIT}
        return self.task.model_copy(update=changes)

    def training_of(self, method: Method) -> Training:
        """The training settings of a compared method: its own replace those of the same name."""
        return self._training_with(method.training)

    def evaluation_of(self, method: Method) -> Evaluation:
        """The evaluation of a compared method: it is fine-tuned like all others."""
        common = self.tuning
        own = self.training_of(method)
        tune: dict[str, Any] = {}
        for key in Tune.model_fields:
            if getattr(own, key) != getattr(common, key):
                tune[key] = getattr(common, key)
        tune |= self.evaluation.tune.model_dump()
        return self.evaluation.model_copy(update={"tune": Tune.model_validate(tune)})

    @property
    def modes_left_out(self) -> tuple[str, ...]:
        """Modes of evaluation that devices have no noise for under `privacy.local`, of those that other runs measure."""
        return () if self.privacy is None or self.privacy.local is None else ("tuned", "baseline")

    @property
    def tuning_at_home(self) -> dict[str, Any]:
        """The training settings with which devices train a published model at home; empty if they use it as it is."""
        if not self.evaluation.judges:
            return {}
        return self.tuning.model_copy(update={"epochs": 1}).model_dump(mode="json")

    @property
    def sketch(self) -> int:
        """Length of the projection that is stored of each reported model; 0: none is stored."""
        if self.records.sketch is not None:
            return self.records.sketch
        stores_models_anyway = self.strategy.facts.keeps and self.privacy is None
        return DEFAULT_SKETCH if stores_models_anyway else 0

    @property
    def tuning(self) -> Training:
        """The training settings of mode `tuned`, which trains for `evaluation.tune_epochs` on unchanged images."""
        return self._training_with({**self.evaluation.tune.model_dump(), "augment": "none"})

    @property
    def fine_tuning(self) -> dict[str, float] | None:
        """The settings of mode `tuned`, for records and tables; None if the mode is left out."""
        epochs = self.evaluation.tune_epochs
        if not epochs:
            return None
        tuning = self.tuning
        return {"epochs": epochs, **{key: getattr(tuning, key) for key in Tune.model_fields}}

    def _training_with(self, changes: Mapping[str, Any]) -> Training:
        """The training section with some settings replaced. Raises pydantic's ValidationError."""
        return Training.model_validate({**self.training.model_dump(), **changes})


def _check_schedule(strategy: AnyStrategy, training: Training, place: str, remedy: str) -> None:
    """ValueError if `training` has a schedule by rounds and the method has no rounds to count."""
    if why := strategy.refuses(training):
        raise ValueError(f"{place}training.lr_steps is not for {strategy.name}: {why}; {remedy}")


def named_files(data: Mapping[str, Any], folder: Path) -> dict[tuple[str, ...], Path]:
    """The files that the data of a scenario names, by section and key.

    Args:
        data: a scenario as plain data, not validated yet.
        folder: the folder of the scenario's file, where relative paths start.
    """
    found: dict[tuple[str, ...], Path] = {}
    for place in FILE_KEYS:
        text: Any = data
        for key in place:
            text = text.get(key) if isinstance(text, dict) else None
        if not isinstance(text, str):
            continue
        is_rule = place[-1] == "partition" and text in RULES
        if not is_rule:
            found[place] = (folder / text).resolve()
    return found
