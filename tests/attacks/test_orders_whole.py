"""An order is held against the rules of the device before anything of it is subscribed to, fetched or built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from covey.shared.errors import DecodeError
from covey.shared.wire.messages import ModelRef, OrderMessage, digest
from tests.attacks import rogue
from tests.processes import Program

pytestmark = pytest.mark.processes

MB = 1 << 20


def answer(
    tmp_path: Path, *options: str, learner: str = "numpy", **order: Any
) -> tuple[str, Program]:
    """What an agent with these options answers to the order: why it was not carried out."""
    message = rogue.order(**order).to_bytes()
    with (
        rogue.open_broker() as url,
        rogue.victim(tmp_path, url, *options, learner=learner) as agent,
    ):
        heard = rogue.attack(
            url, {rogue.TOPICS.order("victim"): message}, enough=lambda h: h.failures, within_s=60
        )
        assert agent.process.poll() is None, agent.output
        assert heard.failures, agent.output
        return heard.failures[0], agent


def with_key(key: str) -> bytes:
    """An order whose model has this key."""
    ref = ModelRef.model_construct(key=key, digest=digest(b"x"), parts=1, size=1)
    return rogue.order(models=[ref]).to_bytes()


@pytest.mark.parametrize("key", ["+", "#", "0/model/#", "@victim/model/+", "@", "a b"])
def test_an_order_whose_key_is_not_part_of_a_topic_is_refused(key: str) -> None:
    with pytest.raises(DecodeError) as refused:
        OrderMessage.from_bytes(with_key(key))
    assert refused.value.reason == "fields"


@pytest.mark.whole
def test_a_wildcard_key_in_a_retained_order_ends_no_agent(tmp_path: Path) -> None:
    """Before, the agent ended with a traceback, at this start and at each one after it."""
    message = with_key("#")
    with rogue.open_broker() as url:
        with rogue.victim(tmp_path, url) as agent:
            heard = rogue.attack(
                url,
                {
                    rogue.TOPICS.order("victim"): message,
                    rogue.TOPICS.coordinator_status: rogue.status(None).to_bytes(),
                },
                enough=lambda h: any(status.dropped for status in h.statuses),
            )
            assert agent.process.poll() is None, agent.output
        assert heard.statuses[-1].dropped == {"fields": 1}
        with rogue.victim(tmp_path, url) as again:  # the order is still there
            heard = rogue.attack(
                url, {}, enough=lambda h: any(status.dropped for status in h.statuses)
            )
            assert again.process.poll() is None, again.output


@pytest.mark.whole
def test_a_model_too_large_is_refused_before_a_process_starts_for_it(tmp_path: Path) -> None:
    layout = {"trainable": 1, "tensors": [["fc.weight", [10**9, 64]]]}
    why, agent = answer(tmp_path, layout=layout)
    assert why == (
        "policy of this device: max_model_values: the model has 64000000000 values, at most 100000000 are allowed"
    )
    assert "step 1 failed: policy of this device" in agent.output


@pytest.mark.whole
def test_a_width_that_the_layout_does_not_name_takes_no_memory(tmp_path: Path) -> None:
    """Before, the worker built 2.1e8 values first: 1.2 GB; now it takes what torch takes."""
    model = {"name": "mlp", "options": {"hidden": 3 * 10**7}}
    message = rogue.order(task=rogue.task(model=model)).to_bytes()
    with (
        rogue.open_broker() as url,
        rogue.victim(tmp_path, url, "--limit", "max_model_values=null", learner="torch") as agent,
    ):
        # the number itself is refused without a limit on options too: the largest width that may be named
        heard = rogue.attack(
            url, {rogue.TOPICS.order("victim"): message}, enough=lambda h: h.failures, within_s=60
        )
        assert "task.model.options" in heard.failures[0]
        model["options"] = {"hidden": 1 << 24}
        second = rogue.order(2, task=rogue.task(model=model)).to_bytes()
        heard = rogue.attack(
            url,
            {rogue.TOPICS.order("victim"): second},
            enough=lambda h: len(h.failures) > 0,
            within_s=60,
        )
        peaks = [peak(child) for child in psutil.Process(agent.process.pid).children()]
    assert "built here it has 117440514 values, the coordinator's has 10" in heard.failures[-1]
    assert max(peaks) < 700 * MB


def peak(process: psutil.Process) -> int:
    """The most memory that a process ever had, in bytes."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


@pytest.mark.whole
@pytest.mark.parametrize(
    ("options", "order", "why"),
    [
        (
            [],
            {"training": {"epochs": 10**9}},
            "max_epochs: training.epochs is 1000000000, at most 10000 are allowed",
        ),
        ([], {"task": rogue.task(init="/etc/shadow")}, "task.init names a file on this device"),
        (["--limit", "refuse_phases=[train]"], {}, "refuse_phases: the phase train is refused"),
        ([], {"strategy": {"name": "shell"}}, "of the order"),
    ],
)
def test_an_order_against_the_rules_is_answered_with_the_rule(
    options: list[str], order: dict[str, Any], why: str, tmp_path: Path
) -> None:
    assert why in answer(tmp_path, *options, **order)[0]


SLOW = """
import time
def load(path):
    time.sleep(600)
"""


@pytest.mark.whole
def test_work_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    why, _ = answer(tmp_path, "--data", "slow:load", "--limit", "max_seconds=2")
    assert why == "policy of this device: max_seconds: the work took longer than 2 s"


@pytest.mark.whole
def test_work_that_takes_too_much_memory_is_ended(tmp_path: Path) -> None:
    """100 MB of model where 50 MB are allowed; without the limit the order is carried out."""
    model = {"name": "mlp", "options": {"hidden": 3_600_000}}
    tensors = [
        ["fc1.weight", [3_600_000, 4]],
        ["fc1.bias", [3_600_000]],
        ["fc2.weight", [2, 3_600_000]],
    ]
    layout = {"trainable": 4, "tensors": [*tensors, ["fc2.bias", [2]]]}
    why, _ = answer(
        tmp_path, "--limit", "max_memory_mb=50", task=rogue.task(model=model), layout=layout
    )
    assert why == "policy of this device: max_memory_mb: the work takes more than the allowed 50 MB"


@pytest.mark.whole
def test_hidden_labels_do_not_leave_the_device(tmp_path: Path) -> None:
    """Those of a device without the limit are in the statuses of tests/agent/test_service.py."""
    status = {rogue.TOPICS.coordinator_status: rogue.status(rogue.task()).to_bytes()}
    with rogue.open_broker() as url, rogue.victim(tmp_path, url, "--limit", "labels=hidden"):
        heard = rogue.attack(
            url, status, enough=lambda h: any(one.samples for one in h.statuses), within_s=60
        )
    last = heard.statuses[-1]
    assert (last.labels, last.samples + last.test_samples) == ([], 20)
