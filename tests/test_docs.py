"""Every command that the documentation shows exists, and the documentation shows every command.

Fenced blocks marked `sh` or `console` are read: a line that starts with `$ ` is a command. Those marked `console run`
are run as well (tests/test_docs_sessions.py).
"""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.main import get_command
from typer.testing import CliRunner

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
PAGES += sorted((ROOT / "benchmarks" / "results").glob("*.md"))  # the laboratory books
PASSES_ON = {"agent service": "start"}  # takes the options of that command too
PROGRAMS = ("agent", "broker", "coordinator")
FENCE = re.compile(
    r"^( *)```(sh|console)( run(?: in the background)?)?[ ]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL
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


def every_command() -> list[str]:
    """All commands of all programs, as they are typed."""
    found = []
    for name in PROGRAMS:
        tree = program(name)
        assert tree.commands, name
        found += [f"{name} {sub}" for sub, command in tree.commands.items() if not command.hidden]
    return sorted(found)


def test_there_is_documentation_to_check() -> None:
    assert any(block.where.startswith("README.md") for block in BLOCKS)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where)
def test_documented_commands_exist_with_all_their_options(block: Block) -> None:
    assert [why for why in map(mistake, block.commands) if why] == []


@pytest.mark.parametrize("command", every_command())
def test_every_command_is_documented(command: str) -> None:
    text = "\n".join(page.read_text("utf-8") for page in PAGES if page.exists())
    told_of = re.search(rf"\b{command}\b", text) is not None
    assert told_of, f"`{command}` stands neither in README.md nor in docs/"


@pytest.mark.parametrize("command", every_command())
def test_a_help_text_is_shown_as_it_was_written(command: str) -> None:
    name, sub = command.split()
    shown = "".join(
        CliRunner()
        .invoke(importlib.import_module(f"covey.{name}.cli.program").app, [sub, "--help"])
        .output.split()
    )
    for parameter in program(name).commands[sub].params:
        assert "".join((parameter.help or "").split()) in shown


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
        ("agent service --data ./local --user pi", ""),
        ("agent service --dat ./local", "agent service has no option --dat"),
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


def test_every_method_has_a_paragraph_with_idea_cost_use_leakage_and_errors_of_published_code() -> (
    None
):
    from tests.methods import METHODS

    sections = (ROOT / "docs" / "methods.md").read_text("utf-8").split("\n## ")[1:]
    told = {section.split("\n", 1)[0]: section for section in sections}
    assert "FedAvgM" in told.pop("The server's optimiser")
    assert "FedPer" in told.pop("Share, keep, freeze")
    assert set(told) == {str(options.get("name", method)) for method, options in METHODS.items()}
    for section in told.values():
        parts = re.findall(r"^\*\*(.+)\.\*\*", section, re.MULTILINE)
        wanted = [
            "Idea",
            "Cost per round",
            "When to use it",
            "What it reveals",
            "What published code got wrong",
        ]
        assert parts == wanted, section


FIGURES = re.findall(
    r"!\[[^\]]+\]\((figures/[^)]+)\)", (ROOT / "docs" / "figures.md").read_text("utf-8")
)


def test_the_page_of_figures_shows_all_figures_of_its_folder() -> None:
    kept = sorted(f"figures/{path.name}" for path in (ROOT / "docs" / "figures").iterdir())
    assert sorted(FIGURES) == kept


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_is_made_by_one_command_of_its_page(figure: str) -> None:
    commands = [
        command
        for block in BLOCKS
        if block.where.startswith("docs/figures.md")
        for command in block.commands
    ]
    makers = [
        command
        for command in commands
        if re.search(rf"[= ]docs/{re.escape(figure)}(\s|$)", command)
    ]
    assert len(makers) == 1
    path = ROOT / "docs" / figure
    assert path.stat().st_size < 128 * 1024  # compact: it is cloned by everybody
    if path.suffix == ".svg":
        root = ElementTree.parse(path).getroot()  # noqa: S314 - our own
        assert root.tag.endswith("svg")
        [name] = re.findall(rf"--svg (\S+)=docs/{re.escape(figure)}", makers[0])
        table = (ROOT / "docs" / "comparisons.md").read_text("utf-8")
        assert f"`{name}`" in table


def test_every_run_that_a_figure_is_made_of_is_made_in_the_same_command() -> None:
    for block in BLOCKS:
        if block.where.startswith("docs/figures.md"):
            for command in block.commands:
                made = set(re.findall(r"--out (runs/[\w-]+)", command))
                read = {
                    "/".join(path.split("/")[:2]) for path in re.findall(r" (runs/\S+)", command)
                }
                assert made == read, command


def named_files() -> list[tuple[str, str]]:
    """Every path of a source file that a page mentions, with the page."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    source = re.compile(
        r"(?<![\w/.-])((?:agent|broker|coordinator|shared|tests|scripts|benchmarks)/[\w/]+\.py)\b"
    )
    return [
        (page.relative_to(ROOT).as_posix(), path)
        for page in sorted(pages)
        if page.name != "CHANGELOG.md"  # names files that have moved since
        for path in sorted(set(source.findall(page.read_text("utf-8"))))
    ]


@pytest.mark.parametrize(("page", "path"), named_files())
def test_a_source_file_that_a_page_names_is_there(page: str, path: str) -> None:
    assert (ROOT / path).is_file()
