"""From a command and what is known of the fleet to a plan: which version, for whom, in place of which. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.extras.in_use.registry import RESERVED, Act, Registry, Version, outcome_of, sample
from covey.extras.in_use.uptake import InForce
from covey.shared.errors import UserError
from covey.shared.sentences import some
from covey.shared.wire.documents import AgentStatus, ModelInUse
from covey.shared.wire.topics import is_name

NO_MODEL = "no model"
RUN_CHARACTERS = 8  # of a run's id, for a version that nobody has given a name here

Statuses = Mapping[str, AgentStatus]  # the newest of each device


@dataclass(frozen=True)
class Command:
    """What an operator typed."""

    act: Act = "promote"
    alias: str = ""  # a name for the version
    force: bool = False  # devices take it without their check
    on: tuple[str, ...] = ()  # devices that try it, as a candidate
    share: float | None = None  # of the devices that try it
    names_target: bool = True  # the operator named the version

    def __post_init__(self) -> None:
        if self.on and self.share is not None:
            raise UserError("--on and --share both choose devices; give one of them")
        if self.alias and (not is_name(self.alias) or self.alias in RESERVED):
            raise UserError(
                f"--as {self.alias}: expected letters, digits, '.', '_' or '-', and none of {', '.join(RESERVED)}"
            )


@dataclass(frozen=True)
class DeploymentTarget:
    """The version that a command is about."""

    version: Version
    name: str  # for people


@dataclass(frozen=True)
class DeploymentPlan:
    """A deployment before it begins."""

    act: Act
    target: str  # name of the version
    version: Version
    before: str  # name of the version in force; "" for none
    before_version: Version | None
    in_use: Mapping[str, int]  # devices by the name of the version that they use now
    devices: Sequence[str] = ()  # that try it; empty for all
    force: bool = False
    again: str = ""  # why it repeats the deployment before; empty if it does not
    is_done: bool = False  # all of it is so already

    @property
    def sentence(self) -> str:
        """For a person, before anything happens."""
        whom = f"on {some(self.devices)}" if self.devices else "on all devices"
        if self.is_done:
            words = [f"{self.act}: {self.target} is in force already, nothing to do"]
        elif self.before_version == self.version:
            words = [f"{self.act}: {self.target} once more {whom}"]
        else:
            words = [f"{self.act}: {self.before or NO_MODEL} -> {self.target} {whom}"]
        if self.force:
            words.append("without their check")
        if self.again:
            words.append(f"again, because {self.again}")
        used = [f"{name} on {count}" for name, count in self.in_use.items()]
        return ", ".join(words) + f"; in use now: {', '.join(used) or 'nothing'}"

    @property
    def forced(self) -> str:
        """The command that does the same without the devices' check. It names the version, so it can be typed again."""
        to = "rollback --to" if self.act == "rollback" else "promote"
        devices = "".join(f" --on {device}" for device in self.devices)
        return f"coordinator {to} {self.target}{devices} --force"

    def to_json(self) -> dict[str, Any]:
        run, number = self.version
        return {
            "act": self.act,
            "before": self.before,
            "target": self.target,
            "run": run,
            "round": number,
            "devices": list(self.devices),
            "force": self.force,
            "in_use": dict(self.in_use),
        }


def as_devices_have_it(known: Registry, statuses: Statuses) -> Registry:
    """The registry with the word of devices on the newest publication to all of them."""
    newest = known.newest
    if newest is None or newest.is_trial:
        return known
    one = newest.publication
    return known.judged(newest, outcome_of(statuses, one.version, one.serial).after(one.outcome))


def check_known(known: Registry, held: InForce) -> None:
    """UserError if the broker holds a publication that the registry does not know. One that has lost its state holds none."""
    one = held.all_devices
    if one is not None and known.serial and one.serial != known.serial:
        raise UserError(
            f"all devices should use {one.title}, which was published from elsewhere: this registry does not know what was in "
            "force before. Name the version to go back to: `coordinator rollback --to VERSION`"
        )


