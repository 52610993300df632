"""The page of a report in a real browser: on a desk and on a phone, light and dark, without a request to anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.coordinator.run.result import write_all
from covey.extras.dashboard.tests.looks import flaws, views_of, whole_page
from covey.extras.dashboard.tests.pages import HOSTILE, keep_inputs, page_of, rename, run
from tests.browser import Page, browser, needs_chromium
from tests.kit import small_run
from tests.kit.small_run import DURATIONS

pytestmark = [needs_chromium, pytest.mark.processes]

ROWS = "[...document.querySelectorAll('table.long tbody tr')]"
SHOWN = f"{ROWS}.filter((row) => !row.hidden).map((row) => row.cells[0].textContent)"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


def test_a_page_is_complete_sorts_searches_and_asks_for_nothing(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", "fedclust")
    rename(folder, "agent-3", HOSTILE)
    file = tmp_path / "report.html"
    file.write_text(page_of(folder))
    with browser(tmp_path / "profile") as page:
        page.show(file.as_uri())
        page.wait_for("document.readyState === 'complete'")
        words = page.value("document.body.innerText")
        for expected in ("served", "accuracy in %", "Agents per group over rounds", HOSTILE):
            assert expected in words
        assert page.value("window.hacked") is None
        assert page.value("document.querySelectorAll('script').length") == 1
        assert (
            page.value("getComputedStyle(document.querySelector('svg .f0')).fill") != "rgb(0, 0, 0)"
        )

        _search(page, "AGENT-7")
        assert page.value(SHOWN) == ["agent-7"]
        _search(page, "")
        heading = "table.long th:nth-child(2) button"
        page.click(heading)
        clusters = f"{ROWS}.map((row) => row.cells[1].textContent)"
        assert page.value(clusters) == sorted(page.value(clusters))
        page.click(heading)
        assert page.value(clusters) == sorted(page.value(clusters), reverse=True)

        light = page.value(BACKGROUND)
        for view in views_of(page, file.as_uri(), "document.readyState === 'complete'"):
            picture = tmp_path / f"report-{view.name}.png"
            whole_page(page, picture)
            assert picture.stat().st_size > 20_000
            assert flaws(page) == []
            assert (page.value(BACKGROUND) == light) != view.dark
        assert page.complaints == []
        assert file.stat().st_size < 150_000
        allowed = ("about:", "data:", file.as_uri())
        assert [address for address in page.requests if not address.startswith(allowed)] == []


def _hundred_agents(folder: Path) -> None:
    """A run of a hundred agents, of which many are too late in each round."""
    folder.mkdir()
    fleet = {"agents": 100, "durations": DURATIONS, "partition": "iid"}
    rounds = {"count": 4, "participation": 0.5, "start_agents": 100, "deadline_s": 2.0}
    scene = small_run.scenario("fedclust", fleet=fleet, rounds=rounds, evaluation={"every": 1})
    clients = small_run.clients(100, scene)
    done = small_run.in_process(folder, scene, clients)
    planted = {client: number % 2 for number, client in enumerate(clients)}
    write_all(done, planted)
    keep_inputs(folder, scene)


def test_how_a_run_of_a_hundred_agents_with_faults_looks_on_a_desk_and_on_a_phone(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    _hundred_agents(folder)
    file = tmp_path / "report.html"
    file.write_text(page_of(folder))
    with browser(tmp_path / "profile") as page:
        page.show(file.as_uri())
        page.wait_for("document.readyState === 'complete'")
        assert page.value(f"{ROWS}.length") == 100
        assert "did not report the last evaluation" in page.value("document.body.innerText")
        for view in views_of(page, file.as_uri(), "document.readyState === 'complete'"):
            picture = tmp_path / f"report-{view.name}.png"
            whole_page(page, picture)
            assert picture.stat().st_size > 20_000
            assert flaws(page) == []
        assert page.complaints == []
    assert file.stat().st_size < 150_000


def _search(page: Page, words: str) -> None:
    page.value(f"document.querySelector('.controls input').value = '{words}'")
    page.value("document.querySelector('.controls input').dispatchEvent(new Event('input'))")
