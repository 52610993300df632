"""Every lie that a report can tell, and a whole run per lie in which one agent of five tells it in every step.

    python -m tests.attacks.lies [--methods fedavg fesem] [--lies nan_values]

The real coordinator service and the real agent services talk over the pretend broker on a virtual clock; only the
liar's worker is replaced by one that bends what it reports. Prints a table and ends with code 1 if a run ended early, a
model is not finite or absurdly large, an honest agent was blamed, or a lie was told to no coordinator at all.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from covey.coordinator.run.result import write_all
from covey.coordinator.run.run import Run
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId
from covey.shared.wire.framing import VERSION
from covey.shared.wire.jobs import OrderAnswer, Perform, Performed
from covey.shared.wire.messages import OrderMessage, ReportContent, digest
from tests import clock
from tests.bowl import Trainer
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import Fleet, Numpy
from tests.kit.small_run import clients, judged, rules
from tests.methods import METHODS

AGENTS, ROUNDS, LIAR, HONEST = 5, 2, "agent-2", "agent-0"
LARGEST = 1e6  # no honest model of these small runs holds a larger value
LONG_LIST = 100_000

Fields = dict[str, Any]
Bend = Callable[
    [Fields, OrderMessage], "Fields | bytes | None"
]  # None: the lie does not suit this report


@dataclass(frozen=True)
class Lie:
    """`caught`: the coordinator must refuse or set aside every report that tells it; otherwise it may be dropped,
    capped or ignored. `reason`: it must refuse the report when it comes, for this reason."""

    bend: Bend
    caught: bool = True
    reason: str = ""


LIES: dict[str, Lie] = {}


def lie(name: str, *, caught: bool = True, reason: str = "") -> Callable[[Bend], Bend]:
    """Register a lie."""

    def register(bend: Bend) -> Bend:
        LIES[name] = Lie(bend, caught, reason)
        return bend

    return register


def packed(body: bytes, *, version: int = VERSION) -> bytes:
    """A report as the wire frames it: its digest takes the place of a checksum."""
    return bytes([version]) + body


def _set(**changes: Any) -> Bend:
    """A lie that changes fields and nothing else."""
    return lambda fields, order: {**fields, **changes}


def _vectors(change: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> Bend:
    """A lie about the values of every vector; lengths in the message follow."""

    def bend(fields: Fields, order: OrderMessage) -> Fields | None:
        if not fields["vectors"]:
            return None
        bent: Fields = {}
        for name, one in fields["vectors"].items():
            values = change(np.frombuffer(one["data"], "<f4").copy()).astype("<f4")
            bent[name] = {**one, "data": values.tobytes(), "length": values.size}
        return {**fields, "vectors": bent}

    return bend


def _encoding(**changes: Any) -> Bend:
    """A lie about how every vector is encoded."""

    def bend(fields: Fields, order: OrderMessage) -> Fields | None:
        if not fields["vectors"]:
            return None
        return {
            **fields,
            "vectors": {name: {**one, **changes} for name, one in fields["vectors"].items()},
        }

    return bend


def _declared(value: Any) -> Bend:
    """A lie in place of each number that the report's phase asks for."""

    def bend(fields: Fields, order: OrderMessage) -> Fields | None:
        work = order.work
        assert work is not None
        if not fields["numbers"] or (
            work.phase == "train" and set(fields["numbers"]) <= {"epochs"}
        ):
            return None
        return {**fields, "numbers": dict.fromkeys(fields["numbers"], value)}

    return bend


def _evaluation(**changes: Any) -> Bend:
    """A lie in the figures of every mode of an evaluation."""

    def bend(fields: Fields, order: OrderMessage) -> Fields | None:
        work = order.work
        assert work is not None
        if work.phase != "evaluate":
            return None
        figures = {
            name: {**one, **changes} if isinstance(one, Mapping) else one
            for name, one in fields["numbers"].items()
        }
        return {**fields, "numbers": figures}

    return bend


