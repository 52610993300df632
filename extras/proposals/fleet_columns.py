"""The columns of several devices' tables next to each other: what they have in common, and where they differ. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from covey.extras.proposals.description import MAX_VALUES, ColumnFacts, DataDescription, Kind
from covey.shared.scenario.classes import WordFacts
from covey.shared.sentences import MAX_NAMES, some

LEAST_ONES = 5  # rows of a device in which a column that counts is no accident
LEAST_RISING = 10  # and one that only rises
DENSE = 2  # numbers without repetition in a range of this many times their count are shuffled row numbers


@dataclass(frozen=True)
class FleetColumn:
    """One column over all devices."""

    name: str
    facts: tuple[ColumnFacts, ...]  # of the devices that have it
    holders: tuple[str, ...]  # these devices
    absent: tuple[str, ...]  # devices without it

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The different kinds of its cells; devices on which it is empty do not count."""
        return tuple({facts.kind: None for facts in self.facts if facts.kind != "empty"})

    @property
    def without_values(self) -> tuple[str, ...]:
        """The devices without the column, and those on which it is empty."""
        return (*self.absent, *[one for one, facts in self.by_device if facts.kind == "empty"])

    @property
    def is_rare(self) -> bool:
        """Whether most devices lack the column."""
        return len(self.absent) > len(self.holders)

    @property
    def cells(self) -> int:
        """Rows of all devices that have the column."""
        return sum(facts.cells for facts in self.facts)

    @property
    def missing(self) -> int:
        """Missing cells on all devices."""
        return sum(facts.missing for facts in self.facts)

    @property
    def whole(self) -> bool:
        """Whether all numbers are whole."""
        numeric = [facts for facts in self.facts if facts.numbers]
        return all(facts.whole for facts in numeric)

    @property
    def values(self) -> tuple[str, ...] | None:
        """The different values on all devices, sorted; None if there are more than a description lists."""
        found: set[str] = set()
        for facts in self.facts:
            if facts.values is None:
                return None
            found.update(facts.values)
        if len(found) > MAX_VALUES:
            return None
        return tuple(sorted(found))

    @property
    def counts(self) -> Mapping[str, int]:
        """The cells of each value on all devices; empty if a device has not counted them."""
        found: Counter[str] = Counter()
        for facts in self.facts:
            if facts.values is None or facts.counts is None:
                return {}
            found.update(dict(zip(facts.values, facts.counts, strict=False)))
        return found

    @property
    def known_words(self) -> tuple[str, ...]:
        """The words that devices list, the most frequent first."""
        found: Counter[str] = Counter()
        for facts in self.facts:
            counts = facts.counts or (0,) * len(facts.values or ())
            for word, count in zip(facts.values or (), counts, strict=True):
                found[word] += count
        return tuple(sorted(found, key=lambda word: (-found[word], word)))

    @property
    def words(self) -> WordFacts:
        """The words of all devices in figures. Those that a device does not list count as words of its own."""
        unlisted = [facts for facts in self.facts if facts.values is None]
        counts = Counter(self.counts)
        listed = [facts for facts in self.facts if facts.values is not None]
        singles = sum(count == 1 for count in counts.values())
        if not counts:
            singles = sum(facts.singles for facts in listed)
        present = max(sum(facts.present for facts in self.facts), 1)
        return WordFacts(
            cells=present,
            words=len(self.known_words) + sum(facts.distinct for facts in unlisted),
            singles=singles + sum(facts.singles for facts in unlisted),
            length=sum(facts.length * facts.present for facts in self.facts) / present,
            mixed=sum(facts.mixed * facts.present for facts in self.facts) / present,
            coded=sum(facts.coded * facts.present for facts in self.facts) / present,
            exact=not unlisted or len(self.facts) == 1,
        )

    @property
    def otherwise_worded(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """The fewest devices that have several words each and none in common with the others, and their words; None: no such."""
        filled = [(one, facts) for one, facts in self.by_device if facts.present]
        words = {one: {*(facts.values or ())} for one, facts in filled}
        if any(len(own) < 2 for own in words.values()):
            return None
        camps: list[tuple[list[str], set[str]]] = []
        for device, own in words.items():
            names, common = [device], set(own)
            for camp in [camp for camp in camps if camp[1] & own]:
                camps.remove(camp)
                names += camp[0]
                common |= camp[1]
            camps.append((names, common))
        if len(camps) < 2:
            return None
        names, own = min(camps, key=lambda camp: len(camp[0]))
        return tuple(sorted(names)), tuple(sorted(own))

    @property
    def is_asked_for(self) -> bool:
        """Whether the owner of a device takes its words for classes."""
        return any(facts.asked for facts in self.facts)

    @property
    def is_row_number(self) -> bool:
        """Whether whole numbers count the rows of every device, whatever their order."""
        filled = [facts for facts in self.facts if facts.present]
        if not filled or self.kinds != ("number",):
            return False
        if all(facts.steps == "ones" and facts.cells >= LEAST_ONES for facts in filled):
            return True
        if not self.is_in_runs and all(
            facts.steps and facts.cells >= LEAST_RISING for facts in filled
        ):
            return True
        if not self.unique or not self.whole:
            return False
        smallest = min(
            [facts.smallest for facts in filled if facts.smallest is not None], default=0
        )
        largest = max([facts.largest for facts in filled if facts.largest is not None], default=0)
        return largest - smallest < DENSE * sum(facts.present for facts in filled)

    @property
    def is_in_runs(self) -> bool:
        """Whether whole numbers rise over the rows of every device, each of them in one run of rows."""
        filled = [facts.steps for facts in self.facts if facts.present]
        return bool(filled) and "runs" in filled and all(filled)

    @property
    def is_constant_everywhere(self) -> bool:
        """Whether each of several devices has one value in all its rows."""
        return len(self.facts) > 1 and all(facts.distinct == 1 for facts in self.facts)

    @property
    def distinct(self) -> int:
        """Different values: exact if they are listed; of words at most, of numbers at least this many."""
        values = self.values
        if values is not None:
            return len(values)
        if self.kinds == ("word",):
            return self.words.words
        return max([facts.distinct for facts in self.facts])

    @property
    def counted(self) -> str:
        """The number of different values in words."""
        text = str(self.distinct)
        is_exact = self.values is not None or len(self.facts) == 1
        if is_exact:
            return text
        return f"up to {text}" if self.kinds == ("word",) else f"{text} or more"

    @property
    def unique(self) -> bool:
        """Whether no value occurs twice on a device, among many rows."""
        filled = [facts for facts in self.facts if facts.present]
        return bool(filled) and all(facts.unique for facts in filled)

    @property
    def names_devices(self) -> bool:
        """Whether each of several devices has one value in all its rows, and not all have the same one."""
        values = {facts.values for facts in self.facts}
        return len(values) > 1 and all(
            facts.distinct == 1 and facts.present for facts in self.facts
        )

    def kind_by_device(self) -> str:
        """Which devices hold which kind of cells, those that differ from most first."""
        devices: dict[Kind, list[str]] = {}
        examples: dict[Kind, tuple[str, ...]] = {}
        for device, facts in self.by_device:
            devices.setdefault(facts.kind, []).append(device)
            examples.setdefault(facts.kind, facts.strange)
        parts: list[str] = []
        for kind in sorted(devices, key=lambda one: len(devices[one])):
            cells = "no values" if kind == "empty" else f"{kind}s"
            where = some(devices[kind])
            if parts and len(devices[kind]) > MAX_NAMES:
                where = f"{len(devices[kind])} others"
            shown = f" ({examples[kind][0]!r})" if kind == "word" and examples[kind] else ""
            parts.append(f"{cells} on {where}{shown}")
        return "; ".join(parts)

    @property
    def how_to_agree(self) -> str:
        """Advice for the owner of a device whose cells are of another kind."""
        if "time" in self.kinds:
            return "write times as 2026-01-31 13:45 on all devices, or name their form in task.read.dates"
        if "boolean" in self.kinds and "number" not in self.kinds:
            return "write true and false on all devices"
        return "write numbers without units and without signs between thousands on all devices"

    @property
    def by_device(self) -> Iterator[tuple[str, ColumnFacts]]:
        """The devices that have the column, each with its facts."""
        return zip(self.holders, self.facts, strict=True)


def fleet_columns(devices: Sequence[DataDescription]) -> tuple[FleetColumn, ...]:
    """Every column that occurs on a device, in the order of the first device, then of the others."""
    names: dict[str, None] = {}  # an ordered set
    for device in devices:
        for column in device.columns:
            names[column.name] = None
    return tuple([_gathered(name, devices) for name in names])


def _gathered(name: str, devices: Sequence[DataDescription]) -> FleetColumn:
    facts: list[ColumnFacts] = []
    holders: list[str] = []
    absent: list[str] = []
    for device in devices:
        own = device.column(name)
        if own is None:
            absent.append(device.source)
        else:
            facts.append(own)
            holders.append(device.source)
    return FleetColumn(name, tuple(facts), tuple(holders), tuple(absent))


def spelled_alike(names: Sequence[str]) -> list[str]:
    """A warning for each group of class names that differ in nothing but case, spaces, hyphens and underscores."""
    groups: dict[str, list[str]] = {}
    for name in names:
        plain = _plain_words(name)
        if plain:
            same = groups.setdefault(plain, [])
            same.append(name)
    warnings: list[str] = []
    for same in groups.values():
        if len(same) == 1:
            continue
        shown = " and ".join([repr(name) for name in same])
        warnings.append(f"the words {shown} are hardly different: spell them alike on all devices")
    return warnings


def _plain_words(name: str) -> str:
    """A name without case, hyphens and underscores; empty for a number."""
    has_letters = name.upper() != name.lower()
    if not has_letters:
        return ""
    return " ".join(name.casefold().replace("-", " ").replace("_", " ").split())
