"""No docstring, comment, message, test name or page uses phrases that make readers stumble.

The project writes plain technical English: subject, verb, object, and the usual word for each thing. `AVOIDED` lists the
phrases that it does not use, each with what to write instead. Words in backticks or quotation marks are names or
quotations and do not count. `EXCEPTIONS` lists files that need such a word, each with the reason.
Code blocks of a page do not count.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from scripts.size import FOLDERS as PRODUCT
from tests.test_docs import PAGES

ROOT = Path(__file__).resolve().parent.parent
CODE = (*PRODUCT, "benchmarks", "examples", "scripts")
TESTS = sorted({f"tests/{path.parent.name}" for path in (ROOT / "tests").glob("*/*.py")})
FOLDERS = (*CODE, "docs", "tests", *TESTS)  # docs: all pages; tests: without its sub-folders

TOLD = "told|tells|says"
AVOIDED = {
    r"(is|are|was|were) wanted|wanted (is|are)": "expected",
    r"for ever": "forever",
    r"in vain": "without success",
    r"whoever": "anyone who",
    r"anew": "again",
    r"mend(s|ed|ing)?": "fix",
    r"so many": "this many, or a number",
    r"(go|goes|going|went) on": "continue, resume",
    TOLD: "reports, states, informs",
    r"shall": "must",
    r"beside": "in addition to, next to",
    r"there stands?": "contains",
    r"^What [^?]*\b(is|are) [^?]*$": "the subject first",
    r"^Where [^?,]*\b(is|are|has|have)\b[^?]*,": "If ...",
}
REVOKED = {r"void": "revoked, invalid"}  # elsewhere it is the round engine's term
REVOKED_IN = ("agent", "broker")

# path -> phrases that it may use
EXCEPTIONS: dict[str, set[str]] = {
    "tests/test_words.py": set(AVOIDED),  # quotes them as examples
    # to tell a lie is the usual word for what these agents and coordinators do
    "tests/attacks/lies.py": {TOLD},
    "tests/attacks/test_lies.py": {TOLD},
    "tests/attacks/test_lies_processes.py": {TOLD},
    "tests/simulator/__main__.py": {TOLD},
    "tests/simulator/lies.py": {TOLD},
    "tests/simulator/lying_plan.py": {TOLD},
    "tests/simulator/lying_world.py": {TOLD},
}

QUOTATION = re.compile(r"``?[^`]*``?|(?<!\w)\"[^\"]*\"|(?<!\w)'[^']*'(?!\w)|“[^”]*”")
CODE_BLOCK = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
BLOCK_START = re.compile(r"[-*+] +|\d+\. +|#+ +|> *|\|")
# what stands between the words of a text in a file: ends of lines, signs of comments and strings, names of tests
BETWEEN_WORDS = re.compile(r"(?:[\s#_\"'>|*-]|\\n)+")
SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+")


def phrases_in(text: str, folder: str = "") -> list[tuple[str, str]]:
    """Each avoided phrase of a text, with the pattern that found it."""
    if not may_have_phrases(text):
        return []
    avoided = list(AVOIDED)
    if folder in REVOKED_IN:
        avoided += REVOKED
    found = []
    unquoted = QUOTATION.sub("…", text)
    one_line = " ".join(unquoted.split())
    for sentence in SENTENCE_END.split(one_line):
        for pattern in avoided:
            for match in expression(pattern).finditer(sentence):
                found.append((pattern, match[0]))
    return found


@cache
def expression(pattern: str) -> re.Pattern[str]:
    """An opening as it is, a word or phrase as whole words in upper or lower case."""
    if pattern.startswith("^"):
        return re.compile(pattern)
    return re.compile(rf"\b({pattern})\b", re.IGNORECASE)


@cache
def any_phrase() -> re.Pattern[str]:
    """One expression for all phrases; for openings their first word."""
    words = [f"(?-i:{one[1:].split()[0]})" if one[0] == "^" else one for one in AVOIDED | REVOKED]
    return expression("|".join(words))


def may_have_phrases(source: str) -> bool:
    """Whether a file needs a closer look: most have not a single avoided word."""
    return any_phrase().search(BETWEEN_WORDS.sub(" ", source)) is not None


def texts_of_code(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of what people read in a Python file: comments, strings with blanks, names of tests."""
    yield from comments(source)
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Constant(value=str(text)) if " " in text:
                yield node.lineno, text
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if name.startswith("test_"):
                    words = name.removeprefix("test_").replace("_", " ")
                    yield node.lineno, words[:1].upper() + words[1:]


