"""Commands for simulated fleets. The coordinator starts them too."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from covey.agent.cli.options import LearnerOption, ScenarioFile, quiet_links
from covey.shared.cli import Allow, BrokerAddresses, DataRoot, Json, broker_option, with_connection
from covey.shared.mqtt.broker_url import DEFAULT_BROKER
from covey.shared.mqtt.credentials import FLEET

BROKERS_OF_A_FLEET = broker_option(
    DEFAULT_BROKER,
    "; repeat it for several independent brokers (shards), and each agent lives on one of them",
)


@with_connection(BROKERS_OF_A_FLEET, several=True)
def fleet(
    scenario: ScenarioFile,
    *,
    run_dir: Annotated[
        Path, typer.Option(help="folder for the agents' state and partition.npz")
    ] = Path(),
    more: Annotated[
        bool,
        typer.Option(
            "--more",
            help="read names of scenario files from standard input, one a line: the agents of each replace those before; --run-dir is its folder",
        ),
    ] = False,
    data_root: DataRoot = None,
    connection: BrokerAddresses,
    allow: Allow = None,
    learner: LearnerOption = None,
    as_json: Json = False,
) -> None:
    """Run the simulated agents of a scenario. Ends on SIGTERM and with the process that started it."""
    from covey.agent.device.display import print_json, show_fleet
    from covey.agent.fleet.fleet import host
    from covey.agent.learner_choice import learner_name
    from covey.shared.own_code.consent import AllowedCode

    urls = connection.urls(FLEET)
    allowed = AllowedCode.parse(allow)
    quiet_links()
    observer = print_json if as_json else show_fleet
    trains = learner_name(learner)
    agents = host(
        scenario, urls, run_dir, data_root, observer, allowed=allowed, more=more, learner=trains
    )
    asyncio.run(agents)


def model(
    scenario: ScenarioFile,
    out: Annotated[
        Path, typer.Option(help="the .npz file to write, with the weights of each first model")
    ],
    allow: Allow = None,
) -> None:
    """Write the initial weights of a scenario, drawn from its seed."""
    from covey.agent.worker.start import write_start_of
    from covey.shared.own_code.consent import AllowedCode

    write_start_of(scenario, out, AllowedCode.parse(allow))
