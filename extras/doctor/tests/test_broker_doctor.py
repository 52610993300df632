"""`broker doctor` and brokers that are slow, full or unusual."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from covey.broker.programs.mosquitto import Mosquitto, check_last_save
from covey.broker.programs.options import BrokerOptions
from covey.extras.doctor.broker import Doctor, examine_disk, judged
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from tests import clock
from tests.kit.memory_broker import MemoryBroker, MemoryLink
from tests.processes import needs_mosquitto

URL = BrokerUrl.parse("mqtt://127.0.0.1")


class LateBroker(MemoryBroker):
    """Acknowledges a message before it delivers it, as some clusters do."""

    def route(self, topic: str, payload: bytes, retain: bool) -> None:
        if retain:
            self.retained.keep(topic, payload)
        asyncio.get_running_loop().call_later(0.5, super().route, topic, payload, False)


class Forgetless(MemoryBroker):
    """Keeps a retained message although an empty one follows."""

    def route(self, topic: str, payload: bytes, retain: bool) -> None:
        super().route(topic, payload, retain and payload != b"")


@pytest.mark.parametrize(("kind", "state"), [(LateBroker, "ok"), (Forgetless, "missing")])
@clock.virtual(within_s=60)
async def test_a_late_copy_of_the_empty_message_is_not_a_message_that_is_still_there(
    kind: type[MemoryBroker], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = kind()

    def link(_url: object, *, client_id: str, **_: Any) -> MemoryLink:
        return broker.link(client_id)

    monkeypatch.setattr("covey.extras.doctor.broker.MqttLink", link)
    doctor = Doctor(URL)
    assert (await doctor._check("retained", doctor._retain)).state == "ok"
    assert (await doctor._check("clearing", doctor._clear)).state == state


GB = 1 << 30


@pytest.mark.parametrize(
    ("free", "saved", "age_s", "state", "words"),
    [
        (GB, 1 << 20, 30.0, "ok", "1024 MiB free, 1 MiB saved, 30 s ago"),
        (GB, 0, None, "ok", "nothing saved yet"),
        (0, 1 << 20, 30.0, "missing", "make room, at least 66 MiB"),
        (GB, GB, 30.0, "missing", "make room, at least 1089 MiB"),
        (GB, 1 << 20, 600.0, "missing", "should save every 60 s"),
    ],
)
def test_the_doctor_misses_room_for_a_second_copy_of_the_retained_messages_and_a_recent_save(
    free: int, saved: int, age_s: float | None, state: str, words: str
) -> None:
    finding = judged(free, saved, age_s)
    assert finding.state == state
    assert words in f"{finding.seen}; {finding.means}"


def test_the_doctor_looks_at_the_disk_under_the_brokers_folder(tmp_path: Path) -> None:
    assert "nothing saved yet" in examine_disk(tmp_path / "retained").seen
    (tmp_path / "mosquitto.db").write_bytes(bytes(3 << 20))
    assert "3 MiB saved, 0 s ago" in examine_disk(tmp_path).seen


def test_a_broker_whose_last_save_failed_does_not_start_without_a_word(tmp_path: Path) -> None:
    data = tmp_path / "retained"
    data.mkdir()
    check_last_save(data)
    (data / "mosquitto.db").write_bytes(b"two minutes old")
    (data / "mosquitto.db.new").touch()
    with pytest.raises(UserError, match="the last save of the retained messages failed") as caught:
        check_last_save(data)
    assert f"remove {data}/mosquitto.db.new" in str(caught.value)
    assert "coordinator promote" in str(caught.value)
    (data / "mosquitto.db.new").write_bytes(b"a power cut in mid-save")
    check_last_save(data)


@pytest.mark.processes
@pytest.mark.broker
@needs_mosquitto
async def test_a_save_that_fails_is_in_the_brokers_log_and_the_next_start_is_refused(
    tmp_path: Path,
) -> None:
    data = tmp_path / "retained"
    (data / "mosquitto.db.new").mkdir(parents=True)  # no file can be opened for writing there
    said: list[str] = []
    async with Mosquitto(BrokerOptions(data=data)) as broker:
        broker.report = said.append
        broker._process.send_signal(signal.SIGUSR1)  # save now
        async with asyncio.timeout(60):
            while not said:
                await asyncio.sleep(0.05)
                broker.report_messages()
    assert set(said) == {"mosquitto: Error: Is a directory."}
    (data / "mosquitto.db.new").rmdir()
    (data / "mosquitto.db.new").touch()
    with pytest.raises(UserError, match="the last save"):
        async with Mosquitto(BrokerOptions(data=data)):
            pass
