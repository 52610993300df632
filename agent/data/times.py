"""Points in time in the cells of a table, as the second of the week: what a model sees of them. Pure.

With the season, whole weeks since New Year are added: the position in the week is as before, and the sum has the position in
the year.
"""

from __future__ import annotations

import math
from datetime import UTC

import numpy as np
import numpy.typing as npt

from covey.agent.data.cells import BadCells, Cells, quoted
from covey.agent.data.table_columns import CellPlace
from covey.agent.data.table_rows import Block
from covey.agent.data.values import EPOCH, moment_of

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

BEGIN_S = 946_684_800.0  # 1 January 2000, in seconds since 1970
DAY_S = 86_400
WEEK_S = 7 * DAY_S
YEAR_S = 365.2425 * DAY_S


def seconds_of_week(
    place: CellPlace, block: Block, faults: BadCells, *, missing: bool, seasonal: bool = False
) -> Float32:
    """A block of a column of times, (n,): seconds since Monday, 0:00; NaN for missing cells.

    Exact to 1/16 s; with `seasonal`, which adds the weeks since New Year, to 2 s.
    """
    found: list[float] = []
    for index, cell in place.cells(block, faults, missing=missing):
        if cell is None:
            found.append(math.nan)
            continue
        second = second_of_week(cell, seasonal=seasonal)
        if second is None:
            advice = "write times as 2026-01-31 13:45 or as seconds since 1970, or name their form in task.read.dates"
            seen = f"{quoted(cell)} is not a time"
            faults.add(place.bad_cell(block, index, seen, "is not a time", advice))
            second = 0.0
        found.append(second)
    return np.array(found, np.float32)


def days_elapsed(place: CellPlace, block: Block, faults: BadCells, *, missing: bool) -> Float64:
    """A block of a column of times, (n,): days since 2000, by the clock as written; NaN for missing cells, and for those that are
    no times: `seconds_of_week` names them."""
    cells = [cell for _, cell in place.cells(block, faults, missing=missing)]
    days = (np.array(instants(cells)) - BEGIN_S) / DAY_S
    days[~np.isfinite(days)] = math.nan
    return days


def second_of_week(cell: object, *, seasonal: bool = False) -> float | None:
    """The second of the week of a point in time, by the clock as written; None if the cell is none.

    With `seasonal` the whole weeks since New Year are added, as many as bring it nearest to the second of the year.
    """
    moment = moment_of(cell)
    if moment is None:
        return None
    seconds = moment.hour * 3600 + moment.minute * 60 + moment.second
    weeks = round((moment.timetuple().tm_yday - 1 - moment.weekday()) / 7) if seasonal else 0
    return weeks * WEEK_S + moment.weekday() * DAY_S + seconds + moment.microsecond / 1e6


def instants(cells: Cells) -> list[float]:
    """The points in time of a column, to order them: seconds since 1970 by the clock as written; the earliest for others."""
    found: list[float] = []
    for cell in cells:
        moment = moment_of(cell)
        if moment is None:
            found.append(-math.inf)
        else:
            found.append((moment.replace(tzinfo=UTC) - EPOCH).total_seconds())
    return found


def circular(seconds: Float32, *, seasonal: bool = False) -> Float32:
    """Seconds of the week (n, ...) as inputs (n, 4 or 6, ...): sine and cosine in the day, the week, and with `seasonal` the
    year; zeros for NaN."""
    exact = seconds.astype(np.float64)
    periods = (DAY_S, WEEK_S, YEAR_S) if seasonal else (DAY_S, WEEK_S)
    angles = [2 * np.pi * exact / period for period in periods]
    inputs = [wave(angle) for angle in angles for wave in (np.sin, np.cos)]
    stacked: Float32 = np.stack(inputs, axis=1).astype(np.float32)
    stacked[np.isnan(stacked)] = 0.0
    return stacked
