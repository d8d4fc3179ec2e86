"""What ``perfctl show`` says of a run beside its findings and tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfctl.orchestrator.report.terminal import run_views
from tests.make import synthetic


@pytest.mark.parametrize(
    ("rank", "world_size", "text"),
    [
        (3, 8, "3 of 8; 'perfctl report' shows the ranks as one job"),
        (3, None, "3; 'perfctl report' shows the ranks as one job"),
        (0, 1, None),
        (None, None, None),
    ],
)
def test_a_rank_names_the_number_of_ranks_and_what_shows_them(
    rank: int | None, world_size: int | None, text: str | None
) -> None:
    run = synthetic.foreign_run(1)
    run = replace(run, report=replace(run.report, rank=rank, world_size=world_size))
    *_, about = run_views(run)
    facts = {row[0].text: row[1].text for row in about.tables[0].rows}
    assert facts.get("rank") == text
