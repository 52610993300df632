"""The fleets of `benchmarks.kin`: who has which data, and how agents differ.

Most are 20 agents with handwritten digits, 1 797 images of 8 x 8 pixels, a network of 64 hidden units, and 15 rounds of two epochs with
all agents in each. Two other settings have images of Fashion-MNIST: *few* 40 agents with a tenth of them in each of 30 rounds,
*lenet* 12 agents with LeNet-5 and 9 rounds, *longer* the same with 30.

- even: equal shares. log-normal: the same with unequal numbers of samples (sigma 0.7).
- two labels, dirichlet 0.1, dirichlet 0.3: skewed labels. label groups: four groups with labels of their own.
- upside down: every second agent's images. rotated: four angles.
- swaps: three groups, of which two exchange the names of four digits each. unequal swaps: of log-normal sizes.
- skewed swaps, skewed rotation: both on labels from Dirichlet 0.3.
- three labels, dirichlet 1, unequal rotation, and sensor gain (half of the brightness at every second agent) were added when
  all rules of Kin stood.

Of those of `NATURAL` each has data of its own; no rule was made from them:

- writers: 24 census staff of MNIST. two populations: twelve of them and twelve students.
- people: thirty with a phone at the waist. dealt: the same recordings, in stretches of seven windows that are dealt to thirty agents,
  class by class.
- values: a regression of eight inputs. Three groups of eight agents have a function each.
- ahead: the acceleration of thirty people who walk, 0.16 s after the 1.28 s from which it is forecast.

Those of `HARD` were made to show faults of what judges on a device:

- wear: series of thirty machines of two kinds, half of which turn a sum of readings upside down; a worn machine, in the last part of
  its life, does so where it did not.
- repeated: two groups, one with images upside down. Of one digit each agent has three images, repeated until they weigh as much as
  all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.agent.data import Dataset
from covey.agent.data.dataset import Array, dataset, take
from covey.agent.data.named import load_named
from covey.shared.seeds import generator

Images = npt.NDArray[np.floating[Any]]
Change = Callable[[Dataset, int], Dataset]  # from an agent's data and its group
Make = Callable[[int, Path | None], Dataset]  # from a seed and the folder of real data sets


@dataclass(frozen=True)
class Setting:
    """What the runs of a table, or of a fleet with data of its own, have in common."""

    task: Mapping[str, Any]
    data: str
    agents: int
    rounds: int
    participation: float = 1.0
    limit: int | None = None  # images
    torch: bool = False  # agents train with torch
    lr: float = 0.1


@dataclass(frozen=True)
class Fleet:
    """How a fleet differs from one of equal shares."""

    partition: Mapping[str, Any]
    groups: int = 1  # agents take turns
    change: Change | None = None  # an agent's data as its group has them, from those of the others
    unequal: bool = False  # numbers of samples are log-normal
    own: Setting | None = None  # None: that of the table
    make: Make | None = None  # its data, whose groups are the agents; None: as the setting has them


def renamed(*names: list[int]) -> Change:
    """Each group calls the digits by names of its own."""

    def change(own: Dataset, group: int) -> Dataset:
        of_group = np.array(names[group])
        return replace(own, targets=of_group[own.targets], test_targets=of_group[own.test_targets])

    return change


def seen(view: Callable[[Images], Images], first: int = 1) -> Change:
    """Groups from `first` on see the images (n, 1, 8, 8) in another way."""

    def change(own: Dataset, group: int) -> Dataset:
        if group < first:
            return own
        features, test_features = (
            np.ascontiguousarray(view(images), np.float32)
            for images in (own.features, own.test_features)
        )
        return replace(own, features=features, test_features=test_features)

    return change


STRETCH = 7  # windows; the next one, which shares rows with two stretches, is left out


def dealt(seed: int, root: Path | None) -> Dataset:
    """The windows of `people`, in stretches that are dealt to as many agents in random order, class by class."""
    whole = load_named("har", root)
    assert whole.groups is not None
    changes = (np.diff(whole.groups) != 0) | (np.diff(whole.targets) != 0)
    in_series = _places(np.concatenate([[True], changes]))
    kept = in_series % (STRETCH + 1) < STRETCH
    stretches = np.cumsum(in_series % (STRETCH + 1) == 0) - 1
    firsts = np.flatnonzero(in_series % (STRETCH + 1) == 0)
    drawn = generator(seed, "dealt").permutation(len(firsts))
    drawn = drawn[np.argsort(whole.targets[firsts[drawn]], kind="stable")]
    agents = np.empty(len(firsts), np.int64)
    agents[drawn] = np.arange(len(firsts)) % PEOPLE.agents
    # an agent has its stretches in random order: the latest, which test, are of all classes
    moments = generator(seed, "moments").permutation(len(firsts))
    rows = np.flatnonzero(kept)
    order = rows[np.lexsort((rows, moments[stretches[rows]], agents[stretches[rows]]))]
    return replace(take(whole, order), groups=agents[stretches[order]])


def _places(starts: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The place (n,) of each sample in its series; `starts` (n,) are the first of each."""
    rows = np.arange(len(starts))
    return rows - np.maximum.accumulate(np.where(starts, rows, 0))


