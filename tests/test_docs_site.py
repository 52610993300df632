"""The documentation site builds without warnings, without the network, and refers to no other host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOWHERE = "http://127.0.0.1:9"  # the discard port: a proxy that answers nobody
PAGES = re.compile(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"(?:https?:)?//")
STYLES = re.compile(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//")
LIMIT_S = 240.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly in a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    places = ["--out", str(folder / "html"), "--sources", str(folder / "docs")]
    offline = {"http_proxy": NOWHERE, "https_proxy": NOWHERE}
    done = subprocess.run(
        [sys.executable, "scripts/docs_site.py", *places],
        cwd=ROOT,
        env={**os.environ, **offline},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


@pytest.mark.processes
def test_the_site_has_every_page(site: Path) -> None:
    committed = {
        page.relative_to(ROOT / "docs").with_suffix(".html")
        for page in (ROOT / "docs").rglob("*.md")
    }
    built = {page.relative_to(site) for page in site.rglob("*.html")}
    assert committed <= built
    of_the_root = ("index", "contributing", "changelog", "security-policy")
    assert {Path(f"{name}.html") for name in of_the_root} <= built


@pytest.mark.processes
def test_generated_pages_are_filled(site: Path) -> None:
    texts = {
        name: (site / "reference" / f"{name}.html").read_text("utf-8")
        for name in ("scenario", "commands", "methods", "messages", "python")
    }
    assert "participation" in texts["scenario"]
    assert "coordinator compare" in texts["commands"]
    assert "fesem_ma" in texts["methods"]
    assert "Coordinator status" in texts["messages"]
    assert "Strategy" in texts["python"]
    assert not any("generated:" in text for text in texts.values())


@pytest.mark.processes
def test_a_reader_without_the_network_sees_everything(site: Path) -> None:
    pages = [page for page in site.rglob("*.html") if PAGES.search(page.read_text("utf-8"))]
    styles = [style for style in site.rglob("*.css") if STYLES.search(style.read_text("utf-8"))]
    assert pages == []
    assert styles == []


@pytest.mark.processes
def test_search_works_offline(site: Path) -> None:
    index = (site / "searchindex.js").read_text("utf-8")
    assert "fedclust" in index
