"""Build the documentation site: `make docs`, or `python scripts/docs_site.py --out site`.

The pages in `docs/` are also read on a code host. So they link to each other and to files of the repository by
relative paths, and a page of generated reference is a committed page with its contents between two marks:

    <!-- generated: scenario -->
    <!-- end of generated -->

`python scripts/docs_site.py --fill` writes what the programs and docstrings say now (`docs_reference.py`) there, and a test
compares. For the site the pages are copied to `build/docs`. There the contents lose their marks, a link to a file of the repository's root becomes a link to the page that is made of that file, and a link to any other file of the
repository becomes its path. Then Sphinx builds the copy with warnings as errors. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from pathlib import Path, PurePosixPath

import docs_reference
from sphinx.cmd.build import main as sphinx_build

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs"

ROOT_PAGES = {"README.md": "index.md"}  # files of the repository's root that are pages of the site
OFF_SITE = (
    "architecture.md",
    "decisions.md",
)  # for people who change Covey, in the repository alone

# the sidebar: captions with their pages; the pages that it lacks are reached from these
NAVIGATION = {
    "Learn": ["quickstart", "tutorials/your-fleet", "tutorials/your-own-method"],
    "When something happens": ["events"],
    "How to": [
        "operations",
        "devices",
        "brokers",
        "your-data",
        "model-in-use",
        "comparisons",
        "from-flower",
    ],
    "Understand": ["how-a-round-works", "should-i-cluster", "privacy", "security"],
    "Look up": ["reference/commands", "reference/scenario", "methods", "reference/python"],
}
ORPHAN = "---\norphan: true\n---\n\n"  # Sphinx expects every other page in the sidebar

END = "<!-- end of generated -->"
MARK = re.compile(
    rf"^<!-- generated: ([\w-]+) -->$(?:(?:(?!<!-- generated:).)*?^{END}$)?",
    re.MULTILINE | re.DOTALL,
)
UNFILLED = re.compile(r"<!-- generated:")
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)


def assemble(sources: Path) -> None:
    """Fill the folder `sources` with all pages of the site; what was there before is removed."""
    shutil.rmtree(sources, ignore_errors=True)
    left_out = shutil.ignore_patterns("conf.py", "__pycache__", *OFF_SITE)
    shutil.copytree(PAGES, sources, ignore=left_out)
    shown = {page for pages in NAVIGATION.values() for page in pages}
    for page in sorted(sources.rglob("*.md")):
        place = page.relative_to(sources)
        text = site_text(page.read_text("utf-8"), PurePosixPath("docs") / place.as_posix())
        is_shown = place.with_suffix("").as_posix() in shown
        page.write_text(text if is_shown else ORPHAN + text, "utf-8")
    for name, page_name in ROOT_PAGES.items():
        text = site_text((ROOT / name).read_text("utf-8"), PurePosixPath(name))
        if page_name == "index.md":
            text += sidebar()
        (sources / page_name).write_text(text, "utf-8")


def filled(markdown: str) -> str:
    """A page of the repository with its generated contents as they are now."""
    return MARK.sub(
        lambda mark: (
            f"<!-- generated: {mark[1]} -->\n\n{docs_reference.generated(mark[1]).strip()}\n\n{END}"
        ),
        markdown,
    )


def site_text(markdown: str, source: PurePosixPath) -> str:
    """A page of the repository as it is on the site.

    Args:
        markdown: the text of the page.
        source: where the page lies in the repository, such as `docs/tutorials/your-fleet.md`.
    """
    linked = relinked(MARK.sub(lambda mark: f"<!-- generated: {mark[1]} -->", markdown), source)
    whole = MARK.sub(lambda mark: docs_reference.generated(mark[1]), linked)
    if UNFILLED.search(whole):
        raise ValueError(f"{source}: put the mark of generated reference on a line of its own")
    return whole


def relinked(markdown: str, source: PurePosixPath) -> str:
    """A page's text with its links led to their targets on the site; code blocks stay as they are."""
    pieces = []
    end = 0
    for fence in FENCE.finditer(markdown):
        pieces.append(_relinked_text(markdown[end : fence.start()], source))
        pieces.append(fence[0])
        end = fence.end()
    pieces.append(_relinked_text(markdown[end:], source))
    return "".join(pieces)


def _relinked_text(text: str, source: PurePosixPath) -> str:
    return LINK.sub(lambda link: _relinked_link(link[1], link[2], source), text)


def _relinked_link(label: str, target: str, source: PurePosixPath) -> str:
    path, hash_mark, anchor = target.partition("#")
    if not path or "://" in path:
        return f"[{label}]({target})"
    in_repository = _joined(source.parent, path)
    name = in_repository.as_posix()
    if not (ROOT / in_repository).exists():
        raise ValueError(f"{source}: the link to {target} leads nowhere")
    if name in ROOT_PAGES:
        on_site = PurePosixPath(ROOT_PAGES[name])
    elif in_repository.parts[0] == "docs" and in_repository.name not in OFF_SITE:
        on_site = in_repository.relative_to("docs")
    else:
        return label if name in label else f"{label} (`{name}`)"
    up = "../" * (len(_site_page(source).parts) - 1)
    return f"[{label}]({up}{on_site}{hash_mark}{anchor})"


def _site_page(source: PurePosixPath) -> PurePosixPath:
    """Where a page of the repository lies on the site."""
    name = source.as_posix()
    return PurePosixPath(ROOT_PAGES[name]) if name in ROOT_PAGES else source.relative_to("docs")


def _joined(folder: PurePosixPath, path: str) -> PurePosixPath:
    """`folder / path` with every `..` resolved."""
    parts: list[str] = []
    for part in (folder / path).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return PurePosixPath(*parts)


def sidebar() -> str:
    """The site's sidebar as hidden tables of contents, to be put on the first page."""
    lines: list[str] = []
    for caption, pages in NAVIGATION.items():
        lines += ["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```"]
    return "\n".join([*lines, ""])


def build(out: Path, sources: Path) -> int:
    """Build the site into `out`; 0 if there was no warning."""
    assemble(sources)
    doctrees = sources.with_name(f"{sources.name}.doctrees")
    options = [
        "-b",
        "html",
        "-q",
        "-W",
        "--keep-going",
        "-E",
        "-d",
        str(doctrees),
        "-c",
        str(PAGES),
    ]
    return sphinx_build([*options, str(sources), str(out)])


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="folder of the site")
    parser.add_argument("--sources", type=Path, default=ROOT / "build/docs", help="scratch folder")
    parser.add_argument(
        "--fill", action="store_true", help="write the generated contents into the pages of `docs`"
    )
    chosen = parser.parse_args()
    if chosen.fill:
        for page in sorted(PAGES.rglob("*.md")):
            page.write_text(filled(page.read_text("utf-8")), "utf-8")
        return 0
    result = build(chosen.out, chosen.sources)
    if result == 0:
        pages = len(list(chosen.out.rglob("*.html")))
        print(f"{pages} pages: {chosen.out / 'index.html'}")
    return result


if __name__ == "__main__":
    sys.exit(main())
