"""Certificates that are renewed, and that end, while a run is at work: nobody is locked out, and each refusal is named."""

from __future__ import annotations

import datetime
import ssl
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from covey.broker.cli.program import app as broker_app
from covey.coordinator.cli.program import app
from covey.extras.users.tests.enrolled import Enrolled
from tests.e2e.enrolled import ended
from tests.processes import Program, listens, needs_mosquitto, rows, until

pytestmark = pytest.mark.processes

WAYS = [["--embedded"], pytest.param([], marks=[pytest.mark.broker, needs_mosquitto])]
DEVICES = ("gw-1", "gw-2")
SHORT_S = 6.0
ROUNDS = 60  # more than a pause takes to arrive
DOWN = '"event": "down"'
EXPIRED = "the broker's certificate has expired; renew it with `broker lab renew`"


def shown(site: Enrolled) -> str:
    """The certificate that the broker shows to a new connection."""
    return ssl.get_server_certificate(("127.0.0.1", site.home.url.port))


def renewed(site: Enrolled) -> None:
    """`broker lab renew`, and wait until the running broker has read it."""
    done = site.typed(broker_app, "lab", "renew", "--home", site.home.folder)
    assert done.exit_code == 0, done.output
    until(lambda: shown(site) == (site.home.folder / "server.pem").read_text())


@pytest.mark.parametrize("way", WAYS, ids=["embedded", "mosquitto"])
def test_a_renewal_cuts_nobody_and_an_end_in_mid_run_is_named_and_healed(
    way: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        site = Enrolled(tmp_path, stack)
        for name in DEVICES:
            site.credentials(name)
        broker = site.broker(*way)
        scene = site.scenario(len(DEVICES), rounds={"count": ROUNDS})
        agents = [site.agent(name) for name in DEVICES]
        run = site.coordinator("run", scene)
        programs = [*agents, run]
        until(lambda: len(rows(tmp_path / "run")) >= 1, of=run)
        assert site.typed(app, "lab", "pause", *site.operator).exit_code == 0

        # renewed while all of them are connected, for a few seconds only
        with monkeypatch.context() as patch:
            soon = datetime.timedelta(seconds=SHORT_S)
            patch.setattr(
                "covey.extras.users.authority._in_days",
                lambda _: datetime.datetime.now(datetime.UTC) + soon,
            )
            renewed(site)
        assert _downs(programs) == []
        time.sleep(SHORT_S)
        assert _downs(programs) == [], "a connection outlives the certificate"

        # the broker restarts with what has expired
        broker.kill()
        until(lambda: not listens(site.home.url.port))
        broker = site.broker(*way)
        assert "has expired, clients refuse the connection; run `broker lab renew" in broker.output
        for this in programs:
            until(lambda this=this: EXPIRED in this.output, of=this)  # type: ignore[misc]
        assert run.process.poll() is None, "the pause holds it"

        # and is renewed as the message advises: all come back by themselves
        renewed(site)
        for this in programs:
            until(lambda this=this: _is_back(this), of=this)  # type: ignore[misc]
        resumed = site.typed(app, "lab", "resume", *site.operator)
        assert resumed.exit_code == 0, resumed.output
        assert ended(run) == 0, run.output
    phases = [row for row in rows(tmp_path / "run") if row["event"] == "phase"]
    assert all(row["missing"] == [] for row in phases)
    assert [row["round"] for row in phases if row["ends_round"]] == list(range(ROUNDS))


def _downs(programs: list[Program]) -> list[str]:
    """Their reports about ends of their connections."""
    lines = [line for this in programs for line in this.output.splitlines()]
    return [line for line in lines if DOWN in line or '"up": false' in line]


def _is_back(this: Program) -> bool:
    """Whether the newest news of a program's link is good."""
    up = max(this.output.rfind('"event": "up"'), this.output.rfind('"up": true'))
    down = max(this.output.rfind(DOWN), this.output.rfind('"up": false'))
    return up > down
