"""The topic tree, built and parsed here and nowhere else (docs/protocol.md).

covey/{federation}/coordinator/status          retained, last will
covey/{federation}/agents/{agent}/status       retained, last will
covey/{federation}/agents/{agent}/order        retained
covey/{federation}/agents/{agent}/model/{part} retained
covey/{federation}/agents/{agent}/report/0
covey/{federation}/clusters/{key}/model/{part} retained
covey/{federation}/run/metrics                 retained
covey/{federation}/run/roster                  retained: the first page
covey/{federation}/run/roster/{page}           retained: the further pages of a large fleet's
covey/{federation}/run/roster/changes
covey/{federation}/control
covey/{federation}/deployment                  retained
covey/{federation}/deployment/candidate        retained
covey/{federation}/agents/{agent}/deployment   retained
covey/{federation}/aggregator/status           retained, last will
covey/{federation}/aggregator/order            retained
covey/{federation}/aggregator/task/{part}      retained
covey/{federation}/aggregator/sum/0
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from covey.shared.errors import DecodeError

ROOT = "covey"
MAX_PART_DIGITS = 7
CHANGES = "changes"  # last word of the topic with changes of the roster
DEPLOYED = "deployed-"  # key of a model for use, before the number of its cluster
ON_TRIAL = "candidate-"  # the same, of a model that some devices try
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
CACHE_SIZE = 1024  # parsed topics: the same ones arrive again and again


@dataclass(frozen=True)
class AgentTopic:
    """A topic below `agents/{agent}`: `leaf` is "status", "order", "model", "report" or "deployment"."""

    agent: str
    leaf: str
    part: int | None = None


@dataclass(frozen=True)
class ClusterTopic:
    """One part of a cluster's model."""

    key: str
    part: int


@dataclass(frozen=True)
class PlainTopic:
    """`leaf` is the topic below the federation, without the number of a part or page."""

    leaf: str


Topic = AgentTopic | ClusterTopic | PlainTopic


def is_name(text: str) -> bool:
    """Whether `text` is a valid name of a federation, an agent or a cluster in a topic."""
    return NAME.fullmatch(text) is not None


def deployed_key(cluster: int, *, on_trial: bool = False) -> str:
    """The key of a cluster's model for use: training does not overwrite it, nor do models that some devices try."""
    return f"{ON_TRIAL if on_trial else DEPLOYED}{cluster}"


def is_deployed(key: str) -> bool:
    """Whether a key is one of `deployed_key`."""
    return any(
        key.startswith(prefix) and _is_part(key.removeprefix(prefix))
        for prefix in (DEPLOYED, ON_TRIAL)
    )


@dataclass(frozen=True)
class Topics:
    """The topics of one federation."""

    federation: str

    @property
    def base(self) -> str:
        return f"{ROOT}/{self.federation}"

    @property
    def coordinator_status(self) -> str:
        return f"{self.base}/coordinator/status"

    @property
    def metrics(self) -> str:
        return f"{self.base}/run/metrics"

    @property
    def roster(self) -> str:
        return f"{self.base}/run/roster"

    def roster_page(self, page: int) -> str:
        """The topic of one page of the roster; page 0 is that of `roster`."""
        return f"{self.roster}/{page}" if page else self.roster

    @property
    def roster_changes(self) -> str:
        """The topic of the rows that have changed in a roster of several pages."""
        return f"{self.roster}/{CHANGES}"

    @property
    def control(self) -> str:
        return f"{self.base}/control"

    @property
    def deployment(self) -> str:
        return f"{self.base}/deployment"

    @property
    def candidate(self) -> str:
        """The topic of a deployment for some devices only."""
        return f"{self.base}/deployment/candidate"

    def deployment_share(self, agent: str) -> str:
        return f"{self.base}/agents/{agent}/deployment"

    def status(self, agent: str) -> str:
        return f"{self.base}/agents/{agent}/status"

    def order(self, agent: str) -> str:
        return f"{self.base}/agents/{agent}/order"

    def report(self, agent: str, part: int = 0) -> str:
        """The topic of an agent's reports. All parts go to `part` 0; the access rules allow no other."""
        return f"{self.base}/agents/{agent}/report/{part}"

    def model(self, key: str) -> str:
        """The topic above the parts of a model: key "3" for cluster 3, "@pi-7" for the own model of agent pi-7."""
        if key.startswith("@"):
            return f"{self.base}/agents/{key[1:]}/model"
        return f"{self.base}/clusters/{key}/model"

    @property
    def every_status(self) -> str:
        return f"{self.base}/agents/+/status"

    @property
    def every_report(self) -> str:
        return f"{self.base}/agents/+/report/+"

    @property
    def aggregator_status(self) -> str:
        return f"{self.base}/aggregator/status"

    @property
    def aggregator_order(self) -> str:
        return f"{self.base}/aggregator/order"

    def aggregator_task(self, part: int) -> str:
        return f"{self.base}/aggregator/task/{part}"

    @property
    def aggregator_sum(self) -> str:
        """The topic of partial sums. All parts go to this one topic; the access rules allow no other."""
        return f"{self.base}/aggregator/sum/0"

    def parse(self, topic: str) -> Topic:
        """The meaning of a topic. Raises DecodeError("topic") if it is not in the tree."""
        return _parsed(self.base, topic)


@lru_cache(CACHE_SIZE)
def _parsed(base: str, topic: str) -> Topic:
    inside, prefix, path = topic.partition(f"{base}/")
    words = path.split("/") if prefix and not inside else []
    match words:
        case ["run", "roster", word] if word == CHANGES or _is_part(word):
            return PlainTopic("run/roster")
        case ["coordinator", "status"] | ["run", "metrics" | "roster"] | ["control" | "deployment"]:
            return PlainTopic("/".join(words))
        case ["aggregator", "status" | "order"] | ["deployment", "candidate"]:
            return PlainTopic("/".join(words))
        case ["aggregator", ("task" | "sum") as leaf, part] if _is_part(part):
            return PlainTopic(f"aggregator/{leaf}")
        case ["agents", agent, ("status" | "order" | "deployment") as leaf] if is_name(agent):
            return AgentTopic(agent, leaf)
        case ["agents", agent, ("model" | "report") as leaf, part] if is_name(agent) and _is_part(
            part
        ):
            return AgentTopic(agent, leaf, int(part))
        case ["clusters", key, "model", part] if is_name(key) and _is_part(part):
            return ClusterTopic(key, int(part))
    raise DecodeError("topic", f"{topic!r} is not in the tree below {base}")


def _is_part(text: str) -> bool:
    """Whether a word is the number of a part: decimal digits without leading zeros."""
    if not (text.isascii() and text.isdigit()) or len(text) > MAX_PART_DIGITS:
        return False
    return text == "0" or not text.startswith("0")
