"""The scenario: one file that says what is trained, by whom, how, and under which conditions.

Everything has a default but `name`, `task` and `strategy`. A key that is not listed here is refused. The
discriminated union of strategies is the registry of methods; there is no other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema

from covey.shared import json_text
from covey.shared.numerics.averages import Average, Rule
from covey.shared.privacy.settings import Privacy
from covey.shared.seeds import generator
from covey.shared.strategies.base import Batch, Decay, Momentum, Rate, Strategy, Training
from covey.shared.strategies.registry import AnyStrategy
from covey.shared.wire.messages import Name

FILES = (("task", "init"), ("fleet", "partition"), ("rounds", "participants"))
USUAL_SKETCH = 64  # values: keeps a distance to about a tenth of it
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A part of a scenario: frozen, unknown keys refused, numbers finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Model(Section):
    """A built-in model, or the user's own as "module:callable" (installed on every device)."""

    name: str = Field(
        "mlp",
        description="lenet5, mlp, linear, cnn1d, resnet9, femnist_cnn, celeba_cnn, vgg16, or module:callable",
    )
    options: dict[str, Any] = Field(
        {}, description="keyword arguments of the model, e.g. {hidden: 64}"
    )


class Standardise(Section):
    """Fixed means and standard deviations, one per channel (the first axis of the features)."""

    mean: tuple[float, ...]
    std: tuple[Annotated[float, Field(gt=0)], ...]


