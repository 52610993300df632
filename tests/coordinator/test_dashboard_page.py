"""The dashboard in a real browser: it shows news within a second, obeys nobody's markup, and fits a phone."""

from __future__ import annotations

from pathlib import Path

from covey.coordinator.dashboard.folder_reader import FolderReader
from covey.coordinator.dashboard.hub import Hub
from covey.coordinator.dashboard.server import serving
from covey.shared.wire.messages import Control
from tests.browser import browser, needs_chromium
from tests.coordinator import dashboards
from tests.coordinator.dashboards import AGENT, agents, phase

HOSTILE = '</td><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
TEXT = "document.body.innerText"


@needs_chromium
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    dashboards.write_plan(folder, name=HOSTILE)
    sent: list[Control] = []

    def send(control: Control) -> str | None:
        sent.append(control)
        return None

    with (
        Hub(FolderReader(folder)) as hub,
        serving(hub, 0, send) as server,
        browser(tmp_path / "profile") as page,
    ):
        page.show(server.address)
        page.wait_for(f"{TEXT}.includes('No run yet')")

        dashboards.write_status(folder, name=HOSTILE, state="gathering")
        dashboards.write_roster(folder, agents(3))
        waited = [
            page.wait_for(f"{TEXT}.includes('Waiting for the first round: 3 of 10 agents are')")
        ]

        rows = agents(10_000, cluster=0, figure=0.5)
        rows["agent-0"] = AGENT | {"problem": HOSTILE, "cluster": 1}
        dashboards.append_lines(
            folder, phase(1), phase(1, evaluated=0.5, notes={"warning": HOSTILE})
        )
        dashboards.write_status(folder, name=HOSTILE, state="open", phase="train", round=1)
        waited.append(page.wait_for("document.querySelector('#figure').textContent === '50.0 %'"))
        dashboards.write_roster(folder, rows)
        page.wait_for(f"{TEXT}.includes('1–25 of 10000')")
        dashboards.append_lines(folder, phase(2), phase(2, evaluated=0.875))
        waited.append(page.wait_for("document.querySelector('#figure').textContent === '87.5 %'"))
        print(f"updates were shown after {', '.join(f'{one:.2f}' for one in waited)} s")
        assert max(waited) < 1.0

        # hostile text is text
        assert page.value("window.hacked") is None
        assert page.value("document.querySelectorAll('img, td script, li script').length") == 0
        assert page.value("document.querySelector('#name').textContent") == HOSTILE
        page.value("search.call(null, document.querySelector('#search').value = 'onerror')")
        page.wait_for("document.querySelectorAll('#agents tbody tr').length === 1")
        assert HOSTILE in page.value(
            "document.querySelector('#agents tbody td.reason').textContent"
        )

        # charts have axes, units and a legend
        assert page.value("document.querySelectorAll('#chart-figure svg path.line').length") == 3
        assert "accuracy (%)" in page.value(f"{TEXT}")
        assert "cluster 1 87.5 %" in page.value("document.querySelector('#chart-figure').innerText")

        # commands are sent, those that end something after a question
        page.click("#pause")
        page.click("#stop")
        page.wait_for("document.querySelector('#confirm').open")
        page.click("#no")
        page.click("#agents tbody button")
        page.wait_for("document.querySelector('#confirm').open")
        page.click("#yes")
        page.wait_for("!document.querySelector('#confirm').open")
        dashboards.write_status(folder, state="paused", round=2)
        page.wait_for("document.querySelector('#pause').textContent === 'Resume'")

        # the reader's choice of a theme wins over the system's
        ground = "getComputedStyle(document.body).backgroundColor"
        before = page.value(ground)
        page.click("#theme")
        page.click("#theme")
        assert page.value(ground) != before

        page.show(server.address, width=390, height=844, dark=True)
        page.wait_for(f"{TEXT}.includes('1–25 of 10000')")
        assert page.value("document.documentElement.scrollWidth") <= 390
        assert page.complaints == []
    # each is a request of its own, so either may arrive first
    assert Control(command="pause") in sent
    assert Control(command="forget", agent="agent-0") in sent
    assert len(sent) == 2
