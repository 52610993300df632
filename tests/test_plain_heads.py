"""Heads and sentences have one plain word for each thing: *group*, and what a figure is of.

Keys of files and messages keep theirs (`clusters`, `delivered`): programs read them, people read these.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from covey.coordinator.view.words import MODE_TITLES
from scripts.size import FOLDERS as PRODUCT
from tests.test_docs import GENERATED
from tests.test_docs_site import PAGES_OF_THE_SITE
from tests.test_words import CODE_BLOCK, QUOTATION

ROOT = Path(__file__).resolve().parent.parent
OF_GROUPS = re.compile(r"(?<![\w.`'/{*=-])clusters?(?![\w`'=*-])", re.IGNORECASE)
OF_MACHINES = re.compile(r"\b(Dask|nodes?|brokers?)\b")  # the other thing of that name
OF_PAPERS = re.compile(r"\bE-(server|delivered|tuned|last|best)\b")
LINKED = re.compile(r"\]\([^)]*\)")  # an address keeps its name


def sentences(source: str) -> Iterator[str]:
    """The strings with blanks of a module, those in braces left out; no docstrings, and nothing that only a digest reads."""
    tree = ast.parse(source)
    unseen = {
        id(inner)
        for node in ast.walk(tree)
        for inner in ast.walk(node)
        if (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        or (isinstance(node, ast.Attribute) and node.attr == "encode")
        or (isinstance(node, ast.JoinedStr) and inner is not node)
    }
    for node in ast.walk(tree):
        if id(node) in unseen:
            continue
        match node:
            case ast.Constant(value=str(text)) if " " in text:
                yield text
            case ast.JoinedStr(values=parts):
                yield "".join(
                    str(one.value) if isinstance(one, ast.Constant) else "{}" for one in parts
                )


def test_a_figure_is_named_in_words() -> None:
    assert list(MODE_TITLES.values()) == ["served", "in use", "fine-tuned", "own last"]


def test_sentences_of_the_programs_say_group() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {text}"
        for folder in PRODUCT
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "tests" not in path.parts
        for text in sentences(path.read_text("utf-8"))
        if (OF_GROUPS.search(text) and not OF_MACHINES.search(text)) or OF_PAPERS.search(text)
    ]
    assert found == []


MAKES_HEADS = {"Table", "Column", "numbers", "columns_of", "Tile", "Fact", "Picture", "PageSection"}
INSIDE = re.compile(r"\b(cards?|phases?|micro|macro average|J|E-\w+)\b")  # words of the code


def heads(path: Path) -> Iterator[str]:
    """The titles and heads of tables and pictures in a module, also those of one word; the name of a picture is a key."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in MAKES_HEADS:
            is_picture = getattr(node.func, "id", "") == "Picture"
            for argument in node.args[1:] if is_picture else node.args:
                words = argument.elts if isinstance(argument, ast.List) else [argument]
                yield from (
                    one.value
                    for one in words
                    if isinstance(one, ast.Constant) and isinstance(one.value, str)
                )
        elif (
            path.name == "tables.py"  # elsewhere they are keys of files
            and isinstance(node, ast.Subscript)
            and getattr(node.value, "id", "") in ("columns", "titles", "headers")
            and isinstance(node.slice, ast.Constant)
        ):
            yield str(node.slice.value)


@pytest.mark.whole  # most tables and pictures are of extras
def test_heads_of_tables_and_pictures_are_words_of_people() -> None:
    found = [
        (path, head)
        for folder in PRODUCT
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "tests" not in path.parts
        for head in heads(path)
    ]
    assert len(found) > 100
    assert [
        f"{path.relative_to(ROOT)}: {head}"
        for path, head in found
        if re.search(r"\bclusters?\b", head, re.IGNORECASE) or INSIDE.search(head)
    ] == []


def test_pages_say_group() -> None:
    found = []
    for page in PAGES_OF_THE_SITE:
        text = page.read_text("utf-8")
        if (
            page.name == "python.md"
        ):  # names of the code: `clusters`, and what its docstrings say of them
            text = GENERATED.sub("", text)
        text = LINKED.sub("]", CODE_BLOCK.sub("", text))
        found += [
            f"{page.name}: {line}"
            for line in QUOTATION.sub("`…`", text).splitlines()
            if (OF_GROUPS.search(line) and not OF_MACHINES.search(line)) or OF_PAPERS.search(line)
        ]
    assert found == []
