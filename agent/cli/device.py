"""Commands of a device that belongs to a fleet: start the agent, install it, limit it, measure it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.agent.cli.options import (
    DEFAULT_FEDERATION,
    AgentId,
    Data,
    Device,
    Label,
    LearnerOption,
    ModelOptions,
    PolicyOptions,
    PoolOptions,
    StateFolder,
    Threads,
    agent_id,
    default_name,
    default_threads,
    quiet_links,
    resolve_data,
    state_folder,
)
from covey.shared import extras
from covey.shared.cli import (
    BROKERS,
    Allow,
    BrokerAddresses,
    Json,
    check_name,
    command_of,
    with_connection,
    with_options,
)
from covey.shared.errors import UserError
from covey.shared.programs.child import python, stop_signals
from covey.shared.storage import json_text

if TYPE_CHECKING:
    from covey.agent.device.identity import Identity
    from covey.agent.device.notices import DeviceObserver
    from covey.agent.policy import OwnersRules, Policy
    from covey.extras.in_use.keeper import KeepOptions
    from covey.shared.mqtt.broker_url import BrokerUrl

SECURE = "secure"  # the folder of secure sums in the state of an agent


@with_connection(BROKERS)
@with_options
def start(
    data: Data,
    *,
    name: AgentId = None,
    federation: Annotated[
        str, typer.Option(help="the federation to join", envvar="COVEY_FEDERATION")
    ] = DEFAULT_FEDERATION,
    also: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<name|file>", help="another one: its name or credentials; repeatable"
        ),
    ] = None,
    label: Label = None,
    state: StateFolder = None,
    keep_warm: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="seconds after which a training process without work ends",
            envvar="COVEY_KEEP_WARM",
        ),
    ] = 60.0,
    connection: BrokerAddresses,
    allow: Allow = None,
    policy: PolicyOptions,
    device: Device = None,
    threads: Threads = None,
    learner: LearnerOption = None,
    models: ModelOptions,
    as_json: Json = False,
) -> None:
    """Stay connected to a broker, and train when the coordinator asks for it.

    It runs until SIGTERM, Ctrl-C or a closed terminal. SIGUSR1 prints what happened so far.
    """
    from covey.agent.device.display import DeviceDisplay, print_json, time_of_day
    from covey.agent.device.identity import Identity
    from covey.agent.device.notices import Started
    from covey.agent.learner_choice import learner_name
    from covey.agent.policy import OwnersRules
    from covey.shared.own_code.consent import AllowedCode, framework_of
    from covey.shared.wire.jobs import DeviceData

    agent = agent_id(name, federation, connection)
    check_name("--id", agent)
    check_name("--federation", federation)
    urls = connection.urls(agent)
    trains = learner_name(learner)
    source = DeviceData(data=resolve_data(data, trains), label=label)
    effective = policy.effective(device)
    allowed = AllowedCode.parse(allow)
    if framework_of(trains):
        allowed.check_model(trains, "--learner")
    rules = OwnersRules(effective, allowed, trains)
    keep = models.keep()
    if keep is not None:
        keep = replace(keep, data=str(Path(source.data).absolute()))
    if keep is not None and framework_of(trains) == "flower":
        raise UserError(
            "--model-dir: a client of Flower gives no outputs to predict with; remove the option"
        )
    folder = state_folder(state, agent, federation)
    places: list[tuple[Identity, Sequence[BrokerUrl]]] = [
        (Identity(agent, federation, source, folder), urls)
    ]
    for text in also or []:
        other, own, where = _other(text, agent, urls)
        folder = state_folder(None if state is None else state / f"@{own}", other, own)
        places.append((Identity(other, own, source, folder), where))
        if Path(text).is_file():
            _take_entry(folder / SECURE, Path(text))
    _check_places([identity for identity, _ in places], effective, state)
    for file in connection.credentials:
        _take_entry(places[0][0].state / SECURE, file)
    quiet_links()
    memberships: list[Membership] = []
    for identity, where in places:
        of_one = len(places) == 1
        kept = keep  # the first federation has the folder itself, each other one a folder in it
        if keep is not None and memberships:
            kept = replace(keep, folder=keep.folder / f"@{identity.federation}")
        stamp = time_of_day if of_one else partial(_stamp, identity.federation)
        observer = print_json if as_json else DeviceDisplay(stamp)
        observer(Started(identity.agent, identity.federation, ", ".join(map(str, where)), data))
        memberships.append(Membership(identity, where, observer, kept))
    with contextlib.suppress(KeyboardInterrupt):
        pool = PoolOptions(keep_warm, threads or default_threads())
        asyncio.run(run_agents(memberships, pool, rules))


@dataclass(frozen=True)
class Membership:
    """An agent of this program, in one federation."""

    identity: Identity
    urls: Sequence[BrokerUrl]
    observer: DeviceObserver
    keep: KeepOptions | None  # None: it keeps no models for its own use


def _stamp(federation: str) -> str:
    from covey.agent.device.display import time_of_day

    return f"{time_of_day()}{federation}: "


def _other(
    text: str, agent: str, urls: Sequence[BrokerUrl]
) -> tuple[str, str, Sequence[BrokerUrl]]:
    """Id, federation and brokers of another federation, by its name or the credentials for it."""
    if not Path(text).is_file():
        check_name("--also", text)
        return agent, text, urls
    from covey.shared.mqtt.credentials import check_agent, read

    own = read(Path(text))
    check_agent(Path(text), own.id)
    if not own.federation:
        raise UserError(
            f"--also {text}: these credentials are for any federation; give the name of one instead"
        )
    return own.id, own.federation, [own.url]


def _check_places(identities: Sequence[Identity], policy: Policy, state: Path | None) -> None:
    """Raise UserError for federations that one device cannot be in, or that its owner's policy does not allow."""
    federations = [identity.federation for identity in identities]
    if len(set(federations)) < len(federations):
        raise UserError(f"--also: {', '.join(federations)}; expected each federation once")
    if policy.max_federations is not None and len(federations) > policy.max_federations:
        raise UserError(
            f"policy of this device: max_federations: {len(federations)} federations, at most {policy.max_federations} are "
            "allowed"
        )
    bounds = (policy.privacy.local_epsilon, policy.privacy.secure_epsilon)
    is_split = len(federations) > 1 or (state is None and federations != [DEFAULT_FEDERATION])
    if is_split and any(bound is not None for bound in bounds):
        raise UserError(
            "policy of this device: privacy bounds what the device spends in all runs, and the account lies in the state "
            "folder of one federation; omit --also, and give the same --state for each federation of this device"
        )


