"""The table of words that terminals, pages and Markdown show. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from html import escape

NONE = "–"  # in place of a figure


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    is_number: bool = False
    hint: str = ""  # shown under the pointer


@dataclass(frozen=True)
class Table:
    """Words in columns. They are text everywhere: a page escapes them, a terminal reads no markup."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]  # the words of each row, one for each column
    is_long: bool = False  # a page can sort and search it
    remarks: Sequence[str] = field(default=())

    @property
    def headers(self) -> list[str]:
        """The titles of the columns."""
        return [column.title for column in self.columns]

    def only(self, places: Sequence[int]) -> Table:
        """The table with these of its columns."""
        rows = [[row[place] for place in places] for row in self.rows]
        return replace(self, columns=[self.columns[place] for place in places], rows=rows)

    def without_empty_columns(self) -> Table:
        """The table without columns that have no word in any row; one without rows has all its columns."""
        if not self.rows:
            return self
        return self.only(
            [
                place
                for place in range(len(self.columns))
                if {row[place] for row in self.rows} - {"", NONE}
            ]
        )

    def markdown(self) -> str:
        """The table in Markdown: numbers to the right, other words to the left."""
        rule = ["--:" if column.is_number else ":--" for column in self.columns]
        rows = [f"| {' | '.join(words)} |" for words in (self.headers, rule, *self.rows)]
        return "\n".join([f"**{self.title}**", "", *rows, ""])

    def latex(self) -> str:
        """The table as a LaTeX `tabular`, with rules of the package booktabs and its title as a comment."""
        form = "".join("r" if column.is_number else "l" for column in self.columns)
        lines = [" & ".join(map(_latex, words)) + r" \\" for words in (self.headers, *self.rows)]
        head, *body = lines
        inside = [r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
        return "\n".join(
            [f"% {self.title}", rf"\begin{{tabular}}{{{form}}}", *inside, r"\end{tabular}", ""]
        )

    def html(self) -> str:
        """The table in HTML for a notebook, which aligns all cells to the right and breaks them at every blank."""
        left = ["" if column.is_number else " text-align: left" for column in self.columns]
        head = _cells("th", left, self.headers)
        body = "".join(
            f"<tr>{_cells('td', [f'white-space: nowrap;{one}' for one in left], row)}</tr>"
            for row in self.rows
        )
        caption = f'<caption style="text-align: left">{escape(self.title)}</caption>'
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cells(tag: str, styles: Sequence[str], words: Sequence[str]) -> str:
    return "".join(
        f'<{tag} style="{style}">{escape(one)}</{tag}>'
        for style, one in zip(styles, words, strict=True)
    )


SPECIAL = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "–": "--",
    }
)


def _latex(word: str) -> str:
    """A word as LaTeX prints it."""
    return word.translate(SPECIAL)


def columns_of(titles: Iterable[str]) -> list[Column]:
    """The usual columns: the first names the rows, the others are figures."""
    name, *figures = titles
    return [Column(name), *numbers(figures)]


def numbers(titles: Iterable[str]) -> list[Column]:
    """Columns of numbers."""
    return [Column(title, is_number=True) for title in titles]
