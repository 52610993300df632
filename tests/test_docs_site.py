"""The documentation site builds without warnings, without the network, and refers to no other host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import GENERATED

ROOT = Path(__file__).parent.parent
SCRIPT = (ROOT / "scripts" / "docs_site.py").read_text("utf-8")
OFF_SITE = re.findall(r'"([\w-]+\.md)"', SCRIPT.split("OFF_SITE = (")[1].split(")")[0])
NOWHERE = "http://127.0.0.1:9"  # the discard port: a proxy that answers nobody
PAGES = re.compile(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"(?:https?:)?//")
STYLES = re.compile(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//")
LIMIT_S = 240.0

pytestmark = pytest.mark.whole  # its pages have the keys, commands and classes of all extras


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
        if page.name not in OFF_SITE
    }
    built = {page.relative_to(site) for page in site.rglob("*.html")}
    assert committed <= built
    assert Path("index.html") in built


@pytest.mark.processes
def test_generated_pages_are_filled(site: Path) -> None:
    texts = {
        page.rpartition("/")[2]: (site / f"{page}.html").read_text("utf-8")
        for page in (
            "methods",
            *(f"reference/{name}" for name in ("scenario", "commands", "messages", "python")),
        )
    }
    assert "participation" in texts["scenario"]
    assert "coordinator compare" in texts["commands"]
    assert "fesem_ma" in texts["methods"]
    assert "Coordinator status" in texts["messages"]
    assert "Strategy" in texts["python"]
    assert not any("generated:" in text for text in texts.values())
    assert re.findall(r"covey\.(?:agent|api|broker|coordinator|shared)\b", texts["python"]) == []


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


@pytest.mark.processes
def test_the_sidebar_has_no_more_than_twenty_entries(site: Path) -> None:
    index = (site / "index.html").read_text("utf-8")
    sidebar = index.split('class="sidebar-tree"')[1].split("</aside>")[0]
    assert 10 < len(re.findall(r'<li class="toctree-l\d', sidebar)) <= 20


HIDDEN = re.compile(r"<!--.*?-->", re.DOTALL)  # what a test needs and no reader sees
PAGES_OF_THE_SITE = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name not in OFF_SITE),
]


def words(page: Path) -> int:
    """As `wc -w` counts them: tables and commands too, generated tables not."""
    return len(HIDDEN.sub("", GENERATED.sub("", page.read_text("utf-8"))).split())


def test_the_reference_is_what_the_programs_say() -> None:
    """Pages are read on a code host too, where nothing fills them."""
    code = "import sys; sys.path.insert(0, 'scripts'); import docs_site; from pathlib import Path; "
    code += "print(*(p for p in docs_site.PAGES.rglob('*.md') "
    code += "if docs_site.filled(text := p.read_text('utf-8')) != text))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [], "python scripts/docs_site.py --fill"


def test_the_site_can_be_read_in_an_afternoon() -> None:
    counted = {page.relative_to(ROOT).as_posix(): words(page) for page in PAGES_OF_THE_SITE}
    long = {page: n for page, n in counted.items() if n > 2000}
    assert long == {}
    assert len(counted) <= 25
    assert sum(counted.values()) <= 30_000


LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^( *)```.*?^\1```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINKED = [
    *(page for page in ROOT.glob("*.md") if page.name != "CHANGELOG.md"),  # names what was there
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "benchmarks" / "results").glob("*.md"),
    *(ROOT / "examples").glob("*.md"),
    *ROOT.glob("extras/*/*.md"),
    ROOT / "shared" / "wire" / "README.md",
]


def test_every_link_of_a_page_leads_to_a_file() -> None:
    for page in LINKED:
        targets = LINK.findall(CODE.sub("", page.read_text("utf-8")))
        paths = {target.partition("#")[0] for target in targets if "://" not in target}
        assert {path for path in paths if path and not (page.parent / path).exists()} == set(), page