def _take_entry(folder: Path, file: Path) -> None:
    """Keep the entry for secure sums, if the credentials have one. Raises UserError for the entry of another key: the other
    devices would refuse all that this one signs."""
    from covey.shared.mqtt.credentials import read

    own = read(file)
    if own.entry:
        SecureFolder = extras.part("secure", "secure_folder").SecureFolder

        if not SecureFolder.is_of(folder, own.entry):
            raise UserError(
                f"{file}: its entry for secure sums is for a signing key that is not in {folder}: this disk is new, or another device's. "
                f"Enroll the device again: `broker expel {own.id}` on the broker's machine, `agent lab keys --id {own.id}` here, "
                f"then `broker enroll {own.id} --key KEY`"
            )
        SecureFolder.take_entry(folder, own.entry, own.fleet, own.expelled)


def keys(
    name: AgentId = None,
    state: StateFolder = None,
    federation: Annotated[
        str, typer.Option(help="the federation of the key", envvar="COVEY_FEDERATION")
    ] = DEFAULT_FEDERATION,
) -> None:
    """Print this device's signing key for secure sums, as `broker enroll --key` expects it. The secret stays here."""
    SecureFolder = extras.part("secure", "secure_folder").SecureFolder

    agent = name or default_name()
    check_name("--id", agent)
    print(SecureFolder.signing_key(state_folder(state, agent, federation) / SECURE).hex())


