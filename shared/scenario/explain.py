"""Validation errors in the words of the person who wrote the file.

Pydantic names the members of unions in its locations, and reports an error once per member. A person wrote keys, and
needs each error once, with the line of the key and a guess at the intended name.

Keys that scenarios had once, and what to use instead. A file that still has one is refused with that advice.
"""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from covey.shared.scenario.introspection import (
    SectionType,
    chosen,
    fields,
    name_of,
    sections_around,
    sections_in,
    value_inside,
)
from covey.shared.scenario.yaml_source import Path, YamlSource
from covey.shared.sentences import expectation

# By dots. A key of a method is `method.NAME.key`, also in a comparison; one of a partition rule is `partition.NAME.key`.
REMOVED: dict[str, str] = {
    "aggregation.clip.norm": "a step is shortened to a multiple of the usual one: set times_median",
    "aggregation.eps": "the geometric median stops at a change of 1e-4; leave it out",
    "aggregation.iterations": "the geometric median takes at most 50 iterations; leave it out",
    "aggregation.keep": "multi_krum averages all reports but those that may be false: set liars",
    "aggregation.max_samples.absolute": "a claim is capped at a multiple of the usual one: set times_median",
    "evaluation.fallback": "a device weighs the model of its cluster against all else that it can have; leave it out",
    "evaluation.knn": "neighbours are a candidate of evaluation.deliver; leave it out",
    "compare.methods.local_last": "lower rounds.count and raise evaluation.tune_epochs in a scenario of its own",
    "fleet.durations.per": "each order has a time of its own; leave it out",
    "fleet.faults.late": "name agents that join in a later round in fleet.timeline: {agents: [3], joins: 2}",
    "fleet.faults.late_round": "name agents that join in a later round in fleet.timeline: {agents: [3], joins: 2}",
    "method.cfl.eps_mode": "set eps_1 and eps_2, which are norms",
    "method.cfl.full_quorum": "a cluster is split once half of its invited members reported; leave it out",
    "method.cfl.retry": "a refused split is tried again after ten rounds; leave it out",
    "method.cfl.server": "it compares or combines single reports, so there is no mean to step from; leave it out",
    "method.fedclust.first_quorum": "set rounds.first_quorum",
    "method.cfl.weights": "reports are weighted by samples; leave it out",
    "method.feddane.resample": "the clients of the first phase train in the second; leave it out",
    "method.fedprox.straggler_fraction": "agents train all epochs; for slow ones set fleet.faults.slow",
    "method.lg.weights": "reports are weighted by samples; leave it out",
    "method.perfedavg.weights": "reports are weighted by samples; leave it out",
    "method.feddane.server": "the gradients of its first phase belong to the model that agents correct; leave it out",
    "method.feddbe.mu": "the mean of an agent's features is that of its newest batch; leave it out",
    "method.feddist.server": "epsilon is the server's step already; leave it out",
    "method.feddws.server": "epsilon is the server's step already; leave it out",
    "method.fedem.entry_steps": "an agent that never trained fits its weights in one step; leave it out",
    "method.fedrep.head_layers": "name the layers of the head in task.keep",
    "method.fedrep.head_epochs": "the head trains for training.epochs; leave it out",
    "method.fedsgd.server": "agents send gradients, and the step is training.lr; leave it out",
    "method.fedsoft.estimate_every": "importance is estimated in every second round; leave it out",
    "method.fedsoft.persistent_optimizer": "agents keep the velocity of their optimiser; leave it out",
    "method.fedsoft.smallest": "no importance is below 1e-4; leave it out",
    "method.feroma.server": "it compares or combines single reports, so there is no mean to step from; leave it out",
    "method.feroma.warmup_rounds": "profiles are made after three rounds; leave it out",
    "method.fesem.max_age": "the latest model of each agent counts, however old; leave it out",
    "method.fesem.newcomer_start": "newcomers start at the mean of the centres; leave it out",
    "method.fesem.prox": "the pull has the strength mu for all agents; leave it out",
    "method.fesem.server": "it compares or combines single reports, so there is no mean to step from; leave it out",
    "method.fesem.stop_after": "the stop condition must be met three times in a row; leave it out",
    "method.fesem.stop_tolerance": "J may change by a thousandth; leave it out",
    "method.fesem.update_center_every": "agents are assigned again in every round; leave it out",
    "method.fesem.warmup_quorum": "set rounds.first_quorum",
    "method.fesem.weighted_centers": "centres are plain means, as in the paper; leave it out",
    "method.fesem.warmup_epochs": "the warm-up trains for training.epochs; leave it out",
    "method.fesem_ma.class_counts": "agents report their samples per class with matching: fedma; leave it out",
    "method.fesem_ma.prior": "the variance of global units is 1: set noise, the variance around them",
    "method.fesem_ma.rematch": "each agent's layer is matched again eight times; leave it out",
    "method.fesem_ma.server": "it compares or combines single reports, so there is no mean to step from; leave it out",
    "method.fesem_ma.warmup_quorum": "set rounds.first_quorum",
    "method.fesem_ma.warmup_epochs": "the warm-up trains for training.epochs; leave it out",
    "method.flux.first_quorum": "set rounds.first_quorum",
    "method.flux.radius_scale": "the radius is at the knee of the distances; leave it out",
    "method.flux.warmup_rounds": "clusters are formed after three rounds; leave it out",
    "method.fedbabu.head_layers": "name the layers of the head in task.keep",
    "method.fedala.first_epochs": "weights are learned for ten epochs the first time; leave it out",
    "method.fedala.rate": "the weights of a mixture are learned with steps of 1; leave it out",
    "method.fedala.share": "weights are learned on 80 % of the samples; leave it out",
    "method.fedgwc.gamma": "the kernel that compares agents has the width 1 / 4; leave it out",
    "method.fedgwc.min_size": "clusters of at least four agents are divided; leave it out",
    "method.fednova.server_momentum": "set server: {momentum: ...}",
    "method.hypocluster.candidates": "twenty clients train a model that can become a hypothesis; leave it out",
    "method.hypocluster.choose_first": "agents choose in a phase of their own where privacy.secure is set; leave it out",
    "method.hypocluster.freeze_after": "agents choose in every round; for clusters that do not change take fedclust",
    "method.hypocluster.restart_rounds": "a short run has three rounds; leave it out",
    "method.hypocluster.select_on": "agents choose by their training loss; leave it out",
    "method.hypocluster.dead_after": "a hypothesis is dead after ten rounds without a choice; leave it out",
    "method.ifca.candidates": "twenty clients train a model that can become a hypothesis; leave it out",
    "method.ifca.choose_first": "agents choose in a phase of their own where privacy.secure is set; leave it out",
    "method.ifca.freeze_after": "agents choose in every round; for clusters that do not change take fedclust",
    "method.ifca.restart_rounds": "a short run has three rounds; leave it out",
    "method.ifca.select_on": "agents choose by their training loss; leave it out",
    "method.ifca.dead_after": "a hypothesis is dead after ten rounds without a choice; leave it out",
    "method.kin.server": "its votes compare averages of reports, which it would move; leave it out",
    "method.local.newcomer_epochs": "all agents train for the same epochs: set epochs",
    "method.local.server": "agents send no models; leave it out",
    "method.pacfl.first_quorum": "set rounds.first_quorum",
    "method.pacfl.most_values": "a signature may have 4194304 values; leave it out",
    "method.pacfl.signed": "angles are those of lines, as singular vectors have no sign; leave it out",
    "method.perfedavg.adapt_epochs": "a model adapts in one step on one batch; for more set evaluation.tune_epochs",
    "method.robust.first_quorum": "set rounds.first_quorum",
    "method.robust.first_tolerance": "all epochs of first_epochs are trained; leave it out",
    "method.robust.most_values": "coefficients may have 4194304 values; leave it out",
    "method.robust.server": "it compares or combines single reports, so there is no mean to step from; leave it out",
    "method.scaffold.server": "the control variates belong to the model without its step; leave it out",
    "partition.by_group.test_share": "set fleet.test_share",
    "rounds.absence_s": "moved to rounds.timing.absence_s",
    "rounds.first_work_s": "moved to rounds.timing.first_work_s",
    "rounds.refill": "the slot of an agent that disconnects always goes to another one; leave it out",
    "rounds.rollcall_s": "moved to rounds.timing.rollcall_s",
    "rounds.start_wait_s": "moved to rounds.timing.start_wait_s",
    "rounds.void_limit": "moved to rounds.timing.void_limit",
    "wire.block": "int8 has one scale for 256 values; leave it out",
    "task.model.adapters.train_a": "A has the same values on all agents and does not train; leave it out",
}

