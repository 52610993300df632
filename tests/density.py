"""How dense the code is: syntax nodes per code line of each file, held to stored figures.

    python -m tests.density             # a table of all files, densest first; exit code 1 if a file is too dense
    python -m tests.density --quiet     # only the files that are too dense, and a summary: part of `make check`
    python -m tests.density --update    # store the lower figures; a higher one is never stored

Nodes are those of `ast.walk` without docstrings. A code line holds at least one token that is neither a comment nor
part of a docstring. A file may have up to `LIMIT` nodes per line. `density.json` lists the files that had more when
the check was introduced: they may become less dense, never denser. If a table of data or a formula is dense with
good reason, give the reason in the file (`# density: ...`) and enter the file in `density.json` by hand.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STORED = Path(__file__).with_name("density.json")
FOLDERS = ("agent", "broker", "coordinator", "shared")

LIMIT = 8.5
TOLERANCE = 0.1  # so that a line removed elsewhere in a dense file is no failure
NODES_OF_A_DOCSTRING = 2  # the expression and the constant in it
HAS_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Size:
    """Code lines and syntax nodes of a file, or of several together."""

    lines: int
    nodes: int

    @property
    def density(self) -> float:
        """Nodes per line, as shown and stored: with one decimal. 0 without code."""
        return round(self.nodes / self.lines, 1) if self.lines else 0.0

    def __add__(self, other: Size) -> Size:
        return Size(self.lines + other.lines, self.nodes + other.nodes)


Sizes = Mapping[str, Size]  # by file, relative to the root
Densities = Mapping[str, float]


def measure(source: str) -> Size:
    """The size of a Python source. Raises SyntaxError for a text that is none."""
    tree = ast.parse(source)
    docstrings = list(docstrings_of(tree))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for docstring in docstrings:
        lines.difference_update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    all_nodes = sum(1 for _ in ast.walk(tree))
    return Size(len(lines), all_nodes - NODES_OF_A_DOCSTRING * len(docstrings))


def docstrings_of(tree: ast.AST) -> Iterator[ast.stmt]:
    """The docstrings of the module, its classes and its functions."""
    for node in ast.walk(tree):
        if not isinstance(node, HAS_DOCSTRING) or not node.body:
            continue
        match node.body[0]:
            case ast.Expr(value=ast.Constant(value=str())) as docstring:
                yield docstring


def measure_tree(root: Path = ROOT) -> dict[str, Size]:
    """The sizes of all files of the product that hold code, densest first."""
    sizes = {}
    for folder in FOLDERS:
        for path in (root / folder).rglob("*.py"):
            size = measure(path.read_text(encoding="utf-8"))
            if size.lines:
                sizes[path.relative_to(root).as_posix()] = size
    densest_first = sorted(sizes, key=lambda file: (-sizes[file].density, file))
    return {file: sizes[file] for file in densest_first}


def allowed_density(file: str, stored: Densities) -> float:
    """The highest density that a file may have."""
    if file not in stored:
        return LIMIT
    return max(LIMIT, round(stored[file] + TOLERANCE, 1))


def too_dense(sizes: Sizes, stored: Densities) -> list[str]:
    """A line for each file that is denser than it may be, with what to do."""
    found = []
    for file, size in sizes.items():
        allowed = allowed_density(file, stored)
        if size.density > allowed:
            found.append(
                f"{file}: {size.density} nodes per line, at most {allowed} allowed; "
                "give intermediate values a name, bind one value per statement"
            )
    return found


def lowered(sizes: Sizes, stored: Densities) -> dict[str, float]:
    """The figures to store next: none higher than before, none for a file that is gone or keeps the limit."""
    kept = {}
    for file in sorted(stored):
        if file not in sizes:
            continue
        density = min(stored[file], sizes[file].density)
        if density > LIMIT:
            kept[file] = density
    return kept


def first_figures(sizes: Sizes) -> dict[str, float]:
    """The figures to store where none are stored yet."""
    dense = {}
    for file in sorted(sizes):
        if sizes[file].density > LIMIT:
            dense[file] = sizes[file].density
    return dense


def figures_to_store(sizes: Sizes, stored_in: Path) -> dict[str, float]:
    """The figures that are lower now; all figures if none are stored yet."""
    if not stored_in.exists():
        return first_figures(sizes)
    return lowered(sizes, read_stored(stored_in))


def read_stored(stored_in: Path) -> Densities:
    """The stored figures, by file; none where there is no file."""
    if not stored_in.exists():
        return {}
    figures: Densities = json.loads(stored_in.read_text())
    return figures


def show_table(sizes: Sizes) -> None:
    print("nodes/line  lines  file")
    for file, size in sizes.items():
        print(f"{size.density:10.1f} {size.lines:6d}  {file}")


def show_summary(sizes: Sizes, failures: int) -> None:
    whole = sum(sizes.values(), Size(0, 0))
    over = sum(size.density > LIMIT for size in sizes.values())
    print(
        f"density: {whole.density} nodes per line in {whole.lines} lines of {len(sizes)} files; "
        f"{over} files over {LIMIT}, {failures} denser than allowed"
    )


def main(
    arguments: Sequence[str] | None = None, root: Path = ROOT, stored_in: Path = STORED
) -> int:
    """Exit code 0, or 1 if a file is denser than it may be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quiet", action="store_true", help="print no table")
    parser.add_argument("--update", action="store_true", help="store the figures that are lower")
    options = parser.parse_args(arguments)

    sizes = measure_tree(root)
    if options.update:
        figures = figures_to_store(sizes, stored_in)
        stored_in.write_text(json.dumps(figures, indent=1) + "\n")
    if not options.quiet:
        show_table(sizes)
    failures = too_dense(sizes, read_stored(stored_in))
    for failure in failures:
        print(failure)
    show_summary(sizes, len(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
