"""Every command that the documentation shows exists, and the documentation shows every command.

Fenced blocks marked `sh` or `console` are read: a line that starts with `$ ` is a command. Those marked `console run`
are run as well (tests/test_docs_sessions.py).
"""

from __future__ import annotations

import ast
import importlib
import io
import re
import shlex
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from scripts.size import parts_of

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "extras/secure/protocol.md",
    ROOT / "shared/wire/README.md",
    *sorted((ROOT / "docs").glob("**/*.md")),
]
GENERATED = re.compile(r"^<!-- generated:.*?^<!-- end of generated -->$", re.DOTALL | re.MULTILINE)
RESULTS = ROOT / "benchmarks" / "results"
PAGES += sorted(RESULTS.glob("*.md"))  # the laboratory books
PASSES_ON = {"agent lab service": "start"}  # takes the options of that command too
PROGRAMS = ("agent", "broker", "coordinator")
FENCE = re.compile(
    r"^( *)```(sh|console)( run(?: in the background|, refused)?)?[ ]*\n(.*?)^\1```",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """The commands of one fenced block, in order."""

    where: str
    run: bool
    commands: tuple[str, ...]


def blocks(text: str, name: str) -> Iterator[Block]:
    for match in FENCE.finditer(text):
        lines = match[4].replace("\\\n", " ").splitlines()
        commands = tuple(line.strip()[2:] for line in lines if line.strip().startswith("$ "))
        if commands:
            yield Block(
                f"{name}:{text[: match.start()].count(chr(10)) + 1}", bool(match[3]), commands
            )


BLOCKS = [
    block
    for page in PAGES
    if page.exists()
    for block in blocks(page.read_text("utf-8"), page.relative_to(ROOT).as_posix())
]


def simple_commands(line: str) -> Iterator[list[str]]:
    """The words of each program call on a line: pipes, lists and redirections taken apart."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    call: list[str] = []
    for word in words:
        if set(word) <= set("&|;()"):
            yield call
            call = []
        else:
            call.append(word)
    yield call


def program(name: str) -> Any:
    """The command tree behind one of our programs."""
    return get_command(importlib.import_module(f"covey.{name}.cli.program").app)


def mistake(line: str) -> str:
    """The mistake in a documented command line; empty without one."""
    for words in simple_commands(line):
        while words and re.fullmatch(r"[A-Z_]+=.*|sudo", words[0]):
            words = words[1:]
        name = Path(words[0]).name if words else ""
        if name in PROGRAMS:
            why = wrong_call(name, program(name), words[1:])
        else:
            why = wrong_target(words[1:]) if name == "make" else ""
        if why:
            return f"{line}: {why}"
    return ""


def wrong_call(taken: str, command: Any, words: list[str]) -> str:
    """The first subcommand, option or file of a call that does not exist."""
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return f"{taken} has no command {words[0]}"
        command, taken, words = command.commands[words[0]], f"{taken} {words[0]}", words[1:]
    takers = [
        command,
        *([program("agent").commands[PASSES_ON[taken]]] if taken in PASSES_ON else []),
    ]
    known = {
        "--help",
        *(
            option
            for taker in takers
            for parameter in taker.params
            for option in spellings(parameter)
        ),
    }
    for word in words:
        if word.startswith("-") and len(word) > 1 and word.split("=")[0] not in known:
            return f"{taken} has no option {word}"
        if word.startswith("scenarios/") and not (ROOT / word).exists():
            return f"{word} does not exist"
    return ""


def spellings(parameter: Any) -> list[str]:
    return [*parameter.opts, *parameter.secondary_opts]


def wrong_target(words: list[str]) -> str:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    return next(
        (f"no target {word}" for word in words if word.isalpha() and word not in targets), ""
    )


@cache
def every_command() -> dict[str, Any]:
    """All commands of all programs, as they are typed."""
    return dict(sorted(found for name in PROGRAMS for found in commands_in(name, program(name))))


def commands_in(typed: str, group: Any) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_in(f"{typed} {name}", command)
        else:
            yield f"{typed} {name}", command


def test_there_is_documentation_to_check() -> None:
    assert any(block.where.startswith("README.md") for block in BLOCKS)


@pytest.mark.whole
def test_documented_commands_exist_with_all_their_options() -> None:
    wrong = [(block.where, why) for block in BLOCKS for why in map(mistake, block.commands) if why]
    assert wrong == []


def test_every_command_is_documented() -> None:
    """By a page that somebody wrote: the generated list names all of them."""
    text = "\n".join(GENERATED.sub("", page.read_text("utf-8")) for page in PAGES if page.exists())
    assert [one for one in every_command() if not re.search(rf"\b{one}\b", text)] == []


def test_a_help_text_is_shown_as_it_was_written() -> None:
    for typed, command in every_command().items():
        shown = "".join(help_of(typed).split())
        for parameter in command.params:
            assert "".join((parameter.help or "").split()).rstrip("]") in shown, typed


def help_of(typed: str) -> str:
    name, *words = typed.split()
    app = importlib.import_module(f"covey.{name}.cli.program").app
    return CliRunner().invoke(app, [*words, "--help"], terminal_width=80).output


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_list_of_commands_fits_a_small_terminal(name: str) -> None:
    lines = help_of(name).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_the_help_of_an_agent_fits_two_screens() -> None:
    assert len(help_of("agent start").splitlines()) <= 60


def test_a_command_of_the_lab_that_is_typed_without_that_word_is_named_with_its_place() -> None:
    for typed in every_command():
        name, *lab, command = typed.split()
        if lab:
            app = importlib.import_module(f"covey.{name}.cli.program").app
            done = CliRunner().invoke(app, [command, "--json"])
            assert done.exit_code == 2
            assert done.stderr == f"error: `{name} {command}` is now `{typed}`\n"


SOURCES = [ROOT / file for file in parts_of(ROOT)]
PLAIN = [
    *sorted((ROOT / "deploy").rglob("*")),
    *sorted((ROOT / "scenarios").rglob("*.yaml")),
    *sorted((ROOT / "examples").rglob("*.*")),
]
NAMED = re.compile(rf"`((?:{'|'.join(PROGRAMS)}) [^`]+)`")


def texts_of(source: str) -> Iterator[str]:
    """The strings and comments of a module; in a string that is put together, stars stand for what is filled in."""
    if "`" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.JoinedStr(values=parts):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "*" for part in parts
                )
            case ast.Constant(value=str(text)):
                yield text
    if re.search("#.*`", source):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.string


def named_commands(texts: Iterable[str]) -> set[str]:
    """The commands that stand between backticks."""
    return {" ".join(line.split()) for text in texts for line in NAMED.findall(text)}


def wrong_commands(texts: Iterable[str]) -> list[str]:
    """The faults of the commands that they name; alternatives and dots stand for words that a person types."""
    lines = sorted(line for line in named_commands(texts) if "|" not in line)
    return [why for line in lines if (why := mistake(line.replace("...", "*")))]


@pytest.mark.whole
def test_every_command_that_a_message_a_comment_or_a_page_names_exists() -> None:
    texts = [text for path in SOURCES for text in texts_of(path.read_text("utf-8"))]
    texts += [path.read_text("utf-8") for path in PLAIN if path.is_file() and is_text(path)]
    wrong_on_purpose = RESULTS / "mistakes.md"
    texts += [
        path.read_text("utf-8") for path in PAGES if path.exists() and path != wrong_on_purpose
    ]
    assert len(named_commands(texts)) > 100
    assert wrong_commands(texts) == []


def is_text(path: Path) -> bool:
    return path.suffix not in (".png", ".npz", ".parquet", ".gz")


def test_a_wrong_command_in_a_message_is_seen() -> None:
    source = 'f"{x}: run `coordinator " f"walk {x}`, then `agent start --dat {y}` or `broker up`"'
    assert wrong_commands(texts_of(source)) == [
        "agent start --dat *: agent start has no option --dat",
        "coordinator walk *: coordinator has no command walk",
    ]


@pytest.mark.whole
@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("coordinator run scenarios/digits.yaml --out runs/a --set rounds.count=2", ""),
        ("COVEY_BROKER=mqtt://pi agent start --data ./local  # on each device", ""),
        ("broker up --port 1883 & agent check --help | less", ""),
        ("mosquitto_sub -t 'covey/#'", ""),
        ("make test", ""),
        ("make tset", "no target tset"),
        ("coordinator walk", "coordinator has no command walk"),
        ("agent lab service --data ./local --user pi", ""),
        ("agent lab service --dat ./local", "agent lab service has no option --dat"),
        ("coordinator run scenarios/digits.yaml --quick", "coordinator run has no option --quick"),
        ("coordinator run scenarios/nothing.yaml", "scenarios/nothing.yaml does not exist"),
        ("true && .venv/bin/broker up --prot=1883", "broker up has no option --prot=1883"),
    ],
)
def test_a_wrong_command_is_seen(line: str, why: str) -> None:
    assert mistake(line) == (f"{line}: {why}" if why else "")


def test_commands_are_found_in_their_blocks() -> None:
    page = "text\n\n```console run\n$ one \\\n    two\noutput\n$ three\n```\n```python\n$ no\n```\n  ```sh\n  $ four\n  ```\n"
    assert list(blocks(page, "x.md")) == [
        Block("x.md:3", True, ("one      two", "three")),
        Block("x.md:12", False, ("four",)),
    ]


@pytest.mark.whole
def test_every_method_has_one_row_with_idea_cost_use_and_leakage() -> None:
    from tests.methods import METHODS

    page = (ROOT / "docs" / "methods.md").read_text("utf-8").split("<!-- generated: methods -->")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith("| [")
    ]
    names = [row[0] for row in rows]
    known = {str(options.get("name", method)) for method, options in METHODS.items()}
    assert sorted(names) == sorted(f"[{name}](#keys-of-{name})" for name in known)
    for _, how, _cost, take_it, _reveals in rows:  # no cost and nothing revealed: FedAvg's
        assert how
        assert take_it


FIGURES = re.findall(r"!\[[^\]]+\]\((figures/[^)]+)\)", (RESULTS / "figures.md").read_text("utf-8"))


def test_the_page_of_figures_shows_all_figures_of_its_folder() -> None:
    kept = sorted(f"figures/{path.name}" for path in (RESULTS / "figures").iterdir())
    assert sorted(FIGURES) == kept


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_is_made_by_one_command_of_its_page(figure: str) -> None:
    commands = [
        command
        for block in BLOCKS
        if block.where.startswith("benchmarks/results/figures.md")
        for command in block.commands
    ]
    makers = [
        command
        for command in commands
        if re.search(rf"[= ]benchmarks/results/{re.escape(figure)}(\s|$)", command)
    ]
    assert len(makers) == 1
    path = RESULTS / figure
    assert path.stat().st_size < 128 * 1024  # compact: it is cloned by everybody
    if path.suffix == ".svg":
        root = ElementTree.parse(path).getroot()  # noqa: S314 - our own
        assert root.tag.endswith("svg")
        [name] = re.findall(rf"--svg (\S+)=benchmarks/results/{re.escape(figure)}", makers[0])
        table = (ROOT / "docs" / "comparisons.md").read_text("utf-8")
        assert f"`{name}`" in table


def test_every_run_that_a_figure_is_made_of_is_made_in_the_same_command() -> None:
    for block in BLOCKS:
        if block.where.startswith("benchmarks/results/figures.md"):
            for command in block.commands:
                made = set(re.findall(r"--out (runs/[\w-]+)", command))
                read = {
                    "/".join(path.split("/")[:2]) for path in re.findall(r" (runs/\S+)", command)
                }
                assert made == read, command


def test_a_source_file_that_a_page_names_is_there() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    source = re.compile(
        r"(?<![\w/.-])((?:agent|broker|coordinator|shared|tests|scripts|benchmarks)/[\w/]+\.py)\b"
    )
    missing = [
        (page.name, path)
        for page in pages
        if page.name != "CHANGELOG.md"  # names files that have moved since
        for path in source.findall(page.read_text("utf-8"))
        if not (ROOT / path).is_file()
    ]
    assert missing == []