# sections whose `name` chooses what other keys they have
NAMED = {
    ("strategy",): "method",
    ("compare", "methods"): "method",
    ("compare", "methods", "strategy"): "method",
    ("fleet", "partition"): "partition",
    ("compare", "partitions"): "partition",
    ("compare", "partitions", "partition"): "partition",
}


def advice_on(path: Path, data: Any) -> str:
    """What to use instead of the key at a path; empty if no scenario has ever had it.

    Args:
        path: of a key that no section has today.
        data: the whole scenario, as its file has it.
    """
    return next((REMOVED[name] for name in _names(path, data) if name in REMOVED), "")


def _names(path: Path, data: Any) -> Iterator[str]:
    """The names in the table that a key may have."""
    words = [str(key) for key in path if not isinstance(key, int)]
    yield ".".join(words)
    for depth, key in enumerate(path):
        data = data[key]
        kind = NAMED.get(tuple(word for word in path[: depth + 1] if not isinstance(word, int)))
        if kind is not None and isinstance(data, dict) and "name" in data:
            below = [str(word) for word in path[depth + 1 :]]
            yield ".".join([kind, str(data["name"]), *below])


MAX_SEEN_LENGTH = 60  # characters of a value that a message quotes
SIMILARITY = 0.6  # of names, 0 to 1: below it, a guess is rarely right
# errors about the type of a value: another member of its union may accept it
OTHER_TYPE = ("_type", "literal_error", "_parsing")

