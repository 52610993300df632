"""What a person reads in the log of an agent: each notice that gives a reason, whatever notices there will be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import pytest

from covey.agent.device import notices as n
from covey.agent.device.display import DeviceDisplay, show_fleet

WHY = "the reason of it"
# Strangers may send thousands of messages: `coordinator status` has their number. A link that is back needs no reason.
QUIET = (n.MessageRefused, n.Connected)
FAULTS = (n.Damaged, n.DiskFull, n.OrderFailed, n.Problem)  # of one agent of a simulated fleet


def with_a_reason() -> Iterator[n.DeviceNotice]:
    """One of each kind of notice that has a reason."""
    for kind in n.DeviceNotice.__subclasses__():
        own = [one for one in fields(kind) if one.init]
        if any(one.name == "why" for one in own):
            values = {one.name: "a word" if one.type == "str" else 1 for one in own}
            values["why"] = WHY
            yield kind(**values)


NOTICES = list(with_a_reason())


def test_there_are_such_notices() -> None:
    assert {*FAULTS, *QUIET, n.WorkerDied} <= {type(one) for one in NOTICES}


@pytest.mark.parametrize("notice", NOTICES, ids=lambda one: type(one).__name__)
def test_a_notice_with_a_reason_is_in_the_log(
    notice: n.DeviceNotice, capsys: pytest.CaptureFixture[str]
) -> None:
    """A disk that was full, a damaged file and a lost worker were in no log."""
    DeviceDisplay()(notice)
    said = "".join(capsys.readouterr())
    assert (WHY in said) == (not isinstance(notice, QUIET))


@pytest.mark.parametrize("notice", NOTICES, ids=lambda one: type(one).__name__)
def test_a_simulated_fleet_names_the_agent_with_a_fault(
    notice: n.DeviceNotice, capsys: pytest.CaptureFixture[str]
) -> None:
    show_fleet(n.OfAgent("agent-7", notice))
    assert capsys.readouterr().err.endswith(f"agent-7: {WHY}\n") == isinstance(notice, FAULTS)
