"""The core without extras: a copy of the tree, from which they are deleted, must do the main job with the same bytes.

    .venv/bin/python -m scripts.core [--without EXTRA ...] [--quick] [--no-tests] [--no-fleet]
    .venv/bin/python -m scripts.core --alone EXTRA

It begins with the border: no module of the core names an extra, and no test of the core needs one.

Without `--without` all extras go. In the copy run

1. the tests of the core: those in `tests` that are not marked to be about all extras, and of TOGETHER those that need none;
2. a fleet over Mosquitto with FedAvg, FeSEM and FedClust, where agents drop out and the coordinator of the last run is killed
   and resumed. The whole tree does the same, and the models of both must have the same bytes.

With `--alone` one extra stays, with those that its README names, and its own tests run.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from scripts.size import ROOT, TOGETHER, extra_at, module_of, parts_of

# in the README of an extra
USES = re.compile(r"^Uses: (.+)$", re.MULTILINE)
TESTS_USE = re.compile(r"^Its tests use: (.+)$", re.MULTILINE)
OURS = re.compile(r"\bcovey(?:\.\w+)+")
QUICK = ("tests/shared", "tests/coordinator/test_rounds", "tests/agent/test_session")
ROUNDS = 4
# all are asked in each round, and who drops out stays away: so no clock decides whose reports count
SETTINGS = (
    "fleet.agents=16",
    "fleet.faults.die=0.2",
    "fleet.faults.back_after_s=3600",
    "rounds.participation=1.0",
)
KILLED = "fedclust"  # in its third round, and resumed
# its agents take so long that the kill comes between orders and reports
SLOWLY = ("fleet.faults.slow=1.0", "fleet.faults.slow_s=2.0")
# cards are an extra, and no vote is asked for: each phase takes a fifth of the agents, and none comes back
UNASKED = {
    "fedavg": (),
    "fesem": ("strategy.gate=none",),
    "fedclust": ("strategy.gate=none", "strategy.vote=none"),
}
METHODS = tuple(UNASKED)
PATIENCE_S = 300.0  # for one run


# -- who names an extra ------------------------------------------------------------------------------------------------


def named(tree: ast.AST, *, lazily: bool = True) -> set[str]:
    """Every module that a file imports, and everything of it, or names in a string; imports for types alone do not count.

    Args:
        tree: the file.
        lazily: also what its functions import.
    """
    found: set[str] = set()
    for node in _visited(tree, lazily=lazily):
        match node:
            case ast.Import(names=names):
                found |= {one.name for one in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {module, *(f"{module}.{one.name}" for one in names)}
            case ast.Constant(value=str(text)):
                for name in OURS.findall(text):
                    parts = name.split(".")  # and perhaps what to patch in a module
                    found |= {".".join(parts[:count]) for count in range(2, len(parts) + 1)}
    return found


def _visited(tree: ast.AST, *, lazily: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=orelse):
                for other in orelse:
                    yield from _visited(other, lazily=lazily)
                continue
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not lazily:
                continue
        yield node
        yield from _visited(node, lazily=lazily)


@cache
def _tree(file: Path) -> ast.AST:
    return ast.parse(file.read_text(encoding="utf-8"))


def owners_in(names: Iterable[str]) -> set[str]:
    """The extras whose modules or packages are among these names, whether or not they are there."""
    return {name.split(".")[2] for name in names if name.startswith("covey.extras.")}


def extras_of(root: Path) -> list[str]:
    """The names of all extras of a tree."""
    return sorted(set(parts_of(root).values()) - {"core"})


def uses_of(root: Path, extra: str, line: re.Pattern[str] = USES) -> set[str]:
    """The other extras that an extra may import, or that its tests may: its README names them."""
    found = line.search((root / "extras" / extra / "README.md").read_text(encoding="utf-8"))
    return set(re.findall(r"`(\w+)`", found[1])) if found else set()


def needed_by_tests(root: Path, extra: str) -> set[str]:
    """An extra, what it and its tests use, and what those use."""
    found, open_ = set[str](), [extra, *uses_of(root, extra, TESTS_USE)]
    while open_:
        if (one := open_.pop()) not in found:
            found.add(one)
            open_ += uses_of(root, one)
    return found


def with_users(root: Path, gone: Sequence[str]) -> list[str]:
    """These extras, and those that cannot do without one of them."""
    found = set(gone)
    while more := {one for one in extras_of(root) if uses_of(root, one) & found} - found:
        found |= more
    return sorted(found)


def arrows(root: Path) -> dict[str, dict[str, set[str]]]:
    """Modules of extras that each part names and does not own, by part and file; that is all that keeps it from going alone."""
    found: dict[str, dict[str, set[str]]] = {}
    for file, part in parts_of(root).items():
        names = named(_tree(root / file))
        if others := {name for name in names if owners_in([name]) - {part}}:
            found.setdefault(part, {})[file] = others
    return found


def crossings(root: Path) -> list[str]:
    """Where the core crosses the border to an extra, in words: a module that names one, a test or a kit that needs one."""
    named_here = [
        f"{file} names {', '.join(sorted(names))}: the core asks for an extra in shared/extras.py"
        for file, names in arrows(root).get("core", {}).items()
    ]
    tests = [
        f"{file} needs {' and '.join(sorted(extras))}: such a test belongs into extras/NAME/tests,"
        " one of several extras into tests/together"
        for file, extras in extras_of_tests(root).items()
        if extras and file.startswith("tests/") and not file.startswith(TOGETHER)
    ]
    return named_here + tests


def folders_of_tests(root: Path) -> list[Path]:
    """Those of the core and of each extra."""
    return [root / "tests", *sorted(root.glob("extras/*/tests"))]


def extras_of_tests(root: Path) -> dict[str, set[str]]:
    """The extras that each file of tests or benchmarks lies with, imports or names: itself, and what it imports of others."""
    folders = (*folders_of_tests(root), root / "benchmarks")
    places = (path.relative_to(root) for one in folders for path in sorted(one.rglob("*.py")))
    files = {module_of(place.as_posix()): place.as_posix() for place in places}

    @cache
    def reached(module: str) -> frozenset[str]:
        """The extras that a file names when it is imported, and those of its own imports."""
        open_, seen, found = [module], set[str](), set[str]()
        while open_:
            one = open_.pop()
            if one in seen:
                continue
            seen.add(one)
            names = named(_tree(root / files[one]), lazily=False)
            found |= owners_in(names)
            open_ += names & files.keys()
        return frozenset(found)

    def needed(module: str, file: str) -> set[str]:
        """What a test needs, or a kit of an extra; a kit of the core asks for an extra where a test asks it."""
        names = {module}
        if extra_at(Path(file)) or Path(file).name.startswith("test_"):
            names |= named(_tree(root / file))
        return owners_in(names).union(*(reached(name) for name in names & files.keys()))

    return {file: needed(module, file) for module, file in files.items()}


def files_of_tests(root: Path) -> list[str]:
    """The files of tests that need no extra."""
    return [
        file
        for file, extras in extras_of_tests(root).items()
        if Path(file).name.startswith("test_") and not extras
    ]


# -- the copy ----------------------------------------------------------------------------------------------------------


def copied(root: Path, to: Path, gone: Sequence[str]) -> int:
    """Copy the files that git knows or would take, without the folders of these extras. Returns how many were left out."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    left_out = 0
    for file in filter(None, listed.stdout.split("\0")):
        if extra_at(Path(file)) in gone:
            left_out += 1
        elif (root / file).exists():
            (to / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / file, to / file, follow_symlinks=False)
    return left_out