class Task(Section):
    """What is learned. An agent whose data does not fit stays out and says what differs."""

    features: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        min_length=1,
        description="shape of one example, channels first: [1, 28, 28], [9, 128], [12]",
    )
    classes: int | tuple[str, ...] | None = Field(
        None,
        description="number of classes, or their names as the data spells them; null: regression",
    )
    model: Model = Model(name="mlp", options={})
    scale: float = Field(
        1.0, gt=0, description="features are multiplied by this first, e.g. 0.00392157 for bytes"
    )
    standardise: Literal["none", "federated"] | Standardise = Field(
        "none",
        description="federated: the fleet's own means and deviations per channel, from sums, before round 0",
    )
    init: str | None = Field(
        None,
        description=".npz with theta0, flat float32: the first initial model, or a row for each that the method starts from; or what `agent model` wrote, which spares the coordinator torch",
    )

    @field_validator("classes")
    @classmethod
    def _classes_differ(cls, classes: int | tuple[str, ...] | None) -> int | tuple[str, ...] | None:
        if classes is None:
            return None
        names = classes if isinstance(classes, tuple) else ()
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{twice} stand there twice; each class is wanted once")
        count = classes if isinstance(classes, int) else len(names)
        if count < 2:
            raise ValueError(f"{count} of them; at least 2 are wanted, or null for regression")
        return classes

    @field_validator("standardise")
    @classmethod
    def _one_mean_and_deviation_per_channel(
        cls, value: str | Standardise, info: ValidationInfo
    ) -> str | Standardise:
        features = info.data.get("features")
        if (
            features
            and isinstance(value, Standardise)
            and not len(value.mean) == len(value.std) == features[0]
        ):
            raise ValueError(
                f"{len(value.mean)} means and {len(value.std)} standard deviations; the features "
                f"{list(features)} want one of each per channel, {features[0]}"
            )
        return value

    @property
    def outputs(self) -> int:
        """Width of the model's last layer."""
        match self.classes:
            case None:
                return 1
            case int(count):
                return count
            case names:
                return len(names)

    def told(self) -> dict[str, Any]:
        """What agents are told of it: all but a file at the coordinator."""
        return self.model_dump(mode="json", exclude={"init"})

    @property
    def digest(self) -> str:
        """Names what an agent checked its data against."""
        text = json_text.dumps(self.told(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class Rounds(Section):
    """Who takes part in a round and when it closes."""

    count: int = Field(10, ge=1, description="R, rounds to fold; void rounds do not count")
    participation: float = Field(
        1.0, gt=0, le=1, description="C: max(floor(C * N), 1) agents are invited, N known agents"
    )
    agents: int | None = Field(
        None, ge=1, description="m, invited agents per round; overrides participation"
    )
    participants: str | None = Field(
        None, description=".json with a list per round of agent indices, instead of a draw"
    )
    over_select: float = Field(
        1.0, ge=1, description="invite this many times m, close when m have reported"
    )
    refill: bool = Field(True, description="invite another agent in place of one that vanished")
    quorum: int = Field(1, ge=1, description="a round with fewer reports is void and drawn again")
    deadline_s: float = Field(
        600.0, gt=0, description="a round closes at the latest this long after it opened"
    )
    grace_s: float | None = Field(
        None,
        ge=0,
        description="once the quorum is there, wait at most this long for the rest; null: until no report has come for "
        "half of deadline_s",
    )
    void_limit: int = Field(
        20, ge=1, description="give up (resumable) after so many void attempts in a row"
    )
    start_agents: int | None = Field(
        None,
        ge=1,
        description="agents that must be there before the first phase; null: the whole fleet, or 1",
    )
    start_wait_s: float = Field(
        60.0,
        ge=0,
        description="fleet: start with fewer after this; without a fleet the coordinator waits for ever",
    )
    absence_s: float = Field(
        1.0, ge=0, description="an agent that is back within this time has not left"
    )
    rollcall_s: float = Field(
        10.0, gt=0, description="how long agents may take to answer a roll call"
    )

    @model_validator(mode="after")
    def _quorum_is_within_the_cohort(self) -> Self:
        if self.agents is not None and self.quorum > self.agents:
            raise ValueError(
                f"quorum {self.quorum} is more than the {self.agents} agents of a round"
            )
        return self


class Tune(Section):
    """How mode E-tuned trains where it differs from the `training` section. null: as there."""

    batch: Batch | None = Field(None, description="in place of training.batch")
    lr: Rate | None = Field(None, description="in place of training.lr")
    momentum: Momentum | None = Field(None, description="in place of training.momentum")
    weight_decay: Decay | None = Field(None, description="in place of training.weight_decay")

    @model_validator(mode="before")
    @classmethod
    def _what_fine_tuning_has_not(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "epochs" in data:
            raise ValueError("epochs of fine-tuning are evaluation.tune_epochs: set them there")
        if isinstance(data, Mapping) and "lr_steps" in data:
            raise ValueError(
                "lr_steps counts rounds, and fine-tuning has none: give the rate itself, lr"
            )
        return data

    @model_serializer(mode="wrap")
    def _given(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What differs, and nothing else: an empty section where nothing does."""
        return {key: value for key, value in serialize(self).items() if value is not None}


class Evaluation(Section):
    """What is measured, and when."""

    every: int = Field(
        0, ge=0, description="evaluate all agents after every so many rounds; 0: only at the end"
    )
    tune_epochs: int = Field(1, ge=0, description="E_ft of mode E-tuned; 0: leave the mode out")
    tune: Tune = Field(
        Tune(),
        description="laid over the training section for E-tuned, e.g. {momentum: 0.5}; the schedule training.lr_steps and a "
        "compared method's own training have no part in it",
    )
    track: bool = Field(
        False,
        description="measure every participant's test accuracy right after training, every round (E-best needs it)",
    )
    weight: Literal["test", "total"] = Field(
        "test", description="micro averages weigh agents by test samples or by all"
    )


class Wire(Section):
    """How vectors travel."""

    codec: Literal["float32", "float16", "bfloat16", "int8", "topk"] = Field(
        "float32", description="of reports"
    )
    delta: bool = Field(
        False, description="reports carry the difference to the model that the order named"
    )
    down: Literal["float32", "float16", "bfloat16", "int8"] = Field(
        "float32", description="codec of models sent out"
    )
    block: int = Field(256, ge=8, le=1 << 20, description="int8: values per scale")
    keep: float = Field(0.01, gt=0, le=1, description="topk: share of the values that is sent")
    part_bytes: int = Field(
        512 * 1024, ge=1024, le=8 << 20, description="contents are cut into parts of this size"
    )
    delivery: Literal["participants", "all"] = Field(
        "participants",
        description="who holds the model subscription: those invited, or every agent of the cluster",
    )

    @model_validator(mode="after")
    def _topk_is_for_deltas(self) -> Self:
        if self.codec == "topk" and not self.delta:
            raise ValueError(
                "codec topk sends the largest values of a difference: set wire.delta to true"
            )
        return self


class Records(Section):
    """What a run keeps for pictures, besides its results. Changes no model, and is no part of what names a run."""

    sketch: int | None = Field(
        None,
        ge=0,
        le=1024,
        description="values of the random projection that is kept of each reported model, in each round; 0: none; null: "
        "64 where the method keeps agents' models anyway (fesem, fesem_ma) and no privacy section is there, else none",
    )


class MaxSamples(Section):
    """How many examples a report may count with. The cap binds claims, not what an agent trains on."""

    absolute: int | None = Field(None, ge=1, description="a fixed number; null: none")
    times_median: float | None = Field(
        100.0,
        ge=1,
        description="a multiple of the median claim of the reports that are folded together; null: none",
    )


class Clip(Section):
    """How far a report may move away from the model that its order named. Longer steps are shortened."""

    norm: float | None = Field(None, gt=0, description="a fixed Euclidean norm; null: none")
    times_median: float | None = Field(
        None,
        gt=0,
        description="a multiple of the median norm of the reports on the same model; null: none",
    )

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if self.norm is not None and self.times_median is not None:
            raise ValueError("norm and times_median limit the same step: give one of them")
        return self


class Aggregation(Section):
    """What keeps a few agents from owning the model. Applies to every method, in every cluster, before each fold."""

    rule: Rule = Field(
        "mean",
        description="mean weighs by samples; trimmed_mean, median, krum, multi_krum and geometric_median count all "
        "reports of a cluster alike and resist some that lie",
    )
    max_samples: MaxSamples = MaxSamples()
    clip: Clip = Clip()
    trim: float = Field(
        0.2,
        ge=0,
        lt=0.5,
        description="trimmed_mean: share of reports dropped on each side of a value, rounded up",
    )
    liars: float = Field(
        0.2,
        ge=0,
        lt=0.5,
        description="krum, multi_krum: share of a cluster's reports that may lie, rounded up",
    )
    keep: int | None = Field(
        None,
        ge=1,
        description="multi_krum: reports that are averaged; null: all but those that may lie",
    )
    iterations: int = Field(
        50, ge=1, le=1000, description="geometric_median: most iterations of Weiszfeld"
    )
    eps: float = Field(
        1e-4,
        gt=0,
        description="geometric_median: stop when the centre moves by less than this share of a distance",
    )
    refuse_beyond: float | None = Field(
        100.0,
        gt=1,
        description="refuse a report whose step is this many times as long as the median step of its cluster and as the "
        "model itself; null: never",
    )
    quarantine_after: int | None = Field(
        3,
        ge=1,
        description="an agent whose reports were refused in so many steps is invited no more; null: never",
    )

    @property
    def clips(self) -> bool:
        """Are steps shortened at all?"""
        return self.clip.norm is not None or self.clip.times_median is not None

    @property
    def average(self) -> Average:
        """What folds call in place of the weighted mean."""
        return Average(self.rule, self.trim, self.liars, self.keep, self.iterations, self.eps)


TestRule = Annotated[
    Literal["view", "proportional"],
    Field(
        description="view: an agent tests on all test samples of its labels; proportional: on as large a share of each "
        "label's as it has of its training samples. Figures of the two cannot be compared"
    ),
]


class Iid(Section):
    name: Literal["iid"] = "iid"


class LabelSkew(Section):
    """q = share * classes labels per agent; agent i owns label i mod classes and q - 1 more."""

    name: Literal["label_skew"] = "label_skew"
    share: float = Field(0.2, gt=0, le=1)
    test: TestRule = "view"


class Dirichlet(Section):
    """Each class is shared out by proportions from Dir(alpha); an agent with n / N samples gets no more."""

    name: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(
        0.1, gt=0, description="the smaller, the fewer classes hold most of an agent's samples"
    )
    min_samples: int = Field(
        10, ge=1, description="proportions are drawn again until no agent has fewer"
    )
    version: Literal[1, 2] = Field(
        2,
        description="how proportions become whole samples. 2: every agent expects its exact share; 1: rounded down as in "
        "the public FedClust/PACFL suite, which leaves the last agent one sample of nearly every class",
    )
    test: TestRule = "view"


class GroupedLabels(Section):
    """Groups of agents with disjoint label sets; the truth is the group."""

    name: Literal["grouped_labels"] = "grouped_labels"
    groups: int = Field(2, ge=1)
    test: TestRule = "view"


class Rotation(Section):
    """Group g sees its images turned by g * 360 / groups degrees; the truth is the group."""

    name: Literal["rotation"] = "rotation"
    groups: Literal[2, 4] = 2


class SuperclassMixture(Section):
    """Half of the agents draw `major` of their samples from super-class 0, the others from super-class 1."""

    name: Literal["superclass_mixture"] = "superclass_mixture"
    major: float = Field(0.7, gt=0.5, le=1)
    first: tuple[int, ...] = Field((0, 1, 8, 9), description="labels of super-class 0")
    second: tuple[int, ...] = Field((), description="labels of super-class 1; empty: all others")


class ByGroup(Section):
    """One agent per natural client of the data set: a writer, a person."""

    name: Literal["by_group"] = "by_group"
    min_samples: int = Field(
        0, ge=0, description="of training and test together; clients with fewer are left out"
    )
    test_share: float = Field(0.2, gt=0, lt=1)
    split: Literal["random", "time"] = "random"
    populations: dict[str, int] = Field(
        {},
        description="agents taken from each known population, e.g. {hsf0: 100, hsf4: 100}; empty: all",
    )


class Quantity(Section):
    name: Literal["quantity"] = "quantity"
    alpha: float = Field(0.5, gt=0)
    min_samples: int = Field(10, ge=1)


Partition = Annotated[
    Iid | LabelSkew | Dirichlet | GroupedLabels | Rotation | SuperclassMixture | ByGroup | Quantity,
    Field(discriminator="name"),
]


class Timeline(Section):
    """When certain agents (by index) come and go, in rounds. A newcomer joins; a returner leaves and returns."""

    agents: tuple[int, ...]
    joins: int | None = Field(None, ge=0)
    leaves: int | None = Field(None, ge=0)
    returns: int | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.returns is not None and self.leaves is None:
            raise ValueError("an agent that returns must leave first")
        times = [time for time in (self.joins, self.leaves, self.returns) if time is not None]
        if times != sorted(set(times)):
            raise ValueError(f"joins, leaves, returns must be ascending rounds, not {times}")
        return self


class Faults(Section):
    """What goes wrong in a simulated fleet, on the scenario's seed."""

    die: Share = Field(0.0, description="chance that an invited agent is cut off in mid-round")
    back_after_s: float = Field(1.0, ge=0, description="how long a dead agent stays away")
    slow: Share = Field(0.0, description="share of agents that are slow")
    slow_s: float = Field(2.0, ge=0, description="how much longer a slow agent takes per job")
    late: Share = Field(0.0, description="share of agents that join only at late_round")
    late_round: int = Field(2, ge=1)


class Fleet(Section):
    """A simulated fleet: real agents, in few processes on this machine, over a real broker."""

    agents: int = Field(ge=1)
    data: str = Field(
        "digits",
        description="digits (embedded), fashion-mnist, cifar10, cifar100, svhn, emnist-byclass, emnist-letters, "
        "emnist-balanced, femnist, celeba, har, mnist-writer, or a path below the data root",
    )
    partition: Partition | str = Field(
        Iid(), description="a rule, or .npz with train_idx/train_ptr and test_idx/test_ptr"
    )
    test_share: float = Field(
        0.2, gt=0, lt=1, description="of data sets without a test split of their own"
    )
    newcomers: int = Field(
        0,
        ge=0,
        description="so many agents, the last ones, take part in no round: after the last round each gets a model by the "
        "method's rule for newcomers, and mode E-tuned fine-tunes it",
    )
    limit: int | None = Field(
        None, ge=1, description="use only so many examples of the data set, drawn on the seed"
    )
    workers: int = Field(0, ge=0, description="training processes; 0: one per core")
    timeline: tuple[Timeline, ...] = ()
    faults: Faults = Faults()

    @model_validator(mode="after")
    def _somebody_is_no_newcomer(self) -> Self:
        if self.newcomers >= self.agents:
            raise ValueError(
                f"newcomers {self.newcomers}: fewer than the fleet's {self.agents} agents are wanted"
            )
        return self

    @model_validator(mode="after")
    def _timeline_names_agents_of_the_fleet(self) -> Self:
        strangers = sorted(
            {i for line in self.timeline for i in line.agents if not 0 <= i < self.agents}
        )
        if strangers:
            raise ValueError(
                f"timeline names agents {strangers}, the fleet has 0 to {self.agents - 1}"
            )
        return self


Metric = Literal["last", "server", "tuned", "global", "newcomers"]


class Method(Section):
    """A column of a comparison, written flat: {name: fedclust, n_clusters: 4, training: {momentum: 0.5}}."""

    label: Name = Field(
        description="what the tables and the folder are called; the method's name where none is given"
    )
    strategy: AnyStrategy = Field(description="name and hyper-parameters")
    training: dict[str, Any] = Field({}, description="laid over the scenario's training section")
    model_options: dict[str, Any] = Field(
        {}, description="laid over task.model.options, e.g. {head: null}"
    )
    metric: Metric | None = Field(
        None, description="in place of compare.metric, e.g. global for a single model"
    )

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, data: Any) -> Any:
        return _nested(cls, "strategy", data)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return _flat_or_nested("strategy", core, handler)


class Split(Section):
    """A partition of a comparison, written flat: {label: skew20, name: label_skew, share: 0.2, target: 0.75}."""

    label: Name = Field(
        description="what the tables and the folder are called; the rule's name where none is given"
    )
    partition: Partition | str = Field(description="in place of fleet.partition")
    published: dict[str, float] = Field({}, description="as compare.published")
    target: Share | None = Field(None, description="as compare.target")

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, data: Any) -> Any:
        return _nested(cls, "partition", data)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return _flat_or_nested("partition", core, handler)


def _nested(section: type[Section], inner: str, data: Any) -> Any:
    """What was written flat: keys that are none of the section's own are those of the section in it."""
    if not isinstance(data, dict) or inner in data:
        return data
    own = {key: value for key, value in data.items() if key in section.model_fields}
    rest = {key: value for key, value in data.items() if key not in own}
    return {"label": rest.get("name"), **own, inner: rest}


def _flat_or_nested(inner: str, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
    """The JSON schema of what `_nested` takes: one form for each member of the inner union, and the nested form."""
    nested = handler.resolve_ref_schema(handler(core))
    own = {key: value for key, value in nested["properties"].items() if key != inner}
    union = nested["properties"][inner]
    members = [
        handler.resolve_ref_schema(ref)
        for kind in union.get("anyOf", [union])
        for ref in kind.get("oneOf", [])
    ]
    flat = [
        {
            **member,
            "properties": {**member["properties"], **own},
            "required": ["name", *member.get("required", [])],
        }
        for member in members
    ]
    return {"description": nested["description"], "anyOf": [*flat, nested]}


class Compare(Section):
    """Every method on every partition and seed. The cells of one seed and partition share the partition, the initial
    weights and the draws."""

    methods: tuple[Method, ...]
    partitions: tuple[Split, ...] = Field(
        (), description="in place of fleet.partition, one after another; empty: it alone"
    )
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = (1, 2, 3)
    published: dict[str, float] = Field(
        {}, description="by label: the figure that is printed beside ours, in percent"
    )
    metric: Metric = Field(
        "last",
        description="what the published figure is: a mode's macro average; global: E-server's micro one, over all agents' "
        "test samples together (one that several agents hold counts for each); newcomers: E-tuned of the newcomers",
    )
    layout: Literal["modes", "averages"] = Field(
        "modes",
        description="columns of the tables: a mode of evaluation each, or micro and macro accuracy and F1 in `metric`'s mode",
    )
    target: float | None = Field(
        None, gt=0, le=1, description="count the rounds until the accuracy gets there"
    )

    @model_validator(mode="after")
    def _labels_are_names_of_methods(self) -> Self:
        labels = [method.label for method in self.methods]
        if not labels or not self.seeds:
            raise ValueError("at least one method and one seed are wanted")
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(f"methods {twice} stand there twice: give each a label of its own")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds {list(self.seeds)}: each is wanted once")
        splits = [split.label for split in self.partitions]
        if len(set(splits)) < len(splits) or set(splits) & set(labels):
            raise ValueError(
                f"partitions {splits}: give each a label of its own, other than the methods'"
            )
        if self.partitions and (self.published or self.target is not None):
            raise ValueError(
                "published and target are said for each of the partitions, not for all"
            )
        strangers = sorted({name for published in self.figures for name in published} - set(labels))
        if strangers:
            raise ValueError(f"published names {strangers}; the methods are {labels}")
        return self

    @property
    def figures(self) -> list[dict[str, float]]:
        """All published figures, by label."""
        return [self.published, *(split.published for split in self.partitions)]


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


def agent_name(index: int, agents: int) -> str:
    """The id of a simulated agent: padded, so that ids sort like indices."""
    return f"agent-{index:0{len(str(agents - 1))}d}"


def newcomers(scenario: Scenario) -> frozenset[str]:
    """The ids of the simulated agents that come after the last round."""
    fleet = scenario.fleet
    if fleet is None:
        return frozenset()
    return frozenset(
        agent_name(i, fleet.agents) for i in range(fleet.agents - fleet.newcomers, fleet.agents)
    )


def late_agents(scenario: Scenario) -> frozenset[int]:
    """Which simulated agents arrive only at `faults.late_round`: a share of the fleet, drawn on the seed."""
    fleet = scenario.fleet
    if fleet is None:
        return frozenset()
    order = generator(scenario.seed, "late").permutation(fleet.agents)
    return frozenset(int(i) for i in order[: round(fleet.faults.late * fleet.agents)])


def starting_agents(scenario: Scenario) -> tuple[int, ...]:
    """The simulated agents that are there from the start, by index."""
    fleet = scenario.fleet
    if fleet is None:
        return ()
    later = late_agents(scenario).union(*(line.agents for line in fleet.timeline if line.joins))
    return tuple(i for i in range(fleet.agents) if i not in later)
