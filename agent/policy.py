"""The policy of a device: limits that its owner sets for every order of a coordinator.

Pure, without numpy and torch. The waiting agent checks an order before anything of it is built. The worker checks what
depends on the data or the model. A refused order is answered with a report that names the rule.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from covey.agent.conditions import validated
from covey.agent.learner_choice import TORCH, cannot_train
from covey.shared import extras
from covey.shared.disclosures import Promise
from covey.shared.errors import PublicError, UserError
from covey.shared.own_code.consent import NO_CODE, AllowedCode
from covey.shared.sentences import expectation
from covey.shared.strategies.method_names import places
from covey.shared.strategies.phase_names import CARD, ENTRY, EVALUATE, MOMENTS, SIGNATURE, WARMUP
from covey.shared.wire.deployments import Deployment
from covey.shared.wire.jobs import JobRules
from covey.shared.wire.messages import (
    DeviceKind,
    DeviceWish,
    ModelRef,
    OrderMessage,
    Work,
    digest,
    is_base,
)

if TYPE_CHECKING:
    from covey.extras.secure.owners_policy import OwnersPolicy

MAX_BYTES_PER_VALUE = 8  # of an encoded model: a float32, and the codec's additions
HEADER_BYTES = 1 << 16  # of an encoded model
MAX_OPTION_VALUE = 1 << 24  # of a number among the options of a model: widths, counts of filters
MAX_MEMORY_MB = 1 << 40  # in bytes it is a number that a system can take
MAX_MODEL_OPTIONS = 256  # numbers among the options of a model
# values in `task.read` that are as if the key were not there
USUAL_SPELLING: tuple[Any, ...] = (None, ".", [], ())
DAY_S = 86_400.0


class PolicyError(PublicError):
    """An order asks for something that this device's owner does not allow."""


def _known_method(name: str) -> str:
    if name not in (known := places()):
        raise ValueError(f"unknown method {name!r}; choose from {', '.join(known)}")
    return name


Limit = Annotated[int, Field(ge=1)]
# phases in which agents send what they are clustered by; a test compares them with the methods
SIGNATURES = (SIGNATURE, WARMUP, ENTRY)


