"""Propose a scenario for the data of one or several devices, with a reason for every choice. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import PurePath

from covey.extras.proposals.choices import Choice, Proposal, image_model, table_model, window_model
from covey.extras.proposals.description import DataDescription
from covey.extras.proposals.fleet_columns import FleetColumn
from covey.extras.proposals.pictures import BYTE_SCALE, picture_task
from covey.extras.proposals.targets import Target, classes_of
from covey.extras.proposals.task_of_table import table_task
from covey.shared import extras
from covey.shared.errors import UserError
from covey.shared.scenario.load import from_mapping
from covey.shared.scenario.scenario import Scenario
from covey.shared.sentences import some

FEW_AGENTS = 4  # fewer devices form no groups worth a model each
FEW_ROWS = 200  # of the smallest device: small batches and more epochs
IMAGE_AXES = 3
WINDOW_AXES = 2
COLOURS = (1, 3)
GENERAL_NAMES = ("", "agent", "client", "data", "device", "part")  # say nothing about the data


def propose(
    devices: Sequence[DataDescription],
    *,
    target: str | Sequence[str] | None = None,
    anomalies: bool = False,
    horizon: int | None = None,
    agents: int | None = None,
    name: str | None = None,
) -> Proposal:
    """A scenario that fits the data of the devices.

    Args:
        devices: a description of each device's data, at least one.
        target: the column to predict, or several columns of labels; None: found by its name or place.
        anomalies: find unusual rows; the target is optional then, and labels them.
        horizon: forecast the target of a series for this number of rows.
        agents: devices of the fleet; None: as many as are described.
        name: of the scenario; None: after the first source.

    Raises:
        UserError: the target is not clear, or the data of the devices does not go together.
    """
    proposal = Proposal(about=_about(devices), name=name or scenario_name(devices))
    wishes = (target,) if isinstance(target, str) else tuple(target or ())
    kinds = {device.kind for device in devices}
    if kinds == {"table"}:
        table_task(devices, wishes, proposal, anomalies=anomalies, horizon=horizon)
    elif anomalies or horizon or len(wishes) > 1:
        raise UserError(
            "--anomalies, --horizon and several --target are for tables; write task.anomalies into the scenario of other data"
        )
    elif "images" in kinds:
        picture_task(devices, next(iter(wishes), None), proposal)
    else:
        _add_arrays(devices, wishes, proposal)
    count = agents or len(devices)
    _add_training(devices, proposal)
    _add_rounds(count, proposal)
    checked(proposal)
    return proposal


def _add_arrays(
    devices: Sequence[DataDescription], wishes: Sequence[str], proposal: Proposal
) -> None:
    """The task of devices that all hold arrays."""
    _check_alike(devices)
    for wish in wishes:
        raise UserError(
            f"--target {wish}: {devices[0].source} is not a table, so no column of it can be the target; omit --target"
        )
    _task_of_arrays(devices, proposal)


def checked(proposal: Proposal) -> Scenario:
    """The proposed scenario as its loader reads it. A proposal that is refused would be a fault of this program."""
    return from_mapping(proposal.content())


def _check_alike(devices: Sequence[DataDescription]) -> None:
    """UserError if the devices hold different kinds of data, or samples of different shapes."""
    first = devices[0]
    for device in devices[1:]:
        if device.kind != first.kind:
            raise UserError(
                f"{first.source} holds {_kind(first)}, {device.source} holds {_kind(device)}; give all "
                "devices the same kind of data"
            )
        if device.shape != first.shape:
            raise UserError(
                f"samples of {first.source} have shape {list(first.shape)}, those of {device.source} "
                f"{list(device.shape)}; bring all to one shape"
            )


def _kind(device: DataDescription) -> str:
    return "a table" if device.kind == "table" else device.kind


def _about(devices: Sequence[DataDescription]) -> list[str]:
    lines = [
        "A proposal: read the reasons, change what you know better, then run `coordinator validate`.",
        "Then `coordinator advise`: whether groups would help, from cards of the devices, without any training.",
    ]
    sources = [f"{device.source} ({device.samples} samples)" for device in devices]
    lines.append(f"Data: {some(sources)}")
    return lines


def scenario_name(devices: Sequence[DataDescription]) -> str:
    """A name after the beginning that all sources have in common, else after their folder."""
    stems = [PurePath(device.source).stem for device in devices]
    word = _beginning(stems)
    without_number = word.rstrip("-_.0123456789")
    if len(stems) > 1:
        word = without_number
    folders = {PurePath(device.source).parent.name for device in devices}
    if without_number in GENERAL_NAMES and len(folders) == 1:
        word = folders.pop() or word
    return re.sub(r"[^A-Za-z0-9]+", "-", word).strip("-").lower()[:40] or "my-data"


def _beginning(words: Sequence[str]) -> str:
    """The characters with which all words begin."""
    same: list[str] = []
    for characters in zip(*words, strict=False):
        if len(set(characters)) > 1:
            break
        same.append(characters[0])
    return "".join(same)


# -- data that is no table -----------------------------------------------------------------------------------


def _task_of_arrays(devices: Sequence[DataDescription], proposal: Proposal) -> None:
    """Windows, images and rows without names."""
    first = devices[0]
    found = _target_of_arrays(devices)
    shape = _features(first, proposal)
    task: dict[str, Choice] = {"features": Choice(shape, "the shape of one sample, channels first")}
    task["classes"] = Choice(found.classes, found.why_classes)
    if found.classes is None:
        task["target_scale"] = Choice("federated", "the model learns better on standardised values")
    if first.dtype == "uint8":
        task["scale"] = Choice(BYTE_SCALE, "bytes become numbers from 0 to 1")
    else:
        task["standardise"] = Choice("federated", "per channel, from sums over the fleet")
    task["model"] = _model(shape, devices)
    proposal.sections["task"] = task
    proposal.warnings += found.warnings
    groups = sum(device.groups for device in devices)
    if groups > 1:
        proposal.about.append(
            f"The samples belong to {groups} groups: `fleet: {{agents: {groups}, data: FILE, partition: "
            "by_group}` simulates one agent for each."
        )


def _target_of_arrays(devices: Sequence[DataDescription]) -> Target:
    """The classes: as the format of the data fixes them, else as they occur."""
    first = devices[0]
    if len({device.classes for device in devices}) == 1 and first.classes:
        return Target("y", "", first.classes, "the names that the data gives its classes")
    facts = [device.target for device in devices if device.target is not None]
    holders = [device.source for device in devices]
    classes, why = classes_of(FleetColumn("y", tuple(facts), tuple(holders), ()))
    return Target("y", "", classes, why)


def _features(device: DataDescription, proposal: Proposal) -> tuple[int, ...]:
    """The shape of a sample as the task names it: a grey image gets a channel."""
    shape = device.shape
    if len(shape) == IMAGE_AXES and shape[0] not in COLOURS and shape[2] in COLOURS:
        raise UserError(
            f"{device.source}: samples have shape {list(shape)}, with the channels last; save them with "
            f"the channels first, as x.transpose(0, 3, 1, 2) gives them"
        )
    if len(shape) != WINDOW_AXES:
        return shape
    height, width = shape
    if device.dtype == "uint8" and height == width:
        return (1, height, width)
    if height > width:
        proposal.warnings.append(
            f"samples have shape {list(shape)}: if these are {height} readings of {width} channels, save "
            "them with the channels first, as x.transpose(0, 2, 1) gives them"
        )
    return shape


def _model(shape: tuple[int, ...], devices: Sequence[DataDescription]) -> Choice:
    match shape:
        case (channels, height, width):
            return image_model(channels, min(height, width))
        case (_, length):
            return window_model(length)
    return table_model(math.prod(shape), sum(device.samples for device in devices))


# -- the other sections --------------------------------------------------------------------------------------


def _add_training(devices: Sequence[DataDescription], proposal: Proposal) -> None:
    smallest = min(device.samples for device in devices)
    few = smallest < FEW_ROWS
    epochs = Choice(2, "passes over a device's samples per round")
    batch = Choice(32, "samples per step")
    if few:
        epochs = Choice(5, f"passes per round; the smallest device has {smallest} samples only")
        batch = Choice(10, "samples per step; small, because there are few of them")
    rate = Choice(
        0.05, "if the loss rises, try a third of it; if it falls slowly, three times as much"
    )
    proposal.sections["training"] = {"epochs": epochs, "batch": batch, "lr": rate}


def _add_rounds(agents: int, proposal: Proposal) -> None:
    """The method and the rounds for this number of devices."""
    strategy = Choice("fedclust", "finds groups of similar devices, and trains a model for each")
    if agents < FEW_AGENTS:
        strategy = Choice(
            "fedavg", f"one model for all; with {FEW_AGENTS} or more devices, fedclust finds groups"
        )
    proposal.sections["strategy"] = {"name": strategy}
    quorum = math.ceil(agents / 2)
    proposal.sections["rounds"] = {
        "count": Choice(20, "the report's curve shows whether fewer are enough"),
        "start_agents": Choice(
            agents,
            "the first round waits for all devices; one whose data does not fit never counts",
        ),
        "quorum": Choice(quorum, "a round needs half of the devices"),
        "deadline_s": Choice(600, "seconds; a device that needs longer misses the round"),
    }
    methods = ["local", "fedavg", "ditto"]
    if strategy.value not in methods:
        methods.append(strategy.value)
    if extras.has("compare"):
        proposal.sections["compare"] = {
            "methods": Choice(
                [{"name": name} for name in methods],
                "`coordinator compare` runs these, and its verdict shows whether groups are worth it",
            ),
            "seeds": Choice([1], "more seeds narrow the verdict's interval"),
        }
