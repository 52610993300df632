"""The progress of a run on the terminal: a bar, with remarks above it."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from covey.coordinator.record import notices
from covey.coordinator.view.lines import TimeLeft, phase_line
from covey.coordinator.view.words import duration_text, epsilons, sizes_text
from covey.shared.numerics.measures import measured
from covey.shared.sentences import counted, some

NUMBERS = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
WARNS = "yellow"  # the style of a warning
MAX_REMARKS = 1000  # that are shown once each: agents write some of them


class ProgressBar:
    """An observer that shows the notices of one run; use it as `with ProgressBar(console, rounds) as observer`."""

    def __init__(self, console: Console, rounds: int) -> None:
        self.console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[remark]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            console=console,
        )
        self._task = self._bar.add_task("rounds", total=rounds, remark="starting", left="")
        self._time_left = TimeLeft()
        self._sizes: Mapping[str, int] = {}  # of the groups, as they were shown last
        self._evaluated = ""  # the newest evaluation: the next line that is not one follows it
        self._is_down = False  # the link to the broker
        self._warned: set[str] = set()  # remarks that were shown, at most MAX_REMARKS

    def __repr__(self) -> str:
        done = self._bar.tasks[0]
        return f"ProgressBar({done.completed:g} of {done.total:g} rounds)"

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._show_evaluation()
        self._bar.stop()

    def __call__(self, notice: notices.Notice) -> None:
        match notice:
            case notices.PhaseFolded():
                self._phase(notice)
            case notices.BrokerReady(broker=broker, url=url, note=note):
                self._say(f"broker: {broker} at {url}")
                if note:
                    self._say(note)
            case notices.RoundVoid(round=number, why=why):
                self._warn(f"round {number + 1}: void, drawn again ({why})")
            case notices.RoundsStopped(round=number, rounds=rounds, why=why):
                self._bar.update(self._task, total=number)
                self._say(f"ended after round {number} of {rounds}: {why}")
            case notices.RunWaits(why=why, seconds=seconds):
                self._warn(f"waiting: {why}{_for_so_long(seconds)}")
                self._bar.update(self._task, remark=f"waiting: {why}")
            case notices.ControlReceived(command="pause"):
                self._warn("paused: no new phase opens; to resume: coordinator lab resume")
            case notices.ControlReceived():
                self._say("resumed")
            case notices.SubscriptionsRefused(refused=[]):
                self._say("the broker accepts all subscriptions again")
            case notices.SubscriptionsRefused(why=why):
                self._warn(why)
            case notices.BrokerDrops(why=why, works=works):
                (self._say if works else self._warn)(why)
            case notices.ModelsPublished(version=name, models=count):
                noun = "model" if count == 1 else "models"
                self._say(f"devices may use {name} from now on: {count} {noun} published")
            case notices.ModelsNotPublished(why=why):
                self._warn(f"the models were not published to devices: {why}")
            case notices.LinkDown(why=why):
                self._is_down = True
                self._warn(f"broker: {why}; trying again")
            case notices.LinkUp() if self._is_down:
                self._is_down = False
                self._say("broker: connected again")
            case (
                notices.DiskRemark(why) | notices.ReportDamaged(why) | notices.ProcessFrozen(_, why)
            ):
                self._warn(why)
            case notices.LinesLost(lines):
                self._warn(f"the record lacks {counted(lines, 'line')} that the checkpoint knows")
            case notices.AggregatorUp(shard=shard):
                self._say(f"the aggregator of broker {shard} is online")
            case notices.AggregatorDown(shard=shard):
                self._warn(
                    f"the aggregator of broker {shard} is offline: the coordinator reads the reports there itself"
                )
            case notices.AggregatorExcluded(why=why):
                self._warn(f"{why}. Until then the coordinator reads the reports there itself")
            case notices.SumRefused(shard=shard, why=why):
                self._warn(
                    f"a sum of the aggregator of broker {shard} was refused ({why}); its agents are asked for their reports"
                )
            case notices.ModelChosen(still=still) if still:
                self._warn(
                    f"not trained: {some(still)} (requires_grad is False, or no gradient arrives)"
                )
            case notices.ShardUp(shard=shard, broker=broker):
                self._say(f"broker {shard} is up: {broker}")
            case notices.ShardDown(shard=shard, why=why, agents=agents):
                noun = "agent" if agents == 1 else "agents"
                self._warn(
                    f"broker {shard} is down with {agents} {noun}: {why}; the run continues without them"
                )
            case _:
                self._about_agent(notice)

    def _about_agent(self, notice: notices.Notice) -> None:
        """Remarks about one agent, or about its report."""
        match notice:
            case notices.AgentLeft(agent=agent, why=why):
                self._warn(f"{agent}: {why}")
            case notices.AgentExcluded(agent=agent, why=why):
                self._once(f"{agent} is excluded: {why}")
            case notices.WorkFailed(agent=agent, why=why):
                self._once_per_cause(agent, "could not do its work", why.removeprefix(f"{agent}: "))
            case notices.ReportRefused(agent=agent, why=why):
                self._once_per_cause(agent, "sent a report that was refused", why)
            case notices.ReportSetAside(agent=agent, why=why):
                self._warn(
                    f"a report of {agent} was set aside, the round is folded without it: {why}"
                )
            case notices.AgentQuarantined(agent=agent, refused=refused, why=why):
                after = f" after {refused} refused reports" if refused else ""
                self._warn(
                    f"{agent} is in quarantine{after}: {why}. "
                    f"To invite it again: coordinator lab release {agent}"
                )
            case notices.AgentRests(agent=agent, kind=kind, why=why):
                self._warn(f"{agent} is {kind}, {why}")
            case notices.AgentForgotten(agent=agent):
                self._say(f"{agent} is forgotten; if it comes back, it is a newcomer")
            case notices.AgentReleased(agent=agent):
                self._say(f"{agent} is out of quarantine")

    def _phase(self, phase: notices.PhaseFolded) -> None:
        """Print a line with the figures of the phase, and advance the bar."""
        line = phase_line(phase.to_json())
        invited = len(phase.invited)
        words = [f"{line.phase}: {line.reported}/{invited} agents"]
        if line.loss is not None:
            words.append(f"loss {line.loss:.3f}")
        if line.mean is not None:
            words.append(measured(line.measure, line.mean, line.title))
        if line.diverged:
            words.append(f"{line.diverged} diverged")
        if line.sizes != self._sizes:
            self._sizes = line.sizes
            words.append(f"groups {sizes_text(line.sizes)}")
        ends = Counter(one.end for one in line.sums)
        words += [f"{count} x {end}" for end, count in sorted(ends.items())]
        spent = epsilons(phase.privacy)
        if spent:
            words.append(spent)
        self._time_left.add(line.seconds, ends_round=line.ends_round)
        left = self._left(line.rounds)
        self._bar.update(self._task, completed=line.rounds, remark=line.phase, left=left)
        if invited or words[1:]:  # a round without any report to wait for has nothing to show
            text = f"round {line.rounds:>3}  {', '.join(words)}"
            if line.mean is None:
                self._say(text)
            else:  # after the last round devices weigh again what they use: the last figure counts
                self._evaluated = text
        for text in line.warnings:
            self._once(text)
        for text in line.decisions:
            self._once(text, style=None)

    def _left(self, done: int) -> str:
        """About how long the rest takes, in words; empty before the first round is over, and at the end."""
        seconds = self._time_left.left_s(int(self._bar.tasks[0].total or 0) - done)
        if not seconds:
            return ""
        return f"about {duration_text(seconds)} left"

    def _once(self, text: str, cause: str = "", style: str | None = WARNS) -> None:
        """Print a line, unless a remark of the same cause, or the same one, was shown before."""
        cause = cause or text
        if cause not in self._warned and len(self._warned) < MAX_REMARKS:
            self._warned.add(cause)
            self._say(text, style=style)

    def _once_per_cause(self, agent: str, what: str, why: str) -> None:
        """Warn of what may happen in every step. The numbers in its reason may differ; the record has each case."""
        self._once(f"{agent} {what}: {why}", f"{agent} {what}: {NUMBERS.sub('#', why)}")

    def _warn(self, text: str) -> None:
        self._say(text, style=WARNS)

    def _show_evaluation(self) -> None:
        text, self._evaluated = self._evaluated, ""
        if text:
            self._say(text)

    def _say(self, text: str, style: str | None = None) -> None:
        """A line above the bar; in a file or a pipe with the time, as lines of a log have it."""
        self._show_evaluation()
        is_terminal = self.console.is_terminal
        if not is_terminal:
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            text = f"{now}  {text}"
        self._bar.console.print(text, style=style, highlight=False, soft_wrap=not is_terminal)


def _for_so_long(seconds: int) -> str:
    """The time that a run has waited, in words; empty below a minute."""
    minutes = seconds // 60
    if minutes == 0:
        return ""
    return f" (for {minutes} min)"