Sections = Sequence[SectionType]


@dataclass(frozen=True)
class _Complaint:
    """One error at one key: the value that was seen ("" if it does not matter), and the expectation."""

    seen: str
    expected: str


def explain(error: ValidationError, source: YamlSource, root: SectionType) -> list[str]:
    """One line per error: key path, value, line of the file, and the expectation.

    Args:
        error: what pydantic raised for `source.data`.
        source: the data and the places of its keys.
        root: the section that was validated.
    """
    complaints: dict[Path, list[_Complaint]] = {}
    of_other_members: set[Path] = set()
    for item in error.errors(include_url=False):
        path, inside_union = _key_path(item, source.data)
        kind = item["type"]
        if inside_union and kind.endswith(OTHER_TYPE):
            of_other_members.add(path)
        complaint = _complaint(item, path, sections_around(path, source.data, root), source.data)
        found = complaints.setdefault(path, [])
        found.append(complaint)
    lines = []
    for path, found in complaints.items():
        # a union of a text and a section: if something inside the section is wrong, a section was meant
        spurious = path in of_other_members and _any_below(path, complaints)
        if spurious:
            continue
        lines.append(_line(path, found, source))
    return lines


def unknown(word: str, known: Iterable[str]) -> str:
    """The hint for an unknown name: a similar known one, or the list of all."""
    names = sorted(known)
    similar = difflib.get_close_matches(word, names, 1, SIMILARITY)
    if word and not similar:
        similar = [name for name in names if word in name]
    if similar:
        closest = similar[0]
        return f"did you mean {closest}?"
    listed = ", ".join(names)
    return f"known: {listed}"


# -- locations ---------------------------------------------------------------------------------------------------------


def _has(data: Any, key: str | int) -> bool:
    if isinstance(data, Mapping):
        return key in data
    if isinstance(data, list) and isinstance(key, int):
        return key < len(data)
    return False


def _key_path(item: ErrorDetails, data: Any) -> tuple[Path, bool]:
    """The keys of a location, and whether the error is inside a member of a union.

    A location also names members of unions. These words are no keys of the data, so they are left out.
    """
    location = item["loc"]
    kind = item["type"]
    is_missing = kind == "missing"
    path: list[str | int] = []
    for key in location:
        if _has(data, key):
            path.append(key)
            data = data[key]
    inside_union = len(path) < len(location) and not is_missing
    if is_missing:
        missing_key = location[-1]
        path.append(missing_key)
    if kind.startswith("union_tag"):
        path.append("name")
    return tuple(path), inside_union


