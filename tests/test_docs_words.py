"""The documentation keeps the words of docs/style.md: the usual ones."""

from __future__ import annotations

import re

import pytest

from tests.test_docs import PAGES, ROOT

CODE = re.compile(r"^( *)```.*?^\1```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"\"[^\"\n]{1,80}\"|\*[^*\n]{1,40}\*")
START = r"(?:^|(?<=[.:;!?] )|(?<=\| ))"  # of a sentence or of a cell

# a banned expression, and what to write instead
BANNED = {
    r"\b(?:is|are) wanted\b|\bwanted (?:is|are)\b": "is needed, expected, required",
    r"\b(?:anew)\b": "again",
    r"\bbeside\b": "next to, with",
    r"\bfor ever\b": "without end, forever, until it is stopped",
    r"\bgo(?:es)? on\b": "continues, resumes",
    r"\bin vain\b": "without effect",
    r"\bmend(?:s|ed|ing)?\b": "fix, repair",
    r"\bshall\b": "must, will",
    r"\bso many\b": "as many as, this number of",
    r"\b(?:tells?|told)\b": "shows, reports, prints, names",
    r"\bthere stands?\b|\bstands? there\b": "is",
    r"\bwho ?(?:so)?ever\b": "anyone who",
    rf"{START}What (?!to|you|a|an|your|our|this|Covey|each|leaves|moves|published|the)\w+": "a noun",
    rf"{START}Where (?!to)\w+": "if, when",
}
HISTORY = ("docs/results.md", "docs/style.md")  # results: figures and quotations; style: the list


def prose(markdown: str) -> str:
    """A page without code and quotations; the lines stay where they are."""
    text = CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), markdown)
    return QUOTED.sub("", text)


def banned_words(markdown: str) -> list[str]:
    """Every banned expression of a page with its line and a better word."""
    found = []
    for number, line in enumerate(prose(markdown).splitlines(), start=1):
        for pattern, better in BANNED.items():
            for match in re.finditer(pattern, line):
                found.append(f"line {number}: {match[0]!r}; write: {better}")
    return found


CHECKED = [
    page
    for page in [*PAGES, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
    if page.exists() and page.relative_to(ROOT).as_posix() not in HISTORY
]


@pytest.mark.parametrize("page", CHECKED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_uses_the_usual_words(page) -> None:  # type: ignore[no-untyped-def]
    assert banned_words(page.read_text("utf-8")) == []


def test_a_banned_word_is_seen_and_code_is_not_read() -> None:
    page = "A run goes on.\n\n```sh\n$ echo shall\n```\n`beside` is code.\n"
    assert banned_words(page) == ["line 1: 'goes on'; write: continues, resumes"]