READINGS = 2  # from one row of a forecast to the next: 25 a second
PAST, AHEAD = 32, 4  # rows


def walking(seed: int, root: Path | None) -> Dataset:
    """Three axes of acceleration (n, 3, PAST) of people who walk, and the first of them AHEAD rows later (n,); the same for all seeds.

    All are in deviations from the mean of the fleet.
    """
    whole = load_named("har", root)
    walks = whole.targets < 3  # on the level, up, and down
    rows = whole.features[walks, 6:, ::READINGS].astype(np.float32)
    rows -= rows.mean(axis=(0, 2), keepdims=True)
    rows /= rows.std(axis=(0, 2), keepdims=True)
    assert whole.groups is not None
    return dataset(
        rows[..., :PAST],
        rows[:, 0, PAST + AHEAD - 1],
        source="walking",
        groups=whole.groups[walks],
        overlap=1,
    )


VALUES, SAMPLES, NOISE = 8, 75, 0.3


def three_functions(seed: int, root: Path | None) -> Dataset:
    """Normal inputs (n, VALUES), and sines of a direction that each of three groups has for itself, with noise."""
    del root
    draw = generator(seed, "three functions")
    agents = np.repeat(np.arange(REGRESSION.agents), SAMPLES)
    inputs = draw.normal(size=(len(agents), VALUES))
    directions = draw.normal(size=(3, VALUES)) / np.sqrt(VALUES)
    along = np.einsum("nv,nv->n", inputs, directions[agents % 3])
    values = np.sin(2 * along) + along + draw.normal(0, NOISE, len(agents))
    return dataset(
        inputs.astype(np.float32),
        values.astype(np.float32),
        source="three functions",
        groups=agents,
        populations=_named(agents % 3),
    )


WORN, LIFE, STEP = (
    0.67,
    400,
    4,
)  # of a life; windows of each machine; readings from one window to the next


def wearing(seed: int, root: Path | None) -> Dataset:
    """Windows (n, 2, 2 * STEP) of a reading and of the age of a machine, and their mean reading (n,), whose sign depends on the kind
    of the machine and on whether it is worn."""
    del root
    draw = generator(seed, "wearing")
    agents = np.repeat(np.arange(WEAR.agents), LIFE)
    long = STEP * (LIFE + 1)
    rows = STEP * np.arange(LIFE)[:, None] + np.arange(2 * STEP)
    windows, values = [], []
    for agent in range(WEAR.agents):
        readings, age = draw.normal(size=long), np.linspace(-1, 1, long)
        own = np.stack([readings, age + draw.normal(0, 0.01, long)])
        found = own[:, rows].swapaxes(0, 1)
        sign = np.where(found[:, 1].mean(axis=1) < 2 * WORN - 1, 1, -1) * (1 - 2 * (agent % 2))
        windows.append(found)
        values.append(4 * sign * found[:, 0].mean(axis=1) + draw.normal(0, NOISE, LIFE))
    return dataset(
        np.concatenate(windows).astype(np.float32),
        np.concatenate(values).astype(np.float32),
        source="wearing",
        groups=agents,
        populations=_named(agents % 2),
        overlap=1,
    )


RARE, KEPT = 8, 3  # a digit, and how many images of it an agent has


def repeated(own: Dataset, group: int) -> Dataset:
    """An agent's images, every second one's upside down, with those of the rare digit repeated until they weigh as much as all others."""
    own = TURNED(own, group)
    rows = []
    for targets, kept in ((own.targets, KEPT), (own.test_targets, None)):
        is_rare = targets == RARE
        others, rare = np.flatnonzero(~is_rare), np.flatnonzero(is_rare)[:kept]
        rows.append(np.concatenate([others, np.resize(rare, len(others) if len(rare) else 0)]))
    train, test = rows
    return replace(
        take(own, train), test_features=own.test_features[test], test_targets=own.test_targets[test]
    )


