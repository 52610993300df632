"""Mistakes that users make, and the message that each must get: what happened, what was expected, what to do.

    python -m tests.mistakes            # print benchmarks/results/mistakes.md
    python -m tests.mistakes --write    # write it

`tests/test_mistakes.py` makes every one of them and compares the messages with the page.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import socket
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer
from typer.testing import CliRunner

from covey.agent.cli.program import app as agent
from covey.broker.cli.program import app as broker
from covey.broker.folder import BrokerFolder
from covey.coordinator.cli.program import app as coordinator

PAGE = Path(__file__).parents[1] / "benchmarks" / "results" / "mistakes.md"
PROGRAMS: dict[str, typer.Typer] = {"agent": agent, "broker": broker, "coordinator": coordinator}


@dataclass(frozen=True)
class Mistake:
    """One mistake. The three parts of its message are words that the message must hold."""

    what: str  # the mistake, in a few words
    command: str  # as typed, in the folder that `workplace` makes; {port} is a port where nobody speaks MQTT
    happened: str
    expected: str
    next_step: str
    exit_code: int = 2


GOOD = """\
name: try
task: {features: [1, 8, 8], classes: 10, scale: 0.0625, model: mlp}
strategy: fedavg
rounds: {count: 2}
fleet: {agents: 4, data: digits, partition: iid}
"""
DEVICES = """\
name: try
task: {features: [3], classes: 2, columns: [a, b, c], model: linear}
strategy: fedavg
rounds: {count: 2, start_agents: 2}
"""
FILES: dict[str, str | bytes] = {
    "scenario.yaml": GOOD,
    "devices.yaml": DEVICES,
    "compare.yaml": GOOD + "compare: {methods: [{name: fedavg}, {name: fedclust}], seeds: [1]}\n",
    "cut.yaml": "name: [x\n",
    "misspelt.yaml": GOOD.replace("strategy:", "straegy:"),
    "word.yaml": GOOD.replace("count: 2", "count: ten"),
    "method.yaml": GOOD.replace("fedavg", "fedavgg"),
    "model.yaml": GOOD.replace("model: mlp", "model: resnet99"),
    "range.yaml": GOOD.replace("count: 2", "count: 2, participation: 2"),
    "dated.yaml": GOOD.replace("name: try", "name: 2026-01-01"),
    "many.yaml": GOOD.replace("agents: 4", "agents: 99999999999"),
    "no-task.yaml": "\n".join(line for line in GOOD.splitlines() if not line.startswith("task")),
    "good.csv": "a,b,c,label\n1,2,3,0\n4,5,6,1\n",
    "words.csv": "a,b,c,label\n1,two,3,0\n4,,6,1\n",
    "foreign.csv": "a,b,d,label\n1,2,3,0\n4,5,6,1\n",
    "empty.csv": "",
    "header.csv": "a,b,c,label\n",
    "cut.parquet": "nonsense",
    "cut.npz": "nonsense",
    "notes/notes.txt": "nonsense",
    "latin.csv": "a,b,c,größe\n1,2,3,0\n4,5,6,1\n".encode("latin-1"),
    "commas.csv": "a;b;c;label\n1,5;2;3;0\n4;5;6;1\n",
    "german.csv": "when,x,label\n31.12.2025 13:45,1,0\n01.01.2026 13:45,2,1\n",
    "times.yaml": DEVICES.replace("[3]", "[5]").replace("[a, b, c]", "[when, x], times: [when]"),
    "north.yaml": DEVICES + "federation: north\n",
    "twice.csv": "id\npi-3\npi-4\npi-3\n",
    "columns.csv": "name,place\npi-3,roof\n",
}

MISTAKES = (
    # scenario files
    Mistake(
        "a scenario that is not there",
        "coordinator validate nothing.yaml",
        "'nothing.yaml' does not exist",
        "{scenario}",
        "coordinator validate -h",
    ),
    Mistake(
        "a bracket that is never closed",
        "coordinator validate cut.yaml",
        "cut.yaml",
        "expected ',' or ']'",
        "line 2",
    ),
    Mistake(
        "a misspelt key",
        "coordinator validate misspelt.yaml",
        "straegy: unknown key, line 3",
        "strategy: missing; this key is required",
        "did you mean strategy?",
    ),
    Mistake(
        "a word for a number",
        "coordinator validate word.yaml",
        "rounds.count: 'ten', line 4",
        "should be a valid integer",
        "word.yaml",
    ),
    Mistake(
        "a misspelt method",
        "coordinator validate method.yaml",
        "strategy.name: 'fedavgg', line 3",
        "fedavg?",
        "did you mean",
    ),
    Mistake(
        "a model that does not exist",
        "coordinator validate model.yaml",
        "task.model 'resnet99' is unknown",
        "expected lenet5, mlp, linear",
        "did you mean resnet9?",
    ),
    Mistake(
        "a share above one",
        "coordinator validate range.yaml",
        "rounds.participation: 2, line 4",
        "should be less than or equal to 1",
        "range.yaml",
    ),
    Mistake(
        "a scenario without a task",
        "coordinator validate no-task.yaml",
        "task: missing",
        "this key is required",
        "The data, the classes and the model.",
    ),
    Mistake(
        "an override of a key that does not exist",
        "coordinator validate scenario.yaml --set strategy.nam=x",
        "strategy.nam: unknown key",
        "override strategy.nam=x",
        "did you mean name?",
    ),
    Mistake(
        "an override without a value",
        "coordinator validate scenario.yaml --set rounds",
        "override 'rounds'",
        "expected key=value",
        "such as rounds.count=5",
    ),
    Mistake(
        "a date for a name",
        "coordinator validate dated.yaml",
        "name: 2026-01-01, line 1",
        "should be a valid string",
        "put it in quotes",
    ),
    Mistake(
        "more simulated agents than a machine holds",
        "coordinator validate many.yaml",
        "fleet.agents: 99999999999, line 5",
        "should be less than or equal to 1000000",
        "many.yaml",
    ),
    Mistake(
        "a number for a section",
        "coordinator validate scenario.yaml --set rounds=5",
        "rounds: 5, override rounds=5",
        "should be a section with keys of its own",
        "scenario.yaml",
    ),
    Mistake(
        "more training processes than a machine holds",
        "coordinator validate scenario.yaml --set fleet.workers=1000000",
        "fleet.workers: 1000000, override fleet.workers=1000000",
        "should be less than or equal to 1024",
        "scenario.yaml",
    ),
    # runs and comparisons
    Mistake(
        "two options that contradict each other",
        "coordinator run scenario.yaml --in-process --broker mqtt://127.0.0.1:1",
        "--in-process needs no broker",
        "omit --broker",
        "or omit --in-process",
    ),
    Mistake(
        "a folder that holds other files",
        "coordinator run scenario.yaml --in-process --out notes",
        "it contains files that do not belong to a run",
        "notes",
        "choose another with --out",
    ),
    Mistake(
        "nothing to resume",
        "coordinator run scenario.yaml --in-process --resume --out none",
        "no checkpoint is here",
        "none/checkpoint",
        "start the run without --resume",
    ),
    Mistake(
        "a start from a run that is not finished",
        "coordinator run scenario.yaml --in-process --from notes --out more",
        "--from notes",
        "expected the folder of a finished run",
        "finish that run with --resume first",
    ),
    Mistake(
        "a cell that does not exist",
        "coordinator compare compare.yaml --in-process --cells fedavgg",
        "--cells fedavgg: there is no such cell",
        "expected some of",
        "fedavg/1, fedclust/1",
    ),
    Mistake(
        "a comparison without methods",
        "coordinator compare scenario.yaml",
        "has no section compare",
        "add one",
        "compare: {methods: [{name: fedavg}, {name: fedclust}], seeds: [1, 2, 3]}",
    ),
    Mistake(
        "an executor that is no cluster",
        "coordinator compare scenario.yaml --executor tcp://127.0.0.1:8786",
        "--executor tcp://127.0.0.1:8786",
        "expected dask://host:port",
        "of a Dask scheduler",
    ),
    Mistake(
        "a report of a folder without a run",
        "coordinator report notes",
        "notes: no result.json is here",
        "has the run been finished?",
        "result.json",
    ),
    Mistake(
        "the status of a folder without a run",
        "coordinator status none",
        "none: it has no roster",
        "is it a run's folder?",
        "roster",
    ),
    Mistake(
        "a model published from a folder without a run",
        "coordinator promote notes",
        "the run is not finished, or this folder does not belong to a run",
        "finish it with --resume",
        "or choose RUN@best",
    ),
    Mistake(
        "no cell between the commas",
        "coordinator compare compare.yaml --in-process --cells ,",
        "--cells: no cell is named",
        "expected some of fedavg/1, fedclust/1",
        "or omit --cells",
    ),
    Mistake(
        "a folder for an earlier comparison",
        "coordinator compare compare.yaml --in-process --known notes",
        "--known notes: Is a directory",
        "expected a compare.json",
        "that `coordinator compare` wrote",
    ),
    Mistake(
        "seconds from `coordinator lab plan`",
        "coordinator lab plan scenario.yaml --bench notes",
        "--bench is no longer an option",
        "no longer an option",
        "`agent lab bench` prints the seconds",
    ),
    Mistake(
        "a space in an agent's id",
        "coordinator lab release 'pi 1' --broker mqtt://127.0.0.1:1",
        "AGENT 'pi 1'",
        "invalid name",
        "use 1-64 letters, digits, '.', '_' or '-'",
    ),
    Mistake(
        "a slash in a federation",
        "coordinator lab pause --federation a/b --broker mqtt://127.0.0.1:1",
        "--federation 'a/b'",
        "invalid name",
        "use 1-64 letters, digits, '.', '_' or '-'",
    ),
    # brokers
    Mistake(
        "a web address for a broker",
        "coordinator lab pause --broker http://127.0.0.1",
        "begins with 'http'",
        "expected mqtt[s]://[user:password@]host[:port]",
        "for example mqtt://localhost:1883",
    ),
    Mistake(
        "a port that does not exist",
        "agent start --data good.csv --broker mqtt://127.0.0.1:99999",
        "the port is not a number from 1 to 65535",
        "expected mqtt[s]://[user:password@]host[:port]",
        "for example mqtt://localhost:1883",
    ),
    Mistake(
        "a broker that is not running",
        "broker doctor mqtt://127.0.0.1:1",
        "Errno 111",
        "connection",
        "check host, port, user,",
        exit_code=1,
    ),
    Mistake(
        "TLS to a port without TLS",
        "broker doctor mqtts://127.0.0.1:{port}",
        "TLS",
        "connection",
        "check host, port, user,",
        exit_code=1,
    ),
    Mistake(
        "a certificate authority as an option",
        "agent start --data good.csv --broker mqtts://127.0.0.1:1 --ca none.pem",
        "--ca is no longer an option",
        "write a credentials file",
        "name it with --credentials",
    ),
    Mistake(
        "credentials that are not there",
        "agent start --data good.csv --credentials none.json",
        "'none.json'",
        "--credentials",
        "agent start -h",
    ),
    Mistake(
        "a broker's port out of range",
        "broker up --port 80000",
        "'--port'",
        "should be less than or equal to 65535",
        "broker up -h",
    ),
    Mistake(
        "a device enrolled before the broker has a folder",
        "broker enroll pi-1",
        "broker-home: not a broker's folder",
        "create one with",
        "`broker init --home broker-home --host NAME`",
    ),
    Mistake(
        "another machine's address to listen on",
        "broker up --host 192.0.2.1 --port 0",
        "Cannot assign requested address",
        "expected an address of this machine",
        "choose another with --host (0.0.0.0: all)",
    ),
    Mistake(
        "a packet longer than MQTT allows",
        "broker up --port 0 --max-packet 999999999999",
        "--max-packet 999999999999",
        "expected at most 268435455 bytes",
        "wire.part_bytes of the scenario plus 16384 is enough",
    ),
    Mistake(
        "a service whose agent has a space in its id",
        "agent lab service --data good.csv --id 'pi 1'",
        "--id 'pi 1'",
        "invalid name",
        "use 1-64 letters, digits, '.', '_' or '-'",
    ),
    # data on a device
    Mistake(
        "data that is not there",
        "agent start --data missing.csv",
        "--data missing.csv: no such file or folder",
        "expected a table",
        "module:function",
    ),
    Mistake(
        "an option that does not exist",
        "agent start --data good.csv --name pi-1",
        "No such option: --name",
        "Possible options",
        "agent start -h",
    ),
    Mistake(
        "words among numbers, and empty cells",
        "agent check --scenario devices.yaml --data words.csv",
        "row 1 (line 2), column 'b': 'two' is not a number",
        "row 2 (line 3), column 'b': the cell is empty",
        "list a column of words in task.categories",
    ),
    Mistake(
        "a table without one of the task's columns",
        "agent check --scenario devices.yaml --data foreign.csv",
        "no column 'c', which the task names",
        "the table has 'a', 'b', 'd', 'label'",
        "rename or add columns",
    ),
    Mistake(
        "an empty file",
        "agent check --scenario devices.yaml --data empty.csv",
        "empty.csv: empty",
        "expected a first line with column names",
        "one line per sample",
    ),
    Mistake(
        "a table of a header alone",
        "agent check --scenario devices.yaml --data header.csv",
        "no samples below the header",
        "one line per sample",
        "add",
    ),
    Mistake(
        "a Parquet file that was cut short",
        "agent check --scenario devices.yaml --data cut.parquet",
        "not a Parquet file, or cut short",
        "Parquet magic bytes not found",
        "copy it again",
    ),
    Mistake(
        "an .npz file that was cut short",
        "agent check --scenario devices.yaml --data cut.npz",
        "not an npz file, or cut short",
        "expected an npz file of plain arrays, with x and y",
        "cut.npz",
    ),
    Mistake(
        "a folder of other files",
        "agent check --scenario devices.yaml --data notes",
        "found notes.txt",
        "expected a table (.csv, .tsv, .parquet)",
        "a folder per class of images",
    ),
    Mistake(
        "a data source that is not installed",
        "agent check --scenario devices.yaml --data my_package:load",
        "No module named 'my_package'",
        "data source 'my_package:load'",
        "install the module on this device",
    ),
    Mistake(
        "predictions before there is a model",
        "agent predict --data good.csv --model-dir none",
        "no model is in use yet",
        "start the agent with --model-dir none",
        "wait for a model",
    ),
    Mistake(
        "a scenario for data that is not there",
        "coordinator init --from missing.csv",
        "missing.csv: no such file or folder",
        "expected a table (.csv, .tsv, .parquet)",
        "a folder per class of images",
    ),
    # data as people have it
    Mistake(
        "a table in another encoding",
        "agent check --scenario devices.yaml --data latin.csv",
        "latin.csv: not UTF-8 text",
        "save the table as UTF-8",
        "name its encoding in task.read.encoding",
    ),
    Mistake(
        "decimal commas",
        "agent check --scenario devices.yaml --data commas.csv",
        "row 1 (line 2), column 'a': '1,5' is not a number",
        "write numbers with a decimal point, such as 0.5",
        "set task.read.decimal to ','",
    ),
    Mistake(
        "dates with dots",
        "agent check --scenario times.yaml --data german.csv",
        "row 1 (line 2), column 'when': '31.12.2025 13:45' is not a time",
        "write times as 2026-01-31 13:45",
        "name their form in task.read.dates",
    ),
    Mistake(
        "a label column that the table lacks",
        "agent check --scenario devices.yaml --data good.csv --label size",
        "no label column 'size'",
        "the columns are 'a', 'b', 'c', 'label'",
        "choose one of them with --label",
    ),
    Mistake(
        "a season of a column that is no time",
        "coordinator validate devices.yaml --set 'task.seasons=[a]'",
        "seasons: ['a'] are not among times",
        "add them there",
        "devices.yaml",
    ),
    Mistake(
        "the measure of a regression for classes",
        "coordinator validate devices.yaml --set task.measure=rmse",
        "measure is rmse",
        "the task has accuracy, f1, recall, auc, loss",
        "choose one of them",
    ),
    # devices and their credentials
    Mistake(
        "credentials of another federation",
        "agent start --data good.csv --credentials home/users/pi-1.pem --federation south",
        "these credentials are for federation 'default'",
        "--federation (or COVEY_FEDERATION) is 'south'",
        "credentials from `broker enroll --federation south`",
    ),
    Mistake(
        "a run of another federation than its credentials",
        "coordinator run north.yaml --credentials home/users/second.pem --out r1",
        "these credentials are for federation 'south'",
        "where the broker would deliver nothing",
        "credentials from `broker enroll --federation north`",
    ),
    Mistake(
        "a run with the credentials of a device",
        "coordinator run devices.yaml --credentials home/users/pi-1.pem --out r2",
        "these credentials belong to pi-1, with the role agent",
        "expected a file with the role coordinator",
        "from `broker init` or `broker enroll --role`",
    ),
    Mistake(
        "a device with the coordinator's credentials",
        "agent start --data good.csv --credentials home/users/coordinator.pem",
        "these credentials belong to the coordinator",
        "expected those of an agent",
        "from `broker enroll`",
    ),
    Mistake(
        "the credentials of another device",
        "agent start --data good.csv --credentials home/users/pi-1.pem --id pi-2",
        "these credentials belong to pi-1, not to pi-2",
        "omit --id",
        "give the file of pi-2",
    ),
    Mistake(
        "a table for credentials",
        "agent start --data good.csv --credentials good.csv",
        "good.csv: this is not a credentials file",
        "expected one that `broker enroll` wrote",
        "ask for it again",
    ),
    Mistake(
        "one federation twice",
        "agent start --data good.csv --also default",
        "--also: default, default",
        "expected each federation once",
        "--also",
    ),
    Mistake(
        "a code that was cut",
        "agent join BJxyz",
        "this is not a whole code",
        "copy the line that `broker enroll --join` printed",
        "from `agent join` to its end",
    ),
    Mistake(
        "a misspelt limit",
        "agent start --data good.csv --limit max_epoch=3",
        "--limit: max_epoch: unknown key",
        "did you mean",
        "max_epochs?",
    ),
    Mistake(
        "a condition that no device has",
        "agent start --data good.csv --only-when charged",
        "unknown condition 'charged'",
        "expected charging, idle",
        "hours of the day such as 22:00-06:00",
    ),
    Mistake(
        "a sensor without a topic",
        "agent serve --model-dir none --discovery homeassistant",
        "--discovery announces the sensor of a topic",
        "name it",
        "with --topic",
    ),
    Mistake(
        "predictions without a model",
        "agent predict --data good.csv",
        "no model",
        "name the agent's folder with --model-dir",
        "a file with --model",
    ),
    Mistake(
        "predictions into the folder that is watched",
        "agent predict --watch notes --out notes --model-dir none",
        "--watch notes",
        "expected a folder",
        "another one than --out",
    ),
    # operations
    Mistake(
        "a device that is enrolled twice",
        "broker enroll pi-1 --home home",
        "pi-1 is enrolled already",
        "replace them with `broker lab rotate pi-1`",
        "revoke them with `broker expel pi-1`",
    ),
    Mistake(
        "a device twice in a table",
        "broker enroll --csv twice.csv --home home",
        "twice.csv: pi-3 twice",
        "expected each id",
        "once in a federation",
    ),
    Mistake(
        "a table of devices without their ids",
        "broker enroll --csv columns.csv --home home",
        "found name, place",
        "expected a table with a column `id`",
        "`federation` and `key`",
    ),
    Mistake(
        "a space in the federation of a device",
        "broker enroll pi-5 --federation 'a b' --home home",
        "--federation 'a b'",
        "use letters, digits, '.', '_' and '-', at most 64",
        "or + for any",
    ),
    Mistake(
        "half of a signing key",
        "broker enroll pi-5 --key 12 --home home",
        "--key",
        "expected one user of one federation",
        "the 64 digits that `agent lab keys` prints on its device",
    ),
    Mistake(
        "a device that was never enrolled",
        "broker expel pi-9 --home home",
        "pi-9: no such agent",
        "enrolled are",
        "pi-1, second",
    ),
    Mistake(
        "the coordinator for a device",
        "broker expel coordinator --home home",
        "coordinator: no such agent",
        "replace the coordinator's credentials",
        "`broker lab rotate coordinator`",
    ),
    Mistake(
        "a second broker in the folder of the first",
        "broker init --home home --host localhost",
        "home is not empty",
        "expected a new folder",
        "nothing was changed",
    ),
    Mistake(
        "users of a folder and of the command line",
        "broker up --home home --user me --password x",
        "--home contains users and certificates",
        "omit the options",
        "for users and TLS",
    ),
    Mistake(
        "a user without a password",
        "broker up --user me",
        "--user and --password belong together",
        "give both",
        "or neither",
    ),
    Mistake(
        "a folder of data for a broker that keeps none",
        "broker up --embedded --data kept",
        "the embedded broker keeps nothing on disk",
        "omit it",
        "or install mosquitto",
    ),
    Mistake(
        "a round that is no number",
        "coordinator promote notes@last",
        "notes@last",
        "expected RUN@ROUND or RUN@best",
        "such as notes@12",
    ),
    Mistake(
        "a list of runs that are not there",
        "coordinator ls nowhere",
        "nowhere: no such folder",
        "expected one that has the folders",
        "of runs",
    ),
    Mistake(
        "the audit log of a folder without a run",
        "coordinator lab audit notes",
        "notes/audit.jsonl: there is no audit log",
        "give the folder",
        "of a run",
    ),
)


@contextmanager
def workplace() -> Iterator[int]:
    """A folder with all files that the commands name, as the working folder; yields {port}."""
    with tempfile.TemporaryDirectory() as folder, _deaf_port() as port, chdir(folder):
        for name, content in FILES.items():
            file = Path(name)
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        home = BrokerFolder.create(Path("home"), ["localhost"], 8883)
        home.enroll("pi-1")
        home.enroll("second", "coordinator", "south")
        yield port


@contextmanager
def _deaf_port() -> Iterator[int]:
    """A port that takes connections and never answers, as one without TLS does to those that want it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def message(mistake: Mistake, port: int) -> str:
    """The output of the command, as its user reads it. Raises AssertionError for a traceback or another exit code."""
    program, *arguments = shlex.split(mistake.command.replace("{port}", str(port)))
    result = CliRunner().invoke(PROGRAMS[program], arguments, env={"COLUMNS": "80"})
    unexpected = result.exception
    if not isinstance(unexpected, SystemExit):
        assert unexpected is None, f"{mistake.command}: {unexpected!r}"
    assert result.exit_code == mistake.exit_code, (mistake.command, result.output)
    assert "Traceback" not in result.output
    return result.output


def page() -> str:
    """benchmarks/results/mistakes.md: a table with the message of each mistake."""
    lines = [
        "# Mistakes and their messages",
        "",
        "A message states what happened, what was expected and what to do. The commands below were typed in a folder with the files that they",
        "name; a test types each of them again and compares its message with the words in this table.",
        "",
        "| mistake | command | what happened | what was expected | what to do |",
        "| :-- | :-- | :-- | :-- | :-- |",
    ]
    for one in MISTAKES:
        command = one.command.replace("{port}", "PORT")
        cells = [one.what, f"`{command}`", *map(_cell, (one.happened, one.expected, one.next_step))]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(words: str) -> str:
    """Words of a message in a cell of a table."""
    return re.sub(r"([|\[\]{}])", r"\\\1", words)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/mistakes.md")
    parser.add_argument("--messages", action="store_true", help="print the messages themselves")
    options = parser.parse_args()
    if options.messages:
        with workplace() as port:
            for mistake in MISTAKES:
                print(f"$ {mistake.command}{os.linesep}{message(mistake, port)}")
    elif options.write:
        PAGE.write_text(page())
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