def plan(
    command: Command, target: DeploymentTarget, known: Registry, held: InForce, statuses: Statuses
) -> DeploymentPlan:
    """The deployment that a command is about to begin.

    Args:
        command: as typed.
        target: the version; of a rollback without one, that of `Registry.before`.
        known: the registry, as devices have it.
        held: what the broker holds, which may come from elsewhere.
        statuses: of the devices.

    Raises:
        UserError: a device does not exist, the name is that of another version, or the version was never in force.
    """
    before, before_name = _before(known, held)
    if command.act == "rollback":
        _check_was_in_force(known, target)
    if command.alias:
        _check_free(known, command.alias, target)
    again = ""
    newest = known.newest
    if newest is not None and newest.version == target.version and newest.is_open_rollback:
        rejected = list(newest.outcome.rejected) if newest.outcome is not None else []
        again = f"{some(rejected)} rejected it" if rejected else "devices have not answered"
        if not command.names_target:
            again += " (--to VERSION goes further back)"
    name = command.alias or target.name
    chosen = _devices(command, target, held, statuses)
    in_use = _in_use(known, DeploymentTarget(target.version, name), statuses)
    there = None if held.candidate else held.all_devices
    words = (*target.version, name, command.force)
    is_held = there and (there.run, there.round, there.name, there.force) == words
    return DeploymentPlan(
        act=command.act,
        target=name,
        version=target.version,
        before=before_name,
        before_version=before,
        in_use=in_use,
        devices=chosen,
        force=command.force,
        again=again,
        is_done=bool(is_held) and not chosen and set(in_use) == {name},
    )


def _in_use(known: Registry, target: DeploymentTarget, statuses: Statuses) -> dict[str, int]:
    """How many devices that are online use each version, by its name."""
    names: Counter[str] = Counter()
    for one in statuses.values():
        if one.online and one.model is not None:
            is_target = (one.model.run, one.model.round) == target.version
            names[target.name if is_target else title_of(one.model, known) or NO_MODEL] += 1
    return dict(names.most_common())


def title_of(model: ModelInUse, known: Registry | None = None) -> str:
    """The one name of the version that a device uses; "" for none."""
    if not model.run:
        return ""
    of_registry = known.title((model.run, model.round)) if known is not None else ""
    return of_registry or model.name or f"{model.run[:RUN_CHARACTERS]}@{model.round}"


def _check_was_in_force(known: Registry, target: DeploymentTarget) -> None:
    versions = [one.version for one in known.earlier]
    if known.newest is not None and known.newest.publication.act == "rollback":
        versions.append(known.newest.version)
    if target.version not in versions:
        earlier = some([known.title(one) for one in reversed(versions)]) if versions else "nothing"
        raise UserError(
            f"--to {target.name}: this version was never in force here, so there is no way back to it. In force were: {earlier}. "
            f"`coordinator promote {target.name}` publishes it"
        )


def _check_free(known: Registry, alias: str, target: DeploymentTarget) -> None:
    """A name stays with its version: nobody could keep two versions of one name apart afterwards."""
    named = known.named(alias)
    if named is not None and named.version != target.version:
        raise UserError(f"--as {alias}: this is the name of {named} already; choose another one")


def _before(known: Registry, held: InForce) -> tuple[Version | None, str]:
    """The version in force and its name: the registry's, unless all devices were given one from elsewhere."""
    other = held.all_devices
    if other is not None and other.serial != known.serial:
        version = (other.run, other.round)
        return version, known.title(version) or other.title
    champion = known.champion
    if champion is None:
        return None, ""
    return champion.version, known.title(champion.version)


def _devices(
    command: Command, target: DeploymentTarget, held: InForce, statuses: Statuses
) -> Sequence[str]:
    """The devices that try the version, those that try it already included; none if it is for all."""
    chosen = _chosen_devices(command, target, statuses)
    trial = held.candidate
    if chosen and trial is not None and trial.is_same_version(*target.version):
        return sorted({*chosen, *trial.devices})
    return chosen


def _chosen_devices(
    command: Command, target: DeploymentTarget, statuses: Statuses
) -> Sequence[str]:
    if command.share is None:
        unknown = [agent for agent in command.on if agent not in statuses]
        if unknown:
            raise UserError(
                f"--on {some(unknown)}: no agent of this id has been connected; `coordinator status` lists the agents"
            )
        return sorted(set(command.on))
    able = [agent for agent, one in statuses.items() if one.online and one.model is not None]
    if not able:
        raise UserError(
            "--share: no device is online that keeps a model (`agent start --model-dir`)"
        )
    run, number = target.version
    return sample(able, command.share, f"{run}@{number}")
