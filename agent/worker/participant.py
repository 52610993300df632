"""Who does the work of orders: a device with data of its own, or an agent of a simulated fleet."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
import numpy.typing as npt

from covey.agent.data.dataset import Dataset, folds, hold_back
from covey.agent.data.survey import DataSurvey
from covey.agent.kept.privacy_account import DeviceAccount
from covey.agent.own_loops import loop_of
from covey.agent.policy import OwnersRules
from covey.agent.worker.learners import learner_for, new_weights
from covey.agent.worker.process import prepared
from covey.agent.worker.sources import dataset, stated_counts
from covey.agent.worker.without_data import ROWS, Blank, NoiseAlone, WithoutData
from covey.shared import extras
from covey.shared.candidate_names import JUDGE
from covey.shared.errors import DataError, public_text
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.own_code.faults import OwnCodeError
from covey.shared.privacy.settings import AgentPrivacy, Budget, Noise, Trainings
from covey.shared.scenario.fleet_statistics import resolved
from covey.shared.strategies.base import HOLD_BACK, ClientId
from covey.shared.strategies.client_half import ClientState, DataSplit, Fold, Local
from covey.shared.strategies.phase_names import COMPANION, EVALUATE, EXCHANGES, MOMENTS, TRAIN, VOTE
from covey.shared.wire.jobs import DataSource, DeviceData, FleetShare, Perform
from covey.shared.wire.messages import Work
from covey.shared.work.at_hand import PRIVACY_LEDGER, AtHand, no_sums, shuffle, simulated_noise
from covey.shared.work.judging import has_judge
from covey.shared.work.order_settings import settings_of, task_of

if TYPE_CHECKING:
    from covey.agent.learning import LocalTraining
    from covey.extras.secure.on_device import SecureDevice

Read = Callable[[Path, Layout], Vector]
FileName = tuple[str, str]  # of a file, and the digest of a layout
DIGEST_NAMES = ".model"  # the ending of files that are named by the digest of their content


def is_named_by_digest(path: Path) -> bool:
    """An agent names the models that it received by their digest; the coordinator of a simulation does not."""
    return path.suffix == DIGEST_NAMES


class ModelCache:
    """Models (d,) of the newest order by the digest of their content and of their layout; they are read-only.

    The other agents of a simulated fleet mostly need them again.
    """

    def __init__(self) -> None:
        self._models: dict[FileName, Vector] = {}

    def __repr__(self) -> str:
        return f"<ModelCache: {len(self._models)} models>"

    def models(self, paths: Sequence[Path], layout: Layout, read: Read) -> list[Vector]:
        """The models in some files, of which those are read that the order before this one did not name.

        Args:
            paths: of the files.
            layout: of the models.
            read: reads one file, with its errors.
        """
        names = [(path.name, layout.digest) for path in paths]
        # before new ones are read: they may take all the memory that there is
        self._models = {name: self._models[name] for name in names if name in self._models}
        found: list[Vector] = []
        for path, name in zip(paths, names, strict=True):
            model = self._models.get(name)
            if model is None:
                model = read(path, layout)
                if is_named_by_digest(path):
                    model.flags.writeable = False
                    self._models[name] = model
            found.append(model)
        return found


_of_fleet = ModelCache()


class TestTargets:
    """The data where messages are exchanged, which need no learner: whether an evaluation has test samples, no more."""

    def __init__(self, who: Participant, work: Work) -> None:
        self._who, self._work = who, work

    def targets(self, split: DataSplit) -> npt.NDArray[np.generic]:
        """As many as the test part has."""
        assert split == "test"  # noqa: S101 - an exchange reads no other part
        stated = self._who.stated_samples(self._work)
        return np.zeros(stated[1]) if stated else self._who.dataset(self._work).test_targets


@dataclass(frozen=True, kw_only=True)
class Participant:
    """A device with data of its own.

    Attributes:
        client: the agent's id.
        source: where its data comes from.
        rules: of its owner.
        threads: of its learner.
        account: the file of the privacy that it has spent; None: it keeps none.
        secure: the folder of its secure sums; None: it takes part in none.
        ahead: the work is for a masked report, and stays in that folder.
        clock: seconds, to measure the work.
    """

    client: ClientId
    source: DataSource | Blank
    rules: OwnersRules
    threads: int = 1
    account: Path | None = None
    secure: Path | None = None
    ahead: bool = False
    clock: Callable[[], float] = time.perf_counter
    hurries: ClassVar[bool] = (
        True  # the training at home of its judge may take so long and no longer
    )

    @classmethod
    def of(cls, job: Perform, threads: int) -> Participant:
        """The one that a job is for. Its own command line decides whether it is simulated, never an order."""
        is_simulated = isinstance(job.source, FleetShare)
        return (SimulatedParticipant if is_simulated else Participant)(
            client=job.client,
            source=job.source,
            rules=OwnersRules.of_job(job.rules),
            threads=threads,
            account=None if is_simulated else job.account,
            secure=job.secure,
            ahead=job.ahead,
        )

    def dataset(self, work: Work) -> Dataset:
        """Its data, as the order's task has them."""
        leaves_out = self.rules.policy.demands
        found = dataset(self.source, task_of(work), work.round, leaves_out=leaves_out)
        stated = self.stated_samples(work)
        return found if stated is None else replace(found, stated=stated[0])

    def stated_samples(self, work: Work) -> tuple[int, int] | None:
        """The samples for training and for tests that a device states; None: those that fit the task."""
        if not self.rules.policy.demands or not isinstance(self.source, DeviceData):
            return None
        return stated_counts(self.source, task_of(work))

    def models(self, paths: Sequence[Path], layout: Layout, read: Read) -> list[Vector]:
        """The models in these files. A device works on each once, and has no memory to spare."""
        return ModelCache().models(paths, layout, read)

    def noise(self, work: Work) -> Noise:
        """What hides its reports, if the order asks for noise."""
        return Noise.secret()

    def keys(self, work: Work) -> SecureDevice | None:
        """Its keys and its state of secure sums; None if the order has none, or this device no keys for them."""
        if self.secure is None or not (work.privacy or {}).get("secure"):
            return None
        return self._keys_at(self.secure, work)

    def _keys_at(self, place: Path, work: Work) -> SecureDevice | None:
        folder = extras.part("secure", "secure_folder").SecureFolder
        demand = self.rules.policy.privacy.of_sums()
        return cast("SecureDevice", folder.of_device(place, demand, ahead=self.ahead))

    def public(self, error: Exception) -> str:
        """The text about an error that may leave the device."""
        return told(error, self.rules)

    def at_hand(self, work: Work, layout: Layout, memory: ClientState, noise: Noise) -> AtHand:
        """The learner on its data, and all else that the work of an order needs of it.

        Raises:
            DataError: the data does not fit the task.
            PublicError: the model cannot be trained here.
        """
        if work.phase in EXCHANGES:
            return AtHand(cast(Local, TestTargets(self, work)))
        prepared(self.rules, self.threads)  # before any other module imports torch
        task = task_of(work)
        data = self.dataset(work)
        asks = task.asks_fleet_for and isinstance(self.source, DeviceData) and extras.has("doctor")
        sums = partial(extras.part("doctor", "on_device").news, data, task) if asks else no_sums
        held = None
        if HOLD_BACK in work.numbers:
            data, held = hold_back(data, work.seed, self.client)
        if work.phase == MOMENTS:
            return AtHand(cast(Local, DataSurvey(data, task)), sums=sums)
        task = resolved(task, work.scaling)
        learner = learner_for(task, self.rules)
        strategy, training = settings_of(work)

        def local_of(samples: Dataset) -> LocalTraining:
            return learner.local(
                samples,
                task,
                layout,
                training=training,
                rng=shuffle(work, self.client),
                rules=self.rules,
            )

        local = local_of(data)
        privacy = AgentPrivacy.from_wire(work.privacy)
        # an evaluation trains without noise; what reads that training stays here (`covey.shared.disclosures`)
        if privacy.local is not None and work.phase != EVALUATE:
            facet = strategy.privacy.local or Trainings()
            budget = Budget(facet, privacy.rounds, work.round, work.phase == TRAIN)
            demand = self.rules.policy.privacy
            account = None
            if self.account is not None:
                account = DeviceAccount(self.account, demand.local_epsilon, demand.local_delta)
            ledger = memory.get(PRIVACY_LEDGER)
            local.enable_privacy(privacy.local, budget, noise, ledger, account)
        if work.phase not in (EVALUATE, VOTE, COMPANION):
            return AtHand(local, sums=sums)
        own = (Fold(local_of(part), units) for part, units in folds(data, work.seed, self.client))
        held_back = None if held is None else local_of(held)
        if not has_judge(work):
            return AtHand(local, held_back, own, sums=sums)
        judge = extras.part("judge", "on_device", f"numbers.{JUDGE}").OnDevice.of(
            task_of(work),
            is_table=len(task.features) == 1,
            budget_s=work.evaluation["deliver"].get("budget_s") if self.hurries else None,
            new=partial(new_weights, task_of(work), work.seed),
        )
        return AtHand(local, held_back, own, judge, sums)

    def without_data(
        self, work: Work, layout: Layout, memory: ClientState, *, rows: int = 0
    ) -> AtHand:
        """For an order that is tried before the data are read, or done without them: see `without_data`.

        Args:
            work: of the order.
            layout: of its models.
            memory: of the agent.
            rows: of the data; 0: the order is tried.

        Raises:
            PublicError, UserError: the order cannot be done, whatever the data.
        """
        noise = NoiseAlone.secret() if rows else Noise.secret()
        nobody = replace(self, source=Blank(rows or ROWS), account=None)
        found = nobody.at_hand(work, layout, memory if rows else {}, noise)
        if work.phase in EXCHANGES:
            return found
        is_ours = loop_of(task_of(work), self.rules.allowed) is None
        return AtHand(cast(Local, WithoutData(found.local, tries=is_ours and not rows)))


class SimulatedParticipant(Participant):
    """An agent of a simulated fleet. Its draws can be repeated, and both ends are on this machine."""

    hurries = False

    def models(self, paths: Sequence[Path], layout: Layout, read: Read) -> list[Vector]:
        return _of_fleet.models(paths, layout, read)

    def noise(self, work: Work) -> Noise:
        return simulated_noise(work, self.client)

    def _keys_at(self, place: Path, work: Work) -> SecureDevice | None:
        folder = extras.part("secure", "secure_folder").SecureFolder
        identity = extras.part("secure", "simulated").simulated_identity(work.seed, self.client)
        demand = self.rules.policy.privacy.of_sums()
        own = folder(place, identity, demand, simulated=True, ahead=self.ahead)
        return cast("SecureDevice", own)

    def public(self, error: Exception) -> str:
        return str(error) if isinstance(error, OwnCodeError) else super().public(error)


def told(error: Exception, rules: OwnersRules) -> str:
    """The text about an error that may leave the device.

    A task names the classes that data should have, and a fault the first row that has another one: of enough tasks these are
    the data. An owner who keeps anything back keeps that back too.
    """
    if isinstance(error, DataError) and rules.policy.demands:
        return error.kept.public
    return public_text(error)
