"""Who may do what at the broker: one table, tried on both brokers, and shown in benchmarks/results/attacks.md."""

from __future__ import annotations

from tests.processes import ROOT

FEDERATION = "covey/default"
AGENT = f"{FEDERATION}/agents/pi-7"

WHO = (
    "coordinator",
    "agent pi-7",
    "another agent",
    "agent of another federation",
    "observer",
    "aggregator",
    "certificate, CN pi-7",
    "certificate, CN coordinator",
    "expelled",
    "nobody",
)
# R: is sent messages of the topic. W: may publish to it. T: may have a message retained there. L: as a last will.
ALL, OWN, SEND, READ, NONE = "RWTL", "RWTL", "WTL", "R", ""
TABLE: dict[str, tuple[str, ...]] = {
    f"{FEDERATION}/coordinator/status": (ALL, READ, READ, NONE, READ, READ, READ, ALL, NONE, NONE),
    f"{FEDERATION}/run/metrics": (ALL, NONE, NONE, NONE, READ, NONE, NONE, ALL, NONE, NONE),
    f"{FEDERATION}/run/roster": (ALL, NONE, NONE, NONE, READ, NONE, NONE, ALL, NONE, NONE),
    f"{FEDERATION}/run/roster/1": (ALL, NONE, NONE, NONE, READ, NONE, NONE, ALL, NONE, NONE),
    f"{FEDERATION}/control": (ALL, NONE, NONE, NONE, NONE, NONE, NONE, ALL, NONE, NONE),
    f"{FEDERATION}/deployment": (ALL, READ, READ, NONE, READ, NONE, READ, ALL, NONE, NONE),
    f"{FEDERATION}/deployment/candidate": (
        ALL,
        READ,
        READ,
        NONE,
        READ,
        NONE,
        READ,
        ALL,
        NONE,
        NONE,
    ),
    f"{FEDERATION}/clusters/0/model/0": (ALL, READ, READ, NONE, NONE, NONE, READ, ALL, NONE, NONE),
    f"{AGENT}/status": (ALL, OWN, NONE, NONE, READ, NONE, OWN, ALL, NONE, NONE),
    f"{AGENT}/order": (ALL, READ, NONE, NONE, NONE, NONE, READ, ALL, NONE, NONE),
    f"{AGENT}/deployment": (ALL, READ, NONE, NONE, NONE, NONE, READ, ALL, NONE, NONE),
    f"{AGENT}/model/0": (ALL, READ, NONE, NONE, NONE, NONE, READ, ALL, NONE, NONE),
    f"{AGENT}/report/0": (ALL, SEND, NONE, NONE, NONE, READ, SEND, ALL, NONE, NONE),
    f"{AGENT}/report/1": (ALL, NONE, NONE, NONE, NONE, READ, NONE, ALL, NONE, NONE),
    f"{AGENT}/report/0/more": (ALL, NONE, NONE, NONE, NONE, NONE, NONE, ALL, NONE, NONE),
    "covey/elsewhere/agents/pi-7/status": (ALL, NONE, NONE, NONE, NONE, NONE, OWN, ALL, NONE, NONE),
    "covey/elsewhere/clusters/0/model/0": (
        ALL,
        NONE,
        NONE,
        READ,
        NONE,
        NONE,
        READ,
        ALL,
        NONE,
        NONE,
    ),
    f"{FEDERATION}/aggregator/status": (ALL, NONE, NONE, NONE, NONE, OWN, NONE, ALL, NONE, NONE),
    f"{FEDERATION}/aggregator/order": (ALL, NONE, NONE, NONE, NONE, READ, NONE, ALL, NONE, NONE),
    f"{FEDERATION}/aggregator/task/0": (ALL, NONE, NONE, NONE, NONE, READ, NONE, ALL, NONE, NONE),
    f"{FEDERATION}/aggregator/sum/0": (ALL, NONE, NONE, NONE, NONE, SEND, NONE, ALL, NONE, NONE),
}


def table() -> str:
    """The table as benchmarks/results/attacks.md shows it."""
    lines = [f"| topic | {' | '.join(WHO)} |", "|---" * (len(WHO) + 1) + "|"]
    for topic, cells in TABLE.items():
        shown = " | ".join(cell or "–" for cell in cells)
        lines.append(f"| `{topic}` | {shown} |")
    return "\n".join(lines)


def test_the_page_on_attacks_shows_this_table() -> None:
    assert table() in (ROOT / "benchmarks" / "results" / "attacks.md").read_text("utf-8")
