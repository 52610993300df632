"""Databases as Home Assistant keeps them, for tests and benchmarks: `python -m covey.extras.trial.tests.homes home-1.db home-2.db`."""

from __future__ import annotations

import math
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

# the tables and columns of its recorder that hold states, with its schema of 2023 and later
SCHEMA = """
CREATE TABLE states_meta (metadata_id INTEGER NOT NULL PRIMARY KEY, entity_id VARCHAR(255));
CREATE TABLE states (
  state_id INTEGER NOT NULL PRIMARY KEY, entity_id CHAR(0), state VARCHAR(255), attributes CHAR(0), event_id SMALLINT,
  last_changed CHAR(0), last_changed_ts FLOAT, last_reported_ts FLOAT, last_updated CHAR(0), last_updated_ts FLOAT,
  old_state_id INTEGER, attributes_id INTEGER, context_id CHAR(0), context_user_id CHAR(0), context_parent_id CHAR(0),
  origin_idx SMALLINT, context_id_bin BLOB, context_user_id_bin BLOB, context_parent_id_bin BLOB,
  metadata_id INTEGER REFERENCES states_meta (metadata_id)
);
CREATE INDEX ix_states_metadata_id_last_updated_ts ON states (metadata_id, last_updated_ts);
"""
ENTITIES = ("sensor.salon_temperature", "sensor.outdoor_temperature", "binary_sensor.salon_motion")
START = 1_759_276_800  # 1 October 2025
EVERY_S = 600
DAY = 24 * 6  # readings of each entity
QUERY = """SELECT datetime(600 * CAST(last_updated_ts / 600 AS INT), 'unixepoch') AS time,
  avg(state) FILTER (WHERE m.entity_id = 'sensor.salon_temperature') AS temperature,
  avg(state) FILTER (WHERE m.entity_id = 'sensor.outdoor_temperature') AS outdoors,
  max(state) FILTER (WHERE m.entity_id = 'binary_sensor.salon_motion') AS motion
FROM states JOIN states_meta AS m USING (metadata_id)
WHERE state NOT IN ('unavailable', 'unknown') GROUP BY 1 ORDER BY 1"""


def write_home(path: Path, seed: int, days: int = 14) -> None:
    """A home whose salon follows the weather by its walls, and the people in it; some readings are `unavailable`."""
    with closing(sqlite3.connect(path)) as base, base:
        base.executescript(SCHEMA)
        base.executemany("INSERT INTO states_meta VALUES (?, ?)", enumerate(ENTITIES, 1))
        rows = "INSERT INTO states (metadata_id, state, last_updated_ts) VALUES (?, ?, ?)"
        base.executemany(rows, _readings(seed, days * DAY))


def _readings(seed: int, count: int) -> Iterator[tuple[int, str, float]]:
    draws = np.random.default_rng(seed)
    walls = draws.uniform(0.02, 0.1)
    inside = 20.0
    for i in range(count):
        at = START + EVERY_S * i + draws.random()
        hour = i * EVERY_S / 3600 % 24
        outside = 9 + 5 * math.sin((hour - 9) / 24 * math.tau) + draws.normal()
        is_awake = draws.random() < (0.4 if 6 < hour < 23 else 0.02)
        heating = 21 if 6 < hour < 22 else 17
        inside += walls * (outside - inside) * 0.2 + 0.1 * (heating - inside) + 0.2 * is_awake
        shown = f"{inside + 0.1 * draws.normal():.2f}"
        states = (shown, f"{outside:.1f}", "on" if is_awake else "off")
        for entity, state in enumerate(states, 1):
            is_away = draws.random() < 0.01
            yield entity, "unavailable" if is_away else state, at + entity / 10


if __name__ == "__main__":
    for number, name in enumerate(sys.argv[1:]):
        write_home(Path(name), number, days=3)
