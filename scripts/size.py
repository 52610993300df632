"""The code lines of the product by its parts: the core, and each folder of `extras/`.

    python3 scripts/size.py [TREE] [--no-run] [--rooms] [--json FILE] [--against FILE]

`size.toml` has the code lines that each part may have, and a test compares them. Its numbers only fall. Lines of tests have no
limit: those of an extra lie in its folder, all others count as the core's, but `TOGETHER` has several extras.

Code lines are lines with a token on them that is neither a comment nor part of a docstring. A single-use name is a local
that is bound once, and used once, in the next statement. The main job is `coordinator run` with a simulated fleet,
scenarios/smoke.yaml, whose four kinds of processes write down what they import.
"""

from __future__ import annotations

import argparse
import ast
import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("agent", "broker", "coordinator", "extras", "shared")
BLANK = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
BLANK |= {tokenize.ENDMARKER, tokenize.ENCODING}
# where tests of the core with several extras lie; of any other file in `tests`, nothing needs an extra
TOGETHER = (
    "tests/together/",
    "tests/benchmarks/",
    "tests/chaos/",
    "tests/fuzz/",
    "tests/simulator/",
    "tests/test_house.py",
)
SMALL = 40  # code lines
HEADINGS = ("code lines", "modules", f"modules <= {SMALL} lines", "imports", "single-use names")

# Python asks finders for each module, however it is imported. A worker that is killed has written its lines.
WATCH = """
import os, sys
class Notes:
    file = open(os.environ["COVEY_SIZE"], "a", buffering=1)
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.startswith("covey"):
            cls.file.write(f"{os.getpid()} {name}\\n")
sys.meta_path.insert(0, Notes)
"""


@dataclass(frozen=True)
class Size:
    """Of one module or of many."""

    lines: int = 0
    modules: int = 0
    small: int = 0  # modules of at most SMALL code lines, without those that are empty
    imports: int = 0  # code lines
    single_use: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    def cells(self) -> list[str]:
        per_cent = 100 * self.imports / (self.lines or 1)
        per_1000 = 1000 * self.single_use / (self.lines or 1)
        counts = [f"{number:,}" for number in (self.lines, self.modules, self.small)]
        return [*counts, f"{self.imports:,} ({per_cent:.1f} %)", f"{per_1000:.1f} per 1,000"]


def parts_of(root: Path) -> dict[str, str]:
    """Each file of the product, tests apart, and the part that it belongs to: an extra, by its folder, or the core."""
    files = [
        *(path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))),
        *sorted((root / "src/covey").glob("*.py")),
    ]
    places = (path.relative_to(root) for path in files)
    return {place.as_posix(): extra_at(place) or "core" for place in places if not is_test(place)}


def extra_at(place: Path) -> str:
    """The extra in whose folder a file of the tree lies; "" for one of the core."""
    return place.parts[1] if place.parts[0] == "extras" and len(place.parts) > 2 else ""


def is_test(place: Path) -> bool:
    """Whether a file of the tree belongs to the tests of an extra."""
    return bool(extra_at(place)) and place.parts[2] == "tests"