def texts_of_page(markdown: str) -> Iterator[tuple[int, str]]:
    """Line and text of what people read in a page: paragraphs, list items, headings and table cells."""
    without_code = CODE_BLOCK.sub(lambda block: re.sub(r"[^\n]", "", block[0]), markdown)
    first, paragraph = 1, ""
    for number, line in enumerate(without_code.splitlines(), start=1):
        text = line.strip()
        if not text or BLOCK_START.match(text):
            yield first, paragraph
            first, paragraph = number, ""
        if text.startswith("|"):
            for cell in text.strip("|").split("|"):
                yield number, cell.strip()
        else:
            paragraph += BLOCK_START.sub("", text) + "\n"
    yield first, paragraph


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Comments with their first line; those on lines that follow one another are one text."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = [token for token in tokens if token.type == tokenize.COMMENT]
    text = ""
    for token, following in pairwise([*found, None]):
        assert token is not None
        text += token.string.lstrip("#") + " "
        if following is None or following.start[0] != token.start[0] + 1:
            yield token.start[0], text
            text = ""


def files_of(folder: str) -> list[Path]:
    """The Python files of a folder; the pages for docs."""
    if folder == "docs":
        return [*PAGES, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
    pattern = "*.py" if folder == "tests" else "**/*.py"
    return sorted((ROOT / folder).glob(pattern))


def findings(folder: str) -> list[str]:
    """A line for each avoided phrase in the files of a folder."""
    lines = []
    for path in files_of(folder):
        if not path.exists():  # a link to the page of an extra that is gone
            continue
        file = path.relative_to(ROOT).as_posix()
        allowed = EXCEPTIONS.get(file, set())
        text = path.read_text(encoding="utf-8")
        if not may_have_phrases(text):
            continue
        read = texts_of_page if path.suffix == ".md" else texts_of_code
        for number, part in read(text):
            for pattern, phrase in phrases_in(part, folder):
                if pattern not in allowed:
                    better = (AVOIDED | REVOKED)[pattern]
                    lines.append(f"{file}:{number}: {phrase!r}: write {better!r}")
    return lines


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_text_of_a_folder_has_an_avoided_phrase(folder: str) -> None:
    lines = findings(folder)
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize("folder", PRODUCT)
def test_a_docstring_states_what_it_describes_and_does_not_ask(folder: str) -> None:
    asked = []
    for path in files_of(folder):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                summary = (ast.get_docstring(node) or "").split("\n\n")[0]
                first = SENTENCE_END.split(summary)[0]
                if first.endswith("?"):
                    asked.append(f"{path.relative_to(ROOT)}:{node.lineno}: {first}")
    assert not asked, "\n".join(asked)


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("A file is wanted.", ["is wanted"]),
        ("An agent that `for ever` waits, \"for ever\" and 'for ever'", []),
        ("It waits for\n    ever", ["for ever"]),
        ("The user's file, for ever the user's", ["for ever"]),
        ("What an agent sends is checked.", ["What an agent sends is checked."]),
        ("What is an agent?", []),
        ("Done. Where a file is missing, it is created.", ["Where a file is missing,"]),
        ("The folder where a file is missing, if any", []),
        ("mendable, avoid", []),
        ("Mended", ["Mended"]),
    ],
)
def test_a_phrase_is_found_outside_of_quotations(text: str, phrases: list[str]) -> None:
    assert [phrase for _, phrase in phrases_in(text)] == phrases


def test_comments_strings_and_test_names_are_read() -> None:
    source = '''
"""It waits for ever."""
x = 1  # for
# ever
def test_it_waits_for_ever(): pass
raise ValueError(f"{x}: waits for ever")
'''
    found = [line for line, text in texts_of_code(source) if phrases_in(text)]
    assert sorted(found) == [2, 4, 5, 6]


@pytest.mark.parametrize("words", ["so many", "is wanted", "What it is", "Mends"])
@pytest.mark.parametrize(
    "file",
    ["# {}", '"""{}."""', 'x = "a {}"', "def test_{}(): ...", "# {0}\n", "- {}", "> {}", "| {} |"],
)
def test_a_file_with_a_phrase_is_looked_at(file: str, words: str) -> None:
    first, _, last = words.partition(" ")
    for broken in (words, f"{first}\n# {last}", f"{first}_{last}", f"{first}\\n{last}"):
        assert may_have_phrases(file.format(broken))
    assert not may_have_phrases(file.format("plain words"))


def test_prose_of_a_page_is_read_and_code_is_not() -> None:
    page = """# What is here

It waits for
ever. `anew` is code.

```sh
$ wait for ever
```
- a list
- it goes on
| so many | fine |
"""
    found = [line for line, text in texts_of_page(page) if phrases_in(text)]
    assert found == [1, 2, 10, 11]
