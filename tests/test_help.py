"""The help of every command is complete, fits a terminal of 80 columns, and names only what there is.

A reader has nothing but these lines: each option states what it does, and the default that really holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from typer.core import TyperArgument

from covey.agent.policy import Policy
from covey.broker.limits import Limits
from covey.shared.cli import FROM_CREDENTIALS
from tests.test_docs import PROGRAMS, every_command, help_of, mistake, spellings
from tests.test_plain_heads import OF_GROUPS, OF_MACHINES, OF_PAPERS
from tests.test_words import QUOTATION, phrases_in

pytestmark = pytest.mark.whole  # of all extras

WIDTH = 80
# words of the code, or of the field, that a help text does without
INSIDE = re.compile(
    r"\b(rosters?|phases?|logits|serials?|cohort|cards?|fold(ed|s)?|payload|sketch(es)?|unicast|stdin|stderr|float32|"
    r"modes? of evaluation|micro|macro)\b",
    re.IGNORECASE,
)
OF_PYTHON = re.compile(
    r"<=|>=|[{}]|default: \(|/path;|\]\.\.\.\]|<(?:str|int|float|bool|list|Path)\b|(?<![\d.])\d+\.0(?![\d.])"
)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
JSON = '{"rows": [{column: value}]}'  # what a program may send
IN_CODE = re.compile(r"`([^`]*)`")
PLACEHOLDER = re.compile(r"(?<![\w-])[A-Z]{3,}(?![\w-])")
# words in upper case that are no argument: names of things, and what a reader replaces
NAMES = {"CSV", "JSON", "YAML", "HTTP", "MQTT", "TLS", "PEM", "POST", "GET", "SIGTERM", "HMAC"}
NAMES |= {"ONNX", "URL", "ANSI"}


@cache
def parameters() -> list[tuple[str, Any]]:
    """Every argument and option, with the command as it is typed."""
    return [(typed, one) for typed, command in every_command().items() for one in command.params]


def texts(typed: str) -> Iterator[str]:
    """The sentences about a command, its arguments and options."""
    command = every_command()[typed]
    yield command.help or ""
    for one in command.params:
        yield one.help or ""
        if isinstance(one.show_default, str):
            yield one.show_default


def test_every_argument_and_every_option_states_what_it_is() -> None:
    assert [
        f"{typed} {one.name}" for typed, one in parameters() if not (one.help or "").strip()
    ] == []


@pytest.mark.parametrize("typed", [*every_command(), *PROGRAMS])
def test_a_help_fits_a_terminal_and_has_no_notation_of_python(typed: str) -> None:
    shown = help_of(typed)
    assert [line for line in shown.splitlines() if len(line) > WIDTH] == []
    assert OF_PYTHON.findall(" ".join(shown.split()).replace(JSON, "")) == []


def test_a_help_has_the_words_of_people() -> None:
    found = []
    for typed in every_command():
        for text in texts(typed):
            plain = QUOTATION.sub("…", " ".join(text.split()))
            words = [match[0] for match in INSIDE.finditer(plain)]
            words += [phrase for _, phrase in phrases_in(text)]
            groups = OF_GROUPS.search(plain) and not OF_MACHINES.search(plain)
            if words or groups or OF_PAPERS.search(plain):
                found.append(f"{typed}: {words}: {text}")
    assert found == []


def test_a_help_names_options_and_commands_that_exist() -> None:
    wrong = []
    for typed, command in every_command().items():
        own = {option for one in command.params for option in spellings(one)}
        for text in (" ".join(one.split()) for one in texts(typed)):
            calls = [code for code in IN_CODE.findall(text) if code.split()[0] in PROGRAMS]
            wrong += [f"{typed}: {why}" for why in map(mistake, calls) if why]
            options = OPTION.findall(IN_CODE.sub("", text))
            wrong += [f"{typed}: {option}" for option in options if option not in own]
    assert wrong == []


def test_a_default_names_an_argument_as_the_help_does() -> None:
    """`none with RUN` helps nobody where the argument is called FOLDER."""
    wrong = []
    for typed, command in every_command().items():
        names = {one.name.upper() for one in command.params if isinstance(one, TyperArgument)}
        for one in command.params:
            default = re.search(r"\[default: (.*)\]", one.help or "")
            for word in PLACEHOLDER.findall(default[1] if default else ""):
                if word not in names | NAMES and word.lower() not in spellings_of(command):
                    wrong.append(f"{typed} {one.name}: {word}")
    assert wrong == []


def spellings_of(command: Any) -> set[str]:
    return {option.lstrip("-") for one in command.params for option in spellings(one)}


def test_a_default_that_credentials_replace_names_them() -> None:
    """`agent start --credentials pi-7.pem` is agent pi-7, and not one of the host's name."""
    silent = []
    for typed, command in every_command().items():
        if any(one.name == "credentials" for one in command.params):
            silent += [
                f"{typed} {one.name}"
                for one in command.params
                if one.name in FROM_CREDENTIALS and "--credentials" not in str(one.show_default)
            ]
    assert silent == []


def assert_named(typed: str, name: str, value: object) -> None:
    """The help of an option names this default."""
    shown = next(one.help for other, one in parameters() if (other, one.name) == (typed, name))
    text = f"{value:g}" if isinstance(value, float) else str(value)
    assert re.search(rf"\[default: {text}[];]", shown), (typed, name)


def test_defaults_that_a_text_names_are_those_of_the_code() -> None:
    assert_named("agent start", "max_base", f"{Policy().max_base_mb}M")
    assert_named("broker up", "max_packet", Limits().packet_bytes)