def _put(position: int, value: float) -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    def change(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        values[position] = value
        return values

    return change


# -- the frame
lie("no_msgpack")(lambda fields, order: packed(b"\xc1" * 40))
lie("other_version")(lambda fields, order: packed(msgpack.packb(fields), version=9))
lie("cut_short")(lambda fields, order: packed(msgpack.packb(fields))[:-7])
lie("only_a_version")(lambda fields, order: packed(b""))
lie("a_list_not_a_map")(lambda fields, order: packed(msgpack.packb(list(fields))))
lie("nested_1000_deep")(lambda fields, order: packed(b"\x91" * 1000 + b"\x90"))

# -- keys
lie("key_missing")(
    lambda fields, order: {key: value for key, value in fields.items() if key != "examples"}
)
lie("key_unknown")(_set(admin=True))
lie("key_is_a_number")(lambda fields, order: packed(msgpack.packb(dict([*fields.items(), (7, 7)]))))
KEYED_BY_NUMBERS: dict[Any, Any] = {1: 2}
lie("numbers_keyed_by_numbers")(_set(numbers=KEYED_BY_NUMBERS))


@lie("key_twice", caught=False)
def _twice(fields: Fields, order: OrderMessage) -> bytes:
    """The second one counts, or the message is refused."""
    body = msgpack.packb(fields)
    again = msgpack.packb("examples") + msgpack.packb(10**12)
    return packed(bytes([body[0] + 1]) + body[1:] + again)


# -- types
lie("bool_for_count")(_set(examples=True))
lie("float_for_count")(_set(steps=1.5))
lie("text_for_number")(_set(loss="boom"))
lie("list_for_number")(_set(loss=[[1.0]]))
lie("null_for_number")(_set(seconds=None))
lie("numbers_are_a_list")(_set(numbers=[1, 2]))
lie("bytes_in_numbers")(_set(numbers={"a": b"\0"}))
lie("deep_numbers")(lambda fields, order: {**fields, "numbers": {"a": _nested(40)}})
lie("vectors_are_a_list")(_set(vectors=[]))

# -- sizes and counts
lie("negative_examples")(_set(examples=-5))
lie("negative_steps")(_set(steps=-1))
lie("huge_count")(_set(examples=2**63))
lie("samples_1e12")(_set(examples=10**12))
lie("steps_2e52")(_set(steps=2**52))
lie("negative_seconds")(_set(seconds=-1.0))
lie("seconds_1e308")(_set(seconds=1e308))
lie("no_samples", caught=False)(_set(examples=0, steps=0))
lie("unasked_numbers_long", caught=False)(
    lambda fields, order: {**fields, "numbers": {**fields["numbers"], "extra": [0.5] * LONG_LIST}}
)

# -- values
lie("loss_nan", reason="fields")(_set(loss=float("nan")))
lie("loss_infinite", reason="fields")(_set(loss=float("inf")))
lie("loss_1.7e308", reason="wrong numbers")(_set(loss=1.7e308))
lie("nan_values", reason="not finite")(_vectors(_put(0, np.nan)))
lie("infinite_values", reason="not finite")(_vectors(_put(-1, -np.inf)))
lie("values_3e38", reason="implausible values")(_vectors(lambda values: np.full_like(values, 3e38)))
lie("one_value_3e38", reason="implausible values")(_vectors(_put(0, 3e38)))
lie("values_1e17", caught=False)(_vectors(lambda values: values + 1e17))
lie("all_zero", caught=False)(_vectors(np.zeros_like))
lie("sign_flipped", caught=False)(_vectors(lambda values: -values))


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@lie("vector_too_long")
def _too_long(fields: Fields, order: OrderMessage) -> Fields | bytes | None:
    return (
        _vectors(lambda values: np.resize(values, 1 << 23))(fields, order)
        if _fixed(order)
        else None
    )


@lie("vector_too_short")
def _too_short(fields: Fields, order: OrderMessage) -> Fields | bytes | None:
    return _vectors(lambda values: values[:-1])(fields, order) if _fixed(order) else None


@lie("vector_empty", caught=False)
def _empty(fields: Fields, order: OrderMessage) -> Fields | bytes | None:
    return _vectors(lambda values: values[:0])(fields, order)


def _fixed(order: OrderMessage) -> bool:
    """Does the order say exactly how long each vector is?"""
    assert order.work is not None
    return all(size > 0 for size in order.work.sizes.values())


# -- vectors
lie("length_of_another")(_encoding(length=3))
lie("negative_length")(_encoding(length=-1))
lie("unknown_codec", reason="unknown codec")(_encoding(codec="gzip"))
lie("codec_is_a_path")(_encoding(codec="../../etc/passwd"))
lie("unknown_base")(_encoding(base=b"\x07" * 16))
lie("base_too_long")(_encoding(base=b"\x07" * 17))
lie("half_a_value")(
    lambda fields, order: (
        None
        if not fields["vectors"]
        else {
            **fields,
            "vectors": {
                name: {**one, "data": one["data"][:-3]} for name, one in fields["vectors"].items()
            },
        }
    )
)
lie("int8_without_scale")(_encoding(codec="int8"))
lie("topk_without_base")(_encoding(codec="topk"))


@lie("vectors_missing")
def _without(fields: Fields, order: OrderMessage) -> Fields | None:
    return {**fields, "vectors": {}} if fields["vectors"] else None


@lie("vector_renamed")
def _renamed(fields: Fields, order: OrderMessage) -> Fields | None:
    vectors = {f"{name}-x": one for name, one in fields["vectors"].items()}
    return {**fields, "vectors": vectors} if vectors else None


@lie("vector_extra")
def _extra(fields: Fields, order: OrderMessage) -> Fields:
    one = {
        "codec": "float32",
        "length": 1,
        "base": b"",
        "data": b"\0" * 4,
        "scale": b"",
        "index": b"",
    }
    return {**fields, "vectors": {**fields["vectors"], "backdoor": one}}


# -- ids and steps
lie("other_client")(_set(client=HONEST))
lie("client_is_a_path")(_set(client="../agent-0"))
lie("other_run", caught=False)(_set(run="another"))
lie("old_step", caught=False)(lambda fields, order: {**fields, "step": max(order.step - 1, 0)})
lie("future_step", caught=False)(lambda fields, order: {**fields, "step": order.step + 1000})
lie("negative_step")(_set(step=-1))

# -- failures
lie("failure_with_control_characters", caught=False)(
    _set(failure="\x1b[2J\x07 gone \r\n\x00", vectors={}, numbers={})
)
lie("failure_too_long")(_set(failure="x" * 5000))
lie("failure_is_a_list")(_set(failure=["no"]))

# -- numbers that were asked for
lie("declared_text")(_declared("boom"))
lie("declared_nested")(_declared([[1], [2]]))
lie("declared_1.7e308")(_declared([1.7e308, 1.7e308]))
lie("declared_negative")(_declared(-1.0))
lie("declared_bool")(_declared(True))
lie("declared_empty")(_declared([]))


@lie("declared_missing")
def _undeclared(fields: Fields, order: OrderMessage) -> Fields | None:
    # an evaluation without figures is no lie: a device may keep them back
    needed = set(fields["numbers"]) & {"choice", "counts", "importance", "labels"}
    return {**fields, "numbers": {}} if needed else None


# -- numbers that nobody asked for
lie("unasked_figures", caught=False)(
    lambda fields, order: {
        **fields,
        "numbers": {
            **fields["numbers"],
            "pi": ["x"],
            "accuracy": "boom",
            "mse": "boom",
            "best": {"n": "x"},
            "q": {},
        },
    }
)

# -- evaluations
lie("evaluation_mse_boom", caught=False)(_evaluation(mse="boom", extra=[1]))
lie("evaluation_n_0_and_text", caught=False)(_evaluation(n=0, loss="boom", accuracy="boom"))
lie("evaluation_n_1e12", caught=False)(_evaluation(n=10**12, correct=0, accuracy=0.0))
lie("evaluation_n_is_text")(_evaluation(n="many"))
lie("evaluation_accuracy_2")(_evaluation(accuracy=2.0))
lie("evaluation_loss_1.7e308")(_evaluation(loss=1.7e308))
lie("evaluation_correct_above_n")(_evaluation(correct=10**6))
lie("evaluation_is_text")(
    lambda fields, order: (
        {**fields, "numbers": {"server": "boom"}} if order.work.phase == "evaluate" else None  # type: ignore[union-attr]
    )
)


class Lying(Numpy):
    """The pool's jobs in numpy; the liar's reports are bent before they leave."""

    def __init__(self, people: Mapping[ClientId, Trainer], lies: Mapping[ClientId, Lie]) -> None:
        super().__init__(people)
        self.lies = lies
        self.told: Counter[ClientId] = Counter()
        self.asked: Counter[ClientId] = Counter()  # reports of a liar, bent or not

    def perform(self, job: Perform) -> OrderAnswer:
        answer = super().perform(job)
        if job.client not in self.lies or not isinstance(answer, Performed):
            return answer
        self.asked[job.client] += 1
        order = OrderMessage.from_bytes(job.order)
        honest = ReportContent.from_bytes(job.report_out.read_bytes(), verified=True)
        bent = self.lies[job.client].bend(honest.model_dump(), order)
        if bent is None:
            return answer
        self.told[job.client] += 1
        content = bent if isinstance(bent, bytes) else packed(msgpack.packb(bent))
        job.report_out.write_bytes(content)
        return replace(answer, digest=digest(content), size=len(content))


@dataclass(frozen=True)
class Verdict:
    """What came of a run with a liar. `wrong` is empty where everything is as it must be."""

    told: int
    blamed: int
    quarantined: bool
    wrong: str


def outcome(
    method: str, names: Sequence[str], folder: Path, scene_of: Callable[..., Scenario] = judged
) -> Verdict:
    """A whole run of five agents and more: one liar per lie, each telling it in every step that it suits."""
    lies = [LIES[name] for name in names]
    count = AGENTS + len(lies) - 1
    scene = scene_of(
        method,
        rounds={"count": ROUNDS, "participation": 1.0, "start_agents": count},
        strategy={"share_memberships": True} if method == "fedem" else {},
        evaluation={"track": True},
    )
    liars = {f"agent-{2 + place}": one for place, one in enumerate(lies)}
    people = clients(count, scene)
    laws = rules(scene, start_agents=count, quorum=2, deadline_s=60.0)

    lying = Lying(people, liars)

    async def whole() -> tuple[Run, Fleet]:
        fleet = Fleet(folder, scene, laws, MemoryBroker(seed=2), people)
        fleet.pool = lying
        async with fleet:
            return await fleet.serve(), fleet

    run, fleet = clock.run(whole(), within_s=36_000.0)
    assert fleet.service is not None
    kinds = ("refused", "set_aside", "quarantined")
    blamed = [str(row["agent"]) for row in fleet.rows if row["event"] in kinds]
    refusals: dict[str, Mapping[str, int]] = {
        agent: entry.refusals or {} for agent, entry in fleet.service.roster.entries.items()
    }
    blamed += [agent for agent, reasons in refusals.items() if reasons]
    told = lying.told
    believed = [client for client in told if liars[client].caught and client not in blamed]
    wrong = _wrong(run, liars, blamed)
    if believed and not wrong:
        wrong = f"{believed} told a lie that was neither refused nor set aside"
    late = [
        client for client in told if (why := liars[client].reason) and why not in refusals[client]
    ]
    if late and not wrong:
        wrong = f"{late} told a lie that was not refused when it came"
    if not_asked := sorted(liars.keys() - lying.asked.keys()):
        wrong = f"{not_asked} reported nothing: the attack did not take place"
    return Verdict(told.total(), len(blamed), bool(run.members.quarantined), wrong)


def _wrong(run: Run, liars: Mapping[ClientId, Lie], blamed: Sequence[ClientId]) -> str:
    if run.engine.round != ROUNDS:
        return f"the run ended after {run.engine.round} rounds"
    others = sorted(set(blamed) - set(liars)) + sorted(set(run.members.quarantined) - set(liars))
    if others:
        return f"{others} were blamed"
    for model in run.strategy.clusters(run.state):
        if not np.isfinite(model).all() or float(np.abs(model).max(initial=0.0)) > LARGEST:
            return "a model is not finite or absurdly large"
    write_all(run, None)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--lies", nargs="+", default=list(LIES))
    given = parser.parse_args()
    began, runs, failures = time.monotonic(), 0, 0
    told: Counter[str] = Counter()  # by lie
    for method in given.methods:
        quarantined = 0
        for name in given.lies:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    verdict = outcome(method, [name], Path(folder))
                except Exception as error:
                    verdict = Verdict(0, 0, False, f"{type(error).__name__}: {error}"[:200])
            runs, quarantined = runs + 1, quarantined + verdict.quarantined
            told[name] += verdict.told
            if verdict.wrong:
                failures += 1
                print(f"{method} x {name}: {verdict.wrong}", flush=True)
        print(
            f"{method}: {len(given.lies)} lies, liar in quarantine at the end of {quarantined} runs",
            flush=True,
        )
    seconds = time.monotonic() - began
    print(
        f"{runs} runs ({len(given.methods)} methods x {len(given.lies)} lies), {told.total()} lies told, "
        f"{failures} wrong"
    )
    print(f"{seconds:.0f} s")
    if never := [name for name in given.lies if not told[name]]:
        print(f"told by no run, so nothing is known of them: {', '.join(never)}")
    sys.exit(1 if failures or never else 0)


if __name__ == "__main__":
    main()
