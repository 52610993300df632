"""How long each phase of a run takes, from the benchmarks of its devices and the speed of their network. Pure.

The time of a device is its download, its work and its upload. Work is the steps of local training; an evaluation tests the
models of its modes and fine-tunes one, and after the last round each device chooses what it uses (`evaluation.deliver`), here
on samples without an order in time, which takes the longest. A phase of the method's own counts as local training. Reading
data and starting the training process are left out, and so is the time in which a device is busy with other things.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from covey.coordinator.plan.cost import PhaseCost
from covey.shared.errors import UserError
from covey.shared.mqtt.profiles import Profile
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.phase_names import EVALUATE, MOMENTS
from covey.shared.wire.documents import Benchmark

BITS = 8
MEGA = 1e6
CHOICE = "choice"  # of each device after the last round: what it is served, or the same after fine-tuning
FOLDS = 3  # trainings of that choice, each on two thirds of the samples and tested on the last one
MODES = 2  # of an evaluation without fine-tuning: E-server and E-last
ROUNDING = 1e-9  # of a rank: less than this above an integer is no further device


@dataclass(frozen=True)
class Network:
    """The connection of one device, in megabits per second."""

    down_mbit: float
    up_mbit: float

    def transfer_s(self, phase: PhaseCost) -> float:
        """Seconds that the bytes of a phase take on their way to and from a device."""
        down = phase.down_bytes * BITS / MEGA / self.down_mbit
        return down + (phase.up_bytes * BITS / MEGA / self.up_mbit)


@dataclass(frozen=True)
class PhaseSeconds:
    """The time of one kind of phase."""

    name: str
    times: int  # in the whole run
    transfer_s: float  # of one device; 0 if the network is not known
    work_s: float  # of the device at the percentile
    seconds: float  # both together
    too_slow: int  # devices that need longer than the scenario's deadline
    devices: int

    @property
    def text(self) -> str:
        """For a table."""
        parts = f"{_duration(self.work_s)} work, {_duration(self.transfer_s)} transfer"
        text = f"{_duration(self.seconds)} ({parts})"
        if self.too_slow:
            text += f"; {self.too_slow} of {self.devices} devices need longer than the deadline"
        return text


@dataclass(frozen=True)
class RunSeconds:
    """The time of a run on devices that were measured."""

    percentile: float  # of the devices; 1: the slowest one
    devices: int
    phases: tuple[PhaseSeconds, ...]

    @property
    def seconds(self) -> float:
        """Of all phases together."""
        return sum(phase.times * phase.seconds for phase in self.phases)

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of each line of a table."""
        who = "the slowest"
        if self.percentile < 1:
            who = f"percentile {self.percentile:g}"
        rows = [("devices measured", f"{self.devices}; a phase lasts as long as {who} of them")]
        rows += [(f"seconds of {phase.name}", phase.text) for phase in self.phases]
        rows.append(("the run", f"about {_duration(self.seconds)}"))
        return rows

    def to_json(self) -> dict[str, Any]:
        """The fields and the total."""
        return {**asdict(self), "seconds": self.seconds}


def run_seconds(
    scenario: Scenario,
    values: int,
    phases: Sequence[PhaseCost],
    benchmarks: Sequence[Benchmark],
    network: Network | None,
    percentile: float | None = None,
) -> RunSeconds:
    """The time that each kind of phase takes.

    Args:
        scenario: what would run.
        values: length of its model's vector.
        phases: of the plan.
        benchmarks: of its devices, or of some that are like them; at least one.
        network: of each device; None leaves transfers out.
        percentile: the share of devices that a phase waits for; by default that of `rounds.deadline`, else 1.

    Raises:
        UserError: there is no benchmark, or one is of another model.
    """
    if not benchmarks:
        raise UserError(
            "no benchmark of a device was found; measure each with `agent bench --scenario FILE --json`"
        )
    for bench in benchmarks:
        _check_model(bench, values)
    rule = scenario.rounds.deadline
    if percentile is None:
        percentile = 1.0 if rule is None else rule.percentile
    limit_s = scenario.rounds.longest_s
    found: list[PhaseSeconds] = []
    choice = PhaseCost(CHOICE, 1, len(benchmarks), 0, 0, 0, 0, 0, ends_round=False)
    for phase in [*phases, *([choice] if scenario.tuning_at_home else [])]:
        transfer_s = 0.0 if network is None else network.transfer_s(phase)
        work_of = sorted(work_s(scenario, phase.name, bench) for bench in benchmarks)
        too_slow = sum(1 for work in work_of if work + transfer_s > limit_s)
        work = work_of[max(math.ceil(percentile * len(work_of) - ROUNDING), 1) - 1]
        together = PhaseSeconds(
            name=phase.name,
            times=phase.times,
            transfer_s=transfer_s,
            work_s=work,
            seconds=transfer_s + work,
            too_slow=too_slow,
            devices=len(work_of),
        )
        found.append(together)
    return RunSeconds(percentile, len(benchmarks), tuple(found))