class PrivacyDemand(BaseModel):
    """The noise that the owner of a device demands; null demands nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    local_epsilon: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="the largest epsilon that DP-SGD may spend on this device in all runs; orders to train without it are refused, and "
        "evaluations get no figures",
    )
    local_delta: Annotated[float, Field(gt=0, lt=1)] = Field(
        1e-5, description="the delta of that epsilon; choose it below 1 / number of examples"
    )
    signatures: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="the least noise on a signature, in multiples of its clip; orders for signatures with less are refused",
    )
    min_cell: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="the fewest samples of a class whose sums may be in a card; orders for cards with fewer are refused",
    )

    secure_least: Annotated[int, Field(ge=3)] | None = Field(
        None,
        description="the fewest agents in a sum; orders to train without secure sums are refused, and evaluations get no figures",
    )
    secure_colluders: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="the share of a group's agents that may work for the coordinator without harm, at least",
    )
    secure_clip: Annotated[float, Field(gt=0)] | None = Field(
        None, description="the longest update that may enter a sum, as a Euclidean norm"
    )
    secure_noise: Annotated[float, Field(ge=0)] = Field(
        0.0, description="the least noise of a sum, in multiples of the longest update"
    )
    secure_epsilon: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="the largest epsilon that noised sums may spend on this device in all runs, at local_delta; sums "
        "without noise are refused",
    )
    secure_known: tuple[str, ...] = Field(
        (), description="ids of agents whose owners this device's owner knows"
    )
    secure_known_least: Annotated[int, Field(ge=0)] = Field(
        0,
        description="the fewest other agents of a sum that must be among secure_known, even if all strangers collude",
    )
    secure_steady: bool = Field(
        default=False,
        description="true: this device answers no two sums that differ by some members, but by fewer than the threshold",
    )
    secure_clear: bool = Field(
        default=False,
        description="true: with secure_least, orders that form groups may ask this device for a signature, a card, a choice or "
        "a vote of its own",
    )

    def of_sums(self) -> OwnersPolicy:
        """The demands on terms of secure sums."""
        terms: type[OwnersPolicy] = extras.part("secure", "agent").OwnersPolicy
        rho_of = extras.part("secure", "parameters").rho_of

        bound = self.secure_epsilon
        return terms(
            least=self.secure_least or 3,
            colluders=self.secure_colluders,
            clip=self.secure_clip,
            multiplier=self.secure_noise,
            most_spent=None if bound is None else rho_of(bound, self.local_delta),
            known=frozenset(self.secure_known),
            known_least=self.secure_known_least,
            steady=self.secure_steady,
        )

    def refuses(self, work: Work) -> str | None:
        """Why an order asks for too little noise, or for work without secure sums; None if it does not."""
        is_secure = bool((work.privacy or {}).get("secure")) and work.phase != MOMENTS
        asked = work.privacy or {}
        local, signatures = asked.get("local"), asked.get("signatures")
        rule = "policy of this device: privacy"
        if self.secure_least is not None and work.phase != EVALUATE and not is_secure:
            return f"{rule}.secure_least: the report would not be part of a secure sum"
        if self.local_epsilon is not None and work.phase != EVALUATE:
            if work.phase == MOMENTS:
                return f"{rule}.local_epsilon: statistics of the data are sent without noise"
            if not isinstance(local, Mapping):
                return f"{rule}.local_epsilon: the order trains without privacy.local"
            target = local.get("target_epsilon")
            if target is not None and not _number(target) <= self.local_epsilon:
                return (
                    f"{rule}.local_epsilon: privacy.local.target_epsilon is {_number(target):g}, at most "
                    f"{self.local_epsilon:g} is allowed"
                )
        if self.min_cell is not None and CARD in work.numbers:
            given = work.numbers[CARD]
            if not _number(given) >= self.min_cell:
                return (
                    f"{rule}.min_cell: the order asks for a card with the sums of {_number(given):g} samples of a class, at "
                    f"least {self.min_cell} are demanded (task.min_cell)"
                )
        if self.signatures is not None and work.phase in SIGNATURES:
            given = signatures.get("noise_multiplier") if isinstance(signatures, Mapping) else 0.0
            if not _number(given) >= self.signatures:
                return (
                    f"{rule}.signatures: the order asks for a signature with noise of {_number(given):g} x clip, at least "
                    f"{self.signatures:g} is demanded (privacy.signatures.noise_multiplier)"
                )
        return None


def _number(value: Any) -> float:
    """A number of an order as it is; NaN, which keeps no bound, for anything else."""
    return value if type(value) in (int, float) else math.nan


RowKey = Literal["read", "impute", "drop_unlabelled"]


def chosen_rows(task: Mapping[str, Any]) -> dict[str, str]:
    """By key of a task, how its own words leave out rows of a table or rewrite cells: of enough such tasks, counts are the cells."""
    found: dict[str, str] = {}
    read = task.get("read")
    spelling = read if isinstance(read, Mapping) else {"read": read}
    ways = [f"{key} {value!r}" for key, value in spelling.items() if value not in USUAL_SPELLING]
    if ways:
        found["read"] = f"reads cells in its own way: {', '.join(ways):.200}"
    if isinstance(read, Mapping) and (words := read.get("missing")):
        found["read"] = f"counts cells that read {words!r:.200} as missing"
    if task.get("impute") == "drop":
        found["impute"] = "leaves out rows with a missing cell"
    if task.get("drop_unlabelled") not in (None, False):
        found["drop_unlabelled"] = "leaves out rows without a target"
    return found


class Policy(BaseModel):
    """The limits of one device; null means no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    methods: tuple[Annotated[str, AfterValidator(_known_method)], ...] | None = Field(
        None, description="methods that may train here, such as fedavg; null: all"
    )
    refuse_phases: tuple[str, ...] = Field(
        (),
        description="phases to refuse, such as signature (it reveals which labels are here) or evaluate",
    )
    labels: Literal["told", "hidden"] = Field(
        "told", description="whether the status names the classes of the data"
    )
    words: Literal["told", "hidden"] = Field(
        "told",
        description="whether a task may ask for the words of a table's columns; hidden: only tasks that list their words",
    )
    samples: Literal["told", "hidden"] = Field(
        "told",
        description="whether a status and a report name numbers of samples; hidden: a report counts as one sample, except in a sum, and "
        "evaluations get no figures",
    )
    companion: Literal["summed", "open"] = Field(
        "summed",
        description="whether this device adds its sums to a companion of the model under secure sums alone, or also in the open, "
        "where the coordinator sees them: with few rows they are its table",
    )
    task: tuple[RowKey, ...] = Field(
        (),
        description="keys of a task that may leave out rows or rewrite cells here although something is demanded: read, impute "
        "(drop), drop_unlabelled",
    )
    max_tasks: Limit | None = Field(
        20,
        description="different tasks within a day that the data is compared with, or that work is done for, while something is "
        "demanded",
    )
    forced_models: Literal["taken", "checked"] = Field(
        "taken",
        description="models that `coordinator promote --force` publishes: taken without this device's check, or checked "
        "as any other",
    )
    privacy: PrivacyDemand = Field(
        PrivacyDemand(),
        description="noise that orders must ask for: local_epsilon (DP-SGD, over all runs), local_delta, signatures",
    )
    max_epochs: Limit | None = Field(10_000, description="epochs of one training")
    max_steps: Limit | None = Field(
        10_000_000, description="steps of SGD in one order, summed over its models"
    )
    max_models: Limit | None = Field(64, description="models in one order")
    max_model_values: Limit | None = Field(
        100_000_000, description="parameters and buffers of one model"
    )
    max_federations: Limit | None = Field(
        None,
        description="federations that one agent takes part in at a time (`agent start --also`)",
    )
    max_base_mb: Limit | None = Field(
        1000,
        description="bases (task.base) that are kept on the disk, in MB; no larger one is fetched",
    )
    max_memory_mb: Limit | None = Field(
        None,
        le=MAX_MEMORY_MB,
        description="memory of the training process, in MB in addition to its libraries, such as torch (Linux)",
    )
    memory_limit_mb: Limit | None = Field(
        None,
        le=MAX_MEMORY_MB,
        description="memory of the training process in all, torch included, in MB (Linux)",
    )
    only_when: tuple[Annotated[str, AfterValidator(validated)], ...] = Field(
        (),
        description="conditions for work, all of which must hold: charging, idle, or hours such as 22:00-06:00",
    )
    device: DeviceWish | None = Field(
        None,
        description="the device that torch computes on; overrides the scenario; null: the scenario's",
    )
    max_seconds: Annotated[float, Field(gt=0)] | None = Field(
        None, description="seconds for the work of one order; then the training process is ended"
    )

    @property
    def promises(self) -> frozenset[Promise]:
        """What keeps fields of reports and statuses back, whatever an order asks for."""
        sums, noise = self.privacy.secure_least is not None, self.privacy.local_epsilon is not None
        no_samples = self.samples == "hidden"
        found = {
            Promise.SUMMED: sums,
            Promise.NOISED: noise,
            Promise.KEPT: sums or noise or no_samples,
            Promise.NO_WORDS: self.words == "hidden",
            Promise.NO_SAMPLES: no_samples,
        }
        is_demanding = self.labels == "hidden" or self.privacy != PrivacyDemand()
        found[Promise.OWNED] = is_demanding or any(found.values())
        found[Promise.UNASKED] = self.companion == "summed"
        return frozenset(promise for promise, holds in found.items() if holds)

    @property
    def demands(self) -> bool:
        """Whether the owner keeps anything back: then a status follows from the task and the form of the data alone."""
        return Promise.OWNED in self.promises

    @property
    def limits_memory(self) -> bool:
        """Whether the owner limits the memory of the training process."""
        return self.max_memory_mb is not None or self.memory_limit_mb is not None

    def with_limits(self, limits: Iterable[str]) -> Self:
        """The policy with some keys replaced.

        Args:
            limits: such as "max_epochs=5" or "methods=[fedavg, fedclust]".

        Raises:
            UserError: one of them is wrong; the message names it.
        """
        import yaml

        data = self.model_dump(mode="json")
        for text in limits:
            key, equals, value = text.partition("=")
            if not equals:
                raise UserError(f"--limit {text}: expected KEY=VALUE, such as max_epochs=5")
            try:
                data[key.strip()] = yaml.safe_load(value)
            except yaml.YAMLError:
                raise UserError(f"--limit {text}: the value is not YAML") from None
        return self.of(data, "--limit")

    @property
    def largest_model_bytes(self) -> int | None:
        """The largest size of an encoded model, on the wire and on disk; None for no limit."""
        if self.max_model_values is None:
            return None
        return self.max_model_values * MAX_BYTES_PER_VALUE + HEADER_BYTES

    @property
    def largest_base_bytes(self) -> int | None:
        """The room for bases on the disk; None for no limit."""
        return None if self.max_base_mb is None else self.max_base_mb << 20

    @classmethod
    def load(cls, path: Path) -> Self:
        """The policy in a YAML file. Raises UserError that names a wrong key."""
        import yaml  # an idle agent without such a file pays nothing for it

        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(
                f"{path}: not YAML: {error}; expected lines such as max_epochs: 5, as `agent lab policy` prints them"
            ) from None
        return cls.of({} if data is None else data, str(path))

    @classmethod
    def of(cls, data: Any, source: str) -> Self:
        """The policy in a mapping. Raises UserError that names the source and a wrong key."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            faults = [_describe_fault(one["loc"], _expectation(one)) for one in error.errors()]
            raise UserError(f"{source}: {'; '.join(faults)}") from None


MEMORY_UNITS_MB = {"M": 1, "G": 1 << 10}


def memory_mb(text: str, option: str = "--memory-limit") -> int:
    """The value of an option in MB (2**20 bytes): "512M" or "2G". Raises UserError for another text."""
    number, unit = text[:-1], text[-1:].upper()
    if not number.isascii() or not number.isdigit() or unit not in MEMORY_UNITS_MB:
        raise UserError(f"{option} {text}: expected a whole number with M or G, such as 512M")
    return int(number) * MEMORY_UNITS_MB[unit]


def _expectation(fault: ErrorDetails) -> str:
    """The fault of one key: the expectation, or the key that was probably meant."""
    if fault["type"] == "model_type":
        return "expected keys with values, such as max_epochs: 5; `agent lab policy` prints all of them"
    if fault["type"] != "extra_forbidden":
        return expectation(fault)
    import difflib  # an idle agent without a mistake pays nothing for it

    key = str(fault["loc"][-1])
    section = Policy if len(fault["loc"]) == 1 else PrivacyDemand
    similar = difflib.get_close_matches(key, section.model_fields, n=1)
    if similar:
        return f"unknown key; did you mean {similar[0]}?"
    return f"unknown key; expected {', '.join(section.model_fields)}"


def _describe_fault(location: tuple[int | str, ...], message: str) -> str:
    """A sentence about one wrong key; the location is empty where the whole file is wrong."""
    key = ".".join(map(str, location))
    return f"{key or 'the file'}: {message}"


DEFAULT = Policy()
OF_THE_OWNER = "policy of this device"  # begins an error about a limit
TAKES_MORE = "the work takes more than the allowed"  # of an error about memory
UNLIMITED = Policy(
    max_epochs=None, max_steps=None, max_models=None, max_model_values=None, max_base_mb=None
)


@dataclass(frozen=True)
class OwnersRules:
    """The owner's decisions that every order has to obey: the policy, the code that may run, and the learner."""

    policy: Policy = DEFAULT
    allowed: AllowedCode = NO_CODE
    learner: str = TORCH  # trains here: a name of `covey.agent.learner_choice`

    def refuses_task(self, task: Mapping[str, Any]) -> str | None:
        """Why an agent cannot take part in a run with this task; None if it can."""
        try:
            self._check_task(task)
        except UserError as error:
            return str(error)
        return None

    def refuses(self, order: OrderMessage, agent: str) -> str | None:
        """Why this agent refuses the work of an order; None if it accepts."""
        work = order.work
        if work is None:
            return None
        try:
            self._check_task(work.task)
            self._check_kind(work)
            refusal = self.policy.privacy.refuses(work)
            if refusal is not None:
                raise PolicyError(refusal)
            self._check_amount(work)
            self._check_models(work, agent)
        except UserError as error:
            return str(error)
        return None

    def check_model_file(self, options: Mapping[str, Any], values: int) -> None:
        """Raises UserError for a model in a file that is larger than this device builds.

        Args:
            options: of the model that the file claims to hold.
            values: that its tensors hold.
        """
        self._check_options(options)
        self._check_values(values)

    def refuses_deployment(self, deployment: Deployment) -> str | None:
        """Why this device takes over no model of a deployment; None if it may."""
        try:
            self._check_task(deployment.task)
            self._check_sizes(deployment.models, deployment.layout)
            if deployment.tune:
                self.check_epochs(
                    _whole("tune.epochs", deployment.tune.get("epochs")), "tune.epochs"
                )
        except UserError as error:
            return str(error)
        return None

    def _check_task(self, task: Mapping[str, Any]) -> None:
        model = task.get("model", {})
        if not isinstance(model, Mapping):
            raise PolicyError("task.model: expected a mapping; the order is refused")
        self.allowed.check_model(str(model.get("name", "mlp")))
        why_not = cannot_train(self.learner, task)
        if why_not is not None:
            raise PolicyError(why_not)
        if task.get("init") is not None:
            raise PolicyError(
                "task.init names a file on this device; a task over the wire must not name files"
            )
        self._check_words(task.get("categories"))
        self._check_rows(task)
        self._check_options(model.get("options", {}))

    def _check_options(self, options: Any) -> None:
        numbers = list(_numbers(options))
        is_too_large = any(abs(number) > MAX_OPTION_VALUE for number in numbers)
        if len(numbers) > MAX_MODEL_OPTIONS or is_too_large:
            raise PolicyError(
                f"task.model.options: at most {MAX_MODEL_OPTIONS} numbers of at most {MAX_OPTION_VALUE} are accepted"
            )

    def _check_words(self, categories: Any) -> None:
        """A number in place of a column's words asks every agent for its own."""
        if self.policy.words == "told" or not isinstance(categories, Mapping):
            return
        # anything but a list of words, or a mapping that has one: "8" would be read as a number too
        asked = [one for one in categories.values() if not isinstance(one, list | tuple | Mapping)]
        if asked:
            raise PolicyError(
                f"policy of this device: words: the task asks for the words of {len(asked)} columns; list the words in "
                "task.categories"
            )

    def _check_rows(self, task: Mapping[str, Any]) -> None:
        """A task that chooses rows by its own words needs the owner's consent where anything is demanded."""
        chosen = chosen_rows(task)
        asked = [key for key in chosen if key not in self.policy.task]
        if asked and self.policy.demands:
            does = "; ".join(chosen[key] for key in asked)
            raise PolicyError(
                f"policy of this device: task: task.{', task.'.join(asked)}: the task {does}; its owner allows that with "
                f"task: [{', '.join(asked)}]"
            )

    def _check_kind(self, work: Work) -> None:
        policy = self.policy
        method = str(work.strategy.get("name"))
        if policy.methods is not None and method not in policy.methods:
            raise PolicyError(
                f"policy of this device: methods: {method} is not among {', '.join(policy.methods)}"
            )
        if work.phase == MOMENTS and policy.samples == "hidden":
            raise PolicyError("policy of this device: samples: statistics count the rows")
        if work.phase in policy.refuse_phases:
            raise PolicyError(
                f"policy of this device: refuse_phases: the phase {work.phase} is refused"
            )

    def _check_amount(self, work: Work) -> None:
        for where, epochs in (
            ("training.epochs", work.training.get("epochs")),
            ("numbers.epochs", work.numbers.get("epochs")),
            ("evaluation.tune_epochs", work.evaluation.get("tune_epochs")),
        ):
            if epochs is not None:
                self.check_epochs(_whole(where, epochs), where)
        steps = work.numbers.get("steps")
        if steps is not None:
            self.check_steps(_whole("numbers.steps", steps))

    def _check_models(self, work: Work, agent: str) -> None:
        policy = self.policy
        for ref in work.models:
            if ref.key.startswith("@") and ref.key != f"@{agent}":
                raise PolicyError(f"models: {ref.key} is another agent's own model")
        if policy.max_models is not None and len(work.models) > policy.max_models:
            raise PolicyError(
                f"policy of this device: max_models: {len(work.models)} models, at most {policy.max_models} are allowed"
            )
        self._check_sizes(work.models, work.layout)
        room = policy.largest_base_bytes
        for ref in work.models:
            if is_base(ref.key) and room is not None and ref.size > room:
                raise PolicyError(
                    f"policy of this device: max_base_mb: a base of {ref.size / (1 << 20):.1f} MB, at most {policy.max_base_mb} are "
                    "allowed; start the agent with a larger --max-base"
                )

    def _check_sizes(self, models: Iterable[ModelRef], layout: Mapping[str, Any]) -> None:
        largest = self.policy.largest_model_bytes
        sizes = [ref.size for ref in models]
        if largest is not None and sizes and max(sizes) > largest:
            raise PolicyError(
                f"policy of this device: max_model_values: a model of {max(sizes)} bytes, at most {largest} are allowed"
            )
        self._check_values(values_of(layout))

    def _check_values(self, values: int) -> None:
        policy = self.policy
        if policy.max_model_values is not None and values > policy.max_model_values:
            raise PolicyError(
                f"policy of this device: max_model_values: the model has {values} values, "
                f"at most {policy.max_model_values} are allowed"
            )

    def hides_failures(self, work: Work) -> bool:
        """Whether noise or sums are demanded, by the owner or by the order, so that a failure must not depend on the data."""
        return bool(work.privacy) or self.policy.demands

    def check_epochs(self, epochs: int, where: str = "epochs") -> None:
        """Raises PolicyError if the policy allows fewer epochs."""
        most = self.policy.max_epochs
        if most is not None and epochs > most:
            raise PolicyError(
                f"policy of this device: max_epochs: {where} is {epochs}, at most {most} are allowed"
            )

    def check_steps(self, steps: int) -> None:
        """Raises PolicyError if the policy allows fewer steps of SGD."""
        most = self.policy.max_steps
        if most is not None and steps > most:
            raise PolicyError(
                f"policy of this device: max_steps: the order takes {steps} steps or more, at most {most} are allowed"
            )

    def device(self, wanted: DeviceWish, choose: Callable[[str, str], DeviceKind]) -> DeviceKind:
        """The kind of device to compute on: the owner's choice, or else that of the order.

        Args:
            wanted: the choice in an order's training settings.
            choose: resolves a choice on this machine, given the choice and the setting that it comes from; raises
                PublicError if the machine has no such device.
        """
        if self.policy.device is not None:
            return choose(self.policy.device, "policy of this device: device")
        return choose(wanted, "training.device")

    def for_job(self) -> JobRules:
        """The rules as part of a job for a worker process."""
        policy = self.policy.model_dump(mode="json")
        return JobRules(policy=policy, allow=sorted(self.allowed.names), learner=self.learner)

    @classmethod
    def of_job(cls, rules: JobRules) -> Self:
        """The inverse of `for_job`."""
        policy = UNLIMITED if rules.policy is None else Policy.model_validate(rules.policy)
        return cls(policy, AllowedCode(frozenset(rules.allow)), rules.learner)


