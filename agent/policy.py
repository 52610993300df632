"""What the owner of a device lets a coordinator ask of it: limits that hold whatever an order says.

Pure, without numpy and torch: the waiting agent asks it before anything of an order is built, and the worker asks it
again where only the data or the model can tell. A refused order is answered with a report that names the rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from covey.shared.consent import NO_CODE, AllowedCode
from covey.shared.errors import PublicError, UserError
from covey.shared.wire.messages import DeviceKind, DeviceWish, OrderMessage, Work

METHODS = (
    "cfl",
    "ditto",
    "fedavg",
    "fedclust",
    "feddane",
    "feddist",
    "feddws",
    "fedem",
    "fednova",
    "fedprox",
    "fedsgd",
    "fedsoft",
    "fesem",
    "fesem_ma",
    "fuzzy",
    "ifca",
    "lg",
    "local",
    "pacfl",
    "perfedavg",
    "robust",
)
BYTES_PER_VALUE = (
    8  # of a model on its way, at most: a float32, what a codec adds, and room for its header
)
HEADER_BYTES = 1 << 16
LARGEST_OPTION = 1 << 24  # a number among the options of a model: widths, counts of filters
MODEL_OPTIONS = 256


class PolicyError(PublicError):
    """An order asks for something that this device's owner does not allow."""


def _known_method(name: str) -> str:
    if name not in METHODS:
        raise ValueError(f"there is no method {name!r}; the methods are {', '.join(METHODS)}")
    return name


Limit = Annotated[int, Field(ge=1)]


class Policy(BaseModel):
    """The limits of one device; null stands for no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    methods: tuple[Annotated[str, AfterValidator(_known_method)], ...] | None = Field(
        None, description="the methods that may train here, such as fedavg; null: all"
    )
    refuse_phases: tuple[str, ...] = Field(
        (),
        description="phases that are refused, such as signature (it shows which labels are here) or evaluate",
    )
    labels: Literal["told", "hidden"] = Field(
        "told", description="whether the status names the classes of the data"
    )
    max_epochs: Limit | None = Field(10_000, description="epochs of one training")
    max_steps: Limit | None = Field(
        10_000_000, description="steps of SGD in one order, over all its models"
    )
    max_models: Limit | None = Field(64, description="models in one order")
    max_model_values: Limit | None = Field(
        100_000_000, description="parameters and buffers of one model"
    )
    max_memory_mb: Limit | None = Field(
        None, description="memory of the training process, in MB on top of torch itself (Linux)"
    )
    device: DeviceWish | None = Field(
        None,
        description="what torch computes on here, whatever a scenario says; null: as the scenario says",
    )
    max_seconds: Annotated[float, Field(gt=0)] | None = Field(
        None, description="time for the work of one order; the training process is ended after it"
    )

    def with_limits(self, limits: Iterable[str]) -> Self:
        """With some keys replaced: "max_epochs=5", "methods=[fedavg, fedclust]". UserError names the wrong one."""
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
        """What a model may take on the wire and on disk; None without a limit."""
        if self.max_model_values is None:
            return None
        return self.max_model_values * BYTES_PER_VALUE + HEADER_BYTES

    @classmethod
    def load(cls, path: Path) -> Self:
        """The policy in a YAML file. Raises UserError that names the key that is wrong."""
        import yaml  # an idle agent without such a file pays nothing for it

        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: not YAML: {error}") from None
        return cls.of({} if data is None else data, str(path))

    @classmethod
    def of(cls, data: Any, source: str) -> Self:
        """The policy in a mapping. Raises UserError that names its source and the key that is wrong."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            faults = [
                f"{'.'.join(map(str, one['loc'])) or 'the file'}: {one['msg']}"
                for one in error.errors()
            ]
            raise UserError(f"{source}: {'; '.join(faults)}") from None


DEFAULT = Policy()
UNLIMITED = Policy(max_epochs=None, max_steps=None, max_models=None, max_model_values=None)