def measure(path: Path) -> Size:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    code = set(code_lines(text, tree))
    imports = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    single_use = sum(
        len(set(single_use_names(node)))
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return Size(len(code), 1, int(0 < len(code) <= SMALL), len(imports & code), single_use)


def code_lines(text: str, tree: ast.Module) -> Iterator[int]:
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Module(body=[ast.Expr(value=ast.Constant(value=str())) as first, *_]):
                docstrings |= set(range(first.lineno, (first.end_lineno or 0) + 1))
            case (
                ast.FunctionDef(body=[ast.Expr(value=ast.Constant(value=str())) as first, *_])
                | ast.AsyncFunctionDef(
                    body=[ast.Expr(value=ast.Constant(value=str())) as first, *_]
                )
                | ast.ClassDef(body=[ast.Expr(value=ast.Constant(value=str())) as first, *_])
            ):
                docstrings |= set(range(first.lineno, (first.end_lineno or 0) + 1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in BLANK:
            yield from set(range(token.start[0], token.end[0] + 1)) - docstrings


def single_use_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[int]:
    """The line of each assignment to a local name whose only other mention is in the statement after it."""
    mentions = Counter(node.id for node in ast.walk(function) if isinstance(node, ast.Name))
    for node in ast.walk(function):
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(node, block, None)
            if not isinstance(statements, list):
                continue
            for first, second in itertools.pairwise(statements):
                match first:
                    case (
                        ast.Assign(targets=[ast.Name(id=name)])
                        | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr())
                    ) if mentions[name] == 2:
                        if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(second)):
                            yield first.lineno


def watched(folder: Path, root: Path) -> dict[str, str]:
    """The environment in which each process writes the modules of a tree that it imports into a folder; `imported_by` reads them."""
    (folder / "sitecustomize.py").write_text(WATCH, encoding="utf-8")
    path = os.pathsep.join([str(folder), str(root / "src")])
    return {"PYTHONPATH": path, "COVEY_SIZE": str(folder / "imports")}


def imported_by(folder: Path) -> dict[str, set[str]]:
    """The modules of ours that each process has written, by its number."""
    processes: dict[str, set[str]] = {}
    for line in (folder / "imports").read_text(encoding="utf-8").splitlines():
        process, module = line.split()
        processes.setdefault(process, {"covey"}).add(module)
    return processes


def main_job(root: Path) -> dict[str, set[str]]:
    """The modules of ours that each command of the main job imports: coordinator, broker, fleet and workers.

    It runs in the interpreter of the tree's own .venv, which has the libraries; without one, in this one.
    Raises CalledProcessError if it fails.
    """
    own = root / ".venv/bin/python"
    interpreter = str(own) if own.exists() else sys.executable
    with tempfile.TemporaryDirectory() as folder:
        run = ["run", str(root / "scenarios/smoke.yaml"), "--out", str(Path(folder, "run"))]
        subprocess.run(
            [interpreter, "-P", "-m", "covey.coordinator.cli", *run],
            cwd=folder,
            env={**os.environ, **watched(Path(folder), root)},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        processes = imported_by(Path(folder))
    jobs: dict[str, set[str]] = {}
    for modules in processes.values():
        jobs.setdefault(job_of(modules), set()).update(modules)
    return jobs


def job_of(modules: set[str]) -> str:
    for name in ("coordinator.cli", "broker.cli", "agent.fleet", "agent.worker"):
        if any(module.startswith(f"covey.{name}") for module in modules):
            return name
    return "other"


def sizes_of(root: Path) -> dict[str, Size]:
    """The size of each file of the product."""
    return {file: measure(root / file) for file in parts_of(root)}


def lines_of_parts(root: Path) -> dict[str, int]:
    """The code lines of the core and of each extra."""
    lines: dict[str, int] = {}
    for file, part in parts_of(root).items():
        lines[part] = lines.get(part, 0) + measure(root / file).lines
    return lines


def lines_of_tests(root: Path) -> dict[str, int]:
    """The code lines of the tests of the core, of each extra, and of those that several extras need, with their kits."""
    lines: dict[str, int] = {}
    for file in sorted({*root.glob("tests/**/*.py"), *root.glob("extras/*/tests/**/*.py")}):
        place = file.relative_to(root)
        together = place.as_posix().startswith(TOGETHER)
        part = extra_at(place) or ("together" if together else "core")
        lines[part] = lines.get(part, 0) + measure(file).lines
    return lines


def limits_of(root: Path) -> dict[str, int]:
    """The code lines that each part may have."""
    return dict(tomllib.loads((root / "size.toml").read_text(encoding="utf-8")))


def module_of(file: str) -> str:
    """The name under which a file is imported: of the product below covey, of tests as it lies."""
    name = file.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return f"covey.{name}" if file.startswith(tuple(f"{one}/" for one in FOLDERS)) else name


def report(root: Path, *, rooms: bool, run: bool) -> dict[str, Size]:
    """The size of each part, or of each folder in a folder, of all, and of the modules that the main job loads."""
    sizes, parts = sizes_of(root), parts_of(root)
    groups: dict[str, Size] = {}
    for file, size in sizes.items():
        group = str(Path(file).parent) if rooms else parts[file]
        groups[group] = groups.get(group, Size()) + size
    groups = {**dict(sorted(groups.items())), "all": sum(sizes.values(), Size())}
    if run:
        modules = {module_of(file): size for file, size in sizes.items()}
        jobs = main_job(root)
        loaded = {f"loaded by {job}": names for job, names in sorted(jobs.items())}
        loaded["loaded by all four"] = set().union(*jobs.values())
        del jobs["agent.worker"]
        loaded["by all four but workers"] = set().union(*jobs.values())
        for name, found in loaded.items():
            groups[name] = sum((modules[one] for one in found & modules.keys()), Size())
    return groups


def show(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *cells]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tree", nargs="?", type=Path, default=ROOT, help="a checkout; this one")
    parser.add_argument("--rooms", action="store_true", help="a row for each room")
    parser.add_argument("--no-run", action="store_true", help="do not run the main job")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--against", type=Path, help="figures of another tree, for comparison")
    options = parser.parse_args()
    tree = options.tree.resolve()
    try:
        groups = report(tree, rooms=options.rooms, run=not options.no_run)
    except subprocess.CalledProcessError as error:
        groups = report(tree, rooms=options.rooms, run=False)
        why = f"the main job ended with code {error.returncode}"
        print(
            f"{why}: its libraries come with `make test`; --no-run leaves it out", file=sys.stderr
        )
    if options.json:
        figures = {name: asdict(size) for name, size in groups.items()}
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    old: dict[str, Size] = {}
    if options.against:
        figures = json.loads(options.against.read_text(encoding="utf-8"))
        old = {name: Size(**figure) for name, figure in figures.items()}
    limits, tests = limits_of(tree), lines_of_tests(tree)
    together, tests["all"] = tests.pop("together", 0), sum(tests.values())
    rows = [["", *HEADINGS, "may have", "tests"]]
    for name in [*groups, *(name for name in old if name not in groups)]:
        cells = groups.get(name, Size()).cells()
        before = old.get(name, Size()).cells() if old else cells
        pairs = zip(before, cells, strict=True)
        limit = f"{limits[name]:,}" if name in limits else ""
        shown = [f"{was} -> {now}" if was != now else now for was, now in pairs]
        rows.append([name, *shown, limit, f"{tests[name]:,}" if name in tests else ""])
    rows.append(["of several extras", *[""] * (len(HEADINGS) + 1), f"{together:,}"])
    show(rows)


if __name__ == "__main__":
    main()
