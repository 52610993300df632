"""The client half around a strategy, on bowls and softmax regression: no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from covey.shared.errors import DecodeError, UserError
from covey.shared.numerics.vectors import Vector
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import LAST_MODEL, ClientState, Drill, Job, Local, Report
from covey.shared.strategies.ditto import OWN, Ditto
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.strategies.fedclust import FedClust
from covey.shared.strategies.local import LocalOnly
from covey.shared.strategies.pacfl import Pacfl
from covey.shared.wire.codec import Codec, decode, decode_model, encode_model
from covey.shared.wire.messages import ModelRef, OrderMessage, ReportContent, Work
from covey.shared.work.at_hand import ERROR_FEEDBACK, AtHand, shuffle
from covey.shared.work.execute import execute_order
from tests.bowl import Bowl, Softmax, bowl_layout, flat, softmax_client

START = flat(0, 0)
BASE = b"b" * 16
FLOAT32 = Codec()
TRAINING = Training(epochs=2, batch=5, lr=0.1)


def order(
    local: Any = None, *, phase: str = "train", codec: Codec = FLOAT32, **changes: Any
) -> OrderMessage:
    layout = local.layout if isinstance(local, Softmax) else bowl_layout()
    fields: dict[str, Any] = {
        "phase": phase,
        "round": 3,
        "seed": 7,
        "strategy": FedAvg().model_dump(mode="json"),
        "training": TRAINING.model_dump(mode="json"),
        "task": {"features": [5], "classes": 4, "model": {"name": "linear"}},
        "layout": layout.to_wire(),
        "scaling": None,
        "models": [ModelRef(key="0", digest=BASE, parts=1, size=8)],
        "numbers": {},
        "cluster": None,
        "sizes": {},
        "codec": codec.to_wire(),
        "evaluation": {"tune_epochs": 1, "track": False},
        "part_bytes": 1024,
    }
    return OrderMessage(run="r", step=9, accepted=8, closed=8, work=Work(**{**fields, **changes}))


def bowl(*minimum: float) -> Bowl:
    return Bowl(flat(*(minimum or (1, 2))), training=TRAINING)


def done(
    local: Any,
    wanted: OrderMessage | None = None,
    client_state: ClientState | None = None,
    start: Vector = START,
) -> tuple[ReportContent, ClientState]:
    return execute_order(
        wanted or order(),
        [start],
        AtHand(local),
        client_state or {},
        client="pi",
        clock=iter((1.0, 3.5)).__next__,
    )


def same(a: ClientState, b: ClientState) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_a_report_names_its_agent_and_carries_the_trained_model() -> None:
    local = bowl()
    content, client_state = done(local)
    assert (content.run, content.step, content.client, content.examples) == ("r", 9, "pi", 10)
    assert (content.steps, content.seconds, content.failure) == (4, 2.5, None)
    trained = decode(content.vectors["model"], length=2)
    assert np.array_equal(trained, local.train(START).end)
    assert same(client_state, {LAST_MODEL: trained})


def test_the_same_order_makes_the_same_bytes() -> None:
    wanted = order(codec=Codec("int8"))
    assert done(bowl(), wanted)[0].to_bytes() == done(bowl(), wanted)[0].to_bytes()


def test_rounding_at_random_differs_from_round_to_round_and_client_to_client() -> None:
    def sent(round_: int, client: str) -> bytes:
        wanted = order(codec=Codec("int8", block=8), round=round_)
        content, _ = execute_order(wanted, [START], AtHand(bowl(0.337, 0.771)), {}, client=client)
        return content.vectors["model"].data

    assert len({sent(round_, client) for round_ in range(8) for client in ("a", "b")}) > 1


def test_a_difference_names_the_model_of_the_order_as_its_base() -> None:
    content, _ = done(bowl(), order(codec=Codec(delta=True)), start=flat(5, 5))
    encoded = content.vectors["model"]
    assert encoded.base == BASE
    assert np.allclose(
        decode(encoded, length=2, bases=lambda _: flat(5, 5)), bowl().train(flat(5, 5)).end
    )


def test_a_client_keeps_the_remainder_of_topk_and_sends_it_the_next_time() -> None:
    wanted = order(codec=Codec("topk", delta=True, keep=0.5))
    content, client_state = done(bowl(), wanted)
    trained = bowl().train(START).end
    assert np.allclose(
        decode(content.vectors["model"], length=2, bases=lambda _: START), [0, trained[1]]
    )
    assert np.allclose(client_state[ERROR_FEEDBACK + "model"], [trained[0], 0])
    again, _ = done(bowl(), wanted, client_state)
    late = decode(again.vectors["model"], length=2, bases=lambda _: START)
    assert np.allclose(late, [2 * trained[0], 0])


def test_another_phase_leaves_what_topk_owes_alone() -> None:
    owed = {ERROR_FEEDBACK + "model": flat(1, 1), LAST_MODEL: START}
    content, client_state = done(bowl(), order(phase="evaluate"), owed)
    assert content.vectors == {}
    assert client_state is owed


def test_a_strategy_never_sees_what_a_codec_owes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []
    original = FedAvg.work

    def spy(
        self: FedAvg, job: Job, local: Local, client_state: ClientState
    ) -> tuple[Report, ClientState]:
        seen.append(set(client_state))
        return original(self, job, local, client_state)

    monkeypatch.setattr(FedAvg, "work", spy)
    _, kept = done(bowl(), client_state={ERROR_FEEDBACK + "other": flat(1, 1), "mine": START})
    assert seen == [{"mine"}]
    assert set(kept) == {ERROR_FEEDBACK + "other", "mine", LAST_MODEL}


def test_a_strategy_that_sends_no_model_may_set_the_held_one_itself() -> None:
    local_only = LocalOnly(epochs=1).model_dump(mode="json")
    wanted = order(strategy=local_only, numbers={"epochs": 1}, evaluation={"track": True})
    content, client_state = done(bowl(), wanted)
    assert content.vectors == {}
    assert np.array_equal(client_state[LAST_MODEL], bowl().train(START, Drill(epochs=1)).end)
    assert content.numbers["track"]["n"] == 10


def test_a_phase_that_does_not_train_holds_nothing_new() -> None:
    signature = order(phase="signature", strategy=Pacfl().model_dump(mode="json"))
    assert done(bowl(), signature)[1] == {}
    held = {LAST_MODEL: flat(7, 7)}
    assert done(bowl(), signature, held)[1] is held


def test_a_phase_before_the_rounds_that_trains_holds_the_whole_model_though_it_sends_a_part() -> (
    None
):
    of_the_paper = FedClust(signature="final_layer").model_dump(mode="json")
    wanted = order(phase="signature", strategy=of_the_paper, numbers={"epochs": 1})
    content, client_state = done(bowl(), wanted, {LAST_MODEL: flat(7, 7)})
    trained = bowl().train(START, Drill(epochs=1)).end
    assert np.array_equal(decode(content.vectors["signature"], length=1), trained[1:])
    assert same(client_state, {LAST_MODEL: trained})


def test_who_trains_several_models_in_a_phase_holds_the_one_that_it_sends() -> None:
    content, client_state = done(
        bowl(), order(strategy=Ditto(**{"lambda": 1.0}).model_dump(mode="json"))
    )
    assert np.array_equal(client_state[LAST_MODEL], decode(content.vectors["model"], length=2))
    assert not np.array_equal(client_state[LAST_MODEL], client_state[OWN])


def test_what_a_phase_holds_changes_no_byte_of_its_report() -> None:
    wanted = order(
        phase="signature", strategy=FedClust().model_dump(mode="json"), numbers={"epochs": 1}
    )
    content, client_state = done(bowl(), wanted)
    assert done(bowl(), wanted, client_state)[0].to_bytes() == content.to_bytes()
    assert (set(content.vectors), content.numbers) == ({"signature"}, {})


def test_tracking_measures_every_phase_that_trains() -> None:
    wanted = order(
        phase="signature", strategy=FedClust().model_dump(mode="json"), evaluation={"track": True}
    )
    assert done(bowl(), wanted)[0].numbers["track"]["n"] == 10
    wanted = order(
        phase="signature", strategy=Pacfl().model_dump(mode="json"), evaluation={"track": True}
    )
    assert "track" not in done(bowl(), wanted)[0].numbers


def test_an_evaluation_has_all_modes_the_last_only_after_training() -> None:
    local = softmax_client((0, 1), seed=1)
    local = replace(local, training=TRAINING)
    start = np.zeros(local.layout.size, np.float32)
    wanted = order(local, phase="evaluate")
    content, _ = done(local, wanted, start=start)
    assert set(content.numbers) == {"server", "tuned", "baseline"}
    assert content.numbers["server"] == {
        "n": 24,
        "correct": int(np.sum(local.y == 0)),
        "accuracy": pytest.approx(np.mean(local.y == 0)),
        "f1": pytest.approx(content.numbers["server"]["f1"]),
        "recall": 0.5,
        "auc": 0.5,
        "loss": pytest.approx(np.log(4)),
    }
    assert content.numbers["tuned"]["accuracy"] > content.numbers["server"]["accuracy"]
    tuned = local.train(start, Drill(epochs=1)).end
    content, _ = done(local, wanted, {LAST_MODEL: tuned}, start)
    assert content.numbers["last"] == content.numbers["tuned"]


def test_without_tuning_epochs_that_mode_is_left_out() -> None:
    content, _ = done(bowl(), order(phase="evaluate", evaluation={"tune_epochs": 0}))
    assert set(content.numbers) == {"server", "baseline"}


def test_a_regression_is_measured_by_its_squared_error() -> None:
    content, _ = done(bowl(3, 0), order(phase="evaluate"))
    assert content.numbers["server"] == {
        **{"n": 10, "mse": 9.0, "loss": 9.0, "mae": 3.0},
        **{"mean": 3.0, "variance": 0.0},
    }


def test_a_model_whose_outputs_are_not_finite_is_reported_as_diverged() -> None:
    content, _ = done(
        bowl(3, 0), order(phase="evaluate", evaluation={}), {LAST_MODEL: flat(np.inf, 0)}
    )
    assert content.numbers["server"]["mse"] == 9.0
    assert content.numbers["last"] == {"n": 10, "diverged": True}


def test_a_mixture_of_models_mixes_what_they_predict_by_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = ((3.0, flat(8, 0)), (1.0, flat(0, 0)))
    monkeypatch.setattr(FedAvg, "personal", lambda *_: parts)
    content, _ = done(bowl(3, 0), order(phase="evaluate", evaluation={"tune_epochs": 0}))
    assert content.numbers["server"]["mse"] == pytest.approx((0.75 * 8 - 3) ** 2)


def test_tracking_measures_the_model_right_after_training() -> None:
    local = replace(softmax_client((0, 1), seed=1), training=TRAINING)
    wanted = order(local, evaluation={"track": True})
    content, client_state = done(local, wanted, start=np.zeros(local.layout.size, np.float32))
    logits = local.predict(client_state[LAST_MODEL], "test")
    assert content.numbers["track"]["accuracy"] == pytest.approx(
        np.mean(logits.argmax(1) == local.y)
    )


@dataclass(frozen=True)
class Summed(Bowl):
    def statistics(self) -> dict[str, npt.NDArray[np.float64]]:
        return {"count": np.array([10.0]), "sum": np.array([20.0]), "square": np.array([90.0])}


def test_moments_travel_as_numbers() -> None:
    content, _ = done(Summed(flat(1, 2)), order(phase="moments", models=[]))
    assert content.numbers == {"count": [10.0], "sum": [20.0], "square": [90.0]}
    with pytest.raises(UserError, match="can be summed"):
        done(bowl(), order(phase="moments"))


def test_a_training_that_diverges_is_refused_with_a_hint() -> None:
    wild = Bowl(flat(1, 2), curvature=1e30, training=Training(epochs=40, lr=1.0))
    with (
        np.errstate(all="ignore"),
        pytest.raises(UserError, match=r"pi.*diverged.*lower training\.lr"),
    ):
        done(wild)


def test_an_order_without_work_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="no work"):
        execute_order(
            OrderMessage(run="r", step=1, accepted=0, closed=0), [], AtHand(bowl()), {}, client="pi"
        )


def test_a_model_content_comes_back_and_another_layout_is_refused() -> None:
    content = encode_model(flat(1, 2), bowl_layout().digest, Codec(), generator(0, "x"))
    assert decode_model(content, bowl_layout()).tolist() == [1, 2]
    with pytest.raises(DecodeError, match="layout"):
        decode_model(content, bowl_layout(3))


def test_shuffling_differs_by_client_round_and_phase() -> None:
    works = [order(round=r, phase=p).work for r in (0, 1) for p in ("train", "warmup")]
    draws = {
        int(shuffle(work, client).integers(2**62))
        for work in works
        if work
        for client in ("a", "b")
    }
    assert len(draws) == 8