def environment(root: Path) -> dict[str, str]:
    """Programs that start in it import the product of this tree."""
    return {
        **os.environ,
        "PYTHONPATH": str(root / "src"),
        "COVEY_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }


def run_tests(copy: Path, files: Sequence[str]) -> None:
    """Run files of tests in the copy. Raises CalledProcessError if one fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not whole"]
    command += ["-n", "2", "--dist", "loadfile", *files]
    subprocess.run(command, cwd=copy, env=environment(copy), check=True)


# -- the fleet ---------------------------------------------------------------------------------------------------------


def models_of(tree: Path, runs: Path) -> dict[str, str]:
    """The digest of each model that the fleets of a tree end with, by method and file."""
    found = {}
    for method in METHODS:
        folder = runs / method
        _run(tree, folder, method)
        for model in sorted((folder / "models").iterdir()):
            found[f"{method}/{model.name}"] = digest_of(model.read_bytes())
    return found


def digest_of(model: bytes) -> str:
    """Of the tensors in a file of safetensors: their names, places and values. Its metadata name run and version."""
    end = 8 + int.from_bytes(model[:8], "little")
    head = json.loads(model[8:end])
    head.pop("__metadata__", None)
    return hashlib.sha256(json.dumps(head, sort_keys=True).encode() + model[end:]).hexdigest()


def _run(tree: Path, folder: Path, method: str) -> None:
    """One run over Mosquitto to its end; the coordinator of KILLED is killed on the way."""
    changes = [f"strategy.name={method}", f"rounds.count={ROUNDS}", *SETTINGS, *UNASKED[method]]
    if method == KILLED:
        changes += SLOWLY
    command = [sys.executable, "-m", "covey.coordinator.cli", "run", "scenarios/digits.yaml"]
    command += ["--out", str(folder), *(word for one in changes for word in ("--set", one))]
    log = folder.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        program = subprocess.Popen(
            command, cwd=tree, env=environment(tree), stdout=output, stderr=output
        )
        if method == KILLED:
            _until_two_rounds(folder, program)
            time.sleep(0.5)  # the orders of the third are out
            program.send_signal(signal.SIGKILL)
            program.wait()
            program = subprocess.Popen(
                [*command, "--resume"],
                cwd=tree,
                env=environment(tree),
                stdout=output,
                stderr=output,
            )
        code = program.wait(PATIENCE_S)
    if code:
        raise SystemExit(f"{method} in {tree}: exit code {code}\n{log.read_text()[-4000:]}")


def _until_two_rounds(folder: Path, program: subprocess.Popen[bytes]) -> None:
    """Wait until a run has recorded two rounds. Raises SystemExit if it ends before."""
    record = folder / "rounds.jsonl"
    began = time.monotonic()
    while not record.exists() or record.read_text().count("\n") < 2:
        if program.poll() is not None or time.monotonic() - began > PATIENCE_S:
            raise SystemExit(f"{folder}: the run ended before it could be killed")
        time.sleep(0.05)


def differences(whole: Mapping[str, str], core: Mapping[str, str]) -> list[str]:
    """The models whose bytes differ, or that one tree alone has."""
    return sorted(name for name in whole.keys() | core.keys() if whole.get(name) != core.get(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--without", nargs="+", metavar="EXTRA", help="the extras to delete; all")
    parser.add_argument("--alone", metavar="EXTRA", help="its own tests, without all other extras")
    parser.add_argument("--quick", action="store_true", help=f"only tests of {', '.join(QUICK)}")
    parser.add_argument("--no-tests", action="store_true", help="only the fleet")
    parser.add_argument("--no-fleet", action="store_true", help="only the tests")
    options = parser.parse_args()
    if crossed := crossings(ROOT):
        raise SystemExit("\n".join(crossed))
    extras = extras_of(ROOT)
    gone = with_users(ROOT, options.without or extras)
    if options.alone:
        gone = sorted(set(extras) - needed_by_tests(ROOT, options.alone))
    with tempfile.TemporaryDirectory(prefix="covey-core-") as folder:
        copy = Path(folder, "tree")
        left_out = copied(ROOT, copy, gone)
        print(f"{left_out} files left out: {', '.join(gone)}", flush=True)
        if options.alone:
            run_tests(copy, [f"extras/{options.alone}/tests"])
            return
        if not options.no_tests:
            files = files_of_tests(ROOT)
            print(f"{len(files)} files of tests are the core's", flush=True)
            if not files:
                raise SystemExit("no test is the core's: every one needs an extra")
            run_tests(copy, [one for one in files if not options.quick or one.startswith(QUICK)])
        if not options.no_fleet:
            whole = models_of(ROOT, Path(folder, "whole"))
            other = differences(whole, models_of(copy, Path(folder, "core")))
            if other:
                raise SystemExit(f"other bytes without {', '.join(gone)}: {', '.join(other)}")
            print(f"{len(whole)} models of {', '.join(METHODS)}: the same bytes")


if __name__ == "__main__":
    main()
