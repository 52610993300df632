"""What the figures of a page mean: modes of evaluation, averages, and agreement of clusters."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """A term of the page, explained in a sentence."""

    title: str
    meaning: str


# Modes of evaluation by their key in results, in the order of tables.
MODES = {
    "server": Term(
        "E-server",
        "the served model (an agent's cluster model, or the only one) on the agent's own test data",
    ),
    "delivered": Term(
        "E-delivered",
        "what the agent uses: the served model, or the fine-tuned one if its own training samples were for it",
    ),
    "tuned": Term("E-tuned", "the same after a short fine-tuning on the agent's training data"),
    "last": Term(
        "E-last",
        "the agent's own model as its latest training left it; for an agent that never trained, the served model",
    ),
    "last_of_participants": Term(
        "E-last, participants", "E-last over the agents that took part in a training round"
    ),
    "last_of_undrawn": Term(
        "E-last, others", "E-last over the agents that no training round has drawn"
    ),
    "best": Term("E-best", "the best model that an agent had right after a training of its own"),
    "newcomers_server": Term(
        "newcomers, E-server", "the served model on agents that joined after the last round"
    ),
    "newcomers_delivered": Term("newcomers, E-delivered", "what these agents use"),
    "newcomers_tuned": Term("newcomers, E-tuned", "the same after fine-tuning on these agents"),
    "newcomers_last": Term("newcomers, E-last", "the newcomers' own models"),
}
MODES_OF_AGENTS = ("server", "delivered", "tuned", "last", "best")  # columns of the table of agents

AVERAGES = (
    Term("macro", "mean over agents: every agent counts once"),
    Term("micro", "mean over test samples: an agent with more test data counts more"),
)
AGREEMENT = (
    Term("ARI", "adjusted Rand index of clusters and planted groups: 1 is the same, 0 is chance"),
)
TRAFFIC = (
    Term(
        "Mbit per agent",
        "model values as float32, both ways, without evaluation: traffic as papers count it",
    ),
)


def terms(modes: Collection[str], *, has_groups: bool) -> list[Term]:
    """The terms that a page needs, which shows these modes."""
    found = [term for mode, term in MODES.items() if mode in modes]
    found.extend(AVERAGES)
    if has_groups:
        found.extend(AGREEMENT)
    found.extend(TRAFFIC)
    return found