class TasksOfDay:
    """The different tasks of the last day, which are limited where the owner of a device demands anything."""

    def __init__(self, policy: Policy) -> None:
        self._most = policy.max_tasks if policy.demands else None
        self._seen: dict[bytes, float] = {}  # digest of a task -> when it came first

    def __repr__(self) -> str:
        return f"<TasksOfDay: {len(self._seen)} of {self._most}>"

    def refuses(self, task: Mapping[str, Any], now: float) -> str | None:
        """Why one more task is refused; None if it is not, or is one of those."""
        if self._most is None:
            return None
        self._seen = {one: at for one, at in self._seen.items() if now - at < DAY_S}
        which = digest(json.dumps(task, sort_keys=True).encode())
        if which not in self._seen and len(self._seen) >= self._most:
            return f"policy of this device: max_tasks: {self._most} different tasks within a day are allowed"
        self._seen.setdefault(which, now)
        return None


DEFAULT_RULES = OwnersRules()
NO_CODE_RULES = OwnersRules(UNLIMITED)


def values_of(layout: Mapping[str, Any]) -> int:
    """The number of values in a layout on the wire, without building anything. Raises PolicyError if it is malformed."""
    wrong = PolicyError(
        "layout: expected a list of tensors, each with a name and a shape of numbers >= 0"
    )
    tensors, trainable = layout.get("tensors"), layout.get("trainable")
    if (
        not isinstance(tensors, list)
        or not isinstance(trainable, int)
        or not 0 <= trainable <= len(tensors)
    ):
        raise wrong
    total = 0
    for tensor in tensors:
        match tensor:
            case [str(), [*shape]] if len(shape) <= 8 and all(
                type(n) is int and n >= 0 for n in shape
            ):
                total += math.prod(shape)
            case _:
                raise wrong
    return total


def _numbers(value: Any) -> Iterator[float]:
    """Every number in nested lists and maps."""
    match value:
        case bool():
            return
        case int() | float():
            yield value
        case list() | tuple():
            for item in value:
                yield from _numbers(item)
        case Mapping():
            for item in value.values():
                yield from _numbers(item)


def _whole(where: str, value: Any) -> int:
    if type(value) is not int:
        raise PolicyError(f"{where}: expected a whole number; the order is refused")
    return value