@dataclass(frozen=True)
class BrokerSeconds:
    """What the limits of a managed broker mean for a run."""

    profile: str
    seconds: float  # that its limits take at least, of all phases together
    retained: int  # messages that the models of a phase take
    most_retained: int  # that the broker keeps

    @property
    def text(self) -> str:
        """For a table."""
        text = f"at least {_duration(self.seconds)}"
        if self.retained > self.most_retained:
            text += f"; its models take {self.retained} of {self.most_retained} retained messages"
        return text


def broker_seconds(phases: Sequence[PhaseCost], part_bytes: int, profile: Profile) -> BrokerSeconds:
    """How long a managed broker takes for the messages of a run, by its limits alone.

    In a phase the coordinator publishes models and orders, then devices fetch them, then all of them send reports.

    Args:
        phases: of the plan.
        part_bytes: of the scenario.
        profile: of the broker.
    """
    part = min(part_bytes, profile.part_bytes)
    seconds, retained = 0.0, 0
    for phase in phases:
        published = math.ceil(phase.published_bytes / part)
        fetched, sent = math.ceil(phase.down_bytes / part), math.ceil(phase.up_bytes / part)
        out_s = profile.seconds(phase.published_bytes, published + phase.invited)
        all_down = phase.invited * phase.down_bytes / profile.all_bytes_per_s
        all_up = phase.invited * phase.up_bytes / profile.all_bytes_per_s
        packets = 2 * math.ceil(fetched / profile.filters)  # each names the next parts, or the last
        down_s = max(all_down, packets / profile.subscribes_per_s)
        up_s = max(all_up, profile.seconds(phase.up_bytes, sent))
        seconds += phase.times * (out_s + down_s + up_s)
        retained = max(retained, published + phase.invited)
    return BrokerSeconds(profile.name, seconds, retained, profile.retained_messages)


def work_s(scenario: Scenario, phase: str, bench: Benchmark) -> float:
    """Seconds of work of one device in a phase."""
    training = scenario.training
    evaluation = scenario.evaluation
    if phase == MOMENTS or phase.startswith("secure-"):
        return 0.0
    if phase == CHOICE:
        tests_s = 2 * bench.evaluation_s * bench.samples / max(bench.test_samples, 1)
        return _tuning_s(scenario, bench) * (FOLDS - 1) + tests_s
    if phase != EVALUATE:
        return _epochs_s(bench, training.epochs, training.batch)
    tested = MODES * bench.evaluation_s
    if not evaluation.tune_epochs:
        return tested
    return tested + _tuning_s(scenario, bench) + bench.evaluation_s


def _tuning_s(scenario: Scenario, bench: Benchmark) -> float:
    return _epochs_s(bench, scenario.evaluation.tune_epochs, scenario.tuning.batch)


def _epochs_s(bench: Benchmark, epochs: int, batch: int) -> float:
    """Seconds of these epochs; a step is taken to cost as much per sample as a measured one."""
    return (epochs * math.ceil(bench.samples / batch)) * (bench.step_s * batch / bench.batch)


def _check_model(bench: Benchmark, values: int) -> None:
    if bench.values != values:
        raise UserError(
            f"a benchmark is of the model {bench.model} with {bench.values} values, but the scenario's model has {values}; "
            "measure the device with `agent bench --scenario FILE`"
        )


def _duration(seconds: float) -> str:
    """Seconds in three digits and a usual unit."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"