async def run_agents(
    memberships: Sequence[Membership], workers: PoolOptions, rules: OwnersRules
) -> None:
    """Live in all federations. Their jobs go to one worker, so that they wait their turn."""
    from covey.agent.device.service import Agent
    from covey.agent.worker.pool import Pool, check_device
    from covey.shared.mqtt.credentials import first_end
    from covey.shared.mqtt.mqtt_link import MqttLink

    loop = asyncio.get_running_loop()
    # a second one exchanges the messages of a secure sum while the first one trains
    has_keys = len(memberships) == 1 and (memberships[0].identity.state / SECURE).is_dir()
    pool = Pool(1 + has_keys, keep_warm_s=workers.keep_warm_s, threads=workers.threads)
    agents = [
        Agent(
            one.identity,
            pool,
            observer=one.observer,
            rules=rules,
            keep=one.keep,
            certificate=first_end(one.urls),
        )
        for one in memberships
    ]

    def show_stories() -> None:
        for agent in agents:
            agent.show_story()

    def stop() -> None:
        for agent in agents:
            agent.stop()

    if hasattr(signal, "SIGUSR1"):
        loop.add_signal_handler(signal.SIGUSR1, show_stories)
    async with Pool(1) as short_lived:  # its worker ends before the agent waits for orders
        await check_device(short_lived, rules.policy.device or "cpu", rules)
    for number in stop_signals():
        loop.add_signal_handler(number, stop)

    async def live(agent: Agent, urls: Sequence[BrokerUrl]) -> None:
        fixed_id = agent.fixed_client_id
        own = MqttLink(urls, client_id=agent.client_id, fixed_id=fixed_id, will=agent.will)
        async with own as link:
            try:
                await agent.run(link)
            except Exception:
                agent.show_story()
                raise

    async with pool, asyncio.TaskGroup() as group:
        for agent, one in zip(agents, memberships, strict=True):
            group.create_task(live(agent, one.urls))


def service(
    context: typer.Context,
    user: Annotated[
        str | None, typer.Option(help="the user that the service runs as  [default: you]")
    ] = None,
) -> None:
    """Print a systemd unit that runs `agent start` whenever this machine is up. Takes the options of `agent start`.

    `agent lab service --data ./local --credentials pi-7.pem | sudo tee /etc/systemd/system/covey-agent.service`
    """
    import getpass

    from covey.agent.device.systemd import render

    parsed = command_of("start", start).make_context("agent start", context.args)
    given = parsed.params
    connection = BrokerAddresses(tuple(given["broker"] or ()), tuple(given["credentials"] or ()))
    agent = agent_id(given["name"], given["federation"], connection)
    check_name("--id", agent)
    check_name("--federation", given["federation"])
    command = [*python("covey.agent.cli", "start"), *_unit_options(parsed)]
    print(render(agent, command, user or getpass.getuser()), end="")


def _unit_options(parsed: typer.Context) -> list[str]:
    """The options from the command line and the environment, for a unit file: they hold in any working directory.

    Raises UserError for a password, because any user of this machine can read a unit file.
    """
    words: list[str] = []
    for option in parsed.command.params:
        name = option.name or ""
        value = parsed.params.get(name)
        source = parsed.get_parameter_source(name)
        is_given = source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")
        if is_given and value is not None:
            words += _words_of(name, option.opts[0], value)
    return words


def _words_of(name: str, flag: str, value: Any) -> list[str]:
    """One option with its value, as arguments of a command."""
    if name == "broker" and any(_has_password(address) for address in value):
        raise UserError(
            "--broker contains a password, and any user can read a unit file; use --credentials instead"
        )
    if name == "data":
        value = resolve_data(value)
    if name == "also":
        value = [str(Path(one).absolute()) if Path(one).is_file() else one for one in value]
    match value:
        case True:
            return [flag]
        case False:
            return []
        case Path():
            return [flag, str(value.absolute())]
        case list() | tuple():  # an option that may be repeated
            words: list[str] = []
            for one in value:
                words += [flag, str(one.absolute() if isinstance(one, Path) else one)]
            return words
        case _:
            return [flag, str(value)]


def _has_password(broker: str) -> bool:
    from covey.shared.mqtt.broker_url import BrokerUrl

    return BrokerUrl.parse(broker).password is not None


@with_options
def show_policy(*, policy: PolicyOptions, as_json: Json = False) -> None:
    """Print the policy that `agent start` enforces with the same options: what a coordinator may ask of this device."""
    effective = policy.effective()
    if as_json:
        print(effective.model_dump_json())
        return
    values = effective.model_dump(mode="json")
    for key, field in type(effective).model_fields.items():
        print(f"{key}: {json_text.dumps(values[key])}  # {field.description}")
