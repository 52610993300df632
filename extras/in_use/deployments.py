"""The models that the coordinator publishes for use: which of them this device fetches. Pure: time is an argument.

A deployment names one model per cluster, and a document of its own names this agent's cluster. A candidate counts for the
devices that it names, like any other deployment: the greatest serial wins. A device that is in no cluster fetches all of them, and the worker takes the one with the smallest loss on the device's training data, as IFCA does.

The newest deployment counts. It is settled once its model was taken over or kept out; a settled one is never fetched again,
also not after a restart. One that the policy refuses is not settled, and one whose serial is more than a day ahead counts
for nothing: it would freeze the model in use for good.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from covey.agent.device.events import (
    Action,
    Actions,
    Adopt,
    DeploymentRefused,
    KeepDeployed,
    Notify,
    Subscribe,
    Unsubscribe,
)
from covey.agent.device.fetching import StallTimer, part_topics
from covey.agent.policy import OwnersRules
from covey.shared.mqtt.part_window import PartWindow
from covey.shared.programs.timers import earliest
from covey.shared.wire.deployments import Deployment, DeploymentShare, latest_serial
from covey.shared.wire.messages import ModelRef
from covey.shared.wire.topics import Topics

AGAIN_S = 600.0  # then a deployment of the future is looked at again: this device's clock may have been set
SHARE_WAIT_S = 3.0  # how long the agent's own document may arrive after the deployment


class Deployments:
    """What this device does about the newest deployment.

    Args:
        agent: the agent's id.
        topics: of its federation.
        settled: serial of the newest deployment that was settled; 0 for none.
        models: digests of the deployed models that are on disk at the start.
        rules: what a coordinator may ask of this device.
        has: whether this device uses, or has rejected, the models of a deployment already: they are not fetched again.
    """

    def __init__(
        self,
        agent: str,
        topics: Topics,
        *,
        settled: int,
        models: Sequence[bytes],
        rules: OwnersRules,
        has: Callable[[Deployment], bool] = lambda _: False,
    ) -> None:
        self._agent = agent
        self._has = has
        self._topics = topics
        self._rules = rules
        self.own_topics = (topics.deployment, topics.candidate, topics.deployment_share(agent))
        self._settled = settled
        self._newest: Deployment | None = None  # the newest that is not settled
        self._refused = 0  # serial of the newest that was refused
        self._again_at: float | None = None  # when to ask for a deployment of the future again
        self._share: DeploymentShare | None = None  # the newest seen, of any deployment
        self._clusters: tuple[int, ...] = ()  # whose models are needed; () before the choice
        self._share_due: float | None = None  # when to stop waiting for the agent's own document
        self._on_disk = set(models)
        self._is_adopting = False  # the worker judges the models
        self.parts = PartWindow[Action](Subscribe, Unsubscribe)
        self._stall = StallTimer()

    def __repr__(self) -> str:
        serial = 0 if self._newest is None else self._newest.serial
        return f"<Deployments: settled {self._settled}, newest {serial}>"

    @property
    def wake_at(self) -> float | None:
        return earliest(self._share_due, self._stall.at, self._again_at)

    @property
    def judging(self) -> str:
        """The publication that the worker judges now; empty for none. One that the device knows already needs no judge."""
        if self._newest is None or not (self._is_adopting and self._clusters):
            return ""
        return self._newest.title

    # what arrives

    def seen(self, deployment: Deployment, now: float, wall: float) -> Actions:
        """The coordinator published which models to use. `wall` is the time of day, in seconds since 1970."""
        if not deployment.is_for(self._agent):
            return []
        latest = latest_serial(wall)
        if deployment.serial > latest:
            self._again_at = now + AGAIN_S
            return self._refuse(
                deployment,
                "its serial is more than a day ahead of this device's clock; check the clock, and the coordinator's "
                "credentials",
            )
        self._again_at = None
        known = self._settled if self._settled <= latest else 0
        if self._newest is not None:
            known = max(known, self._newest.serial)
        if deployment.serial <= known:
            return []
        actions = self._await(())
        self._clusters = ()
        self._is_adopting = False
        refusal = self._rules.refuses_deployment(deployment)
        if refusal is not None:
            self._newest = None
            actions += self._refuse(deployment, refusal)
            return [*actions, DeploymentRefused(deployment)]
        self._newest = deployment
        if self._has(deployment):
            self._is_adopting = True
            return [*actions, Adopt(deployment, ())]
        return actions + self._choose(now)

    def _refuse(self, deployment: Deployment, why: str) -> Actions:
        """Show a refusal, once. The serial is not settled."""
        if deployment.serial == self._refused:
            return []
        self._refused = deployment.serial
        return [Notify(f"the published model is not used: {why}")]

    def share_seen(self, share: DeploymentShare, now: float) -> Actions:
        """The coordinator published this agent's cluster. It overrules a choice that was made without it."""
        self._share = share
        if len(self._clusters) > 1:
            self._clusters = ()
        return self._choose(now)

    def part_arrived(self, topic: str, digest: bytes, now: float) -> Actions:
        self.link_up(now)
        if self._newest is None or digest not in {
            one.digest for one in self._missing(self._newest)
        }:
            return []
        self.parts.came(topic)
        return self._await(self.parts.needed)

    def model_ready(self, digest: bytes) -> Actions:
        """A deployed model is complete on disk."""
        self._on_disk.add(digest)
        if self._newest is None or not self._clusters or self._is_adopting:
            return []
        return self._proceed(self._newest)

    def model_damaged(self, digest: bytes, now: float) -> Actions:
        """Fetch the model again."""
        self._on_disk.discard(digest)
        self._is_adopting = False
        if self._newest is None or not self._clusters:
            return []
        return self._fetch(self._newest, now)

    def settled(self, serial: int) -> Actions:
        """The model of this deployment was taken over, or kept out: what was fetched for it may leave the disk."""
        self._settled = serial
        if self._newest is None or self._newest.serial > serial:
            return []
        self._newest = None
        self._clusters = ()
        self._is_adopting = False
        self._on_disk.clear()
        return [KeepDeployed(frozenset())]

    def link_up(self, now: float) -> None:
        if self._stall.at is not None:
            self._stall.reset()
            self._stall.watch(now)

    def tick(self, now: float) -> Actions:
        actions: Actions = []
        if self._again_at is not None and now >= self._again_at:
            self._again_at = None
            actions.append(Subscribe(self.own_topics))  # the broker sends again what it retains
        if self._share_due is not None and now >= self._share_due:
            actions += self._choose(now)
        if self._stall.is_due(now):
            self._stall.watch(now)
            actions += self.parts.again(self.parts.needed)
        return actions

    # what follows

    def _choose(self, now: float) -> Actions:
        """Decide whose models are needed, as soon as that is known."""
        deployment = self._newest
        if deployment is None or self._clusters:
            return []
        count = len(deployment.models)
        own = self._own_cluster(deployment)
        if own is not None:
            self._clusters = (own,)
        elif self._share_due is None:
            self._share_due = now + SHARE_WAIT_S
        elif now >= self._share_due:
            self._clusters = tuple(range(count))
        if not self._clusters:
            return []
        self._share_due = None
        return self._fetch(deployment, now)

    def _own_cluster(self, deployment: Deployment) -> int | None:
        """The cluster whose model this device uses; None until it is named."""
        count = len(deployment.models)
        if count == 1:
            return 0
        share = self._share
        if share is None:
            return None
        if share.serial != deployment.serial or share.cluster >= count:
            return None
        return share.cluster

    def _fetch(self, deployment: Deployment, now: float) -> Actions:
        needed = frozenset([ref.digest for ref in self._needed(deployment)])
        self._on_disk &= needed
        self._stall.reset()
        actions: Actions = [KeepDeployed(needed)]
        missing = self._missing(deployment)
        if missing:
            self._stall.watch(now)
            return actions + self._await(part_topics(self._topics, missing))
        return actions + self._proceed(deployment)

    def _proceed(self, deployment: Deployment) -> Actions:
        """Let the worker judge the models once all of them are on disk."""
        if self._missing(deployment):
            return []
        self._is_adopting = True
        actions = self._await(())
        actions.append(Adopt(deployment, self._clusters))
        return actions

    def _await(self, topics: tuple[str, ...]) -> Actions:
        """Be subscribed to these parts, and to no others."""
        if not topics:
            self._stall.stop()
        return self.parts.need(topics)

    def _needed(self, deployment: Deployment) -> list[ModelRef]:
        return [deployment.models[cluster] for cluster in self._clusters]

    def _missing(self, deployment: Deployment) -> list[ModelRef]:
        return [ref for ref in self._needed(deployment) if ref.digest not in self._on_disk]
