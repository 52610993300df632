"""The coordinator's half of a method under secure sums: it plans the phases of the sums and folds what comes back.

    secure-box -> secure-join -> the method's phase -> secure-unmask

It asks for boxes, then for joins, then for the method's own work, whose vectors come masked, then for answers
(docs/secure-sums.md). Each of these is a phase like any other: orders carry lists and cells as contents, reports carry
joins, heads and answers, and the state is in the checkpoint before the next order is sent. The last phase ends the round.
`on_device.py` does their work, `phases.py` has what both know of them.

A sum that is void begins again with boxes, in the same round. One that is passed over leaves its models as they are.
Masked vectors are added mod 2**32 as they arrive, here or by aggregators, like the vectors of any method that averages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, cast

import msgpack
import numpy as np

from covey.extras.secure import coordinator as co
from covey.extras.secure import messages, phases
from covey.extras.secure.figures import FIGURES, FigureSlots
from covey.extras.secure.grouping import Grouping
from covey.extras.secure.integers import OutOfRangeError, Total, add_masks, total_of
from covey.extras.secure.messages import MOST_LISTS, Introduction, Member, ReportHead
from covey.extras.secure.parameters import FEWEST, Group
from covey.extras.secure.phases import (
    AHEAD,
    BOX,
    HEAD,
    JOIN,
    MASKED,
    MOST_WORDS,
    UNMASK,
    WORDS,
    bytes_of,
    words_of,
)
from covey.extras.secure.primitives import hashed
from covey.extras.secure.progress import (
    Collected,
    GroupSum,
    Progress,
    SealedState,
    State,
    SummedFigures,
)
from covey.extras.secure.sums import MaskedTerm, SecureSums
from covey.shared.errors import DecodeError
from covey.shared.numerics.vectors import Vector
from covey.shared.privacy.settings import ClientPrivacy, SecureSettings
from covey.shared.sentences import counted, some
from covey.shared.strategies.around import Around
from covey.shared.strategies.base import (
    CAP,
    EVALUATE,
    ClientId,
    Expected,
    Order,
    Phase,
    Reports,
    Sealed,
    Setup,
    Shown,
    Sums,
    Term,
    Terms,
    View,
)
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.sums import Totals

ZERO = np.float32(0)
MOST_VOIDS = 5  # in one round; then it is passed over
HEAD_WORDS = Expected(-(ReportHead.max_bytes // 4), 0, 2**32 - 1, whole=True)
ASKED_FOR_ANSWERS = 3  # times, each with a deadline; then a sum is passed over


class Secured(Around[SealedState]):
    """A method under secure sums. A run has it in the place of the method itself."""

    settings: SecureSettings
    noise: ClientPrivacy | None  # that agents add to their updates
    rounds: int
    slots: FigureSlots  # of an evaluation
    home: Callable[[ClientId], int] = lambda client: 0  # the broker where an agent is enrolled

    def accused(self, state: State) -> Mapping[ClientId, str]:
        return state.progress.named

    def failure(self, state: State) -> str:
        progress = state.progress
        if progress.summed or not progress.round:
            return ""
        what = f"no sum of updates was opened in {counted(progress.round, 'round')}: the models are those of the start. "
        if not progress.suspicion.lost:
            return what + (
                "Too few agents joined, reported or answered; `coordinator lab story AGENT` has their reasons. Agents that "
                "have answered for these models in another run need the same members again, or another seed"
            )
        suspects = sorted(progress.suspicion.suspects)
        least = min(len(one) for one in progress.suspicion.lost)
        return what + (
            f"In each group an agent lied, so that no sum shows which one ({some(suspects)}). Set "
            f"privacy.secure.group below {least}, and another seed: a group of honest agents moves the models, and the others "
            "are tested"
        )

    # with the sums

    def init(self, setup: Setup) -> State:
        return SealedState(self.method.init(replace(setup, secure=self.settings)))

    def for_terms(self, state: State) -> State:
        """Who is in which sum, and nothing of the messages."""
        sums = [replace(one, contents={}) for one in state.progress.sums]
        return SealedState(self.method.for_terms(state.inner), replace(state.progress, sums=sums))

    def shown(self, state: State) -> Shown:
        """What the method shows, and how the sums of the phase ended that was folded last."""
        shown, ends = self.method.shown(state.inner), state.progress.ends
        return (
            shown if ends is None else replace(shown, notes={**shown.notes, "secure": list(ends)})
        )

    def forget(self, state: State, client: ClientId) -> State:
        return SealedState(self.method.forget(state.inner, client), state.progress.without(client))

    def plan(self, state: State, view: View) -> Phase:
        """The next phase of the sums, or of the method where agents send no update.

        Sums that lack members begin again with boxes; answers are asked for several times.
        """
        is_first = state.progress.stage == BOX
        own = self.method.plan(state.inner, view) if is_first else self._phase(state)
        return self._planned(state, view, own) if self._has_updates(own) else own

    def plan_evaluation(self, state: State, view: View) -> Phase:
        """The next phase of the sums of an evaluation: of all agents, in as many groups as there are models to evaluate."""
        return self._planned(state, view, self._evaluation)

    @property
    def _evaluation(self) -> Phase:
        sizes = {FIGURES: self.slots.length}
        return Phase(EVALUATE, "all", sizes, ends_round=False, may_be_empty=True, draw=EVALUATE)

    def figures(self, state: State) -> SummedFigures | None:
        """What the evaluation that was folded last has found; None before its end."""
        return state.progress.figures

    def is_evaluating(self, state: State) -> bool:
        """Whether the sums of an evaluation are open."""
        return state.progress.evaluates

    def _planned(self, state: State, view: View, own: Phase) -> Phase:
        """The next phase of the sums around the work of this phase."""
        progress = state.progress
        asked = {"join": "members", "train": "listed", "unmask": "reported"}.get(progress.stage)
        of_each = [getattr(one, asked) for one in progress.open] if asked else []
        clients = tuple(sorted(chain(*of_each)))
        needed = min((one.least for one in progress.open), default=0)
        has_enough = len(set(clients) & set(view.present)) >= needed
        quorum = needed / len(clients) if clients else 0.0
        words = {WORDS: -MOST_WORDS}
        if progress.stage == "unmask":
            is_last = not clients or not has_enough or view.attempt >= ASKED_FOR_ANSWERS - 1
            ends_round = not progress.evaluates and (own.ends_round or not progress.open)
            return Phase(UNMASK, clients, words, ends_round, quorum, is_last, draw=own.draw)
        if progress.stage == "join" and has_enough and not view.attempt:
            return Phase(JOIN, clients, words, ends_round=False, quorum=quorum, draw=own.draw)
        if progress.stage == "train" and has_enough and not view.attempt:
            slots = self.grouping.scale((), own, max(progress.honest, 1)).slots
            sizes = {MASKED: sum(own.sizes.values()) + slots}
            train = replace(own, cohort=clients, sizes=sizes, ends_round=False, quorum=quorum)
            return replace(train, numbers={HEAD: HEAD_WORDS}, may_be_empty=False)
        draw = own.draw or own.name
        return Phase(
            BOX,
            own.cohort,
            words,
            ends_round=False,
            quorum=own.quorum,
            may_be_empty=own.may_be_empty,
            draw=draw,
        )

    def _phase(self, state: State) -> Phase:
        """The phase whose vectors are summed: the method's own, which does not depend on who is there, or the evaluation."""
        if state.progress.evaluates:
            return self._evaluation
        return self.method.plan(state.inner, View(0, self.rounds, 0, ()))

    def _in(self, state: State, phase: Phase) -> State:
        """The state in which the first phase of an evaluation takes place."""
        if phase.draw != EVALUATE or state.progress.evaluates:
            return state
        return replace(state, progress=replace(state.progress, evaluates=True))

    @property
    def grouping(self) -> Grouping:
        """How the agents of a phase are divided."""
        return Grouping(self.settings, self.noise, self.home)

    @property
    def _sealed(self) -> Sealed:
        assert self.facts.sealed is not None  # noqa: S101 - a scenario with another method is refused
        return self.facts.sealed

    def _has_updates(self, phase: Phase) -> bool:
        """Whether a phase of the method has vectors that are summed under masks."""
        return bool(phase.sizes) and phase.name not in self._sealed.clear

    def terms(self, state: State, phase: Phase, client: ClientId, report: Report) -> Terms:
        if MASKED not in phase.sizes:
            is_own = phase.name not in (BOX, JOIN, UNMASK)
            return self.method.terms(state.inner, phase, client, report) if is_own else ()
        number, group = state.progress.sum_of(client)
        if group is None or client not in group.listed:
            return ()
        return (MaskedTerm(str(number), 1.0, MASKED, base="", digest=_head_of(report).vector),)

    def _terms(self, state: State, own: Phase, client: ClientId) -> Terms:
        """The sums in which the report of a client will count, with the most that it can weigh; none for one that takes no
        part in this round.

        Figures of a model that its agent alone has are in no sum.
        """
        if own.name == EVALUATE:
            served = self.method.serve(state.inner, client)
            key = str(served.cluster or 0)
            return (Term(key, 1.0, FIGURES, base=""),) if served.models else ()
        vectors = {name: np.broadcast_to(ZERO, abs(size)) for name, size in own.sizes.items()}
        heaviest = Report(vectors, examples=self.settings.cap)
        return self.method.terms(state.inner, own, client, heaviest)

    def _order(self, state: State, own: Phase, client: ClientId) -> Order:
        """The method's order, with every model to which updates are differences: agents may not have them any more."""
        if own.name == EVALUATE:
            return self.method.serve(state.inner, client)
        order = self.method.order(state.inner, own, client)
        starts = [term.started_from for term in self._terms(state, own, client)]
        lacking = [key for key in dict.fromkeys(starts) if key and key not in order.models]
        return replace(order, models=(*order.models, *lacking))

    def order(self, state: State, phase: Phase, client: ClientId) -> Order:
        state = self._in(state, phase)
        progress = state.progress
        if phase.name == BOX:
            work = self._phase(state)
            if not self._terms(state, work, client):
                return Order(whole=True)
            return replace(self._announced(state, work, client), whole=True)
        if progress.stage == BOX:
            order = self.method.order(state.inner, phase, client)
            if CAP not in self.facts.numbers_of(phase.name):
                return order
            return replace(order, numbers={**order.numbers, CAP: self.settings.cap})
        number, group = progress.sum_of(client)
        if group is None:
            return Order(whole=True)
        if phase.name == UNMASK:
            return Order(models=(f"secure-{number}-unmask",), whole=True)
        work = self._phase(state)
        if phase.name == JOIN:
            own = self._announced(state, work, client)
            return replace(own, models=(*own.models, f"secure-{number}-terms"), whole=True)
        own = self._order(state, work, client)
        return replace(own, models=(*own.models, f"secure-{number}-list", f"@{client}"))

    def _announced(self, state: State, work: Phase, client: ClientId) -> Order:
        """The order of the work in a phase before it."""
        own = self._order(state, work, client)
        return replace(own, numbers={**own.numbers, AHEAD: work.name})

    def model(self, state: State, key: str) -> Vector:
        if key.startswith("secure-"):
            _, number, what = key.split("-")
            return state.progress.sums[int(number)].contents[what]
        if key.startswith("@"):
            _, group = state.progress.sum_of(key[1:])
            assert group is not None  # noqa: S101 - an order names it for members only
            place = group.members.index(key[1:]) + 1
            return words_of(co.inbox_of(Collected.of(group).state, place))
        return self.method.model(state.inner, key)

    def fold(self, state: State, phase: Phase, sums: Sums, reports: Reports) -> State:
        state = self._in(state, phase)
        match phase.name:
            case phases.BOX:
                return self._boxes(state, reports)
            case phases.JOIN:
                return self._joins(state, reports)
            case phases.UNMASK:
                return self._answers(state, reports)
        progress = state.progress
        if progress.stage != BOX:
            return self._masked(state, sums, reports)
        figures = None if phase.ends_round else progress.figures  # they are of other models
        kept = replace(progress, round=progress.round + phase.ends_round, sums=(), figures=figures)
        kept = replace(kept, ends=None)
        least = max(FEWEST, self.settings.least or 0, self.settings.threshold or 0)
        after = self.method.fold(state.inner, phase, sums, reports)
        return SealedState(self._sealed.allowed(after, least), kept)

    # boxes

    def _boxes(self, state: State, reports: Reports) -> State:
        """Draw groups among those whose boxes came, and make their terms."""
        members: dict[ClientId, Member] = {}
        starts: dict[ClientId, bytes] = {}
        demands: dict[ClientId, int] = {}
        federation = ""
        lists: set[bytes] = set()  # the coordinator cannot know which of them is true
        for client, report in reports:
            try:
                shown = Introduction.from_bytes(bytes_of(report.vectors[WORDS]))
            except DecodeError:
                continue
            if shown.entry.agent == client:
                federation = shown.entry.federation
                members[client] = Member.of(shown.entry, shown.box)
                starts[client] = shown.start
                demands[client] = shown.least
                lists |= {shown.expelled} if shown.expelled and len(lists) < MOST_LISTS else set()
        progress = state.progress
        own = self._phase(state)
        alike: dict[tuple[bytes, Terms], list[ClientId]] = {}
        for client in sorted(members.keys() - set(progress.blamed)):
            if terms := self._terms(state, own, client):
                alike.setdefault((starts[client], terms), []).append(client)
        grouping = replace(self.grouping, demands=demands)
        drawn = [
            chosen
            for (_, terms), of_kind in alike.items()
            for chosen in grouping.drawn(of_kind, terms[0].key, progress)
        ]
        # the same models again: agents let nobody compare sums of other members
        again = progress.figures.groups if progress.evaluates and progress.figures else ()
        if again:
            here = set(chain(*(chosen for chosen, _ in drawn)))
            drawn = [(list(group), len(group)) for group in again if set(group) <= here]
        if progress.stage != BOX:  # the attempt before lacked members
            progress = replace(progress, voids=progress.voids + 1)
        if not progress.honest:  # no group of this round has made a vector yet
            sizes = filter(None, (grouping.size(len(one), 0, least) for one, least in drawn))
            progress = replace(progress, honest=min((one.honest for one in sizes), default=0))
        begun: list[GroupSum] = []
        for chosen, least in drawn:
            if group := grouping.size(len(chosen), progress.honest, least):
                # who has answered for these models in another run joins the same members alone, all of them
                if progress.voids == 1 and (progress.evaluates or not progress.summed):
                    group = replace(group, least=len(chosen))
                shown_by = [members[client] for client in chosen]
                known = {
                    "federation": federation,
                    "expelled": sorted(lists),
                    "start": starts[chosen[0]],
                }
                agreed = self._terms_of_sum(state, progress, group, shown_by, len(begun), **known)
                contents = {
                    "terms": words_of(agreed.to_bytes()),
                    "records": words_of(msgpack.packb([])),
                }
                begun.append(GroupSum(agreed.cluster, chosen, group.least, contents=contents))
        if not begun or progress.voids >= MOST_VOIDS:
            ended = GroupSum("", (), 0).ended("void", "too few agents for a sum")
            return self._void(state, state.progress, [ended])
        return replace(
            state, progress=replace(progress, stage="join", sums=begun, ends=None, named={})
        )

    def _terms_of_sum(
        self,
        state: State,
        progress: Progress,
        group: Group,
        members: list[Member],
        number: int,
        **known: Any,
    ) -> messages.Terms:
        own = self._phase(state)
        counts = self._terms(state, own, members[0].agent)
        scale = self.grouping.scale(counts, own, progress.honest)
        return messages.Terms(
            **known,
            run="run",
            step=progress.round,
            sum=hashed("sum", *(member.box.key for member in members))[:16],
            cluster=counts[0].key,
            number=number,
            vectors=dict(own.sizes),
            clip=scale.clip,
            cap=scale.cap,
            levels=scale.levels,
            deviation=scale.deviation,
            multiplier=self.noise.noise_multiplier if self.noise and scale.is_noised else 0.0,
            threshold=group.threshold,
            colluders=group.colluders,
            least=group.least,
            seconds=self.settings.seconds,
            members=members,
        )

    def revealed(self, state: State) -> list[ClientId]:
        """Agents whose updates are in the sums that the newest unmask lists open."""
        progress = state.progress
        if progress.stage != "unmask" or progress.evaluates:
            return []
        return [client for one in progress.open for client in one.reported]

    # joins, reports, answers

    def _joins(self, state: State, reports: Reports) -> State:
        progress, by_client = state.progress, dict(reports)
        sums = []
        for group in progress.sums:
            collected = Collected.of(group)
            for client in sorted(set(group.members) & by_client.keys()):
                collected.feed(collected.machine.joined, by_client[client])
            collected.take(collected.machine.joins_closed(collected.state))
            sums.append(collected.kept(list=collected.state.listing))
        return self._next(state, progress, sums, "train")

    def _masked(self, state: State, sums: Sums, reports: Reports) -> State:
        """The unmask lists. Raises DecodeError for a head that its member did not sign."""
        progress, by_client, totals = state.progress, dict(reports), cast(Totals, sums)
        after = []
        for number, group in enumerate(progress.sums):
            if group.end:
                after.append(group)
                continue
            collected = Collected.of(group)
            for client in sorted(set(group.listed) & by_client.keys()):
                head = _head_of(by_client[client])
                if head.place != group.members.index(client) + 1:
                    raise DecodeError("secure head", f"{client} sent that of another member")
                collected.take(collected.machine.reported(collected.state, head.to_bytes()))
            online = len(collected.state.heads)
            collected.take(
                collected.machine.reports_closed(collected.state, online, is_last_call=True)
            )
            closed = collected.kept(unmask=collected.state.unmask)
            if closed.reported:
                total = totals.total(str(number)).astype(np.uint64).astype(np.uint32)
                contents = {**closed.contents, "total": cast(Vector, total)}
                closed = replace(closed, contents=contents)
            after.append(closed)
        return self._next(state, progress, after, "unmask")

    def _next(
        self, state: State, progress: Progress, sums: Sequence[GroupSum], stage: str
    ) -> State:
        """The next phase; boxes again where no sum is left."""
        blamed = sorted({*progress.blamed, *chain(*(one.blamed for one in sums))})
        progress = replace(progress, blamed=blamed)
        if all(one.end for one in sums):
            return self._void(state, progress, [one.ended("void", one.end) for one in sums])
        return replace(state, progress=replace(progress, stage=stage, sums=sums, ends=None))

    def _void(self, state: State, progress: Progress, ends: list[dict[str, Any]]) -> State:
        """Nothing was revealed: begin again, or pass the round over after some attempts."""
        voids = progress.voids + 1
        stage = BOX if voids < MOST_VOIDS else "unmask"
        return replace(
            state, progress=replace(progress, voids=voids, sums=(), stage=stage, ends=ends)
        )

    def _answers(self, state: State, reports: Reports) -> State:
        progress, by_client = state.progress, dict(reports)
        own = self._phase(state)
        if not progress.open and progress.evaluates:
            shown = () if progress.sums else progress.ends or ()
            return self._evaluated(state, progress, {}, blamed=progress.blamed, ends=shown)
        if not progress.open:  # the round is passed over
            inner = state.inner
            if own.ends_round:
                inner = self.method.fold(inner, own, SecureSums(), [])
            shown = () if progress.sums else progress.ends or ()  # or by the phase before
            return SealedState(inner, progress.after(round=progress.round + 1, ends=shown))
        spans = _spans(own.sizes)
        sums, ends, closed = SecureSums(), [], []
        came: list[ClientId] = []
        good: list[Sequence[ClientId]] = []  # reporters of sums
        lost: list[Sequence[ClientId]] = []
        found: dict[str, Total] = {}  # figures by group
        blamed, standing = set(progress.blamed), dict(progress.standing)
        summed = set()  # clusters
        for before in progress.sums:
            collected = Collected.of(before)
            if not before.end:
                for client in sorted(set(before.reported) & by_client.keys()):
                    collected.feed(collected.machine.answered, by_client[client])
                collected.take(collected.machine.answers_closed(collected.state))
            group, end = collected.kept(), collected.state.end
            blamed |= set(group.blamed)
            closed.append(group)
            answered = {group.members[place - 1] for place in collected.state.answers}
            if answered := answered | (set(before.reported) & by_client.keys()):
                known = standing.get(group.cluster, {}).get("bound", ())
                now_bound = sorted({*known, *answered})
                standing[group.cluster] = {"bound": now_bound, "members": list(group.reported)}
            if not isinstance(end, co.Opened):
                ends.append(group.ended("passed over" if group.reported else "void", group.end))
                continue
            integers = np.array(group.contents["total"], np.uint32)
            add_masks(integers, end.streams)
            scale = collected.machine.terms.scale
            try:
                total = total_of(integers, len(end.reported), scale)
                if progress.evaluates:
                    self.slots.averages(total.values, total.reported)  # these raise
                    self.slots.fleet(total.values, total.reported)
            except OutOfRangeError as error:
                closed[-1] = replace(group, end=str(error))
                ends.append(group.ended("passed over", f"{error}: one of the members lied"))
                lost.append(group.reported)
                continue
            if progress.evaluates:
                before_it = found.get(group.cluster)
                found[group.cluster] = total if before_it is None else before_it + total
            for term in () if progress.evaluates else self._terms(state, own, group.members[0]):
                start = (
                    self.method.model(state.inner, term.started_from) if term.started_from else None
                )
                part = replace(total, values=total.values[spans[term.vector]])
                sums.add(term.key, start, part, scale)
            came += group.reported
            good.append(group.reported)
            summed.add(group.cluster)
            figures = {
                "weight": total.weight,
                "shortened": total.shortened,
                "too_long": total.mean(scale).was_long,
            }
            ends.append({**group.ended("sum"), **figures})
        ended: dict[str, Any] = {"blamed": sorted(blamed), "ends": ends}
        if progress.evaluates:
            ended["groups"] = [list(one.reported) for one in closed if one.end == "sum"]
            return self._evaluated(state, progress, found, **ended)
        suspicion = progress.suspicion.after(good, lost)
        ended["named"] = {
            liar: f"{count} sums with it were out of range, and all others in one of them were in good ones"
            for liar, count in suspicion.named.items()
        }
        ended["suspicion"] = suspicion.without(ended["named"])
        # its further phases are other work for those in the sum; who is bound by an earlier one stays so until the model moves
        earlier = {} if own.ends_round else progress.standing
        standing = {
            key: earlier.get(key, {}) if key in summed else standing[key] for key in standing
        }
        ended["standing"] = {key: bound for key, bound in standing.items() if bound}
        if not came and not own.ends_round:  # the rest of the round needs this sum: it ends
            return replace(state, progress=replace(progress, sums=closed, **ended))
        # the coordinator does not know what a single report weighs: shares of it count by unit of weight
        alike = [(client, Report({}, examples=1)) for client in sorted(came)]
        after = self.method.fold(state.inner, own, sums, alike)
        ended |= {"round": progress.round + own.ends_round, "summed": progress.summed + bool(came)}
        return SealedState(after, progress.after(**ended))

    def _evaluated(
        self,
        state: State,
        progress: Progress,
        sums: Mapping[str, Total],
        groups: Sequence[Sequence[ClientId]] = (),
        **ended: Any,
    ) -> State:
        """The state after an evaluation with these sums, by cluster; without any it has the figures of the same models, if
        these were evaluated before."""
        after = progress.after(**ended)
        if not sums:
            return replace(
                state, progress=replace(after, figures=progress.figures or SummedFigures())
            )
        by_cluster = {}
        first, *others = sums.values()
        whole = sum(others, first)
        modes = self.slots.averages(whole.values, whole.reported)
        fleet = self.slots.fleet(whole.values, whole.reported)
        for cluster, own in sums.items():
            served = self.slots.averages(own.values, own.reported)["server"]
            means = {
                name: value["macro"]
                for name, value in served.items()
                if name != "agents" and "macro" in value
            }
            if means and self.assignment(state):
                by_cluster[cluster] = {"agents": served["agents"], **means}
        found = SummedFigures(modes, by_cluster, groups, None if fleet is None else vars(fleet))
        return replace(state, progress=replace(after, figures=found))


def _head_of(report: Report) -> ReportHead:
    """The head of a masked vector. Raises DecodeError."""
    return ReportHead.from_bytes(bytes_of(np.array(report.numbers[HEAD], np.uint32)))


def _spans(sizes: Mapping[str, int]) -> dict[str, slice]:
    """Where each vector lies in the masked one."""
    ends = np.cumsum([*sizes.values()]).tolist()
    return {
        name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)
    }
