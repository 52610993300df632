"""Whether the values of a column are classes of things. Pure.

The test of words is on their counts and shapes, never on a list of words: keys, names and texts are no classes, and may not leave
a device. The same test decides what a proposal lists, what a device's description has, and what an agent sends where the
fleet finds the words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

MAX_CLASSES = 20  # whole numbers with more different values are amounts, not classes
ROWS_PER_CLASS = 2  # on average; with fewer, whole numbers are amounts
MAX_WORDS = 20  # of more, somebody has to say that they are classes
MAX_SINGLES = 0.05  # of the cells have a word that no other cell has
FEW_SINGLES = 2
LEAST_WORDS = 3  # that can hardly repeat
LONG = 32  # characters of a word on average: a text
MIXED = 0.5  # of the words have digits among other signs: keys or codes, if they are more than MANY_MIXED
MANY_MIXED = 10
CODE_DIGITS = 3  # of a word: a key, such as a number of a chassis, and not the third of some rooms
# in the name of a column about people
PERSONAL = frozenset((
    "surname", "firstname", "lastname", "forename", "username", "patient", "person", "people", "user", "customer", "client",
    "employee", "student", "author", "address", "street", "email", "mail", "phone", "telephone", "mobile", "iban", "ssn",
    "passport", "birthday", "owner", "reporter", "assignee", "contact", "driver", "operator", "technician", "doctor",
    "physician", "nurse", "teacher", "guest", "tenant", "buyer", "seller", "recipient", "sender", "leader",
    "participant", "signature", "comment", "comments", "note", "notes", "remark", "remarks", "description", "text",
    "vorname", "nachname", "kunde", "benutzer", "mitarbeiter", "adresse", "strasse", "telefon", "bemerkung", "kommentar",
    "nom", "prenom", "nombre", "apellido", "apellidos", "cliente", "nome", "cognome", "naam", "achternaam", "klant",
))  # fmt: skip
WHOSE_NAME = frozenset({"name", "names", "first", "last", "full", "given", "family", "middle"})


@dataclass(frozen=True)
class WordFacts:
    """The words of a column in figures."""

    cells: int  # that are there
    words: int  # different ones
    singles: int  # words that one cell has
    length: float = 0.0  # characters of a word, on average
    mixed: float = 0.0  # the share of words with digits and other signs
    coded: float = 0.0  # the share of words with CODE_DIGITS or more among other signs
    exact: bool = True  # no word is counted on two devices


def facts_of(counts: Iterable[tuple[str, int]]) -> WordFacts:
    """The figures of words with their counts."""
    found = list(counts)
    words = [word for word, _ in found]
    many = max(len(words), 1)
    return WordFacts(
        cells=sum(count for _, count in found),
        words=len(words),
        singles=sum(count == 1 for _, count in found),
        length=sum(map(len, words)) / many,
        mixed=sum(map(_is_mixed, words)) / many,
        coded=sum(sum(map(str.isdigit, word)) >= CODE_DIGITS for word in words if _is_mixed(word))
        / many,
    )


def why_no_classes(name: str, facts: WordFacts) -> str:
    """Why words are no classes of things, as far as one sees; empty if they seem to be."""
    words, cells = facts.words, facts.cells
    counted = f"{words}" if facts.exact else f"about {words}"
    if words > LEAST_WORDS and 2 * words > cells:
        return f"{counted} different words in {cells} rows: keys, names or text"
    if facts.length > LONG:
        return "long texts"
    if (words > MANY_MIXED and facts.mixed > MIXED) or (
        words > LEAST_WORDS and facts.coded > MIXED
    ):
        return f"{counted} words with digits: keys or codes"
    if is_personal(name):
        return "the name of a column about people"
    if words > MAX_WORDS:
        return f"{counted} different words, more than {MAX_WORDS}"
    if facts.singles > max(MAX_SINGLES * cells, FEW_SINGLES):
        return f"{facts.singles} of {cells} cells have a word that no other cell has"
    return ""


def name_parts(name: str) -> list[str]:
    """The words in the name of a column, in lower case: of AirlineID or airline_id, airline and id."""
    plain = unicodedata.normalize("NFKD", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)).lower()
    return re.findall("[a-z]+", re.sub("[\u0300-\u036f]", "", plain).replace("\u00df", "ss"))


def is_personal(name: str) -> bool:
    """Whether a column's name is that of names, addresses or texts of people."""
    parts = name_parts(name)
    # the name of a thing, such as product_name, needs its owner's yes too: nothing shows whose names these are
    is_name = parts[-1:] in (["name"], ["names"])
    is_part = not {"name", "names"}.isdisjoint(parts) and WHOSE_NAME.issuperset(parts)
    return is_name or is_part or parts[-1:] == ["by"] or not PERSONAL.isdisjoint(parts)


def _is_mixed(word: str) -> bool:
    return any(map(str.isdigit, word)) and not word.isdigit()


def are_amounts(distinct: int, cells: int) -> bool:
    """Whether whole numbers with this many different values in this many cells are amounts, not classes."""
    return distinct > MAX_CLASSES or distinct * ROWS_PER_CLASS > cells
