"""The density check counts as it claims, fails for code that became denser, and never stores a higher figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import density
from tests.density import Size

EASY = "first = 1\nsecond = 2\n"  # 4 nodes on each line, and the module
DENSE = "both = [a + b * c for a, b in pairs for c in (a, b) if a > b > c]\n"


@pytest.mark.parametrize(
    ("source", "lines", "nodes"),
    [
        ("", 0, 1),
        ("x = 1\n", 1, 5),  # Module, Assign, Name, Store, Constant
        ('"""Words\nabout it."""\nx = 1\n', 1, 5),
        ("# a comment\n\nx = 1  # another\n", 1, 5),
        ('def f():\n    """Words."""\n    return 1\n', 2, 5),
        ('x = """two\nlines"""\n', 2, 5),
    ],
)
def test_docstrings_comments_and_empty_lines_do_not_count(
    source: str, lines: int, nodes: int
) -> None:
    assert density.measure(source) == Size(lines, nodes)


def test_a_dense_line_counts_more_than_an_easy_one() -> None:
    assert density.measure(EASY).density < density.LIMIT < density.measure(DENSE).density


@pytest.mark.parametrize(
    ("stored", "now", "fails"),
    [
        (None, 8.5, False),
        (None, 8.6, True),  # a new file keeps the limit
        (10.0, 10.0, False),
        (10.0, 10.1, False),  # the tolerance
        (10.0, 10.2, True),
        (10.0, 8.0, False),
    ],
)
def test_a_file_may_not_be_denser_than_stored(
    stored: float | None, now: float, fails: bool
) -> None:
    figures = {} if stored is None else {"agent/x.py": stored}
    sizes = {"agent/x.py": Size(lines=10, nodes=round(10 * now))}
    assert bool(density.too_dense(sizes, figures)) == fails


def test_only_lower_figures_are_stored() -> None:
    sizes = {
        "lower.py": Size(10, 90),
        "higher.py": Size(10, 120),
        "easy_now.py": Size(10, 80),
        "new.py": Size(10, 110),
    }
    stored = {"lower.py": 10.0, "higher.py": 10.0, "easy_now.py": 10.0, "gone.py": 10.0}
    assert density.lowered(sizes, stored) == {"lower.py": 9.0, "higher.py": 10.0}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The root of a project with one file in each folder."""
    for folder in density.FOLDERS:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "code.py").write_text(EASY)
    return tmp_path


def test_the_command_fails_once_a_file_became_denser(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored_in = tree / "density.json"
    assert density.main(["--update"], tree, stored_in) == 0
    assert json.loads(stored_in.read_text()) == {}
    (tree / "agent" / "code.py").write_text(DENSE)
    capsys.readouterr()
    assert density.main(["--update", "--quiet"], tree, stored_in) == 1
    failure, summary = capsys.readouterr().out.splitlines()
    assert failure.startswith("agent/code.py: 42.0 nodes per line, at most 8.5 allowed")
    assert summary.endswith("1 files over 8.5, 1 denser than allowed")