@dataclass(frozen=True)
class Rules:
    """The policy of a device and the code that its owner allowed: what every order is held against."""

    policy: Policy = DEFAULT
    allowed: AllowedCode = NO_CODE

    def refuses_task(self, task: Mapping[str, Any]) -> str | None:
        """Why an agent cannot take part in a run with this task; None where nothing hinders it."""
        try:
            self._check_task(task)
        except UserError as error:
            return str(error)
        return None

    def refuses(self, order: OrderMessage, agent: str) -> str | None:
        """Why the work of an order is not done by this agent; None where nothing hinders it."""
        work = order.work
        if work is None:
            return None
        try:
            self._check_task(work.task)
            self._check_kind(work)
            self._check_amount(work)
            self._check_models(work, agent)
        except UserError as error:
            return str(error)
        return None

    def _check_task(self, task: Mapping[str, Any]) -> None:
        model = task.get("model", {})
        if not isinstance(model, Mapping):
            raise PolicyError("task.model is no mapping; the order is refused")
        self.allowed.check_model(str(model.get("name", "mlp")))
        if task.get("init") is not None:
            raise PolicyError(
                "task.init names a file of this device; a task over the wire names none"
            )
        numbers = list(_numbers(model.get("options", {})))
        if len(numbers) > MODEL_OPTIONS or any(abs(number) > LARGEST_OPTION for number in numbers):
            raise PolicyError(
                f"task.model.options: at most {MODEL_OPTIONS} numbers of at most {LARGEST_OPTION} are accepted"
            )

    def _check_kind(self, work: Work) -> None:
        policy = self.policy
        method = str(work.strategy.get("name"))
        if policy.methods is not None and method not in policy.methods:
            raise PolicyError(
                f"policy of this device: methods: {method} is not among {', '.join(policy.methods)}"
            )
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
        largest = policy.largest_model_bytes
        sizes = [ref.size for ref in work.models]
        if largest is not None and sizes and max(sizes) > largest:
            raise PolicyError(
                f"policy of this device: max_model_values: a model of {max(sizes)} bytes, at most {largest} are allowed"
            )
        values = values_of(work.layout)
        if policy.max_model_values is not None and values > policy.max_model_values:
            raise PolicyError(
                f"policy of this device: max_model_values: the model has {values} values, "
                f"at most {policy.max_model_values} are allowed"
            )

    def check_epochs(self, epochs: int, where: str = "epochs") -> None:
        """Raises PolicyError for more epochs than the policy allows."""
        most = self.policy.max_epochs
        if most is not None and epochs > most:
            raise PolicyError(
                f"policy of this device: max_epochs: {where} is {epochs}, at most {most} are allowed"
            )

    def check_steps(self, steps: int) -> None:
        """Raises PolicyError where an order takes more steps of SGD than the policy allows."""
        most = self.policy.max_steps
        if most is not None and steps > most:
            raise PolicyError(
                f"policy of this device: max_steps: the order takes {steps} steps or more, at most {most} are allowed"
            )

    def device(self, wanted: DeviceWish, choose: Callable[[str, str], DeviceKind]) -> DeviceKind:
        """The kind of device that the owner has set, else the one that an order's training settings want.

        `choose` knows what this machine has: it raises PublicError for what is not there.
        """
        if self.policy.device is not None:
            return choose(self.policy.device, "policy of this device: device")
        return choose(wanted, "training.device")

    def to_wire(self) -> dict[str, Any]:
        """For the worker process of this agent."""
        return {"policy": self.policy.model_dump(mode="json"), "allow": sorted(self.allowed.names)}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """What `to_wire` gave. A job that names no rules allows no code, and is limited in nothing else."""
        policy = Policy.model_validate(wire["policy"]) if "policy" in wire else UNLIMITED
        return cls(policy, AllowedCode(frozenset(wire.get("allow", ()))))


DEFAULT_RULES = Rules()
NO_CODE_RULES = Rules(UNLIMITED)


def values_of(layout: Mapping[str, Any]) -> int:
    """How many values a layout on the wire has. Raises PolicyError where it is no layout; builds nothing."""
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
    """Every number in lists and maps, however deep."""
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
        raise PolicyError(f"{where} is no whole number; the order is refused")
    return value