def _any_below(path: Path, others: Iterable[Path]) -> bool:
    depth = len(path)
    return any(other[:depth] == path != other for other in others)


# -- words -------------------------------------------------------------------------------------------------------------


def _complaint(item: ErrorDetails, path: Path, around: Sections, data: Any) -> _Complaint:
    """The value that was seen at a path, and the expectation. `around`: the sections that may hold its last key."""
    context = item.get("ctx", {})
    match item["type"]:
        case "extra_forbidden":
            if advice := advice_on(path, data):
                return _Complaint("no key any more", advice)
            key = str(path[-1])
            known = _known_keys(item["loc"], path, around, data)
            hint = unknown(key, known)
            return _Complaint("unknown key", hint)
        case "missing":
            key = str(path[-1])
            return _Complaint("missing", _required(key, around))
        case "union_tag_invalid":
            tag = context["tag"]
            seen = _shortened(tag)
            known = _names_in(context["expected_tags"])
            hint = unknown(str(tag), known)
            if path == ("strategy", "name") and hint.startswith("known"):
                hint = f"no installed method has this name; {hint}"
            return _Complaint(seen, hint)
        case "union_tag_not_found":
            listed = ", ".join(_names_of_members(around))
            return _Complaint("missing", f"known: {listed}")
        case "value_error":
            return _Complaint("", str(context["error"]))
        case _:
            return _refused_value(item)


def _refused_value(item: ErrorDetails) -> _Complaint:
    """The complaint about a value that has the wrong type or lies out of range."""
    value = item["input"]
    seen = _shortened(value)
    expected = expectation(item)
    is_bare_word = item["type"] == "string_type" and isinstance(value, bool)
    if isinstance(value, datetime.date):
        seen = str(value)
        expected += "; YAML reads this as a date: put it in quotes"
    if is_bare_word:
        expected += "; YAML reads unquoted yes, no, on, off as true or false: put it in quotes"
    return _Complaint(seen, expected)


def _names_in(quoted: str) -> set[str]:
    """The names in pydantic's list of the members of a union, such as "'fedavg', 'ifca'"."""
    return {word.strip(" '\"") for word in quoted.split(",")}


def _names_of_members(sections: Sections) -> list[str]:
    """The names by which these members of a union are chosen, sorted."""
    return sorted([name_of(section) for section in sections if "name" in section.model_fields])


def _required(key: str, around: Sections) -> str:
    """The purpose of a missing key, from its description."""
    for section in around:
        info = fields(section).get(key)
        if info is not None and info.description:
            return f"this key is required: {info.description}"
    return "this key is required"


def _known_keys(location: Path, path: Path, around: Sections, data: Any) -> set[str]:
    """The keys that are possible where an unknown key was found.

    A compared method is written flat: the keys of its strategy lie next to its own. The location of an error names
    the field of such an inner section, and the path of keys does not.
    """
    for key in path[:-1]:
        data = value_inside(data, key)
    inner = []
    for section in around:
        for name, info in fields(section).items():
            is_written_flat = name in location and name not in path
            if is_written_flat:
                inner += sections_in(info.annotation)
    chosen_inner = chosen(inner, data or {})
    known: set[str] = set()
    for section in [*around, *chosen_inner]:
        known.update(fields(section))
    return known


def _shortened(seen: Any) -> str:
    text = "no value" if seen is None else repr(seen)
    if len(text) > MAX_SEEN_LENGTH:
        text = text[:MAX_SEEN_LENGTH] + "..."
    return text


def _line(path: Path, complaints: Sequence[_Complaint], source: YamlSource) -> str:
    """The line `key: seen, line 3; expectation`. Expectations of several members of a union are joined by "or"."""
    key = ".".join(map(str, path))
    seen = complaints[0].seen
    place = source.place(path)
    expectations: list[str] = []
    for complaint in complaints:
        if complaint.expected not in expectations:
            expectations.append(complaint.expected)
    expected = ", or ".join(expectations)
    text = expected
    if seen and place:
        text = f"{seen}, {place}; {expected}"
    elif seen or place:
        text = f"{seen or place}; {expected}"
    # a rule of several sections names their keys itself
    return f"{key}: {text}" if key else text