def _named(groups: Array) -> Array:
    return np.char.add("group ", groups.astype(str))


MLP = {"name": "mlp", "options": {"hidden": 64}}
IMAGES = {"features": [1, 28, 28], "classes": 10, "scale": 1 / 255, "model": MLP}
DIGITS = {"features": [1, 8, 8], "classes": 10, "scale": 1 / 16, "model": MLP}
WRITERS = {"name": "by_group", "min_samples": 100}
LENET = {**IMAGES, "model": {"name": "lenet5"}}
SETTINGS = {
    "digits": Setting(DIGITS, "digits", agents=20, rounds=15),
    "few": Setting(IMAGES, "fashion-mnist", 40, 30, participation=0.1, limit=4800),
    "lenet": Setting(LENET, "fashion-mnist", agents=12, rounds=9, limit=1440, torch=True),
    "longer": Setting(LENET, "fashion-mnist", agents=12, rounds=30, limit=1440, torch=True),
}
WRITING = Setting(IMAGES, "mnist-writer", agents=24, rounds=15)
PEOPLE = Setting(
    {"features": [9, 128], "classes": 6, "model": MLP, "standardise": "federated"}, "har", 30, 15
)
REGRESSION = Setting(
    {"features": [VALUES], "model": MLP, "standardise": "federated", "target_scale": "federated"},
    "three-functions.npz",  # made, and never written
    agents=24,
    rounds=15,
)
FORECAST = Setting(
    {"features": [3, PAST], "model": MLP, "target_scale": {"mean": 0, "std": 1}},
    "walking.npz",  # made, and never written
    agents=30,
    rounds=15,
    lr=0.01,
)
WEAR = Setting(
    {"features": [2, 2 * STEP], "model": MLP, "target_scale": {"mean": 0, "std": 1}},
    "wearing.npz",  # made, and never written
    agents=30,
    rounds=15,
    lr=0.1,
)
SWAPS = [list(range(10)), [1, 0, 3, 2, 4, 5, 6, 7, 8, 9], [0, 1, 2, 3, 4, 5, 7, 6, 9, 8]]
TURNED = seen(lambda images: images[..., ::-1, ::-1])
IID = {"name": "iid"}
SKEWED = {"name": "dirichlet", "alpha": 0.3, "test": "proportional"}
FLEETS = {
    "even": Fleet(IID),
    "log-normal": Fleet(IID, unequal=True),
    "two labels": Fleet({"name": "label_skew", "share": 0.2}),
    "dirichlet 0.1": Fleet({**SKEWED, "alpha": 0.1}),
    "dirichlet 0.3": Fleet(SKEWED),
    "label groups": Fleet({"name": "grouped_labels", "groups": 4}),
    "upside down": Fleet({"name": "rotation", "groups": 2}),
    "rotated": Fleet({"name": "rotation", "groups": 4}),
    "swaps": Fleet(IID, 3, renamed(*SWAPS)),
    "unequal swaps": Fleet(IID, 3, renamed(*SWAPS), unequal=True),
    "skewed swaps": Fleet(SKEWED, 3, renamed(*SWAPS)),
    "skewed rotation": Fleet(SKEWED, 2, TURNED),
    "three labels": Fleet({"name": "label_skew", "share": 0.3}),
    "dirichlet 1": Fleet({**SKEWED, "alpha": 1.0}),
    "unequal rotation": Fleet({"name": "rotation", "groups": 4}, unequal=True),
    "sensor gain": Fleet(IID, 2, seen(lambda images: images / 2)),
}
OF_PEOPLE = {"name": "by_group", "split": "time"}
NATURAL = {
    "writers": Fleet({**WRITERS, "populations": {"hsf0": 24}}, own=WRITING),
    "two populations": Fleet({**WRITERS, "populations": {"hsf0": 12, "hsf4": 12}}, own=WRITING),
    "people": Fleet(OF_PEOPLE, own=PEOPLE),
    "dealt": Fleet(OF_PEOPLE, own=PEOPLE, make=dealt),
    "values": Fleet({"name": "by_group"}, own=REGRESSION, make=three_functions),
    "ahead": Fleet(OF_PEOPLE, own=FORECAST, make=walking),
}
HARD = {"wear": Fleet(OF_PEOPLE, own=WEAR, make=wearing), "repeated": Fleet(IID, 2, repeated)}
