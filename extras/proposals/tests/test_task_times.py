"""Points in time as inputs: what needs `proposals`."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

from covey.shared.scenario.task import Task
from tests.agent.test_task_columns import written


def test_a_trend_is_proposed_where_it_pays_on_the_latest_rows(tmp_path: Path) -> None:
    from covey.extras.proposals.proposal import checked, propose
    from covey.extras.proposals.proposal_data import describe

    def device(name: str, slope: float) -> str:
        begin = date(2024, 1, 1)
        rows = [
            f"{begin + timedelta(days=day)},{day * day % 7},{slope * day + day * day % 5}"
            for day in range(60)
        ]
        return str(written(tmp_path, "when,x,y", *(f"{row}.5" for row in rows), name=name))

    def proposed(slope: float) -> Task:
        return checked(propose([describe(device(f"{name}.csv", slope)) for name in "ab"])).task

    rising = proposed(1)
    assert rising.elapsed == ("when",)
    assert rising.features == (6,)
    assert proposed(0).elapsed == ()
