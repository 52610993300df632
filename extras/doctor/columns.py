"""Odd columns: what count, mean and deviation of each device's numbers show next to those of the other devices. Pure.

Everything is compared with medians over the fleet, never with fixed sizes. Devices that differ alike, and are as many as a
group, are a group and not odd; a unit is the exception, because its factor is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median

from covey.coordinator.odd import Kind, Odd
from covey.shared.numerics.measures import plain

TIMES = 10.0  # the median, from where a scale is another one
DEVIATIONS = 6.0  # robust ones, which no device of a normal fleet is away
NORMAL = 1.4826  # from a median distance to a deviation
LEAST_VALUES = 10  # of a device, from which a figure of its data counts
SURE_VALUES = 25  # from where mean and deviation of a column tell it from another one
LEAST_DEVICES = 3  # of which one can differ from the others
FROM_ZERO = 3.0  # deviations between mean and 0, from where the sign is no chance
TIMES_LESS = 4.0  # than on the others a number varies where nearly all rows have the same one
NEARLY_ALL = 0.9  # of the rows
FLAT = 1e-6  # relative deviation below which numbers count as one
CHECK = "agent check --propose --data DATA"


@dataclass(frozen=True)
class Numbers:
    """The numbers of one column on one device."""

    count: float  # that are there
    mean: float
    std: float
    missing: float = 0.0  # share of the cells
    few_values: bool | None = None  # two different ones at most; None: unknown
    most: float | None = None  # share of the values that are the most frequent one; None: unknown

    @property
    def size(self) -> float:
        """The root of the mean square."""
        return math.hypot(self.mean, self.std)

    @property
    def is_flat(self) -> bool:
        """Whether all are one number, as far as sums show it."""
        return self.std <= FLAT * abs(self.mean)

    @property
    def effective(self) -> float:
        """How many values carry the sum: of a column that is mostly 0, about those that are not (Kish)."""
        return self.count * (self.mean / self.size) ** 2 if self.size > 0 else 0.0

    @property
    def may_be_flags(self) -> bool:
        """Whether they may all be 0 or 1: of these the mean decides the deviation."""
        if self.few_values is not None:
            return self.few_values
        return math.isclose(self.std**2, self.mean * (1 - self.mean), rel_tol=1e-4, abs_tol=1e-7)


def numbers_of(count: float, total: float, square: float, rows: float = 0.0) -> Numbers | None:
    """From count, sum and sum of squares; `rows` with the missing ones. None without any value."""
    if not count > 0:
        return None
    mean = total / count
    variance = square / count - mean**2
    # less than this is the rounding of sums of float32 numbers
    std = math.sqrt(variance) if variance > 1e-10 * (square / count) else 0.0
    return Numbers(count, mean, std, 1 - count / rows if rows > count else 0.0)


OfDevices = Mapping[str, Numbers]  # of one column
Columns = Mapping[str, OfDevices]  # by name


def group_size(devices: int) -> int:
    """From how many devices on that differ alike they are a group."""
    return max(3 if devices >= 9 else -(-devices // 3), -(-devices // 10), 2)


def are_few(away: Sized, devices: Sized) -> bool:
    """Whether these devices differ from the others as outliers do: too few for a group."""
    return len(devices) >= LEAST_DEVICES and len(away) < group_size(len(devices))


def to_check(device: str, kind: Kind, what: str, weight: float = 0.0) -> Odd:
    """An oddity in the data of a device; the device itself shows more of them."""
    return Odd((device,), kind, what, f"on the device: {CHECK}", weight=weight)


def odd_columns(columns: Columns, target: str = "") -> Iterator[Odd]:
    """All that is odd about the columns of a fleet.

    Args:
        columns: of numbers, that of the target included.
        target: its name; "" if it is no number.
    """
    whole = {name: _enough(of) for name, of in columns.items()}
    yield from copies(columns)
    yield from few_rows(_rows(columns))
    swapped: set[tuple[str, str]] = set()  # device and column that a swap explains
    for odd, a, b in _swaps(whole, target):
        swapped |= {(odd.devices[0], a), (odd.devices[0], b)}
        yield odd
    for name, of in whole.items():
        title = "its target" if name == target else f"{name!r}"
        left = {device: one for device, one in of.items() if (device, name) not in swapped}
        units = _units(title, left, "target" if name == target else "unit")
        for rule in (_signs, _scales, _shifts):
            named = {device for odd in units for device in odd.devices}
            rest = {device: one for device, one in left.items() if device not in named}
            if rest:
                units += rule(title, rest, "target" if name == target else "scale")
        yield from units
        yield from _constants(title, left)
        named = {device for odd in units for device in odd.devices}
        yield from _stuck(title, {name: one for name, one in left.items() if name not in named})
        yield from _missing(title, columns[name])


def _enough(of: OfDevices) -> dict[str, Numbers]:
    return {device: one for device, one in of.items() if one.count >= LEAST_VALUES}


# -- another scale ---------------------------------------------------------------------------------------------------


def _rows(columns: Columns) -> dict[str, float]:
    """How many rows each device has: as many as there are numbers in its fullest column."""
    found: dict[str, float] = {}
    for of in columns.values():
        for device, one in of.items():
            found[device] = max(found.get(device, 0.0), one.count)
    return found


def few_rows(rows: Mapping[str, float]) -> Iterator[Odd]:
    """Devices with far fewer rows than the others."""
    sizes = {device: math.log10(count) for device, count in rows.items() if count > 0}
    for device in outliers(sizes):
        usual = median(rows.values())
        if rows[device] < usual:
            what = f"it has {plain(rows[device])} rows to train with, the fleet's median is {plain(usual)}"
            yield to_check(device, "rows", what, usual / rows[device])


def outliers(values: Mapping[str, float], times: float = TIMES) -> list[str]:
    """Devices whose logarithm (base 10) of something is far from the median: `times` it, and many robust deviations. Devices
    on one side that are as many as a group are none."""
    if len(values) < LEAST_DEVICES:
        return []
    middle = median(values.values())
    spread = NORMAL * median([abs(value - middle) for value in values.values()])
    least = max(math.log10(times), DEVIATIONS * spread)
    found: list[str] = []
    for side in (1, -1):
        away = {device: side * (value - middle) for device, value in values.items()}
        far = [device for device, distance in away.items() if distance >= least]
        near = max([distance for distance in away.values() if distance < least])
        gap = max(math.log10(times) / 2, DEVIATIONS / 2 * spread)
        if len(far) < group_size(len(values)):
            found += [device for device in far if away[device] - near >= gap]
    return sorted(found)


def _scales(title: str, of: OfDevices, kind: Kind) -> Iterator[Odd]:
    sizes = {device: math.log10(one.size) for device, one in of.items() if one.size > 0}
    if not sizes or all(one.may_be_flags for one in of.values()):
        return
    middle = 10 ** median(sizes.values())
    usual, is_mixed = _middle(list(of.values())), _is_mixed(of)
    for device in outliers(sizes):
        own = of[device].size
        if of[device].is_flat:  # the rule of constants names it
            continue
        if not is_mixed and not _is_multiple(of[device], usual):
            continue
        times = own / middle if own > middle else middle / own
        word = "times" if own > middle else "times smaller than"
        what = f"{title} is {plain(times)} {word} the fleet's median: {plain(own)}, there {plain(middle)}"
        yield to_check(device, kind, what, abs(math.log10(times)))


def _signs(title: str, of: OfDevices, kind: Kind) -> Iterator[Odd]:
    """Devices whose numbers are those of the others with the other sign."""
    usual = _middle(list(of.values()))
    if usual.std <= 0 or abs(usual.mean) < FROM_ZERO * usual.std:
        return
    away = [device for device, one in of.items() if _is_mirrored(one, usual)]
    if are_few(away, of):
        for device in away:
            mine = plain(of[device].mean)
            what = f"{title} is about {mine} here and about {plain(usual.mean)} on the others: the sign is wrong?"
            yield to_check(device, kind, what, 1.0)


def _shifts(title: str, of: OfDevices, kind: Kind) -> Iterator[Odd]:
    """Devices whose numbers vary as those of the others do, far away from them: a sensor with an offset.

    Numbers that vary more where they are larger are another level, as sites have it.
    """
    usual = _middle(list(of.values()))
    if usual.std <= 0 or all(one.may_be_flags for one in of.values()):
        return
    far = {device: abs(one.mean - usual.mean) / usual.std for device, one in of.items()}
    least = DEVIATIONS * max(1.0, median(far.values()))
    alike = [device for device, one in of.items() if _is_alike(one.std, usual.std)]
    away = [device for device in alike if far[device] >= least]
    if are_few(away, of):
        for device in away:
            what = f"{title} is about {plain(of[device].mean)} here and about {plain(usual.mean)} on the others"
            yield to_check(device, kind, what, far[device] / 1000)


def _is_mirrored(one: Numbers, usual: Numbers) -> bool:
    return _is_alike(one.std, usual.std) and abs(one.mean + usual.mean) <= usual.std


def _is_mixed(of: OfDevices) -> bool:
    """Whether the means have both signs: the numbers are about 0."""
    return any(one.mean > 0 for one in of.values()) and any(one.mean < 0 for one in of.values())


def _is_multiple(own: Numbers, usual: Numbers) -> bool:
    """Whether all numbers are larger or smaller, and not only those that are not 0 more frequent or rarer.

    A factor leaves mean / deviation as it is; a frequency changes it as much as the size.
    """
    if min(own.effective, usual.effective) < LEAST_VALUES:
        return False
    if usual.is_flat:
        return True
    shape = (own.mean / own.std) / (usual.mean / usual.std)
    return abs(math.log(shape)) <= abs(math.log(own.size / usual.size)) / 2


# -- another unit ----------------------------------------------------------------------------------------------------

# value in the other unit = factor * value + shift; powers of ten besides
UNITS: Sequence[tuple[str, float, float]] = (
    ("°C and °F", 1.8, 32.0),
    ("°C and K", 1.0, 273.15),
    ("seconds and minutes", 60.0, 0.0),
    ("seconds and hours", 3600.0, 0.0),
)
MOST_DEGREES = 150.0  # °C of things that sensors measure
LEAST_POWER = 2  # of ten; few devices among others that are alike may not even differ by ten times
TENTH = 1.1  # within this factor ten times is a unit
ALIKE = 1.3  # factor within which two deviations are the same one


def _units(title: str, of: OfDevices, kind: Kind) -> list[Odd]:
    """Devices that have a number in another unit, unit by unit: a few that are further away hide none."""
    found: list[Odd] = []
    left = {device: one for device, one in of.items() if not one.is_flat}
    while odd := next(
        (odd for part in _parts(left) if (odd := _other_unit(title, part, kind))), None
    ):
        found.append(odd)
        left = {device: one for device, one in left.items() if device not in odd.devices}
    return found


def _parts(of: OfDevices) -> Iterator[OfDevices]:
    """All devices, then all but the smallest or the largest few."""
    yield of
    order = sorted(of, key=lambda device: (of[device].size, device))
    for few in range(1, group_size(len(of))) if len(of) > LEAST_DEVICES else ():
        yield {device: of[device] for device in order[:-few]}
        yield {device: of[device] for device in order[few:]}


def _other_unit(title: str, varying: OfDevices, kind: Kind) -> Odd | None:
    """Two clear camps whose numbers a conversion of units leads into one another."""
    if len(varying) < 2 or all(one.may_be_flags for one in varying.values()):
        return None
    camps = _camps({device: one.size for device, one in varying.items()})
    if camps is None:
        return None
    low, high = (_middle([varying[device] for device in camp]) for camp in camps)
    if min(low.effective, high.effective) < LEAST_VALUES and not _is_mixed(varying):
        return None
    odd, other = (camps[1], camps[0]) if len(camps[1]) <= len(camps[0]) else camps
    others = [varying[device].size for device in other]
    are_alike = len(other) >= LEAST_DEVICES and max(others) <= 10**0.25 * min(others)
    is_alone = are_alike and len(odd) < group_size(len(varying))
    means = [varying[device].mean for device in camps[0]]
    unit = _unit_of(low, high, (max(means) - min(means)) / 2, is_alone=is_alone)
    if unit is None:
        return None
    mine, theirs = (high, low) if odd is camps[1] else (low, high)
    here, there = plain(mine.mean), plain(theirs.mean)
    what = f"{title} is about {here} here and about {there} on {len(other)} others: {unit}?"
    weight = float(len(odd))
    return Odd(tuple(sorted(odd)), kind, what, f"on the devices: {CHECK}", weight=weight)


def _camps(sizes: Mapping[str, float]) -> tuple[list[str], list[str]] | None:
    """The devices on both sides of the widest gap, if it is wider than either side by far."""
    order = sorted(sizes, key=lambda device: (sizes[device], device))
    logs = [math.log(sizes[device]) for device in order]
    gaps = [after - before for before, after in pairwise(logs)]
    cut = max(range(len(gaps)), key=lambda place: gaps[place]) + 1
    within = max(logs[cut - 1] - logs[0], logs[-1] - logs[cut])
    if gaps[cut - 1] < max(2 * within, math.log(1.5)):
        return None
    return order[:cut], order[cut:]


def _middle(numbers: Sequence[Numbers]) -> Numbers:
    """Medians of several devices."""
    count, mean, std = (
        median([getattr(one, name) for one in numbers]) for name in ("count", "mean", "std")
    )
    return Numbers(count, mean, std)


def _unit_of(low: Numbers, high: Numbers, reach: float, *, is_alone: bool = False) -> str | None:
    """The units of two camps; None if no conversion explains them.

    Args:
        low, high: the middle of each.
        reach: how far means of the low camp are from its middle.
        is_alone: one camp is a few devices, and those of the other are alike.
    """
    for name, factor, shift in UNITS:
        near = abs(high.mean - (factor * low.mean + shift)) <= factor * (low.std + reach)
        apart = abs(high.mean - low.mean) > 2 * max(low.std, high.std)
        is_usual = not shift or abs(low.mean) <= MOST_DEGREES
        if is_usual and apart and near and _is_alike(high.std / low.std, factor):
            return name
    power = round(math.log10(high.size / low.size))
    ratios = [ratio / 10.0**power for ratio in (high.std / low.std, high.size / low.size)]
    within = ALIKE if power >= LEAST_POWER else TENTH if is_alone and power else 1.0
    if within > 1 and all(1 / within <= ratio <= within for ratio in ratios):
        return f"units that differ by a factor of {plain(10.0**power)}"
    return None


def _is_alike(one: float, other: float) -> bool:
    return 1 / ALIKE <= one / other <= ALIKE


# -- constants, missing cells ----------------------------------------------------------------------------------------


def _constants(title: str, of: OfDevices) -> Iterator[Odd]:
    """Devices on which a number stays as it is, where it changes on nearly all others."""
    flat = [device for device, one in of.items() if one.is_flat]
    changing = [one for device, one in of.items() if device not in flat]
    if len(changing) < 2 or 5 * len(flat) > max(len(of), 5):
        return
    if any(one.may_be_flags for one in changing) or _names_places(changing):
        return
    for device in flat:
        value = of[device].mean
        # rain, or a border pixel: mostly 0, if only on the devices of its own kind
        if value == 0 and any(abs(one.mean) <= 1.5 * one.std for one in changing):
            continue
        what = f"{title} is {plain(value)} in all its rows, and changes on the others"
        yield _unmoved(device, what, of[device])


def _names_places(changing: Sequence[Numbers]) -> bool:
    """Whether a number hardly changes anywhere, and differs between devices."""
    usual = _middle(changing)
    between = NORMAL * median([abs(one.mean - usual.mean) for one in changing])
    return usual.std < between / 3


def _stuck(title: str, of: OfDevices) -> Iterator[Odd]:
    """Devices on which a number is the same one in nearly all rows, where it is not on the others."""
    changing = {device: one for device, one in of.items() if not one.is_flat}
    if len(changing) < LEAST_DEVICES or any(one.may_be_flags for one in changing.values()):
        return
    shares = {device: one.most for device, one in changing.items() if one.most is not None}
    if len(shares) == len(changing):
        found = [one for one in shares if shares[one] >= NEARLY_ALL]
        usual_share = median(shares.values())
        if usual_share <= NEARLY_ALL / 2 and are_few(found, shares):
            for device in found:
                what = f"{title} is one number in {100 * shares[device]:.0f} % of its rows, on the others in {100 * usual_share:.0f} %"
                yield _unmoved(device, what, of[device])
        return
    usual = _middle([*changing.values()])
    if _names_places([*changing.values()]):
        return
    sure = {name: one.std for name, one in changing.items() if one.count >= SURE_VALUES}
    spreads = {name: math.log10(std) for name, std in sure.items()}
    for device in outliers(spreads, TIMES_LESS):
        if _hardly_moves(own := of[device], usual):
            what = f"{title} hardly changes: its deviation is {plain(own.std)}, on the others {plain(usual.std)}"
            yield _unmoved(device, what, own)


def _hardly_moves(own: Numbers, usual: Numbers) -> bool:
    """Whether numbers vary less at the level of the others: at a lower level all may, and where they are mostly 0."""
    is_near = abs(own.mean - usual.mean) <= 2 * usual.std
    varies_less = 3 * own.std / own.size <= usual.std / usual.size
    return own.std < usual.std and is_near and varies_less and usual.effective >= usual.count / 10


def _unmoved(device: str, what: str, own: Numbers) -> Odd:
    command = f"look at the sensor; on the device: {CHECK}"
    return Odd((device,), "constant", what, command, weight=own.count)


def _missing(title: str, of: OfDevices) -> Iterator[Odd]:
    """Devices on which most cells are missing, where nearly none are on the others."""
    away = [device for device, one in of.items() if one.missing >= 0.5]
    usual = median([one.missing for one in of.values()]) if of else 0.0
    if usual > 0.05 or not are_few(away, of):
        return
    for device in away:
        share = of[device].missing
        what = f"{title} is missing in {100 * share:.0f} % of its rows, on the others in {100 * usual:.0f} %"
        yield to_check(device, "missing", what, share)


# -- swapped columns, copied devices ---------------------------------------------------------------------------------


def _swaps(columns: Columns, target: str) -> Iterator[tuple[Odd, str, str]]:
    """Devices with two columns of which each looks like the other one of the fleet."""
    usual: dict[str, Numbers] = {}
    for name, of in columns.items():
        one = _middle(list(of.values())) if of else None
        if one and one.std > 0 and (one.effective >= LEAST_VALUES or _is_mixed(of)):
            usual[name] = one
    strange: dict[str, list[str]] = {}  # columns of a device that are far from the fleet's
    for name in usual:
        far = {device: _far(one, usual[name]) for device, one in columns[name].items()}
        typical = median(far.values())
        for device, distance in far.items():
            if distance > 1 + 3 * typical and columns[name][device].count >= SURE_VALUES:
                strange.setdefault(device, []).append(name)
    taken: set[tuple[str, str]] = set()
    for device, names in sorted(strange.items()):
        for a, b in combinations(names, 2):
            if (device, a) in taken or (device, b) in taken:
                continue
            own_a, own_b = columns[a][device], columns[b][device]
            straight = _far(own_a, usual[a]) + _far(own_b, usual[b])
            across = _far(own_a, usual[b]) + _far(own_b, usual[a])
            if 4 * across <= straight and across <= 2:
                taken |= {(device, a), (device, b)}
                what = f"{_title(a, target)} looks like {_title(b, target)} of the others, and the other way round"
                yield to_check(device, "swap", what, straight), a, b


def _title(name: str, target: str) -> str:
    return "the target" if name == target else repr(name)


def _far(one: Numbers, usual: Numbers) -> float:
    """How far a device's numbers are from the usual ones, in deviations and in doublings of the deviation."""
    doublings = abs(math.log2(one.std / usual.std)) if one.std > 0 else 1.0
    return abs(one.mean - usual.mean) / usual.std + doublings


def copies(columns: Columns) -> Iterator[Odd]:
    """Devices whose numbers have the same sums in all columns: they hold the same rows."""
    by_device: dict[str, list[tuple[str, Numbers]]] = {}
    for name, of in sorted(columns.items()):
        for device, one in of.items():
            by_device.setdefault(device, []).append((name, one))
    same: dict[object, list[str]] = {}
    for device, own in by_device.items():
        if any(not one.is_flat and one.count >= LEAST_VALUES for _, one in own):
            key = [(name, one.count, _rounded(one.mean), _rounded(one.std)) for name, one in own]
            same.setdefault(tuple(key), []).append(device)
    yield from same_rows(same.values())


def same_rows(groups: Iterable[Sequence[str]]) -> Iterator[Odd]:
    """Devices that hold the same rows, in groups."""
    for devices in groups:
        if len(devices) > 1:
            what = "they hold the same rows: one is a copy of the other"
            command = "give each device its own data, or `broker expel` one of them"
            yield Odd(tuple(sorted(devices)), "copy", what, command, weight=float(len(devices)))


def _rounded(value: float) -> float:
    """A number without the digits that the order of a sum decides."""
    return float(f"{value:.9e}")
